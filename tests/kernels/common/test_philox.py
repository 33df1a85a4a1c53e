"""The random numbers of topic models are those of Philox4x32-10."""

import numpy as np
import pytest

from mgpu_ngram.kernels.common.philox import random_bits, random_numbers

# (counter, key, first two words of the result) from the known answers of Random123 (Salmon et al., 2011)
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E)),
    ((0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0), (0xD16CFE09, 0x94FDCCEB)),
]


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN)
def test_known_answers(counter, key, words):
    document = counter[0] | counter[3] >> 2 << 32
    bits = random_bits(np.uint64(key[0] | key[1] << 32), counter[3] & 3, counter[2], document, counter[1])
    assert int(bits) == words[0] | words[1] << 32


@pytest.mark.filterwarnings("error")
def test_numbers_are_spread_evenly():
    numbers = random_numbers(7, 2, np.arange(100_000), 3)
    assert numbers.min() >= 0 and numbers.max() < 1
    in_tenths = np.histogram(numbers, 10, (0, 1))[0]
    assert ((in_tenths - 10_000) ** 2 / 10_000).sum() < 27.9  # chi-square, 9 degrees, 0.1 %
    for documents in (1, 5):
        assert (random_numbers(7, 2, np.arange(documents), 3) == numbers[:documents]).all()
    assert (random_numbers(8, 2, np.arange(5), 3) != numbers[:5]).all()
