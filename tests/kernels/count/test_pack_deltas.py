"""Packed differences: the examples of the format's description, and values that pyarrow reads back."""

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mgpu_ngram.core.counts.parquet_deltas import DELTA_BINARY_PACKED, DeltaWriter, page_of
from mgpu_ngram.core.storage.output import Sink
from mgpu_ngram.kernels.count.pack_deltas import Numbers, numbers_of_word, pack_deltas, whole_numbers
from mgpu_ngram.kernels.dispatch import to_host

LEAST, MOST = -(2**63), 2**63 - 1


def pages_of(values, starts, to_device):
    numbers = whole_numbers(to_device(np.array(values, np.int64)))
    found = pack_deltas([numbers, numbers], starts)
    data, (cuts, again) = to_host(found.data).tobytes(), found.starts_CP1
    pages = [data[a:b] for a, b in pairwise(cuts)]
    assert cuts[0] == 0 and cuts[-1] == again[0] and again[-1] == len(data)
    assert [data[a:b] for a, b in pairwise(again)] == pages
    ranges = [list(zip(*numbers, strict=True)) for numbers in zip(*map(listed, found[2:]), strict=True)]
    assert ranges[0] == ranges[1]
    return pages, ranges[0]


def listed(numbers):
    return to_host(numbers).tolist()


def test_the_examples_of_the_format(to_device):
    """1, 2, 3, 4, 5 and 7, 5, 3, 1, 2, 3, 4, 5 of Encodings.md, with blocks of 128 values and parts of 32."""
    pages, ranges = pages_of([1, 2, 3, 4, 5, 7, 5, 3, 1, 2, 3, 4, 5, -9], [0, 5, 13, 14], to_device)
    assert [page.hex(" ") for page in pages] == [
        "80 01 04 05 02 02 00 00 00 00",
        "80 01 04 08 0e 03 02 00 00 00 c0 3f 00 00 00 00 00 00",
        "80 01 04 01 11",
    ]
    assert ranges == [(1, 5), (1, 7), (-9, -9)]


def read_back(folder, pages, sizes):
    path = folder / "values.parquet"
    with open(path, "wb") as file, DeltaWriter(Sink(file), [("value", "int64")]) as writer:
        for page, rows in zip(pages, sizes, strict=True):
            writer.write(rows, [page_of([page], DELTA_BINARY_PACKED, (0, 0))])
    return pq.read_table(path, columns=["value"])["value"]


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1), bits=st.integers(1, 63), starts=st.sets(st.integers(1, 700), max_size=6),
)  # fmt: skip
def test_pyarrow_reads_the_values_back(seed, bits, starts, to_device, tmp_path_factory):
    values = np.random.default_rng(seed).integers(-(1 << bits - 1), 1 << bits - 1, 701)
    values[100:200] = values[100]  # widths of 0
    values[300:310] = LEAST, MOST, LEAST, MOST, 0, -1, 1, LEAST, LEAST, MOST  # differences of 65 bits wrap
    cuts = [0, *sorted(starts), 701]
    pages, ranges = pages_of(values, cuts, to_device)
    parts = [values[a:b] for a, b in zip(cuts, cuts[1:], strict=False)]
    assert ranges == [(part.min(), part.max()) for part in parts]
    found = read_back(tmp_path_factory.mktemp("pages"), pages, map(len, parts))
    assert found == pa.chunked_array([pa.array(part) for part in parts])


@pytest.mark.parametrize("bits", [1, 13, 27, 32])
def test_words_of_keys_are_ids(bits, to_device):
    order, rng = 5, np.random.default_rng(bits)
    codes = [[int(code) for code in row] for row in rng.integers(0, 1 << bits, (50, order))]
    columns = -(-order * bits // 64)
    keys = np.zeros((columns, 50), np.uint64)
    for r, row in enumerate(codes):
        whole = sum(code << (64 * columns - (n + 1) * bits) for n, code in enumerate(row))
        for c in range(columns):
            keys[c, r] = whole >> 64 * (columns - 1 - c) & (1 << 64) - 1
    for n in range(order):
        packed = pack_deltas([numbers_of_word(to_device(keys), bits, n)], [0, 50])
        ids = [row[n] - 1 for row in codes]
        assert (packed.least_CP[0, 0], packed.most_CP[0, 0]) == (min(ids), max(ids))


def test_wrong_types_are_refused():
    with pytest.raises(TypeError, match="expected uint64 but got int64"):
        pack_deltas([Numbers(np.zeros(3, np.int64), np.zeros(3, np.uint64))], [0, 3])
    whole, gaps = np.zeros(3, np.uint64), np.zeros((3, 2), np.uint64)[:, 0]
    with pytest.raises(ValueError, match="high_1 is not C-contiguous"):
        pack_deltas([Numbers(whole, whole), Numbers(gaps, gaps)], [0, 3])
