"""Pass 2, against collections.Counter: every strategy, any parts, out of memory on the way."""

import itertools
import lzma
import pickle
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mgpu_ngram.core.corpus import open_corpus
from mgpu_ngram.core.errors import RunError
from mgpu_ngram.core.lines import Lines
from mgpu_ngram.core.tables import Table
from mgpu_ngram.core.vocabulary import Vocabulary
from mgpu_ngram.engine import count as count_module
from mgpu_ngram.engine.count import (
    Codes,
    CountOptions,
    bins_to_table,
    count_chunk,
    count_streams,
    empty_table,
    heaviest,
    mark_sentences,
    merge,
    merge_part,
    pack_codes,
    split,
    split_chunk,
    unigram_table,
)
from mgpu_ngram.engine.plan import OrderPlan
from mgpu_ngram.engine.tokenise import TokeniseOptions, tokenise
from mgpu_ngram.engine.vocabulary import Lexicon, merge_vocabularies, number_symbols
from mgpu_ngram.kernels import check
from mgpu_ngram.kernels.dispatch import on_gpu, to_host

STRATEGIES = ("global", "private", "sort", "hash")
MIXED = ("global", "sort", "hash", "sort", "private")  # each order its own way


def options_for(device, order, strategy, **settings):
    names = MIXED[:order] if strategy == "mixed" else [strategy] * order
    plans = tuple(OrderPlan(n, name, "asked for", 0) for n, name in enumerate(names, 1))
    return CountOptions(plans, device=device, **settings)


@pytest.fixture(scope="session")
def to_table(to_device, pack_keys):
    """A table of {tuple of codes: count}."""

    def convert(counter, order, bits):
        ngrams = sorted(counter)
        counts = np.array([counter[g] for g in ngrams], np.int64)
        return Table(to_device(pack_keys(ngrams, order, bits)), to_device(counts), order, bits)

    return convert


@pytest.fixture(scope="session")
def to_counter(unpack_keys):
    """The {tuple of codes: count} of a table, which must be sorted and without repeats."""

    def convert(table):
        assert table.keys.dtype == np.uint64 and table.counts.dtype == np.int64
        assert table.keys.shape == (check.num_columns(table.order, table.bits), len(table))
        ngrams = unpack_keys(to_host(table.keys), table.order, table.bits)
        assert ngrams == sorted(set(ngrams))
        return dict(zip(ngrams, to_host(table.counts).tolist(), strict=True))

    return convert


def windows(codes, order, owned=None):
    """Counter of the whole windows that start in the first `owned` codes."""
    starts = range(min(len(codes) if owned is None else owned, len(codes) - order + 1))
    found = Counter(tuple(codes[t : t + order]) for t in starts)
    return {ngram: count for ngram, count in found.items() if 0 not in ngram}


def test_mark_sentences_by_hand(to_device):
    def marked(codes):
        found = mark_sentences(to_device(np.array(codes, np.uint32)))
        assert found.dtype == np.uint32
        return to_host(found).tolist()

    assert marked([5, 6, 0, 7, 0]) == [2, 5, 6, 3, 0, 2, 7, 3, 0]
    assert marked([0, 0, 9, 0]) == [2, 3, 0, 2, 3, 0, 2, 9, 3, 0]  # an empty line is a sentence, too
    assert marked([]) == []


@given(lines=st.lists(st.lists(st.integers(4, 9), max_size=5), max_size=8))
def test_mark_sentences_against_lists(to_device, lines):
    codes = [c for line in lines for c in [*line, 0]]
    expected = [c for line in lines for c in [2, *line, 3, 0]]
    assert to_host(mark_sentences(to_device(np.array(codes, np.uint32)))).tolist() == expected


CODES = st.lists(st.integers(0, 3), max_size=60)


@pytest.mark.parametrize("strategy", [*STRATEGIES, "mixed"])
@given(streams=st.lists(CODES, max_size=3), order=st.integers(1, 5))
def test_strategies_against_counter(strategy, device, to_device, to_counter, streams, order):
    codes = [Codes(to_device(np.array(s, np.uint32)), len(s)) for s in streams]
    tables = count_streams(codes, 3, options_for(device, order, strategy, histograms=2))
    assert [t.order for t in tables] == list(range(1, order + 1))
    for n, table in enumerate(tables, 1):
        assert to_counter(table) == dict(sum((Counter(windows(s, n)) for s in streams), Counter()))
        assert table.bits == 2


@pytest.mark.parametrize("strategy", [*STRATEGIES, "mixed"])
def test_windows_start_in_the_owned_part_only(strategy, device, to_device, to_counter):
    codes = np.random.default_rng(1).integers(0, 5, 200)
    for owned in (0, 1, 100, 197, 200):
        stream = Codes(to_device(codes.astype(np.uint32)), owned)
        for n, table in enumerate(count_streams([stream], 4, options_for(device, 4, strategy)), 1):
            assert to_counter(table) == windows(codes.tolist(), n, owned)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_raw_bytes_with_their_codes(strategy, device, to_device, to_counter):
    text = np.frombuffer(b"abracadabra, abracadabra", np.uint8)
    lut = np.zeros(256, np.uint16)
    lut[list(b" ,abcdr")] = np.arange(1, 8)
    codes = lut[text].tolist()
    for n, table in enumerate(count_streams([Codes(to_device(text), 20, lut)], 7, options_for(device, 4, strategy)), 1):
        assert to_counter(table) == windows(codes, n, 20)


def test_some_orders_only(device, to_device, to_counter):
    """As `auto` plans: order 1 comes from the vocabulary."""
    codes = np.random.default_rng(2).integers(0, 6, 300)
    options = options_for(device, 4, "sort")
    some = replace(options, plans=(options.plans[1], replace(options.plans[2], strategy="hash"), options.plans[3]))
    stream = Codes(to_device(codes.astype(np.uint32)), 300)
    assert [to_counter(t) for t in count_streams([stream], 5, some)] == [windows(codes.tolist(), n) for n in (2, 3, 4)]
    assert count_streams([stream], 5, replace(options, plans=())) == []


def test_wide_keys(device, to_device, to_counter):
    """Two and three columns, with words across them."""
    codes = np.random.default_rng(3).choice([0, 1, 2**24, 2**25 - 1, 7], 300)
    stream = Codes(to_device(codes.astype(np.uint32)), 300)
    for strategy in ("sort", "hash"):
        for n, table in enumerate(count_streams([stream], 2**25 - 1, options_for(device, 6, strategy)), 1):
            assert table.bits == 25
            assert to_counter(table) == windows(codes.tolist(), n)


@pytest.fixture
def parts(monkeypatch):
    """parts(limit): count at most `limit` tokens at once. Returns the list of the parts' sizes."""

    def force(limit):
        sizes = []

        def count_part(part, *arguments):
            sizes.append(part.owned)
            return real(part, *arguments)

        real = count_module._count_part
        monkeypatch.setattr(count_module, "_part_tokens", lambda *_: limit)
        monkeypatch.setattr(count_module, "_count_part", count_part)
        return sizes

    return force


@pytest.mark.parametrize("strategy", [*STRATEGIES, "mixed"])
@pytest.mark.parametrize("limit", [1, 2, 7, 150])
def test_parts_make_no_difference(strategy, limit, device, to_device, to_counter, parts):
    codes = np.random.default_rng(4).integers(0, 4, 150)
    streams = [Codes(to_device(codes.astype(np.uint32)), 130), Codes(to_device(codes[:9].astype(np.uint32)), 9)]
    sizes = parts(limit)
    for n, table in enumerate(count_streams(streams, 3, options_for(device, 4, strategy)), 1):
        expected = Counter(windows(codes.tolist(), n, 130)) + Counter(windows(codes[:9].tolist(), n))
        assert to_counter(table) == dict(expected)
    assert max(sizes) <= limit and sum(sizes) == 139


def test_parts_follow_free_memory(monkeypatch):
    options = options_for("cpu", 5, "sort")
    monkeypatch.setattr(count_module, "free_bytes", lambda device: 10**9)
    tokens = count_module._part_tokens(5, 19, options)
    assert tokens == int(10**9 * 0.8) // 130  # bytes per token, see test_plan
    monkeypatch.setattr(count_module, "free_bytes", lambda device: 0)
    assert count_module._part_tokens(5, 19, options) == count_module.MIN_PART_TOKENS
    monkeypatch.setattr(count_module, "free_bytes", lambda device: 10**15)
    assert count_module._part_tokens(5, 19, options) == count_module.MAX_SORT_TOKENS


@pytest.fixture
def little_memory(monkeypatch):
    """little_memory(most): parts of more than `most` tokens run out of memory. Returns the sizes tried."""

    def force(most, error=MemoryError):
        tried = []

        def count_part(part, *arguments):
            tried.append(part.owned)
            if part.owned > most:
                raise error
            return real(part, *arguments)

        real = count_module._count_part
        monkeypatch.setattr(count_module, "_count_part", count_part)
        monkeypatch.setattr(count_module, "MIN_PART_TOKENS", 4)
        return tried

    return force


def test_out_of_memory_halves_the_parts(device, to_device, to_counter, little_memory):
    codes = np.random.default_rng(5).integers(0, 4, 150)
    tried = little_memory(20)
    streams = [Codes(to_device(codes.astype(np.uint32)), 150), Codes(to_device(codes[:9].astype(np.uint32)), 9)]
    for n, table in enumerate(count_streams(streams, 3, options_for(device, 3, "sort")), 1):
        expected = Counter(windows(codes.tolist(), n)) + Counter(windows(codes[:9].tolist(), n))
        assert to_counter(table) == dict(expected)
    assert tried[:4] == [150, 75, 37, 18] and tried[-1] == 9


def test_out_of_memory_for_a_later_part_counts_nothing_twice(device, to_device, to_counter, monkeypatch):
    codes = np.random.default_rng(6).integers(0, 4, 150)
    calls = itertools.count()

    def count_part(part, *arguments):
        if next(calls) == 2:
            raise MemoryError
        return real(part, *arguments)

    real = count_module._count_part
    monkeypatch.setattr(count_module, "_count_part", count_part)
    monkeypatch.setattr(count_module, "_part_tokens", lambda *_: 40)
    monkeypatch.setattr(count_module, "MIN_PART_TOKENS", 4)
    (table,) = count_streams([Codes(to_device(codes.astype(np.uint32)), 150)], 3, options_for(device, 1, "sort"))
    assert to_counter(table) == windows(codes.tolist(), 1)


def test_out_of_memory_for_good_is_one_clear_error(device, little_memory):
    tokenised = tokenise(open_corpus(Lines(["of the of"])).chunks(100)[0], TokeniseOptions(device=device))
    lexicon = number_symbols(tokenised.vocabulary, "word", False, 0, device)
    tried = little_memory(0)
    with pytest.raises(RunError, match=r"out of (host|device) memory while counting n-grams"):
        count_chunk(tokenised, lexicon, options_for(device, 2, "sort"))
    assert tried == [4]  # four codes; halves would be smaller than the least part


def test_other_errors_are_not_swallowed(device, to_device, little_memory):
    little_memory(0, ZeroDivisionError)
    with pytest.raises(ZeroDivisionError):
        count_streams([Codes(to_device(np.ones(150, np.uint32)), 150)], 3, options_for(device, 2, "sort"))


def counters(order, bits):
    word = st.integers(1, min(2**bits - 1, 4))
    return st.dictionaries(st.tuples(*[word] * order), st.integers(1, 2**40), max_size=20)


@given(a=counters(3, 25), b=counters(3, 25), c=counters(3, 25))
def test_merge_is_a_sum_in_any_order(to_table, to_counter, a, b, c):
    expected = dict(Counter(a) + Counter(b) + Counter(c))
    a, b, c = (to_table(x, 3, 25) for x in (a, b, c))
    assert to_counter(merge(a, b, c)) == to_counter(merge(c, merge(b, a))) == expected
    assert to_counter(merge(a, empty_table(3, 25, a.keys))) == to_counter(a)


@pytest.mark.parametrize("order", [2, 3, 5])
@given(data=st.data(), shards=st.integers(1, 9))
def test_split_by_the_last_context_word(order, to_table, to_counter, data, shards):
    counter = data.draw(counters(order, 19))
    shard_V = np.array(data.draw(st.lists(st.integers(0, shards - 1), min_size=4, max_size=4)), np.uint16)
    found = split(to_table(counter, order, 19), shard_V, shards)
    assert len(found) == shards
    for shard, piece in enumerate(found):
        mine = {g: c for g, c in counter.items() if shards == 1 or shard_V[g[order - 2] - 1] == shard}
        assert to_counter(piece) == mine and (piece.order, piece.bits) == (order, 19)


def lexicon_of(counts, num_shards=1, shard_V=None):
    V = len(counts)
    nothing = np.zeros(V, np.int64)
    vocabulary = Vocabulary(
        "word", np.arange(V + 1), np.zeros(V, np.uint8), np.array(counts, np.int64), nothing, nothing
    )
    return Lexicon(vocabulary, nothing, nothing, sum(counts), True, num_shards, shard_V)


@pytest.mark.parametrize("parts", [1, 2, 3])
def test_shards_are_dealt_to_parts_and_merged(parts, device, to_table, to_counter):
    lexicon = lexicon_of([1, 1, 1, 1], 3, np.array([0, 1, 2, 2], np.uint16))
    rng = np.random.default_rng(7)
    pairs = [Counter(map(tuple, rng.integers(1, 5, (size, 2)).tolist())) for size in (50, 0, 30)]
    words = [Counter(map(tuple, rng.integers(1, 5, (size, 1)).tolist())) for size in (50, 0, 30)]
    chunks = [
        split_chunk(count_module.CountedChunk([to_table(w, 1, 3), to_table(p, 2, 3)], {}), lexicon, parts)
        for w, p in zip(words, pairs, strict=True)
    ]
    merged = [merge_part(list(pieces), device) for pieces in zip(*chunks, strict=True)]
    assert {key: p for p, part in enumerate(merged) for key in part} == {
        (1, 0): 0, **{(2, shard): shard % parts for shard in range(3)}
    }  # fmt: skip
    tables = {key: to_counter(table) for part in merged for key, table in part.items()}
    assert tables[1, 0] == dict(sum(words, Counter()))
    shard_of = [None, 0, 1, 2, 2]  # by code
    for shard in range(3):
        total = sum(pairs, Counter())
        assert tables[2, shard] == {g: c for g, c in total.items() if shard_of[g[0]] == shard}


def test_unigrams_come_from_the_vocabulary(to_counter):
    assert to_counter(unigram_table(lexicon_of([0, 4, 0, 9, 1]))) == {(2,): 4, (4,): 9, (5,): 1}
    assert to_counter(unigram_table(lexicon_of([]))) == {}


@given(counts=st.lists(st.integers(0, 5), min_size=27, max_size=27))
def test_bins_to_table(to_device, to_counter, counts):
    bins = to_device(np.array(counts, np.uint32))
    ngrams = itertools.product([1, 2, 3], repeat=3)  # in the order of the bins
    expected = {g: c for g, c in zip(ngrams, counts, strict=True) if c}
    assert to_counter(bins_to_table(bins, 3, 3, 2)) == expected
    assert to_counter(bins_to_table(bins, 1, 27, 5)) == {(i + 1,): c for i, c in enumerate(counts) if c}


@given(ngrams=st.lists(st.tuples(*[st.integers(1, 2**19 - 1)] * 5), max_size=20))
def test_pack_codes(to_device, pack_keys, ngrams):
    codes = [to_device(np.array([g[i] for g in ngrams], np.uint32)) for i in range(5)]
    assert to_host(pack_codes(codes, 19)).tolist() == pack_keys(ngrams, 5, 19).tolist()


@given(counter=counters(2, 25).map(lambda c: {g: n % 4 + 1 for g, n in c.items()}), k=st.integers(0, 25))
def test_heaviest_breaks_ties_by_key(to_table, counter, k):
    codes, counts = heaviest(to_table(counter, 2, 25), k)
    expected = sorted(counter.items(), key=lambda item: (-item[1], item[0]))[:k]
    assert list(zip(map(tuple, codes.tolist()), counts.tolist(), strict=True)) == expected
    assert codes.shape == (len(expected), 2) and not on_gpu(codes) and not on_gpu(counts)


def symbol_windows(sequences, order):
    return dict(sum((Counter(zip(*(s[i:] for i in range(order)), strict=False)) for s in sequences), Counter()))


def count_corpus(corpus, tokenise_options, strategy, chunk_bytes, markers=False):
    """{order: table} of a corpus, and its lexicon: what a job does, without an executor."""
    device, order = tokenise_options.device, tokenise_options.order
    tokenised = [tokenise(chunk, tokenise_options) for chunk in corpus.chunks(chunk_bytes)]
    local = merge_vocabularies(*(t.vocabulary for t in tokenised))
    lexicon = number_symbols(local, tokenise_options.unit, markers, tokenise_options.seed, device)
    options = options_for(device, order, strategy, sentence_markers=markers)
    counted = [count_chunk(t, pickle.loads(pickle.dumps(lexicon)), options) for t in tokenised]
    return [merge(*(c.tables[n] for c in counted)) for n in range(order)], lexicon


def named(to_counter, table, lexicon):
    return {tuple(lexicon.vocabulary.symbol(c - 1) for c in g): n for g, n in to_counter(table).items()}


LINES = st.lists(
    st.lists(st.sampled_from([b"a", b"b", b"<s>", b"\xff", b"c" * 20]), max_size=6), min_size=1, max_size=15
)


@pytest.mark.parametrize("strategy", [*STRATEGIES, "mixed"])
@settings(max_examples=25)
@given(lines=LINES, markers=st.booleans(), chunk_bytes=st.integers(1, 60), block_bytes=st.integers(1, 40))
def test_words_of_a_corpus(strategy, device, to_counter, lines, markers, chunk_bytes, block_bytes):
    corpus = open_corpus(Lines([b" ".join(line) for line in lines]))
    options = TokeniseOptions(order=4, device=device, block_bytes=block_bytes)
    tables, lexicon = count_corpus(corpus, options, strategy, chunk_bytes, markers)
    sentences = [[b"<s>", *line, b"</s>"] for line in lines] if markers else lines
    for n, table in enumerate(tables, 1):
        assert named(to_counter, table, lexicon) == symbol_windows(sentences, n)
    assert to_counter(unigram_table(lexicon)) == to_counter(tables[0])
    assert lexicon.tokens == sum(map(len, sentences))


@pytest.mark.parametrize("strategy", [*STRATEGIES, "mixed"])
@settings(max_examples=25)
@given(
    lines=st.lists(st.binary(max_size=12).map(lambda t: t.replace(b"\n", b"")), min_size=1, max_size=10),
    chunk_bytes=st.integers(1, 60),
    block_bytes=st.integers(1, 40),
)
def test_bytes_of_a_corpus(strategy, device, to_counter, lines, chunk_bytes, block_bytes):
    options = TokeniseOptions("byte", 3, device=device, block_bytes=block_bytes)
    tables, lexicon = count_corpus(open_corpus(Lines(lines), "byte"), options, strategy, chunk_bytes)
    text = [bytes([v]) for line in lines for v in line + b"\n"]  # n-grams of bytes run through newlines
    for n, table in enumerate(tables, 1):
        assert named(to_counter, table, lexicon) == symbol_windows([text], n)


@pytest.mark.parametrize("strategy", ["sort", "mixed"])
def test_bytes_do_not_cross_files(strategy, device, to_counter, tmp_path):
    texts = [b"abc", b"", b"bcd" * 10, b"a"]
    for i, text in enumerate(texts):
        (tmp_path / f"{i}").write_bytes(text)
    options = TokeniseOptions("byte", 3, device=device)
    tables, lexicon = count_corpus(open_corpus(str(tmp_path), "byte"), options, strategy, 1 << 20)
    for n, table in enumerate(tables, 1):
        expected = symbol_windows([[bytes([v]) for v in text] for text in texts], n)
        assert named(to_counter, table, lexicon) == expected


@pytest.mark.parametrize("strategy", [*STRATEGIES, "mixed"])
@settings(max_examples=25)
@given(
    ids=st.lists(st.integers(0, 5), min_size=1, max_size=60),
    separator=st.sampled_from([None, 0]),
    chunk_bytes=st.integers(2, 60),
    block_bytes=st.integers(2, 40),
)
def test_ids_of_a_corpus(strategy, device, to_counter, ids, separator, chunk_bytes, block_bytes):
    options = TokeniseOptions("id", 3, separator_id=separator, device=device, block_bytes=block_bytes)
    tables, lexicon = count_corpus(open_corpus(np.array(ids), "id"), options, strategy, chunk_bytes)
    documents = [[]]
    for i in ids:
        documents = [*documents, []] if i == separator else [*documents[:-1], [*documents[-1], i.to_bytes(4, "little")]]
    for n, table in enumerate(tables, 1):
        assert named(to_counter, table, lexicon) == symbol_windows(documents, n)


def test_golden_counts(device, to_counter, shared_data):
    """`tiny.txt` against counts that collections.Counter made once."""
    corpus = open_corpus(str(shared_data / "golden" / "inputs" / "tiny.txt"))
    for kind, markers in ("plain", False), ("padded", True):
        tables, lexicon = count_corpus(corpus, TokeniseOptions(device=device), "sort", 1 << 20, markers)
        for n, table in enumerate(tables, 1):
            expected = {}
            text = lzma.decompress((shared_data / "golden" / "counts" / f"tiny.{kind}.{n}.tsv.xz").read_bytes())
            for line in text.splitlines():
                ngram, count = line.split(b"\t")
                expected[tuple(ngram.split(b" "))] = int(count)
            assert named(to_counter, table, lexicon) == expected


def test_tables_may_wait_on_the_host(device):
    tokenised = tokenise(open_corpus(Lines(["of the of"])).chunks(100)[0], TokeniseOptions(device=device))
    lexicon = number_symbols(tokenised.vocabulary, "word", False, 0, device)
    for keep in (True, False):
        options = options_for(device, 2, "sort", keep_on_device=keep)
        tables = count_chunk(tokenised, lexicon, options).tables
        assert {on_gpu(t.keys) for t in tables} == {on_gpu(t.counts) for t in tables} == {keep and device == "gpu"}
        merged = merge_part([{(2, 0): tables[1]}, {(2, 0): tables[1]}], device, keep)[2, 0]
        assert on_gpu(merged.keys) == on_gpu(merged.counts) == (keep and device == "gpu")
        assert to_host(merged.counts).tolist() == [2, 2]


def test_a_full_device_goes_on_in_host_memory(monkeypatch):
    """where_it_fits: on the device first; then, and only when memory was the reason, with host arrays."""
    table = Table(np.array([[1 << 63]], np.uint64), np.array([2]), 1, 1)
    monkeypatch.setattr(count_module, "on_gpu", lambda array: True)
    moved = []
    monkeypatch.setattr(count_module, "to_host", lambda array: moved.append(array) or array)

    def full_at_first(*tables):
        if not moved:
            raise MemoryError
        return len(tables)

    assert count_module.where_it_fits(full_at_first, table, table) == 2 and len(moved) == 4

    def broken(*tables):
        raise ValueError("not of memory")

    with pytest.raises(ValueError, match="not of memory"):
        count_module.where_it_fits(broken, table)
    monkeypatch.setattr(count_module, "on_gpu", lambda array: False)
    moved.clear()
    with pytest.raises(MemoryError):  # the host itself is full: there is nowhere to go
        count_module.where_it_fits(full_at_first, table)
