"""The loss of a mixture of distributions and its gradient, beside PyTorch's cross entropy on the same logits."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from mgpu_ngram.benchmarks.decode.generated_model import SEED, fastest
from mgpu_ngram.benchmarks.decode.logits_pass import PASS_DTYPES, random_rows
from mgpu_ngram.benchmarks.decode.peers import as_torch, choose_threads, has_torch, release_torch
from mgpu_ngram.benchmarks.harness.machine_rates import device_seconds
from mgpu_ngram.benchmarks.harness.rows import Row
from mgpu_ngram.benchmarks.harness.suite import Suite, WrongResult
from mgpu_ngram.benchmarks.harness.units import ROWS_PER_SECOND

SHAPES = {"gpu": ((4_096, 32_768), (8_192, 131_072)), "cpu": ((64, 4_096),)}  # rows and words
COUNTS = 8  # distributions; so rows are aligned
SLOWER = 1.15  # than the fastest cross entropy, at most
CHECKED = 8  # rows that are compared
LOSS_TOLERANCE = 1e-4
GRADIENT_TOLERANCES = {"float32": 1e-5, "float16": 1e-3, "bfloat16": 4e-3}  # stored numbers are rounded
PEER_TOLERANCES = {"float32": 1e-5, "float16": 1e-3, "bfloat16": 8e-3}  # relative: PyTorch rounds losses, too
PASSES = 3  # over the logits: two reads and a write


def mixture(suite: Suite) -> None:
    """Rows by shape and dtype: losses alone, then losses and gradients, PyTorch's and ours."""
    if not has_torch():
        suite.say("PyTorch is not installed, so mixtures are not measured")
        return
    for R, V in SHAPES[suite.device]:
        for dtype in PASS_DTYPES:
            sizes = f"rows={R} V={V} counts={COUNTS} dtype={dtype}"
            suite.say(f"mixtures: {sizes}")
            _rows(suite, sizes, as_torch(random_rows(suite, (R, V + COUNTS), dtype)), V, dtype)
            release_torch(suite.device)
            suite.release()


def _rows(suite: Suite, sizes: str, logits: Any, V: int, dtype: str) -> None:
    import torch

    from mgpu_ngram.torch import mixture_loss

    rng, R = np.random.default_rng(SEED), len(logits)
    logits.requires_grad_()
    target = torch.from_numpy(rng.integers(0, V, R)).to(logits.device)
    log_probs = torch.from_numpy(np.log(rng.random((R, COUNTS), np.float32))).to(logits.device)

    def ours() -> Any:
        return mixture_loss(logits, log_probs, target, V)

    def cross_entropy() -> Any:
        return torch.nn.functional.cross_entropy(logits, target, reduction="none")

    def gradient(loss: Callable[[], Any]) -> Any:
        return torch.autograd.grad(loss().sum(), logits)

    def add(name: str, call: Callable[[], Any], passes: int, **more: Any) -> Row:
        return suite.add(
            f"fusion/{name}", sizes, device_seconds(call, suite.device), items=R, unit=ROWS_PER_SECOND, ceiling="copy",
            bytes_moved=passes * logits.numel() * logits.element_size(), **more,
        )  # fmt: skip

    choose_threads(cross_entropy, suite.device)
    _check(ours(), logits, log_probs, target, V, dtype)
    with torch.no_grad():
        add("mixture, loss alone", ours, 1)
    peers = []
    for name, loss in ("torch", cross_entropy), ("torch.compile", torch.compile(cross_entropy, dynamic=False)):
        _check_peer(name, loss, logits, target, V, dtype)
        peers.append(add(f"mixture {name}", partial(gradient, loss), PASSES))
    best = fastest(peers)
    rate = None if suite.device == "cpu" else R / best["baseline_seconds"] / SLOWER
    add("mixture", partial(gradient, ours), PASSES, target=rate, notes=f"target: {SLOWER} x the time", **best)


def _check_peer(name: str, peer: Callable[[], Any], logits: Any, target: Any, V: int, dtype: str) -> None:
    """Raise WrongResult unless the peer's losses and gradients equal the mixture's if all counts give probability 0.

    These count distributions only take weight, like words that are not targets, so the mixture is the softmax over all
    columns.
    """
    import torch

    from mgpu_ngram.torch import mixture_loss

    no_counts = torch.full((len(logits), COUNTS), -torch.inf, device=logits.device)
    losses, expected = mixture_loss(logits, no_counts, target, V), peer()
    error = ((losses - expected).abs() / (1 + losses)).max().item()
    gradient, of_peer = (torch.autograd.grad(of_rows.sum(), logits)[0] for of_rows in (losses, expected))
    of_gradient = max(
        (a.float() - b.float()).abs().max().item()
        for a, b in zip(gradient.split(CHECKED), of_peer.split(CHECKED), strict=True)
    )
    if not (error <= PEER_TOLERANCES[dtype] and of_gradient <= GRADIENT_TOLERANCES[dtype]):
        raise WrongResult(
            f"losses of {name} differ by a share of {error:.3g} from ours, gradients by {of_gradient:.3g}; not timed"
        )


def _check(losses: Any, logits: Any, log_probs: Any, target: Any, V: int, dtype: str) -> None:
    """Raise WrongResult unless some losses and gradients are those of the definition in float64."""
    import torch

    rows = slice(0, len(logits), -(-len(logits) // CHECKED))
    gradient = torch.autograd.grad(losses.sum(), logits)[0][rows].double()
    z = logits.detach()[rows].double().requires_grad_()
    weights = z.softmax(1)
    of_counts = (weights[:, V:] * log_probs[rows].double().exp()).sum(1)
    expected = -(of_counts + weights.gather(1, target[rows, None])[:, 0]).log()
    wanted = torch.autograd.grad(expected.sum(), z)[0]
    error, of_gradient = ((a - b).abs().max().item() for a, b in ((losses[rows], expected), (gradient, wanted)))
    if not (error <= LOSS_TOLERANCE and of_gradient <= GRADIENT_TOLERANCES[dtype]):
        raise WrongResult(
            f"losses differ by {error:.3g} from those of the definition, gradients by {of_gradient:.3g}; not timed"
        )
