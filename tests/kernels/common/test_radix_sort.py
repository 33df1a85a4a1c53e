"""Sort rows as Python's sort, which is stable, does."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mgpu_ngram.kernels.common.radix_sort import radix_sort
from mgpu_ngram.kernels.dispatch import to_host


def key_of(row, key_bits):
    """Return the first `key_bits` bits of a row."""
    number = 0
    for column in row:
        number = number << 64 | column
    return number >> (64 * len(row) - key_bits)


def sorted_rows(rows, key_bits):
    return sorted(rows, key=lambda row: key_of(row, key_bits))


def run(rows, key_bits, to_device, columns=None):
    array = np.array(rows, np.uint64).reshape(len(rows), columns or len(rows[0])).T
    found = radix_sort(to_device(np.ascontiguousarray(array)), key_bits)
    assert found.dtype == np.uint64
    return [tuple(row) for row in to_host(found).T.tolist()]


@st.composite
def cases(draw):
    """Draw rows of 1 to 4 columns; keys have few distinct values, and the bits after the key are cleared."""
    columns = draw(st.integers(1, 4))
    key_bits = draw(st.integers(1, 64 * columns))
    keys = draw(st.lists(st.integers(0, 2**key_bits - 1), min_size=1, max_size=4))
    key_columns = -(-key_bits // 64)
    rows = []
    for i, k in enumerate(draw(st.lists(st.integers(0, len(keys) - 1), max_size=60))):
        number = keys[k] << (64 * key_columns - key_bits)
        row = [number >> 64 * (key_columns - 1 - c) & (2**64 - 1) for c in range(key_columns)]
        rows.append((*row, *[2**64 - 1 - i] * (columns - key_columns)))  # the payload tells equal keys apart
    return rows, key_bits, columns


def test_by_hand(to_device):
    rows = [(3 << 62, 1), (1 << 62, 2), (3 << 62, 0), (0, 9)]
    assert run(rows, 2, to_device) == [(0, 9), (1 << 62, 2), (3 << 62, 1), (3 << 62, 0)]
    assert run(rows, 128, to_device) == [(0, 9), (1 << 62, 2), (3 << 62, 0), (3 << 62, 1)]
    assert run(rows, 0, to_device) == rows
    assert run([], 5, to_device, columns=2) == []


@given(cases())
def test_against_pythons_sort(to_device, case):
    rows, key_bits, columns = case
    assert run(rows, key_bits, to_device, columns) == sorted_rows(rows, key_bits)


@pytest.mark.parametrize("key_bits", [1, 7, 8, 9, 63, 64, 65, 75, 95, 128, 130])
def test_many_rows(key_bits, to_device):
    """More rows than one tile of the CUDA kernel (6144), and not a multiple of it."""
    rng = np.random.default_rng(key_bits)
    columns = np.zeros((4, 20_001), np.uint64)
    for c in range(-(-key_bits // 64)):
        used = min(64, key_bits - 64 * c)
        columns[c] = np.minimum(rng.zipf(1.1, columns.shape[1]), 2**used - 1 if used < 63 else 2**62).astype(np.uint64)
        columns[c] <<= np.uint64(64 - used)
    columns[3] = np.arange(columns.shape[1])
    order = np.lexsort(columns[: -(-key_bits // 64)][::-1])
    assert (to_host(radix_sort(to_device(columns), key_bits)) == columns[:, order]).all()


@pytest.mark.parametrize("kind", ["sorted", "falling", "equal", "one digit differs"])
def test_special_orders(kind, to_device):
    R = 7000
    key_R = {
        "sorted": np.arange(R),
        "falling": np.arange(R)[::-1],
        "equal": np.full(R, 12345),
        "one digit differs": np.arange(R) % 3 << 16,
    }[kind].astype(np.uint64)
    columns = np.stack([key_R, np.arange(R, dtype=np.uint64)])
    found = to_host(radix_sort(to_device(columns), 64))
    assert (found == columns[:, np.argsort(key_R, kind="stable")]).all()


def test_a_key_wider_than_its_columns_is_refused():
    with pytest.raises(ValueError, match="a key of 65 bits needs 2 columns but there are 1"):
        radix_sort(np.zeros((1, 3), np.uint64), 65)
    with pytest.raises(TypeError, match="expected uint64"):
        radix_sort(np.zeros((1, 3), np.int64), 64)
