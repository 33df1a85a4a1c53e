"""Search in sorted numbers; include/sorted_search.cuh has `first_from` for a GPU."""

from __future__ import annotations

import numpy as np
from numpy import uint64

from ..compile_cpu import njit
from ..intrinsics import prefetch

BUCKET_NUMBERS, MAX_BUCKET_BITS = 4, 22  # about so many numbers share a bucket; buckets take up to 16 MB
TOGETHER = 64  # searches that run in step, so that they wait for memory together


@njit(nogil=True, cache=True)
def first_from(numbers, first, end, number):
    """Return the first index from `first` to `end` - 1 whose number is at least `number`, else `end`; numbers rise."""
    low, high = first, end
    while low < high:
        middle = (low + high) // 2
        if numbers[middle] < number:
            low = middle + 1
        else:
            high = middle
    return low


def buckets_of(numbers):
    """Return (B + 1,) uint32: where numbers begin whose first bits are 0, 1, ..., B - 1, and their end.

    numbers  (H,) uint64, rising, H < 2**32. If they are spread evenly, as hashes are, buckets are small
    """
    bits = min(max(1, (len(numbers) // BUCKET_NUMBERS).bit_length()), MAX_BUCKET_BITS)
    limits = np.arange(1, 1 << bits, dtype=np.uint64) << uint64(64 - bits)
    return np.concatenate([[0], np.searchsorted(numbers, limits), [len(numbers)]]).astype(np.uint32)


@njit(nogil=True, cache=True)
def find_in_buckets(numbers, starts, sought):
    """Return (Q,) int64, the first row whose number is at least the sought one, as NumPy's searchsorted; `starts` is
    the result of `buckets_of`. Three loops over some numbers: each brings to the cache what the next one reads.
    """
    shift, bits = uint64(64), len(starts) - 1
    while bits > 1:
        shift, bits = shift - uint64(1), bits >> 1
    found = np.empty(len(sought), np.int64)
    for begin in range(0, len(sought), TOGETHER):
        end = min(begin + TOGETHER, len(sought))
        for q in range(begin, end):
            prefetch(starts, np.int64(sought[q] >> shift))
        for q in range(begin, end):
            if len(numbers):
                prefetch(numbers, min(np.int64(starts[sought[q] >> shift]), len(numbers) - 1))
        for q in range(begin, end):
            bucket = sought[q] >> shift
            found[q] = first_from(numbers, np.int64(starts[bucket]), np.int64(starts[bucket + uint64(1)]), sought[q])
    return found
