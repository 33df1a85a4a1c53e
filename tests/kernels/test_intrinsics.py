"""Instructions that Numba lacks, beside Python's integers."""

import numpy as np
import pytest

from mgpu_ngram.kernels.compile_cpu import njit
from mgpu_ngram.kernels.intrinsics import leading_zeros, multiply_high, trailing_zeros

WORDS = [1, 2, 3, 255, 256, 1 << 31, (1 << 33) + 5, 0x8000000000000001, 0xFFFFFFFFFFFFFFFF, 0x0123456789ABCDEF]


@njit()
def zeros(x):
    return leading_zeros(x), trailing_zeros(x)


@njit()
def upper_half(a, b):
    return multiply_high(a, b)


@pytest.mark.parametrize("word", WORDS)
def test_zeros_around_the_set_bits(word):
    assert zeros(np.uint64(word)) == (64 - word.bit_length(), f"{word:064b}"[::-1].index("1"))


@pytest.mark.parametrize("a", WORDS)
def test_upper_half_of_a_product(a):
    assert [upper_half(np.uint64(a), np.uint64(b)) for b in WORDS] == [a * b >> 64 for b in WORDS]
