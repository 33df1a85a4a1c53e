"""The words of mixtures at inference: whole rows, and the best words without rows."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from mgpu_ngram.api.model import Model
from mgpu_ngram.benchmarks.decode.logits_pass import random_rows
from mgpu_ngram.benchmarks.decode.peers import as_torch, has_torch, release_torch
from mgpu_ngram.benchmarks.harness.machine_rates import device_seconds
from mgpu_ngram.benchmarks.harness.rows import Row
from mgpu_ngram.benchmarks.harness.suite import Suite, WrongResult
from mgpu_ngram.benchmarks.harness.units import ROWS_PER_SECOND
from mgpu_ngram.benchmarks.inputs.fusion_text import GeneratedText
from mgpu_ngram.engine.states.torch_mixture import tensor_rows, tensor_top

ROWS, WORDS = {"gpu": 512, "cpu": 8}, {"gpu": 131_072, "cpu": 1_000}
ORDERS = 5, 3  # orders of the n-gram models
K = 10
DTYPES = "float32", "float16"
TOLERANCE = 1e-4


def words(suite: Suite) -> None:
    """Rows by dtype: whole rows of a mixture of two n-gram models, the best words of them, and those without rows."""
    if not has_torch():
        suite.say("PyTorch is not installed, so words of mixtures are not measured")
        return
    import torch

    from mgpu_ngram.torch import MixtureOfDistributions, NGramLM

    R, V = ROWS[suite.device], WORDS[suite.device]
    suite.say(f"words of mixtures of {V:,} words")
    language = GeneratedText(suite, V)
    tokens = list(language.words)[-V:]
    models = [NGramLM(Model(language.model(order), suite.device), tokens) for order in ORDERS]
    history = torch.from_numpy(language.histories(R, max(ORDERS)) - (len(language.words) - V))
    layer = MixtureOfDistributions(1, V, len(models))
    for dtype in DTYPES:
        logits = as_torch(random_rows(suite, (R, layer.logits.out_features), dtype))
        logits[:, V : V + len(models)] += 8  # models have about the weight of all words
        states = torch.stack([_states(model, history.to(logits.device)) for model in models], 1).to(torch.int32)
        sizes = f"rows={R} V={V} models={len(models)} dtype={dtype}"
        _rows(suite, sizes, logits, models, states)
        release_torch(suite.device)
        suite.release()


def _states(model: Any, history: Any) -> Any:
    """Return the states after histories, (R,)."""
    states = model.get_init_states(len(history))
    for tokens in history.T:
        states = model.step(states, tokens.contiguous())
    return states


def _rows(suite: Suite, sizes: str, logits: Any, models: list[Any], states: Any) -> None:
    import torch

    (R, _), N, V = logits.shape, len(models), models[0].vocab_size

    def counts() -> Any:
        return torch.stack([model.advance(states[:, i])[0].exp() for i, model in enumerate(models)], 1)

    def whole(rows: Any) -> Any:
        weights = logits[:, : V + N].float().softmax(-1)
        return weights[:, :V] + (weights[:, None, V:] @ rows)[:, 0]

    def best_of_rows() -> Any:
        return whole(counts()).topk(K)

    def ours() -> Any:
        return tensor_top(logits, V, K, [model._states for model in models], states)

    def add(name: str, call: Callable[[], Any], bytes_moved: int, **more: Any) -> Row:
        return suite.add(
            f"fusion/words {name}", sizes, device_seconds(call, suite.device), items=R, unit=ROWS_PER_SECOND,
            ceiling="copy", bytes_moved=bytes_moved, **more,
        )  # fmt: skip

    rows, read = counts(), R * V * logits.element_size()
    expected, found = whole(rows), ours()
    if not torch.allclose(found[0], expected.topk(K)[0], rtol=TOLERANCE, atol=0):
        raise WrongResult("the best words have other probabilities than the best of whole rows; not timed")
    if not torch.allclose(tensor_rows(logits, V, rows), expected, rtol=TOLERANCE, atol=0):
        raise WrongResult("whole rows differ from PyTorch's; not timed")
    del expected
    moved, notes = read + 4 * R * V * (N + 1), "the models' rows are there"
    peer = add("whole rows by PyTorch", partial(whole, rows), moved, notes=notes)
    best = {"baseline": peer.kernel, "baseline_seconds": peer.median_seconds}
    add("whole rows", partial(tensor_rows, logits, V, rows), moved, notes=notes, **best)
    del rows
    peer = add(f"best {K} of whole rows by PyTorch", best_of_rows, read)
    add(f"best {K}", ours, read, baseline=peer.kernel, baseline_seconds=peer.median_seconds)
