"""Turn compact blocks of distributions into rows: `mgpu_ngram.compact.densify`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mgpu_ngram.cluster.devices import cpu_cores, resolve_device
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.models.compact import CompactBlock
from mgpu_ngram.core.models.row_options import RowOptions
from mgpu_ngram.engine.distribution.next_word import densify_block
from mgpu_ngram.engine.memory.out_of_memory import memory_guard
from mgpu_ngram.engine.torch.out_arrays import writable

__all__ = ["CompactBlock", "densify"]


def densify(
    block: CompactBlock,
    device: str = "auto",
    orders: str | int | Iterable[int] = "all",
    mode: str = "smoothed",
    scale: str = "prob",
    dtype: str = "float32",
    out: Any = None,
) -> Any:
    """Return the rows of a block, (H, orders, V), bit for bit those of `Model.distribution`.

    device  device that makes the rows: "auto", "cpu" or "gpu"

    The other arguments are those of `Model.distribution`. `block.parts(rows)` divides large blocks.
    """
    if not isinstance(block, CompactBlock):
        raise InputError(f"block is {type(block).__name__} but must be a CompactBlock from iter_distributions")
    device = resolve_device(device)
    if block.prob_V is None:
        raise InputError("the block lacks the probabilities of single words; add them with block.with_words(prob_V)")
    options = RowOptions.of(block.order, orders, mode, scale, dtype)
    shape = len(block), len(options.orders), len(block.prob_V)
    target = None if out is None else writable(out, shape, dtype, device)
    with memory_guard(f"making rows of shape {shape}", device, "cut the block into block.parts(rows)"):
        made = densify_block(block, options, device, cpu_cores(), target)
    return made if out is None else out
