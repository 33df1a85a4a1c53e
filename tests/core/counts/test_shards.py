"""Words are assigned to shards, and words are read out of packed keys."""

import heapq

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mgpu_ngram.core.counts.shards as shards_module
from mgpu_ngram.core.counts.shards import PartLimits, deal_words, num_shards, split_words, words_at
from mgpu_ngram.kernels.count.ngram_keys import ngram_keys


@pytest.mark.parametrize(
    ("tokens", "unit", "shards"),
    [(0, "word", 1), (4 << 20, "word", 1), ((4 << 20) + 1, "id", 2), (10**12, "word", 1024), (3 << 30, "byte", 3)],
)
def test_number_of_shards(tokens, unit, shards):
    assert num_shards(tokens, unit) == shards


def test_number_of_shards_refuses_an_unknown_unit():
    with pytest.raises(ValueError, match="letter"):
        num_shards(1, "letter")


@pytest.mark.parametrize(
    ("tokens", "workers", "parts"),
    [(0, 1, 1), (160, 1, 1), (161, 1, 2), (200, 1, 2), (201, 1, 3), (0, 4, 4), (400, 4, 4), (401, 4, 8)],
)
def test_number_of_parts(tokens, workers, parts):
    """One part of 160 tokens, or parts of up to 100, as many for each worker."""
    assert PartLimits(workers, workers, 100, 160, 3).num_parts(tokens, 10) == parts


@pytest.mark.parametrize(("tokens", "parts"), [(0, 1), (160, 1), (161, 4), (400, 4), (401, 8)])
def test_number_of_parts_where_one_part_is_best(tokens, parts):
    """One part although there are four workers, if it fits."""
    assert PartLimits(1, 4, 100, 160, 3).num_parts(tokens, 10) == parts


@pytest.mark.parametrize(
    ("order", "symbols", "alone"),
    [(5, (1 << 25) - 1, 160), (2, 1 << 30, 160), (5, 1 << 25, 136), (6, 1000, 160), (6, 1 << 25, 113)],
)
def test_only_part_with_long_keys(order, symbols, alone):
    """Bytes of a word: 2 * 16 + (1 + 1 + 2 + 2 + 2 + 5) * 8 + 2 = 138 with order 5 and 25 bits. With 26 bits, order 5
    has 3 columns: 138 + 16 + 8 = 162. Order 6, which has 3, too: 162 + 24 + 8 = 194. Shorter keys count as much.
    """
    limits = PartLimits(1, 4, 100, 160, order)
    assert [limits.num_parts(tokens, symbols) for tokens in (alone, alone + 1)] == [1, 4]


def test_deal_by_hand():
    # 9 -> shard 0; 5 -> 1; 5 -> 2; then 4 -> 1 (5, lowest of 5 and 5), 3 -> 2; 0 -> 2 (8 of 9, 9, 8)
    shard_V = deal_words(np.array([5, 9, 5, 0, 4, 3]), 3)
    assert shard_V.dtype == np.uint16
    assert shard_V.tolist() == [1, 0, 2, 2, 1, 2]


def deal_one_by_one(masses, S):
    """Assign the heaviest first, each to the lightest shard so far; ties by rising number."""
    shards = [(0, s) for s in range(S)]
    dealt = [0] * len(masses)
    for i in sorted(range(len(masses)), key=lambda i: (-masses[i], i)):
        mass, s = heapq.heappop(shards)
        dealt[i] = s
        heapq.heappush(shards, (mass + masses[i], s))
    return dealt


@given(st.lists(st.integers(0, 50), max_size=60), st.integers(4, 12))
def test_few_words_are_assigned_one_by_one(counts, S):
    assert deal_words(np.array(counts, np.int64), S).tolist() == deal_one_by_one(counts, S)


def test_a_single_shard_takes_all():
    assert deal_words(np.array([3, 1, 2]), 1).tolist() == [0, 0, 0]
    assert deal_words(np.zeros(0, np.int64), 5).tolist() == []


@given(st.integers(0, 2**32), st.integers(2, 5), st.integers(0, 400))
def test_many_words_are_assigned_in_bundles(seed, S, V):
    counts = np.random.default_rng(seed).integers(0, 100, V).tolist()
    heaviest = sorted(range(V), key=lambda v: (-counts[v], v))
    alone, rest = heaviest[: 16 * S], heaviest[16 * S :]
    items = [[v] for v in alone] + [rest[i :: 16 * S] for i in range(16 * S)]
    expected = [0] * V
    for item, shard in zip(items, deal_one_by_one([sum(counts[v] for v in i) for i in items], S), strict=True):
        for v in item:
            expected[v] = shard
    assert deal_words(np.array(counts, np.int64), S).tolist() == expected


@given(st.integers(0, 2**32), st.integers(1, 5), st.integers(0, 400), st.integers(0, 9))
def test_counts_that_fall_are_dealt_in_blocks(seed, S, V, unordered):
    """Equal to the words of a plain sort; a few words at the beginning are in any order, and some are split."""
    rng = np.random.default_rng(seed)
    head, rest = rng.integers(0, 30, unordered).tolist(), rng.integers(0, 20, V).tolist()
    split = np.flatnonzero(rng.random(unordered) < 0.3 * rng.integers(2)).tolist()
    counts = [*head, *sorted(rest, reverse=True)]
    masses = np.array([count // 4 if v in split else count for v, count in enumerate(counts)], np.int64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards_module, "RANKS_AT_ONCE", 1)  # blocks are rounded up: of 16 S words
        found = deal_words(np.array(counts, np.int64), S, unordered, split)
        if not split:
            assert deal_words(np.array(counts, np.int64), S).tolist() == found.tolist()
    assert found.dtype == np.uint16 and found.tolist() == deal_words(masses, S).tolist()


@pytest.mark.parametrize(("S", "V"), [(2, 30_000), (5, 100_000), (16, 100_000), (64, 30_000), (300, 100_000)])
@pytest.mark.parametrize("by_rank", [True, False])
def test_bundles_balance_as_well_as_single_words(S, V, by_rank):
    rng = np.random.default_rng(S)
    rates_V = 1 / np.arange(1.0, V + 1)  # Zipf's law
    counts_V = rng.poisson(rates_V * S * 300_000 / rates_V.sum())
    if not by_rank:  # token ids are ordered by value
        rng.shuffle(counts_V)
    masses = [
        np.sort(np.bincount(shard_V, counts_V, S))
        for shard_V in (deal_words(counts_V, S), deal_one_by_one(counts_V.tolist(), S))
    ]
    assert np.abs(masses[0] - masses[1]).max() <= 0.01 * counts_V.sum() / S


@pytest.mark.parametrize("S", [0, 1025])
def test_deal_refuses_too_many_shards(S):
    with pytest.raises(ValueError, match="1..1024"):
        deal_words(np.ones(3, np.int64), S)


@settings(deadline=None)  # the first call compiles
@given(st.integers(1, 32), st.integers(1, 7), st.integers(1, 20), st.randoms(use_true_random=False))
def test_words_at_every_position(bits, order, rows, random):
    codes = [[random.randrange(1, 2**bits) for _ in range(order)] for _ in range(rows)]
    stream = np.array([code for row in codes for code in row], np.uint32)
    keys = ngram_keys(stream, order, bits, positions_R=np.arange(rows) * order)
    for n in range(order):
        assert words_at(keys, order, bits, n).tolist() == [row[n] for row in codes]


def test_words_at_refuses_a_position_outside():
    with pytest.raises(ValueError, match=r"outside 0\.\.1"):
        words_at(np.zeros((1, 1), np.uint64), 2, 8, 2)


def test_split_words_by_hand():
    """Words heavier than 100 / 5 are split, at most the 16 heaviest; specials are never split."""
    counts_V = np.array([0, 25, 25, 22, 20, 6, 2])
    assert split_words(counts_V, 1) == () and split_words(counts_V, 4) == ()
    assert split_words(counts_V, 5) == (3,) and split_words(counts_V, 6) == (3, 4)
    assert split_words(np.full(40, 7), 41) == tuple(range(3, 19))


@pytest.mark.gpu
def test_words_dealt_on_the_gpu_are_the_same():
    cupy = pytest.importorskip("cupy")
    shard_V = deal_words(np.arange(2**19), 100)
    assert deal_words(cupy.arange(2**19), 100).get().tolist() == shard_V.tolist()
    falling_V = np.concatenate([[7, 0, 90_000], np.arange(2**17)[::-1]])
    shards = [deal_words(xp.asarray(falling_V), 9, 5, (3, 4)) for xp in (np, cupy)]
    assert shards[0].tolist() == shards[1].get().tolist()
