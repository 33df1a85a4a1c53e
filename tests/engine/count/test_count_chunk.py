"""Pass 2, compared with collections.Counter: every strategy, any parts, and out-of-memory errors."""

import itertools
import lzma
import pickle
import weakref
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mgpu_ngram.core.counts.shards import deal_words
from mgpu_ngram.core.counts.tables import Table
from mgpu_ngram.core.counts.vocabulary import Vocabulary
from mgpu_ngram.core.errors import InputError, RunError
from mgpu_ngram.core.inputs.corpus import open_corpus
from mgpu_ngram.core.inputs.in_memory import Lines
from mgpu_ngram.engine.count import count_chunk as count_module
from mgpu_ngram.engine.count import sorted_runs as runs_module
from mgpu_ngram.engine.count.count_chunk import (
    Codes,
    CountOptions,
    bins_to_table,
    count_chunk,
    count_streams,
    dense_orders,
    empty_table,
    pack_codes,
    plan_orders,
    shard_bins,
    split,
    unigram_tables,
)
from mgpu_ngram.engine.count.lexicon import UNFINISHED_CODE, Lexicon
from mgpu_ngram.engine.count.merge_vocabularies import merge_vocabularies
from mgpu_ngram.engine.count.number_symbols import number_symbols
from mgpu_ngram.engine.count.sentence_markers import mark_sentences
from mgpu_ngram.engine.count.sorted_runs import merge_runs
from mgpu_ngram.engine.count.strategy import OrderPlan
from mgpu_ngram.engine.count.token_streams import TokeniseOptions
from mgpu_ngram.engine.count.tokenise import tokenise
from mgpu_ngram.engine.count.top_ngrams import heaviest
from mgpu_ngram.engine.memory import blocks as blocks_module
from mgpu_ngram.engine.memory.budget import Budget, device_limited
from mgpu_ngram.engine.memory.stopwatch import Stopwatch
from mgpu_ngram.kernels import check
from mgpu_ngram.kernels.dispatch import on_gpu, to_host

STRATEGIES = ("global", "private", "sort", "hash")
MIXED = ("global", "sort", "hash", "sort", "private")  # each order by another strategy
SHARDS = 3  # shards of the corpora here; small ones have only one


def plans_of(order, strategy):
    names = MIXED[:order] if strategy == "mixed" else [strategy] * order
    return [OrderPlan(n, name, "asked for", 0) for n, name in enumerate(names, 1)]


def lexicon_of(symbols, num_shards=1, shard_V=None):
    """Return counting options for streams that are already in global codes."""
    nothing = np.empty(0, np.int64)
    return Lexicon("word", symbols, 1000, nothing, nothing, num_shards, shard_V)


def count_all(streams, symbols, budget, plans, histograms=1):
    """Return the tables of streams by order; histograms as tables, too."""
    options = CountOptions(budget, max((p.order for p in plans), default=1), histograms=histograms)
    tables, bins = count_streams(streams, lexicon_of(symbols), plans, options)
    tables += [bins_to_table(b, n, symbols, check.code_bits(symbols)) for n, b in bins.items()]
    return sorted(tables, key=lambda table: table.order)


def windows(codes, order, owned=None):
    """Return a Counter of the whole windows that start in the first `owned` codes."""
    starts = range(min(len(codes) if owned is None else owned, len(codes) - order + 1))
    found = Counter(tuple(codes[t : t + order]) for t in starts)
    return {ngram: count for ngram, count in found.items() if 0 not in ngram}


def test_mark_sentences_by_hand(to_device):
    def marked(codes):
        found = mark_sentences(to_device(np.array(codes, np.uint32)))
        assert found.dtype == np.uint32
        return to_host(found).tolist()

    assert marked([5, 6, 0, 7, 0]) == [2, 5, 6, 3, 0, 2, 7, 3, 0]
    assert marked([5, UNFINISHED_CODE, 6, 0, 7, UNFINISHED_CODE]) == [
        2,
        5,
        0,
        0,
        2,
        6,
        3,
        0,
        2,
        7,
        0,
        0,
    ]  # a 0 for </s>
    assert marked([0, 0, 9, 0]) == [2, 3, 0, 2, 3, 0, 2, 9, 3, 0]  # an empty line is also a sentence
    assert marked([]) == []


@given(lines=st.lists(st.lists(st.integers(4, 9), max_size=5), max_size=8))
def test_mark_sentences_against_lists(to_device, lines):
    codes = [c for line in lines for c in [*line, 0]]
    expected = [c for line in lines for c in [2, *line, 3, 0]]
    assert to_host(mark_sentences(to_device(np.array(codes, np.uint32)))).tolist() == expected


CODES = st.lists(st.integers(0, 3), max_size=60)


@pytest.mark.parametrize("strategy", [*STRATEGIES, "mixed"])
@given(streams=st.lists(CODES, max_size=3), order=st.integers(1, 5))
def test_strategies_against_counter(strategy, ample, to_device, to_counter, streams, order):
    codes = [Codes(to_device(np.array(s, np.uint32)), len(s)) for s in streams]
    tables = count_all(codes, 3, ample, plans_of(order, strategy), histograms=2)
    assert [t.order for t in tables] == list(range(1, order + 1))
    for n, table in enumerate(tables, 1):
        assert to_counter(table) == dict(sum((Counter(windows(s, n)) for s in streams), Counter()))
        assert table.bits == 2


@pytest.mark.parametrize("strategy", [*STRATEGIES, "mixed"])
def test_windows_start_in_the_owned_part_only(strategy, ample, to_device, to_counter):
    codes = np.random.default_rng(1).integers(0, 5, 200)
    for owned in (0, 1, 100, 197, 200):
        stream = Codes(to_device(codes.astype(np.uint32)), owned)
        for n, table in enumerate(count_all([stream], 4, ample, plans_of(4, strategy)), 1):
            assert to_counter(table) == windows(codes.tolist(), n, owned)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_raw_bytes_with_their_codes(strategy, ample, to_device, to_counter):
    text = np.frombuffer(b"abracadabra, abracadabra", np.uint8)
    lut = np.zeros(256, np.uint16)
    lut[list(b" ,abcdr")] = np.arange(1, 8)
    codes = lut[text].tolist()
    stream = Codes(to_device(text), 20, lut)
    for n, table in enumerate(count_all([stream], 7, ample, plans_of(4, strategy)), 1):
        assert to_counter(table) == windows(codes, n, 20)


def test_only_the_given_orders_are_counted(ample, to_device, to_counter):
    """As `auto` plans: order 1 comes from the vocabulary."""
    codes = np.random.default_rng(2).integers(0, 6, 300)
    plans = plans_of(4, "sort")
    some = [plans[1], replace(plans[2], strategy="hash"), plans[3]]
    stream = Codes(to_device(codes.astype(np.uint32)), 300)
    assert [to_counter(t) for t in count_all([stream], 5, ample, some)] == [
        windows(codes.tolist(), n) for n in (2, 3, 4)
    ]
    assert count_all([stream], 5, ample, []) == []


def test_dense_orders_are_histograms(ample, to_device):
    codes = to_device(np.array([1, 2, 1, 2, 2, 0], np.uint32))
    tables, bins = count_streams([Codes(codes, 6)] * 2, lexicon_of(2), plans_of(2, "global"), CountOptions(ample, 2))
    assert tables == [] and on_gpu(bins[1]) == on_gpu(bins[2]) == (ample.device == "gpu")
    assert {n: to_host(b).tolist() for n, b in bins.items()} == {1: [4, 6], 2: [0, 4, 2, 2]}  # 11, 12, 21, 22


def test_wide_keys(ample, to_device, to_counter):
    """Keys of two and three columns, with words that span columns."""
    codes = np.random.default_rng(3).choice([0, 1, 2**24, 2**25 - 1, 7], 300)
    stream = Codes(to_device(codes.astype(np.uint32)), 300)
    for strategy in ("sort", "hash"):
        for n, table in enumerate(count_all([stream], 2**25 - 1, ample, plans_of(6, strategy)), 1):
            assert table.bits == 25
            assert to_counter(table) == windows(codes.tolist(), n)


@pytest.fixture
def parts(monkeypatch):
    """Return parts(limit): count at most `limit` tokens at once. Returns the list of the parts' sizes."""

    def force(limit):
        sizes = []

        def sparse(part, *arguments):
            sizes.append(part.owned)
            return real(part, *arguments)

        real = count_module._sparse
        monkeypatch.setattr(count_module, "_part_tokens", lambda *_: limit)
        monkeypatch.setattr(count_module, "_sparse", sparse)
        return sizes

    return force


@pytest.mark.parametrize("strategy", [*STRATEGIES, "mixed"])
@pytest.mark.parametrize("limit", [1, 2, 7, 150])
def test_parts_make_no_difference(strategy, limit, ample, to_device, to_counter, parts):
    codes = np.random.default_rng(4).integers(0, 4, 150)
    streams = [Codes(to_device(codes.astype(np.uint32)), 130), Codes(to_device(codes[:9].astype(np.uint32)), 9)]
    sizes = parts(limit)
    for n, table in enumerate(count_all(streams, 3, ample, plans_of(4, strategy)), 1):
        expected = Counter(windows(codes.tolist(), n, 130)) + Counter(windows(codes[:9].tolist(), n))
        assert to_counter(table) == dict(expected)
    assert max(sizes) <= limit and sum(sizes) == 139


def test_parts_follow_the_available_memory(device, monkeypatch):
    options = CountOptions(Budget(device, 0, 0))
    # 0.8 of it, 130 bytes per token (see test_plan); held results exceed the limit and leave a negative rest
    for working_bytes, tokens in [(10**9, 800_000_000 // 130), (0, 1 << 16), (-(10**9), 1 << 16), (10**15, 1 << 31)]:
        monkeypatch.setattr(Budget, "working_bytes", lambda self, found=working_bytes: found)
        assert count_module._part_tokens(19, plans_of(5, "sort"), options) == tokens


@pytest.fixture
def little_memory(monkeypatch):
    """Return little_memory(most): parts of more than `most` tokens run out of memory. Returns the attempted sizes."""

    def force(most, error=MemoryError):
        tried = []

        def sparse(part, *arguments):
            tried.append(part.owned)
            if part.owned > most:
                raise error
            return real(part, *arguments)

        real = count_module._sparse
        monkeypatch.setattr(count_module, "_sparse", sparse)
        monkeypatch.setattr(count_module, "MIN_PART_TOKENS", 4)
        return tried

    return force


def test_out_of_memory_halves_the_parts(ample, to_device, to_counter, little_memory):
    codes = np.random.default_rng(5).integers(0, 4, 150)
    tried = little_memory(20)
    streams = [Codes(to_device(codes.astype(np.uint32)), 150), Codes(to_device(codes[:9].astype(np.uint32)), 9)]
    for n, table in enumerate(count_all(streams, 3, ample, plans_of(3, "sort")), 1):
        expected = Counter(windows(codes.tolist(), n)) + Counter(windows(codes[:9].tolist(), n))
        assert to_counter(table) == dict(expected)
    assert tried[:4] == [150, 75, 37, 18] and tried[-1] == 9


@pytest.mark.parametrize("strategy", ["sort", "mixed"])
def test_out_of_memory_in_a_later_part_counts_nothing_twice(strategy, ample, to_device, to_counter, monkeypatch):
    codes = np.random.default_rng(6).integers(0, 4, 150)
    calls = itertools.count()

    def sparse(part, *arguments):
        if next(calls) == 2:
            raise MemoryError
        return real(part, *arguments)

    real = count_module._sparse
    monkeypatch.setattr(count_module, "_sparse", sparse)
    monkeypatch.setattr(count_module, "_part_tokens", lambda *_: 40)
    monkeypatch.setattr(count_module, "MIN_PART_TOKENS", 4)
    stream = Codes(to_device(codes.astype(np.uint32)), 150)
    for n, table in enumerate(count_all([stream], 3, ample, plans_of(2, strategy)), 1):
        assert to_counter(table) == windows(codes.tolist(), n)
    assert next(calls) > 4  # memory ran out once, and counting continued


def test_tables_leave_a_full_device_before_parts_grow_too_small(to_counter, monkeypatch):
    """The fake device has room for the tables of two parts, and parts have the least size already."""
    codes = np.random.default_rng(6).integers(0, 4, 150)
    there = []

    def sparse(*arguments):
        if len(there) == 2:
            raise MemoryError
        there.extend(real_sparse(*arguments))
        return there[-1:]

    def leave(table, move):
        there[:] = [t for t in there if t is not table]
        return real_map_table(table, np.array)

    real_sparse, real_map_table = count_module._sparse, count_module.map_table
    monkeypatch.setattr(count_module, "_sparse", sparse)
    monkeypatch.setattr(count_module, "map_table", leave)
    monkeypatch.setattr(count_module, "on_gpu", lambda array: any(t.counts is array for t in there))
    monkeypatch.setattr(count_module, "_part_tokens", lambda *_: 20)
    monkeypatch.setattr(count_module, "MIN_PART_TOKENS", 20)
    (table,) = count_all([Codes(codes.astype(np.uint32), 150)], 3, Budget("cpu", 0, 0), plans_of(1, "sort"))
    assert to_counter(table) == windows(codes.tolist(), 1)


def two_words(device):
    """Return a tokenised chunk of "of the of", and how it was read."""
    reading = TokeniseOptions(order=2, device=device)
    (chunk,) = open_corpus(Lines(["of the of"])).chunks(100)
    tokenised = tokenise(chunk, reading)
    return chunk, tokenised, number_symbols(tokenised.vocabulary, "word", False, 0, device)[0], reading


def test_persistent_out_of_memory_is_one_clear_error(device, ample, little_memory):
    tried = little_memory(0)
    with pytest.raises(RunError, match=r"out of (host|device) memory while counting n-grams"):
        count_chunk(*two_words(device), CountOptions(ample, 2, "sort"))
    # Four codes: halves would be below the least size. After the GPU, the host tries.
    assert tried == {"cpu": [4], "gpu": [4, 4]}[device]


def test_other_errors_are_not_swallowed(ample, to_device, little_memory):
    little_memory(0, ZeroDivisionError)
    with pytest.raises(ZeroDivisionError):
        count_all([Codes(to_device(np.ones(150, np.uint32)), 150)], 3, ample, plans_of(2, "sort"))


def counters(order, bits):
    word = st.integers(1, min(2**bits - 1, 4))
    return st.dictionaries(st.tuples(*[word] * order), st.integers(1, 2**40), max_size=20)


@given(parts=st.lists(counters(3, 25), min_size=1, max_size=4))
def test_sum_of_parts(to_table, to_counter, parts):
    expected = dict(sum(map(Counter, parts), Counter()))
    tables = [to_table(part, 3, 25) for part in parts]
    assert to_counter(count_module._sum(*tables)) == expected
    assert to_counter(count_module._sum(empty_table(3, 25, tables[0].keys), *reversed(tables))) == expected


@pytest.mark.parametrize("order", [2, 3, 5])
@given(data=st.data(), shards=st.integers(1, 9))
def test_split_by_the_last_context_word(order, to_table, to_counters, data, shards):
    counter = data.draw(counters(order, 19))
    shard_V = np.array(data.draw(st.lists(st.integers(0, shards - 1), min_size=4, max_size=4)), np.uint16)
    found = split(to_table(counter, order, 19), lexicon_of(4, shards, shard_V))
    assert (found.order, found.bits) == (order, 19)
    assert to_counters(found) == [
        {g: c for g, c in counter.items() if shards == 1 or shard_V[g[order - 2] - 1] == s} for s in range(shards)
    ]


def test_split_into_many_shards(to_table, to_counters):
    """Rows of one shard stay sorted, even if rows of other shards lie between them."""
    rng = np.random.default_rng(7)
    counter = Counter(map(tuple, rng.integers(1, 3001, (5000, 2)).tolist()))
    shard_V = rng.integers(0, 1024, 3000).astype(np.uint16)
    expected = [{} for _ in range(1024)]
    for ngram, count in counter.items():
        expected[shard_V[ngram[0] - 1]][ngram] = count
    assert to_counters(split(to_table(counter, 2, 12), lexicon_of(3000, 1024, shard_V))) == expected


def test_order_1_is_in_shard_0(to_table, to_counters):
    counter = {(1,): 5, (4,): 2, (2,): 1}
    lexicon = lexicon_of(4, 3, np.array([2, 1, 0, 1], np.uint16))
    assert to_counters(split(to_table(counter, 1, 3), lexicon)) == [counter, {}, {}]


def vocabulary_of(counts):
    nothing = np.zeros(len(counts), np.int64)
    return Vocabulary("word", np.arange(len(counts) + 1), nothing, np.array(counts, np.int64), nothing, nothing)


def test_unigrams_come_from_the_vocabulary(to_counter, monkeypatch):
    monkeypatch.setattr(count_module, "SYMBOLS_AT_ONCE", 2)
    found = [to_counter(table) for table in unigram_tables(vocabulary_of([0, 4, 0, 9, 1]))]
    assert found == [{(2,): 4}, {(4,): 9}, {(5,): 1}]
    assert list(unigram_tables(vocabulary_of([]))) == []


@given(counts=st.lists(st.integers(0, 5), min_size=27, max_size=27), at_once=st.sampled_from([1, 4, 26, 100]))
def test_bins_to_table(to_device, to_counter, counts, at_once):
    bins = to_device(np.array(counts, np.uint32))
    ngrams = itertools.product([1, 2, 3], repeat=3)  # in the order of the bins
    expected = {g: c for g, c in zip(ngrams, counts, strict=True) if c}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(count_module, "BINS_AT_ONCE", at_once)
        assert to_counter(bins_to_table(bins, 3, 3, 2)) == expected
        assert to_counter(bins_to_table(bins, 1, 27, 5)) == {(i + 1,): c for i, c in enumerate(counts) if c}


@given(ngrams=st.lists(st.tuples(*[st.integers(1, 2**19 - 1)] * 5), max_size=20))
def test_pack_codes(to_device, pack_keys, ngrams):
    codes = [to_device(np.array([g[i] for g in ngrams], np.uint32)) for i in range(5)]
    assert to_host(pack_codes(codes, 19)).tolist() == pack_keys(ngrams, 5, 19).tolist()


@given(counter=counters(2, 25).map(lambda c: {g: n % 4 + 1 for g, n in c.items()}), k=st.integers(0, 25))
def test_heaviest_breaks_ties_by_key(pack_keys, counter, k):
    ngrams = sorted(counter)
    table = Table(pack_keys(ngrams, 2, 25), np.array([counter[g] for g in ngrams], np.int64), 2, 25)
    codes, counts = heaviest(table, k)
    expected = sorted(counter.items(), key=lambda item: (-item[1], item[0]))[:k]
    assert list(zip(map(tuple, codes.tolist()), counts.tolist(), strict=True)) == expected
    assert codes.shape == (len(expected), 2)


@pytest.mark.parametrize("times", [1, 2])
def test_cut_pieces_leave_a_full_device_before_the_host_continues(times, monkeypatch):
    """The fake device has no room to cut, once or twice."""
    failures, left = [MemoryError] * times, []

    def cut(table, lexicon):
        if failures:
            raise failures.pop()
        return f"{table.counts} cut"

    def leave(table, move):
        left.append(table.counts)
        return table

    for module in count_module, runs_module:
        monkeypatch.setattr(module, "on_gpu", lambda array: True)
        monkeypatch.setattr(module, "map_table", leave)
    monkeypatch.setattr(count_module, "split", cut)
    before = {n: [SimpleNamespace(counts=f"table {n}")] for n in (2, 3)}
    assert count_module._cut(SimpleNamespace(counts="table 4"), None, before) == "table 4 cut"
    assert left == ["table 2", "table 3", "table 4"][: times + 1] and list(before) == [2, 3]


class Cut:
    """A table with only an order."""

    counts = None

    def __init__(self, order):
        self.order = order


def test_tables_moved_off_a_full_device_free_its_memory(monkeypatch):
    """The last table fits only when all earlier tables have left the device."""
    failures, cut = [MemoryError], []

    def split(table, lexicon):
        if table.order == 4:
            if failures:
                raise failures.pop()
            assert [there() for there in cut] == [None, None]
        made = Cut(table.order)
        cut.append(weakref.ref(made))
        return made

    monkeypatch.setattr(count_module, "on_gpu", lambda array: True)
    monkeypatch.setattr(runs_module, "on_gpu", lambda array: True)
    monkeypatch.setattr(count_module, "map_table", lambda table, move: Cut(table.order))
    monkeypatch.setattr(count_module, "split", split)
    monkeypatch.setattr(count_module, "global_codes", lambda *_: [])
    monkeypatch.setattr(count_module, "count_streams", lambda *_: ([Cut(2), Cut(3), Cut(4)], {}))
    options = SimpleNamespace(budget=Budget("gpu", 100, 100))
    tables, _ = count_module._count(None, SimpleNamespace(symbols=9), [], [], options, Stopwatch("cpu"))
    assert list(tables) == [2, 3, 4] and len(cut) == 3 and not failures


def test_tables_of_a_run_that_will_spill_leave_the_device_at_once(monkeypatch):
    """If the device is expected to keep only little of the result."""
    left = []
    monkeypatch.setattr(Budget, "place", lambda self, nbytes: "host" if nbytes > 2 else "device")
    monkeypatch.setattr(count_module, "map_table", lambda table, move: left.append(table.order) or table)
    monkeypatch.setattr(
        count_module, "split", lambda table, lexicon: SimpleNamespace(order=table.order, nbytes=table.order)
    )
    monkeypatch.setattr(count_module, "global_codes", lambda *_: [])
    monkeypatch.setattr(count_module, "count_streams", lambda *_: ([Cut(2), Cut(3), Cut(4)], {}))
    for spills, expected in (False, []), (True, [3, 4]):
        options = SimpleNamespace(budget=Budget("gpu", 100, 100, spills=spills))
        count_module._count(None, SimpleNamespace(symbols=9), [], [], options, Stopwatch("cpu"))
        assert left == expected


def symbol_windows(sequences, order):
    return dict(sum((Counter(zip(*(s[i:] for i in range(order)), strict=False)) for s in sequences), Counter()))


def number_corpus(corpus, reading, chunk_bytes, markers=False):
    """Return the chunks of a corpus, each with its result of pass 1; the lexicon with SHARDS shards; the vocabulary."""
    chunks = corpus.chunks(chunk_bytes)
    tokenised = [tokenise(chunk, reading) for chunk in chunks]
    local = merge_vocabularies(*(t.vocabulary for t in tokenised))
    lexicon, vocabulary = number_symbols(local, reading.unit, markers, reading.seed, reading.device)
    shard_V = to_host(deal_words(vocabulary.counts_V, SHARDS))
    lexicon = pickle.loads(pickle.dumps(replace(lexicon, num_shards=SHARDS, shard_V=shard_V)))
    return list(zip(chunks, tokenised, strict=True)), lexicon, vocabulary


class Counted:
    """Return {symbols: count} of each order of a corpus, as a job computes it, without an executor."""

    def __init__(self, to_counters, corpus, reading, budget, strategy, chunk_bytes, markers=False):
        chunks, self.lexicon, self.vocabulary = number_corpus(corpus, reading, chunk_bytes, markers)
        options = CountOptions(budget, reading.order, strategy, sentence_markers=markers, streams=len(chunks))
        with pytest.MonkeyPatch.context() as patch:
            if strategy == "mixed":
                patch.setattr(count_module, "plan_orders", lambda *_: plans_of(reading.order, "mixed"))
            runs = [count_chunk(*chunk, self.lexicon, reading, options) for chunk in chunks]
        assert [r.chunks for r in runs] == [(chunk.index,) for chunk, _ in chunks]
        run = merge_runs(*runs)
        self.tables = {n: table for n, [table] in merge_runs(run, shard_bins(run, self.lexicon)).tables.items()}
        self._to_counters = to_counters

    def __getitem__(self, order):
        table = self.tables[order]
        assert table.order == order and table.bits == check.code_bits(len(self.vocabulary))
        shards = self._to_counters(table)
        for shard, counter in enumerate(shards):
            assert all(self.lexicon.shard_V[g[-2] - 1] == shard if order > 1 else shard == 0 for g in counter)
        symbol = self.vocabulary.symbol
        return {tuple(symbol(c - 1) for c in g): n for shard in shards for g, n in shard.items()}


LINES = st.lists(
    st.lists(st.sampled_from([b"a", b"b", b"<s>", b"\xff", b"c" * 20]), max_size=6), min_size=1, max_size=15
)


@pytest.mark.parametrize("strategy", [*STRATEGIES, "mixed"])
@settings(max_examples=25)
@given(lines=LINES, markers=st.booleans(), chunk_bytes=st.integers(1, 60), block_bytes=st.integers(1, 40))
def test_words_of_a_corpus(strategy, ample, to_counter, to_counters, lines, markers, chunk_bytes, block_bytes):
    corpus = open_corpus(Lines([b" ".join(line) for line in lines]))
    reading = TokeniseOptions(order=4, device=ample.device, block_bytes=block_bytes)
    counted = Counted(to_counters, corpus, reading, ample, strategy, chunk_bytes, markers)
    sentences = [[b"<s>", *line, b"</s>"] for line in lines] if markers else lines
    assert list(counted.tables) == [1, 2, 3, 4]
    for n in counted.tables:
        assert counted[n] == symbol_windows(sentences, n)
    assert to_counter(*unigram_tables(counted.vocabulary)) == to_counter(counted.tables[1].shard(0))
    assert counted.lexicon.tokens == sum(map(len, sentences))


@pytest.mark.parametrize("order", [1, 3])
def test_auto_leaves_order_1_to_the_vocabulary(order, ample, to_counters):
    lines = [b"of the of", b"", b"the end"]
    reading = TokeniseOptions(order=order, device=ample.device)
    counted = Counted(to_counters, open_corpus(Lines(lines)), reading, ample, "auto", 10)
    assert sorted(counted.tables) == list(range(2, order + 1))
    for n in counted.tables:
        assert counted[n] == symbol_windows([line.split() for line in lines], n)


def test_unigrams_need_no_second_read(device, ample):
    chunk, _, lexicon, reading = two_words(device)
    run = count_chunk(chunk, None, lexicon, reading, CountOptions(ample, order=1))
    assert run.tables == run.bins == run.seconds == {} and run.chunks == (chunk.index,)


@pytest.mark.parametrize("strategy", [*STRATEGIES, "mixed"])
@settings(max_examples=25)
@given(
    lines=st.lists(st.binary(max_size=12).map(lambda t: t.replace(b"\n", b"")), min_size=1, max_size=10),
    chunk_bytes=st.integers(1, 60),
    block_bytes=st.integers(1, 40),
)
def test_bytes_of_a_corpus(strategy, ample, to_counters, lines, chunk_bytes, block_bytes):
    reading = TokeniseOptions("byte", 3, device=ample.device, block_bytes=block_bytes)
    counted = Counted(to_counters, open_corpus(Lines(lines), "byte"), reading, ample, strategy, chunk_bytes)
    text = [bytes([v]) for line in lines for v in line + b"\n"]  # n-grams of bytes cross newlines
    assert list(counted.tables) == [1, 2, 3]
    for n in counted.tables:
        assert counted[n] == symbol_windows([text], n)


@pytest.mark.parametrize("strategy", ["sort", "mixed"])
def test_bytes_do_not_cross_files(strategy, ample, to_counters, tmp_path):
    texts = [b"abc", b"", b"bcd" * 10, b"a"]
    for i, text in enumerate(texts):
        (tmp_path / f"{i}").write_bytes(text)
    reading = TokeniseOptions("byte", 3, device=ample.device)
    counted = Counted(to_counters, open_corpus(str(tmp_path), "byte"), reading, ample, strategy, 1 << 20)
    for n in (1, 2, 3):
        assert counted[n] == symbol_windows([[bytes([v]) for v in text] for text in texts], n)


@pytest.mark.parametrize("strategy", [*STRATEGIES, "mixed"])
@settings(max_examples=25)
@given(
    ids=st.lists(st.integers(0, 5), min_size=1, max_size=60),
    separator=st.sampled_from([None, 0]),
    chunk_bytes=st.integers(2, 60),
    block_bytes=st.integers(2, 40),
)
def test_ids_of_a_corpus(strategy, ample, to_counters, ids, separator, chunk_bytes, block_bytes):
    reading = TokeniseOptions("id", 3, separator_id=separator, device=ample.device, block_bytes=block_bytes)
    counted = Counted(to_counters, open_corpus(np.array(ids), "id"), reading, ample, strategy, chunk_bytes)
    documents = [[]]
    for i in ids:
        documents = [*documents, []] if i == separator else [*documents[:-1], [*documents[-1], i.to_bytes(4, "little")]]
    for n in (1, 2, 3):
        assert counted[n] == symbol_windows(documents, n)


def test_golden_counts(ample, to_counters, shared_data):
    """`tiny.txt` has the stored counts, which collections.Counter made."""
    corpus = open_corpus(str(shared_data / "golden" / "inputs" / "tiny.txt"))
    reading = TokeniseOptions(device=ample.device)
    for kind, markers in ("plain", False), ("padded", True):
        counted = Counted(to_counters, corpus, reading, ample, "sort", 1 << 20, markers)
        for n in range(1, 6):
            expected = {}
            text = lzma.decompress((shared_data / "golden" / "counts" / f"tiny.{kind}.{n}.tsv.xz").read_bytes())
            for line in text.splitlines():
                ngram, count = line.split(b"\t")
                expected[tuple(ngram.split(b" "))] = int(count)
            assert counted[n] == expected


def contents(run, to_counters):
    """Return the contents of a run as plain values, without seconds."""
    tables = {n: [to_counters(table) for table in tables] for n, tables in run.tables.items()}
    return tables, {n: (b.dtype, to_host(b).tolist()) for n, b in run.bins.items()}, run.stored, run.chunks


TEXT = [b"of the of", b"", b"the end of the", b"of it"] * 5


def counted_twice(reading, budget, strategy, to_counters, chunk_bytes=40):
    """For several chunks, return the run counted from kept streams, and functions that count it again."""
    chunks, lexicon, _ = number_corpus(open_corpus(Lines(TEXT)), reading, chunk_bytes)
    assert len(chunks) > 2
    options = CountOptions(budget, reading.order, strategy, streams=len(chunks), chunks=len(chunks))
    for chunk, tokenised in chunks:

        def again(tokenised, chunk=chunk, reading=reading):
            return count_chunk(chunk, tokenised, lexicon, reading, options)

        yield contents(again(tokenised), to_counters), tokenised, again


@pytest.mark.parametrize("strategy", ["auto", *STRATEGIES])
def test_a_chunk_counted_again_gives_the_same_run(strategy, ample, to_counters):
    reading = TokeniseOptions(order=3, device=ample.device)
    for first, tokenised, again in counted_twice(reading, ample, strategy, to_counters):
        before = [to_host(s.tokens_T).tolist() for s in tokenised.streams]
        assert contents(again(tokenised), to_counters) == first
        assert [to_host(s.tokens_T).tolist() for s in tokenised.streams] == before
        other = pickle.loads(pickle.dumps(tokenised))  # as another worker receives it
        assert contents(again(other), to_counters) == first


@pytest.mark.parametrize("strategy", ["auto", "global", "sort"])
def test_without_streams_the_text_is_read_again(strategy, ample, to_counters):
    reading = TokeniseOptions(order=3, device=ample.device, budget=ample)
    for first, tokenised, again in counted_twice(reading, ample, strategy, to_counters):
        assert not {"read", "tokenise"} & set(again(tokenised).seconds)
        for lost in (None, replace(tokenised, streams=None)):
            run = again(lost)
            assert contents(run, to_counters) == first
            assert {"read", "tokenise", "count"} <= set(run.seconds)
        full = replace(reading, budget=Budget(ample.device, 0, 0))  # which keeps no streams, either
        assert contents(again(None, reading=full), to_counters) == first


def test_a_run_that_does_not_fit_is_spilled(ample, to_counters, tmp_path):
    full = Budget(ample.device, ample.device_bytes, 0)
    chunk, tokenised, lexicon, reading = two_words(ample.device)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Budget, "place", lambda self, nbytes: "disk")
        run = count_chunk(chunk, tokenised, lexicon, reading, CountOptions(full, 2, "sort", spill_folder=str(tmp_path)))
    assert run.tables == run.bins == {} and run.chunks == ()
    assert [s.chunks for s in run.stored] == [(chunk.index,)]
    assert [str(path) for path in tmp_path.iterdir()] == [run.stored[0].path]


DENSE = {"global": [1, 2, 3], "private": [1, 2, 3], "mixed": [1], "sort": [], "hash": []}


@pytest.mark.parametrize("strategy", DENSE)
def test_dense_orders_stay_histograms_while_they_fit(strategy, device, monkeypatch):
    """3 symbols: 3, 9 and 27 bins of 8 bytes per chunk, which may take a quarter of the bytes of a block."""
    plans, lexicon = plans_of(3, strategy), lexicon_of(3)
    monkeypatch.setattr(count_module, "plan_orders", lambda *_: plans)
    for chunks in (1, 10):
        enough = 4 * chunks * 8 * sum(3**n for n in DENSE[strategy])
        for block_bytes, expected in [(enough, DENSE[strategy]), (enough - 1, [])]:
            monkeypatch.setattr(Budget, "block_bytes", lambda self, found=block_bytes: found)
            options = CountOptions(Budget(device, 0, 0), 3, strategy, chunks=chunks)
            assert dense_orders(lexicon, options) == expected


@pytest.mark.parametrize("strategy", ["auto", "global", "private", "sort"])
@pytest.mark.parametrize("chunks_of_a_worker", [1, 10**6])
def test_every_chunk_keeps_the_same_orders_dense(strategy, chunks_of_a_worker, ample, to_counters):
    """This holds for any chunk: summing runs requires each order in the same form."""
    reading = TokeniseOptions("byte", 3, device=ample.device)
    lines = [b"", b"a", b"abc" * 20, b"", b"b" * 30, b"abcdefgh"] * 10
    chunks, lexicon, _ = number_corpus(open_corpus(Lines(lines), "byte"), reading, 50)
    options = CountOptions(ample, 3, strategy, streams=len(chunks), chunks=chunks_of_a_worker)
    dense = dense_orders(lexicon, options)
    orders = {1, 2, 3} - ({1} if strategy == "auto" else set())
    if strategy in ("global", "private"):
        assert dense == ([1, 2, 3] if chunks_of_a_worker == 1 else [])
    for chunk in chunks:
        run = count_chunk(*chunk, lexicon, reading, options)
        assert list(run.bins) == dense and set(run.tables) == orders - set(dense)


def test_a_histogram_beyond_the_budget_is_refused(device):
    """plan_orders uses the budget, not the memory of the machine."""
    lexicon = lexicon_of(1000)
    for tasks, host_bytes in (1, 5_000_000), (2, 10_000_000):  # 1000**2 bins of 4 bytes fit 0.8 of 5 MB
        options = CountOptions(Budget(device, 5_000_000, host_bytes, tasks), 2, "global")
        assert [p.strategy for p in plan_orders(lexicon, options)] == ["global"] * 2
        less = CountOptions(Budget(device, 4_999_990, host_bytes - 20, tasks), 2, "global")
        with pytest.raises(InputError, match="use strategy sort, hash or auto"):
            plan_orders(lexicon, less)


@pytest.fixture
def small_device():
    """A budget of 256 MiB of the GPU; its pool is empty and limited to the budget."""
    import cupy

    blocks_module._idle_rings.clear()
    cupy.get_default_memory_pool().free_all_blocks()
    budget = Budget("gpu", 256 << 20, 32 << 30)
    with device_limited(budget):
        yield budget


@pytest.mark.gpu
@pytest.mark.parametrize("strategy", ["auto", "hash"])
def test_a_table_larger_than_the_device_budget(strategy, small_device, tmp_path):
    """6 million random ids: orders 2 to 5 take about 480 MB.

    The pool stays within 256 MiB, and the counts are right.
    """
    import cupy

    class Peak(cupy.cuda.MemoryHook):
        name = "Peak"
        size_bytes = 0

        def malloc_postprocess(self, **_):
            self.size_bytes = max(self.size_bytes, pool.total_bytes())

    pool = cupy.get_default_memory_pool()
    ids = np.random.default_rng(8).integers(0, 50_000, 6_000_000).astype(np.uint16)
    reading = TokeniseOptions("id", 5, device="gpu", block_bytes=2 << 20, budget=small_device)
    ids.tofile(tmp_path / "ids")
    (chunk,) = open_corpus([str(tmp_path / "ids")], "id").chunks(1 << 30)
    with Peak() as peak:
        tokenised = tokenise(chunk, reading)
        lexicon = number_symbols(tokenised.vocabulary, "id", False, 0, "cpu")[0]
        run = count_chunk(chunk, tokenised, lexicon, reading, CountOptions(small_device, 5, strategy))
    assert run.nbytes > small_device.device_bytes >= peak.size_bytes > 0
    codes_T = ids.astype(np.int64)  # every id occurs, so an id is its code minus one
    assert lexicon.symbols == 50_000
    pairs, counts = np.unique(codes_T[:-1] << 16 | codes_T[1:], return_counts=True)
    assert lexicon.num_shards == 2
    (table,) = run.tables[2]
    first, second = ((to_host(table.keys)[0] >> np.uint64(shift)).astype(np.int64) & 0xFFFF for shift in (48, 32))
    found = np.argsort((first - 1) << 16 | second - 1)
    assert (((first - 1) << 16 | second - 1)[found] == pairs).all()
    assert (to_host(table.counts)[found] == counts).all()
    for n in (3, 4, 5):
        (table,) = run.tables[n]
        assert int(table.counts.sum()) == len(ids) - n + 1
    easy = Budget("gpu", 32 << 30, 32 << 30)
    other = count_chunk(chunk, None, lexicon, reading, CountOptions(easy, 5, strategy))
    for n, [table] in run.tables.items():
        (same,) = other.tables[n]
        assert (to_host(table.keys) == to_host(same.keys)).all() and (table.ends_S == same.ends_S).all()
        assert (to_host(table.counts) == to_host(same.counts)).all()


def test_where_windows_of_a_stream_end():
    """The chunk before has read past its end, so it has the windows that end in the first order - 1 tokens."""
    tokens_T = np.ones(12, np.uint32)
    assert Codes(tokens_T, 12).ends(3) == (0, 12)
    assert Codes(tokens_T, 10).ends(3) == (0, 12) and Codes(tokens_T, 9).ends(3) == (0, 11)
    assert Codes(tokens_T, 10, begins=False).ends(3) == (2, 12)
