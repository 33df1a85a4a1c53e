"""The histogram kernels alone, raw bytes to bins, beside other libraries' histograms."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from mgpu_ngram.benchmarks.count.byte_ngrams import DENSE_ORDERS, TARGETS, Text, plan_for
from mgpu_ngram.benchmarks.count.traffic import bins_bytes
from mgpu_ngram.benchmarks.harness.suite import Suite
from mgpu_ngram.benchmarks.harness.units import NGRAMS_PER_SECOND
from mgpu_ngram.benchmarks.inputs import oracles
from mgpu_ngram.engine.count.strategy import OrderPlan
from mgpu_ngram.kernels.count.histogram_global import histogram_global
from mgpu_ngram.kernels.count.histogram_private import count_bytes, histogram_private
from mgpu_ngram.kernels.dispatch import to_host

KERNELS = (
    ("histogram_global", histogram_global, 1),
    ("histogram_private K=1", histogram_private, 1),
    ("histogram_private K=128", partial(histogram_private, histograms=128), 128),
)


def run(suite: Suite, text: Text) -> None:
    """All histogram kernels on one text."""
    suite.say("byte histograms, kernels alone")
    _count_bytes(suite, text)
    for n in DENSE_ORDERS:
        for name, kernel, histograms in KERNELS:
            _histogram(suite, text, n, name, kernel, histograms)
        # The paper's own setting: 256**n bins whatever the text, which ended its V1 at n = 4.
        whole_alphabet = Text(text.text_B, np.arange(256), np.arange(1, 257, dtype=np.uint16))
        _histogram(suite, whole_alphabet, n, *KERNELS[0])


def _histogram(suite: Suite, text: Text, n: int, name: str, kernel: Any, histograms: int) -> None:
    plan = plan_for(suite, text, n, "private", histograms)
    if not isinstance(plan, OrderPlan):
        suite.add_note(f"bytes/{name}", text.sizes(n), plan)
        return

    expected = oracles.checksum_of_windows(text.text_B, n, text.symbols, text.lut)

    def verify(bins_A: Any) -> None:
        """Each bin must count its own windows: reversed or swapped bins have the right total, not the checksum."""
        oracles.check_total(int(bins_A.sum(dtype=np.int64)), len(text) - n + 1, f"{name} at n={n}, windows")
        oracles.check_total(oracles.checksum_of_bins(bins_A), expected, f"{name} at n={n}, checksum of the bins")

    suite.run(
        f"bytes/{name}",
        text.sizes(n),
        partial(kernel, text.text_B, n, text.symbols, text.lut),
        check=verify,
        items=len(text),
        unit=NGRAMS_PER_SECOND,
        bytes_moved=len(text) + bins_bytes(n, text.symbols, histograms, suite.device),
        ceiling="read",
        target=TARGETS[n] if suite.device == "gpu" else None,
        notes="raw bytes to bins",
    )


def _count_bytes(suite: Suite, text: Text) -> None:
    """Order 1, ours and others'."""
    T, text_B = len(text), text.text_B
    expected = to_host(suite.xp.bincount(text_B, minlength=256))

    def verify(bins: Any) -> None:
        wrong = int((to_host(bins) != expected).sum())
        oracles.check_total(wrong, 0, "bins of order 1 that differ from bincount's")

    def row(kernel: str, call: Any, target: float | None = None) -> None:
        suite.run(
            kernel, f"T={T} n=1", call, check=verify, items=T, unit=NGRAMS_PER_SECOND, bytes_moved=T, ceiling="read",
            target=target,
        )  # fmt: skip

    row("bytes/count_bytes", partial(count_bytes, text_B), TARGETS[1] if suite.device == "gpu" else None)
    row(f"bytes/peer {suite.xp.__name__}.bincount", partial(suite.xp.bincount, text_B, minlength=256))
    if suite.device == "gpu":
        try:
            import torch
        except ImportError:
            return
        tensor = torch.as_tensor(text_B, device="cuda")  # no copy; both libraries use the default stream
        row("bytes/peer torch.bincount", lambda: suite.xp.asarray(torch.bincount(tensor, minlength=256)))
        torch.cuda.empty_cache()
