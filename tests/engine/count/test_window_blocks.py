"""Counts of shards from their windows, against collections.Counter."""

from collections import Counter

import numpy as np
import pytest

from mgpu_ngram.core.counts.tables import ShardedTable
from mgpu_ngram.engine.count import window_blocks
from mgpu_ngram.engine.count.count_chunk import Codes
from mgpu_ngram.engine.count.lexicon import Lexicon
from mgpu_ngram.engine.count.suffix_order import in_text_order, sort_by_first_word, tables_of_windows
from mgpu_ngram.engine.count.text_ids import TextIds, select_keys, take_keys
from mgpu_ngram.engine.count.window_blocks import Least, Windows
from mgpu_ngram.engine.memory.budget import Budget
from mgpu_ngram.kernels import check
from mgpu_ngram.kernels.common.radix_sort import radix_sort
from mgpu_ngram.kernels.dispatch import to_host
from tests.support.slow_cases import first_fast

SYMBOLS, SHARDS, ORDER = 40, 5, 4
BITS = check.code_bits(SYMBOLS)
ALL = Least(1, 5)


@pytest.fixture
def texts(to_device):
    """Three streams of lines, as lists of codes, and as two `TextIds`."""
    rng = np.random.default_rng(0)
    streams = [np.minimum(rng.zipf(1.4, size), SYMBOLS).astype(np.uint32) for size in (700, 1, 300)]
    for codes in streams:
        codes[rng.random(len(codes)) < 0.1] = 0
    coded = [Codes(to_device(codes), len(codes)) for codes in streams]
    return [codes.tolist() for codes in streams], [TextIds(coded[:2], (0,)), TextIds(coded[2:], (1,))]


@pytest.fixture
def lexicon():
    shard_V = np.random.default_rng(1).integers(0, SHARDS, SYMBOLS).astype(np.uint16)
    return Lexicon("word", SYMBOLS, 1000, np.empty(0, np.uint64), np.empty(0, np.int32), SHARDS, shard_V)


def ngrams_of(streams, n):
    windows = (codes[i : i + n] for codes in streams for i in range(len(codes) - n + 1))
    return Counter(tuple(window) for window in windows if 0 not in window)


def budget_of(device):
    return Budget(device, 4 << 30, 4 << 30)


@pytest.fixture
def counted(device, texts, lexicon, monkeypatch, tmp_path, to_counters):
    """Return a function: {(order, shard): Counter} of some shards, and the sum of what blocks left out by order."""

    def count(shards, most_windows=None, added=None, least=ALL):
        pieces = [take_keys(select_keys([text], (0, SHARDS), lexicon, ORDER, device), shards) for text in texts[1]]
        if most_windows:
            monkeypatch.setattr(window_blocks, "sort_bytes_per_token", lambda order, bits: 0)
            room = most_windows * window_blocks.RESORTED_BYTES
            monkeypatch.setattr(window_blocks, "room_bytes", lambda budget: room)
        blocks = Windows(pieces, shards, lexicon, ORDER).blocks(added or {}, budget_of(device), least, str(tmp_path))
        found, left_out = {}, Counter()
        for block in blocks:
            for i, counter in enumerate(to_counters(block.table)):
                found.setdefault((block.table.order, block.first + i), Counter()).update(counter)
            left_out[block.table.order, "n-grams"] += block.left_out[0]
            left_out[block.table.order, "counts"] += block.left_out[1]
        return found, left_out

    return count


def expected_of(streams, lexicon, shards):
    found = {(n, shard): Counter() for n in range(2, ORDER + 1) for shard in range(*shards)}
    for n in range(2, ORDER + 1):
        for ngram, count in ngrams_of(streams, n).items():
            shard = int(lexicon.shard_V[ngram[-2] - 1])
            if (n, shard) in found:
                found[n, shard][ngram] = count
    return found


@pytest.mark.parametrize("shards", [(0, SHARDS), (1, 3), (4, 5), (2, 2)])
@pytest.mark.parametrize("most_windows", first_fast([None, 400, 30, 1]))
def test_counts(shards, most_windows, counted, texts, lexicon):
    """All shards at once, one after another, and in slices."""
    found, left_out = counted(shards, most_windows)
    assert found == expected_of(texts[0], lexicon, shards)
    assert not any(left_out.values())


def test_slices_have_the_windows_that_fit():
    columns = [np.arange(2 * rows).reshape(2, rows) for rows in (3, 4, 10, 1)]
    slices = [np.concatenate(pieces, axis=1) for pieces in window_blocks._in_slices(iter(columns), 5)]
    assert [rows.shape for rows in slices] == [(2, 5), (2, 5), (2, 5), (2, 3)]
    assert (np.concatenate(slices, axis=1) == np.concatenate(columns, axis=1)).all()


@pytest.mark.parametrize("most_windows", [None, 30])
def test_added_tables(most_windows, counted, texts, lexicon, to_sharded):
    added = {(n, shard): Counter({(1, 2, 3, 4)[4 - n :]: 7 + shard}) for n in (2, 4) for shard in range(1, 4)}
    tables = {n: [to_sharded([added[n, shard] for shard in range(1, 4)], n, BITS)] for n in (2, 4)}
    assert all(isinstance(table, ShardedTable) for [table] in tables.values())
    found, _ = counted((1, 4), most_windows, tables, Least(3, 1))
    expected = expected_of(texts[0], lexicon, (1, 4))
    for key, counter in added.items():
        expected[key] += counter
    assert {key: found[key] for key in added} == {key: expected[key] for key in added}, "no n-gram is left out"


@pytest.mark.parametrize(("count", "top"), [(2, 1), (3, 5), (50, 4), (10**6, 3), (10**6, 0)])
def test_rare_ngrams_are_left_out(count, top, counted, texts, lexicon):
    """A shard keeps all n-grams of a count, and its `top` most frequent ones with all that are as frequent."""
    for shard in range(SHARDS):
        found, left_out = counted((shard, shard + 1), least=Least(count, top))
        for (n, _), counter in expected_of(texts[0], lexicon, (shard, shard + 1)).items():
            kept, least = found[n, shard], sorted(counter.values(), reverse=True)[:top]
            wanted = {ngram for ngram, c in counter.items() if c >= min([count, *least])}
            assert wanted <= set(kept) and kept.items() <= counter.items()
            assert left_out[n, "n-grams"] == len(counter) - len(kept)
            assert left_out[n, "counts"] == counter.total() - kept.total()
            frequent = {ngram for ngram, c in counter.items() if c >= count}
            if len(frequent) >= top:
                assert set(kept) == frequent


@pytest.mark.parametrize(
    ("bits", "order"), [(6, 2), (6, 5), (21, 3), (21, 5), (28, 4), (11, 7), (32, 4), (16, 6), (10, 12)]
)
def test_text_order(bits, order, device, to_device, unpack_keys, pack_keys):
    """With room for row numbers beside the first words and without; codes of 28 bits lack one bit, of 11 bits none."""
    rng = np.random.default_rng(bits)
    codes = [tuple(row) for row in rng.integers(1, min(1 << bits, 9), (500, order)).tolist()]
    suffix = [(row[-2], row[-1], *row[-3::-1]) for row in codes]
    tables = tables_of_windows(to_device(pack_keys(suffix, order, bits)), order, bits)
    table = in_text_order(tables[order])
    found = dict(zip(unpack_keys(table.keys, order, bits), table.counts.tolist(), strict=True))
    assert found == Counter(codes) and list(found) == sorted(found)
    sorted_keys = radix_sort(table.keys.copy(), order * bits)
    assert (sorted_keys == table.keys).all()


def test_rows_by_first_word(to_device):
    """b a </s>, <s> a b, <s> b a, a b a with codes <s> 2, a 4, b 5; then with a longer order below."""
    first_R, suffix_R = to_device(np.array([5, 2, 2, 4], np.uint64)), to_device(np.array([2, 3, 4, 4], np.uint32))
    rows, words = sort_by_first_word(first_R, suffix_R, None, 23)
    assert (rows.tolist(), words.tolist()) == ([1, 2, 3, 0], [2, 2, 4, 5])
    place_M = to_device(np.array([4, 3, 2, 0, 1], np.uint32))  # suffix 3 is first, then 4, then 2
    rows, words = sort_by_first_word(to_device(np.full(4, 7, np.uint64)), suffix_R, place_M, 32)
    assert (rows.tolist(), words.tolist()) == ([1, 2, 3, 0], [7, 7, 7, 7])


@pytest.mark.parametrize(("bits", "size"), [(6, 500), (21, 500), (32, 60), (17, 1), (17, 0)])
def test_rows_of_every_order_by_first_word(bits, size, to_device, unpack_keys, pack_keys):
    rng, order = np.random.default_rng(size), 6
    codes = [tuple(row) for row in rng.integers(1, min(1 << bits, 9), (size, order)).tolist()]
    suffix = [(row[-2], row[-1], *row[-3::-1]) for row in codes]
    tables, place_M = tables_of_windows(to_device(pack_keys(suffix, order, bits)), order, bits), None
    for n in range(3, order + 1):
        ngrams = [ngram[:1:-1] + ngram[:2] for ngram in unpack_keys(tables[n].keys, n, bits)]  # first word first
        below = {ngram[:1:-1] + ngram[:2]: m for m, ngram in enumerate(unpack_keys(tables[n - 1].keys, n - 1, bits))}
        first_R = to_device(np.array([ngram[0] for ngram in ngrams], np.uint64))
        suffix_R = to_device(np.array([below[ngram[1:]] for ngram in ngrams], np.uint32))
        rows, words = sort_by_first_word(first_R, suffix_R, place_M, bits)
        assert [ngrams[row] for row in rows.tolist()] == sorted(ngrams)
        assert words.tolist() == sorted(first_R.tolist())
        place_M = to_device(np.argsort(to_host(rows)).astype(np.uint32))
