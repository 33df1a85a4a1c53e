"""128-bit products of 64-bit numbers."""

from __future__ import annotations

from typing import Any

import numpy as np


def wide_product(a: Any, factor: int) -> tuple[Any, Any]:
    """Return (upper, lower) 64 bits of uint64 numbers times a factor < 2**64 (Knuth, vol. 2, 4.3.1, algorithm M)."""
    half, lower = np.uint64(32), np.uint64(0xFFFFFFFF)
    a_low, a_high, b_low, b_high = a & lower, a >> half, np.uint64(factor & 0xFFFFFFFF), np.uint64(factor >> 32)
    middle = a_high * b_low + (a_low * b_low >> half)
    carry = (a_low * b_high + (middle & lower)) >> half
    return a_high * b_high + (middle >> half) + carry, a * np.uint64(factor)
