"""Search in sorted numbers; include/sorted_search.cuh has the same function for a GPU."""

from __future__ import annotations

from ..compile_cpu import njit


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
