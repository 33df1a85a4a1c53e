"""128-bit products equal those of Python's integers."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy import uint64

from mgpu_ngram.kernels.common.wide_products import wide_product
from mgpu_ngram.kernels.compile_cpu import njit
from mgpu_ngram.kernels.intrinsics import multiply_high

NUMBERS = st.integers(0, 2**64 - 1)


@given(numbers=st.lists(NUMBERS, min_size=1), factor=NUMBERS)
def test_of_arrays(numbers, factor):
    upper, lower = wide_product(np.array(numbers, np.uint64), factor)
    assert list(zip(upper.tolist(), lower.tolist(), strict=True)) == [divmod(a * factor, 2**64) for a in numbers]


@njit()
def upper(a, b):
    return multiply_high(uint64(a), uint64(b))


@given(a=NUMBERS, b=NUMBERS)
def test_in_compiled_code(a, b):
    assert upper(np.uint64(a), np.uint64(b)) == a * b >> 64
