"""Options for rows of distributions, and the number of rows that fit memory."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.kernels.distribution.scale_values import SCALES
from mgpu_ngram.kernels.distribution.top_words import MAX_TOP_K

MODES = ("smoothed", "stored")
ROW_DTYPES: dict[str, np.dtype] = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(np.uint16),
}
ROW_ALIGNMENT_BYTES = 128  # alignment of allocated rows: memory is written in units of this size
BLOCK_SHARE = 0.25  # share of the free memory for a block of rows: the caller has one while the next is made
MAX_BLOCK_BYTES = {"gpu": 4 << 30, "cpu": 64 << 20}
MAX_BLOCK_ROWS = 1 << 20  # limit for short rows, because histories take memory, too
FOUND_BYTES = 64  # approximate bytes per found history, with copies


@dataclass(frozen=True)
class RowOptions:
    """Options of rows. Picklable.

    orders  orders of the rows, rising, 1 to the order of the model
    mode    "smoothed": with backoff; "stored": the probabilities of stored n-grams only
    scale   "prob", or "log10" or "ln" of the probability, where a missing n-gram is -inf
    dtype   "float32", "float16" or "bfloat16"
    top_k   only the k most probable words of each row, most probable first; None: all words
    """

    orders: tuple[int, ...]
    mode: str = "smoothed"
    scale: str = "prob"
    dtype: str = "float32"
    top_k: int | None = None

    @classmethod
    def of(
        cls,
        order: int,
        orders: str | int | Iterable[int] = "all",
        mode: str = "smoothed",
        scale: str = "prob",
        dtype: str = "float32",
        top_k: int | None = None,
    ) -> RowOptions:
        """Return options for a model of order `order`. Raises InputError for unknown or contradictory options.

        orders  "all", "max" (only the highest), a number, several numbers, or a string of numbers with commas
        """
        check_option("mode", mode, MODES)
        check_option("scale", scale, SCALES)
        check_option("dtype", dtype, ROW_DTYPES)
        if top_k is not None:
            if isinstance(top_k, bool) or not isinstance(top_k, (int, np.integer)) or not 1 <= top_k <= MAX_TOP_K:
                raise InputError(f"top_k is {top_k!r:.60} but must be 1 to {MAX_TOP_K:,}; leave it out for all words")
            if dtype != "float32":
                raise InputError(f"dtype is {dtype} but the values of top_k are float32; leave dtype out")
        return cls(_parsed(orders, order), mode, scale, dtype, None if top_k is None else int(top_k))

    @property
    def nothing(self) -> float | None:
        """The value of words without a stored n-gram; None for smoothed rows."""
        if self.mode == "smoothed":
            return None
        return 0.0 if self.scale == "prob" else -np.inf

    def row_bytes(self, symbols: int) -> int:
        """Return the bytes of all rows of one history."""
        if self.top_k:
            return len(self.orders) * self.top_k * 8
        return len(self.orders) * symbols * ROW_DTYPES[self.dtype].itemsize


def check_option(name: str, value: Any, known: Iterable[str]) -> None:
    """Raise InputError unless the value of an option is one of the known ones."""
    if not isinstance(value, str) or value not in known:
        raise InputError(f"{name} is {value!r:.60} but must be {' or '.join(known)}")


def check_flag(name: str, value: Any) -> None:
    """Raise InputError unless a value is True or False, or 1 or 0."""
    if value is True or value is False:
        return
    is_number = isinstance(value, (int, np.bool_, np.integer))
    if not is_number or value not in (0, 1):
        raise InputError(f"{name} is {value!r:.60} but must be True or False")


def _parsed(orders: Any, order: int) -> tuple[int, ...]:
    """Return the `orders` argument of `RowOptions.of` as rising, distinct numbers."""
    if isinstance(orders, str):
        orders = {"all": range(1, order + 1), "max": [order]}.get(orders, orders)
    several = [orders] if isinstance(orders, (int, np.integer)) and not isinstance(orders, bool) else orders
    try:
        if isinstance(several, str):
            several = map(int, several.split(","))
        numbers = sorted({operator.index(n) for n in several})
    except (TypeError, ValueError):
        raise InputError(f"orders is {orders!r:.60} but must be all, max or numbers such as 1,2,{order}") from None
    if not numbers or numbers[0] < 1 or numbers[-1] > order:
        raise InputError(
            f"orders is {orders!r:.60} but the model has orders 1 to {order}; give some of these, all or max"
        )
    return tuple(numbers)


def block_rows(options: RowOptions, symbols: int, device: str, free_bytes: int) -> int:
    """Return the number of histories in a block of rows: as many as fit a share of the free memory, at least 1."""
    room = min(int(BLOCK_SHARE * free_bytes), MAX_BLOCK_BYTES[device])
    one = options.row_bytes(symbols)
    if not options.top_k:  # rows are padded to the alignment
        together = len(options.orders) * ROW_ALIGNMENT_BYTES
        one = -(-one // together) * together
    rows = room // (one + FOUND_BYTES * options.orders[-1])
    return max(1, min(rows, MAX_BLOCK_ROWS))
