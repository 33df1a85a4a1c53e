"""Merged vocabularies and word numbers, compared with dicts and Python's sort."""

import itertools
import pickle
import weakref
from collections import Counter
from contextlib import nullcontext

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mgpu_ngram.core.counts.shards import deal_words
from mgpu_ngram.core.counts.vocabulary import HashCollision, LocalVocabulary, Vocabulary
from mgpu_ngram.core.inputs.corpus import open_corpus
from mgpu_ngram.core.inputs.in_memory import Lines
from mgpu_ngram.engine.count import merge_vocabularies as vocabulary_module
from mgpu_ngram.engine.count.lexicon import UNFINISHED_CODE, Lexicon, place_lexicon
from mgpu_ngram.engine.count.merge_vocabularies import (
    MERGING_COPIES,
    NUMBERING_COPIES,
    merge_vocabularies,
    merge_where_it_fits,
    move_vocabulary,
    where_vocabulary_fits,
)
from mgpu_ngram.engine.count.number_symbols import number_symbols
from mgpu_ngram.engine.count.token_streams import TokeniseOptions
from mgpu_ngram.engine.count.tokenise import tokenise
from mgpu_ngram.engine.memory import budget as memory_module
from mgpu_ngram.engine.memory import spill as spill_module
from mgpu_ngram.engine.memory.budget import Budget
from mgpu_ngram.engine.memory.spill import spill
from mgpu_ngram.kernels.common.find_tokens import find_tokens
from mgpu_ngram.kernels.count.hash_words import hash_words
from mgpu_ngram.kernels.dispatch import on_gpu, to_host
from tests.support.slow_cases import first_fast

ARRAYS = ("hash_V", "offsets_V", "data", "counts_V", "first_source_V", "first_offset_V")
PREFIX = b"sixteen-bytes-of"  # 16 bytes: longer words with this prefix are sorted by another method
NAMES = [b"a", b"ab", b"b", b"\xc3\xa9", b"\xff", b"<s>", b"</s>", b"<unk>", PREFIX, PREFIX[:15],
         *(PREFIX + w for w in (b"a", b"ab", b"b", b"\x01", b"-and-many-more", b"-and-many-mora"))]  # fmt: skip


def hash_of(word, seed=0):
    text = np.frombuffer(word, np.uint8)
    return int(hash_words(text, find_tokens(text), seed)[0])


def local(words, hashes=None, **totals):
    """Return a LocalVocabulary of {word: (count, source, offset)}."""
    offsets_V = np.cumsum([0, *(len(w) for w in words)]).astype(np.int64)
    hashes = hashes or {w: hash_of(w) for w in words}
    columns = np.array(list(words.values()), np.int64).reshape(-1, 3).T
    return LocalVocabulary(
        np.array([hashes[w] for w in words], np.uint64),
        offsets_V,
        np.frombuffer(b"".join(words), np.uint8),
        columns[0].copy(),
        columns[1].astype(np.int32),
        columns[2].copy(),
        **totals,
    )


def contents(v):
    """Return symbol -> (count, source, offset), in order."""
    assert v.offsets_V.dtype == v.counts_V.dtype == v.first_offset_V.dtype == np.int64
    assert v.data.dtype == np.uint8 and v.first_source_V.dtype == np.int32
    data = v.data.tobytes()
    names = [data[a:b] for a, b in itertools.pairwise(v.offsets_V.tolist())]
    assert len(v.offsets_V) == len(v.counts_V) + 1 and v.offsets_V[0] == 0
    columns = v.counts_V.tolist(), v.first_source_V.tolist(), v.first_offset_V.tolist()
    return dict(zip(names, zip(*columns, strict=True), strict=True))


def merged_on(device, *parts):
    """Return the parts merged on a device; the result is there, too."""
    merged = merge_vocabularies(*(move_vocabulary(part, device) for part in parts))
    assert {on_gpu(getattr(merged, name)) for name in ARRAYS} == {device == "gpu"}
    return merged


def summed(*parts):
    """Counts add up; the first position wins."""
    merged = {}
    for part in parts:
        for word, (count, *place) in part.items():
            known, *first = merged.get(word, (0, *place))
            merged[word] = (known + count, *min(first, place))
    return merged


PARTS = st.dictionaries(
    st.sampled_from(NAMES), st.tuples(st.integers(0, 9), st.integers(0, 3), st.integers(0, 2**40)), max_size=12
)


def test_merge_by_hand(device):
    a = local({b"of": (2, 1, 30), b"the": (1, 0, 5)}, tokens=3, lines=1, size_bytes=10, checksums=[(0, 9)])
    a.unfinished_lines = 1
    b = local({b"the": (4, 0, 2), b"to": (1, 2, 0)}, tokens=5, lines=2, size_bytes=20, checksums=[(1, 8)])
    a.seconds, b.seconds = {"read": 1.0}, {"count": 2.0, "read": 0.5}
    merged = merged_on(device, a, b)
    assert contents(merged) == {b"of": (2, 1, 30), b"the": (5, 0, 2), b"to": (1, 2, 0)}
    assert (merged.tokens, merged.lines, merged.unfinished_lines, merged.size_bytes) == (8, 3, 1, 30)
    assert merged.checksums == [(0, 9), (1, 8)]
    assert merged.seconds == {"read": 1.5, "count": 2.0}
    assert (np.diff(to_host(merged.hash_V).astype(object)) > 0).all()
    assert merged.hash_V.tolist() == [hash_of(w) for w in contents(merged)]


def test_the_first_source_wins_before_the_first_offset(device):
    parts = local({b"of": (1, 2, 0)}), local({b"of": (1, 1, 99)}), local({b"of": (1, 1, 50)})
    for some in itertools.permutations(parts):
        assert contents(merged_on(device, *some)) == {b"of": (3, 1, 50)}


@given(parts=st.lists(PARTS, min_size=1, max_size=5))
def test_merge_against_a_dict(device, parts):
    assert contents(merged_on(device, *map(local, parts))) == summed(*parts)


@given(PARTS, PARTS, PARTS)
def test_merge_is_associative_and_commutative(device, a, b, c):
    a, b, c = local(a), local(b), local(c)
    left = merged_on(device, merged_on(device, a, b), c)
    for other in (
        merged_on(device, a, merged_on(device, b, c)),
        merged_on(device, c, b, a),
        merged_on(device, b, a, c),
    ):
        assert list(contents(other).items()) == list(contents(left).items())
        assert other.hash_V.tolist() == left.hash_V.tolist()


def test_thousands_of_words_in_many_parts(device):
    rng = np.random.default_rng(0)
    words = [b"%x" % v * (1 + v % 3) for v in range(4000)]
    hashes = {w: hash_of(w) for w in words}
    parts = []
    for source in range(9):
        mine = [words[v] for v in rng.permutation(4000)[: rng.integers(0, 4000)]]
        parts.append({w: (int(rng.integers(1, 9)), source // 2, int(rng.integers(2**40))) for w in mine})
    assert contents(merged_on(device, *(local(part, hashes) for part in parts))) == summed(*parts)


def corpus_of(words, chunks):
    """Return random words of each chunk."""
    rng = np.random.default_rng(2)
    names = [b"%s%x" % (PREFIX * (v % 3 > 1), v * v) for v in range(words)]
    return [[names[v] for v in rng.integers(0, words, 2 * words // chunks)] for _ in range(chunks)]


@pytest.mark.parametrize(("at_once", "threads"), first_fast([(1 << 10, 3), (700, 1), (1 << 18, 2)]))
def test_vocabularies_larger_than_the_rows_at_once(at_once, threads, monkeypatch):
    """Merged and numbered by ranges, they are those of Python's Counter. Most of 20,000 words occur once or twice."""
    monkeypatch.setattr(vocabulary_module, "ROWS_AT_ONCE", at_once)
    texts = corpus_of(20_000, 5)
    parts, places = [], {}
    for source, tokens in enumerate(texts):
        for at, word in enumerate(tokens):
            places.setdefault(word, (source, at))
        first = {word: at for at, word in reversed(list(enumerate(tokens)))}
        parts.append(local({w: (c, source, first[w]) for w, c in Counter(tokens).items()}, tokens=len(tokens)))
    sorted_part, parts = merge_vocabularies(*parts[:2]), parts[2:]
    counts = Counter(itertools.chain(*texts))
    for some in ([sorted_part, *parts], [*parts[::-1], sorted_part]):
        merged = merge_vocabularies(*some, threads=threads)
        assert (np.diff(merged.hash_V.astype(object)) > 0).all() and merged.tokens == 40_000
        assert contents(merged) == {w: (counts[w], *places[w]) for w in counts}
    lexicon, vocabulary = number_symbols(merged, "word", True, 0, "cpu", threads=threads)
    expected = sorted(counts, key=lambda w: (-counts[w], w))
    assert list(contents(vocabulary).items())[3:] == [(w, (counts[w], *places[w])) for w in expected]
    ids = dict(zip(lexicon.hash_H.tolist(), lexicon.ids_H.tolist(), strict=True))
    assert ids == {hash_of(w): v for v, w in enumerate([b"<unk>", b"<s>", b"</s>", *expected])}
    assert lexicon.hash_H.tolist() == sorted(ids) and lexicon.ids_H.dtype == np.int32


def test_two_words_with_one_hash_are_found_in_any_range(monkeypatch):
    monkeypatch.setattr(vocabulary_module, "ROWS_AT_ONCE", 1)
    for h in (0, 77, 1 << 63, (1 << 64) - 1):
        with pytest.raises(HashCollision):
            merge_vocabularies(local({b"of": (1, 0, 0)}, {b"of": h}), local({b"to": (1, 0, 9)}, {b"to": h}), threads=2)
        a = local({b"of": (1, 0, 3), b"the": (2, 0, 0)}, {b"of": h, b"the": 5})
        assert contents(merge_vocabularies(a, local({}), a)) == {b"of": (2, 0, 3), b"the": (4, 0, 0)}


def test_hashes_at_the_ends_of_ranges(monkeypatch):
    """A part that is sorted by hash and one that is not are cut at the same hashes, also the greatest one."""
    monkeypatch.setattr(vocabulary_module, "ROWS_AT_ONCE", 1)
    for low, high in (0, (1 << 64) - 1), (1 << 63, (1 << 64) - 1), (8, 16), (7, 7):
        hashes = sorted({low, high, *(low + ((high - low + 1) * k >> 3) for k in range(8))})
        words = {b"%x" % h: h for h in hashes}
        a, b = ({w: (k, 0, h >> 9) for w, h in order} for k, order in ((1, words.items()), (2, [*words.items()][::-1])))
        merged = merge_vocabularies(local(a, words), local(b, words), local(a, words))
        assert contents(merged) == {w: (4, 0, h >> 9) for w, h in words.items()} and merged.hash_V.tolist() == hashes


def test_ranges_divide_the_hashes_that_there_are(monkeypatch):
    """2,000 words in a small range of hashes, 100 at once: 32 ranges, or a few less."""
    joined, rows = vocabulary_module._joined, []

    def join(parts):
        rows.append(sum(len(columns[0]) for columns in parts))
        return joined(parts)

    monkeypatch.setattr(vocabulary_module, "ROWS_AT_ONCE", 100)
    monkeypatch.setattr(vocabulary_module, "_joined", join)
    words = {b"%d" % v: (1 << 63) + 999 * v for v in range(1000)}
    part = local({w: (1, 0, 0) for w in words}, words)
    assert contents(merge_vocabularies(part, part)) == {w: (2, 0, 0) for w in words}
    assert sum(rows) == 2000 and max(rows) <= 150


def test_chunks_of_blank_lines_merge(device):
    merged = merged_on(device, local({}, lines=2), local({}, lines=3))
    assert contents(merged) == {} and merged.lines == 5


@given(part=PARTS)
def test_an_empty_part_changes_nothing(device, part):
    assert contents(merged_on(device, local({}), local(part), local({}))) == part


def test_one_part_stays_as_it_is():
    part = local({b"of": (1, 0, 0), b"a": (2, 0, 3)})
    assert merge_vocabularies(part) is part


@pytest.mark.parametrize("other", [b"the", b"off", b"o", b"oe"])
def test_two_words_with_one_hash_are_found(device, other):
    a, b = local({b"of": (1, 0, 0)}, {b"of": 77}), local({other: (1, 0, 9)}, {other: 77})
    for parts in (a, b), (b, a), (local({b"a": (1, 0, 0)}, {b"a": 1}), a, a, b):
        with pytest.raises(HashCollision):
            merged_on(device, *parts)
    assert contents(merged_on(device, a, a)) == {b"of": (2, 0, 0)}


@pytest.mark.gpu
def test_a_round_trip_to_the_device_changes_nothing():
    part = local({b"of": (2, 1, 30), b"the": (1, 0, 5)}, tokens=3, lines=1, checksums=[(0, 9)], seconds={"read": 1.0})
    there = move_vocabulary(part, "gpu")
    assert all(on_gpu(getattr(there, name)) for name in ARRAYS)
    assert contents(there) == contents(part)
    back = move_vocabulary(there, "cpu")
    assert all(isinstance(getattr(back, name), np.ndarray) for name in ARRAYS)
    assert contents(back) == contents(part) and back.hash_V.tolist() == part.hash_V.tolist()
    assert (back.tokens, back.lines, back.checksums, back.seconds) == (3, 1, [(0, 9)], {"read": 1.0})


def in_order(words):
    return sorted(words, key=lambda w: (-words[w][0], w))


def number(words, device, markers=False, seed=0, lines=0):
    tokens = sum(count for count, _, _ in words.values())
    v = local(words, {w: hash_of(w, seed) for w in words}, tokens=tokens, lines=lines)
    lexicon, vocabulary = number_symbols(v, "word", markers, seed, device)
    there = [getattr(lexicon, name) for name in ("hash_H", "ids_H", "shard_V")]
    assert [on_gpu(a) for a in there] == [device == "gpu"] * 3
    assert not any(on_gpu(getattr(vocabulary, name)) for name in ARRAYS[1:])
    assert [a.dtype for a in there] == [np.uint64, np.int32, np.uint16]
    assert lexicon.symbols == len(vocabulary) and lexicon.unit == vocabulary.unit == "word"
    return lexicon, vocabulary


def test_ids_by_hand(device):
    lexicon, vocabulary = number({b"b": (1, 0, 8), b"the": (5, 0, 0), b"a": (1, 0, 4)}, device)
    assert list(contents(vocabulary).items()) == [
        (b"<unk>", (0, -1, -1)), (b"<s>", (0, -1, -1)), (b"</s>", (0, -1, -1)),
        (b"the", (5, 0, 0)), (b"a", (1, 0, 4)), (b"b", (1, 0, 8)),
    ]  # fmt: skip
    assert (lexicon.tokens, lexicon.num_shards, lexicon.shard_V.tolist()) == (7, 1, [0] * 6)


def test_specials_in_the_text(device):
    words = {b"<s>": (2, 1, 10), b"of": (9, 0, 0), b"<unk>": (3, 0, 7)}
    found = contents(number(words, device)[1])
    assert list(found.items())[:3] == [(b"<unk>", (3, 0, 7)), (b"<s>", (2, 1, 10)), (b"</s>", (0, -1, -1))]
    assert list(found)[3:] == [b"of"]
    lexicon, vocabulary = number(words, device, markers=True, lines=4)
    assert [c for c, _, _ in contents(vocabulary).values()] == [3, 6, 4, 9]
    assert lexicon.tokens == 14 + 8


def test_a_word_with_the_hash_of_a_special_is_found(device):
    words = {b"of": (1, 0, 0), b"the": (2, 0, 3)}
    with pytest.raises(HashCollision):
        number_symbols(local(words, {b"of": hash_of(b"of"), b"the": hash_of(b"</s>")}), "word", False, 0, device)


@given(words=PARTS, seed=st.integers(0, 3))
def test_ids_against_pythons_sort(device, words, seed):
    lexicon, vocabulary = number(words, device, seed=seed)
    specials = [b"<unk>", b"<s>", b"</s>"]
    expected = specials + in_order({w: v for w, v in words.items() if w not in specials})
    found = contents(vocabulary)
    assert list(found) == expected
    assert found == {w: words.get(w, (0, -1, -1)) for w in expected}
    hash_H, ids_H = lexicon.hash_H.tolist(), lexicon.ids_H.tolist()
    assert hash_H == sorted(set(hash_H))
    assert dict(zip(hash_H, ids_H, strict=True)) == {hash_of(w, seed): i for i, w in enumerate(expected)}


def test_ties_among_words_with_long_common_beginnings(device):
    rng = np.random.default_rng(1)
    tails = {bytes(rng.integers(97, 100, rng.integers(0, 6), np.uint8)) for _ in range(300)}
    # The first 64 bytes are sorted by one method, the rest by another.
    heads = [*(PREFIX * times for times in range(1, 8)), b"x"]
    words = {p + t: (int(rng.integers(1, 4)), 0, 0) for t in tails for p in heads}
    assert list(contents(number(words, device)[1]))[3:] == in_order(words)


@pytest.mark.parametrize("room", ["device", "host", "disk"])
def test_a_vocabulary_stays_on_the_device_while_it_fits(room, monkeypatch, tmp_path):
    monkeypatch.setattr(memory_module, "_held", weakref.WeakSet())
    words = {b"the": (5, 0, 0), b"of": (1, 0, 4)}
    there = local(words, tokens=6, checksums=[(0, 0, 7, 1)])
    arrays = list(map(id, there.arrays().values()))  # of a fake GPU
    monkeypatch.setattr(spill_module, "on_gpu", lambda array: id(array) in arrays)
    monkeypatch.setattr(spill_module, "to_host_together", lambda arrays: list(map(np.copy, arrays)))
    monkeypatch.setattr(Budget, "place", lambda self, nbytes: "device" if room == "device" else "host")
    monkeypatch.setattr(Budget, "fits_host", lambda self, nbytes: room == "host")
    kept = spill(there, Budget("gpu", 0, 0), str(tmp_path))
    assert contents(kept) == words and (kept.tokens, kept.checksums) == (6, [(0, 0, 7, 1)])
    assert (kept is there) == (room == "device") and np.shares_memory(kept.data, there.data) == (room == "device")
    assert memory_module._held_bytes() == (there.nbytes if room == "host" else 0)
    assert kept.data.flags.writeable == (room == "host") and list(tmp_path.iterdir()) == []


class FullGpu:
    """A GPU of a test, in host memory. `places` has a letter for each vocabulary that is moved: to the GPU at once (g)
    or in turn with others (r), or to host memory (c).
    """

    def __init__(self, monkeypatch):
        self.patch, self.places, self.failures = monkeypatch, [], []
        monkeypatch.setattr(vocabulary_module, "move_vocabulary", lambda v, device: self.places.append(device[0]) or v)
        monkeypatch.setattr(vocabulary_module, "device_alone", nullcontext)
        monkeypatch.setattr(vocabulary_module, "merge_vocabularies", self.merge)
        monkeypatch.setattr(vocabulary_module, "result_to_device", lambda v, device: self.places.append("r") or v)
        monkeypatch.setattr(vocabulary_module, "leave_device", lambda v, budget, folder: v)

    def merge(self, *parts, **how):
        if self.failures:
            raise self.failures.pop()
        return merge_vocabularies(*parts, **how)

    def has(self, free):
        self.patch.setattr(Budget, "working_bytes", lambda self: free)
        self.places.clear()


PAIR = [{b"of": (2, 0, 4), b"the": (5, 0, 0)}, {b"a": (1, 0, 13), b"the": (1, 0, 9)}]  # by falling hash


def test_vocabularies_are_merged_where_a_gpu_has_room(monkeypatch):
    """At once; or by ranges of hashes, if it has room to sort the larger one, or both are sorted; or in host memory,
    also when memory runs out. Other errors are raised.
    """
    gpu, parts, budget = FullGpu(monkeypatch), [local(words) for words in PAIR], Budget("gpu", 1, 1)
    sizes = [MERGING_COPIES * part.nbytes for part in parts]
    sorted_ = [merge_vocabularies(part, always_sorted=True) for part in parts]
    for given_, free, failure, places in [
        (parts, sum(sizes), [], "gg"),
        (parts, sum(sizes) - 1, [], "rr" + 2 * "rr"),  # each is sorted, then two ranges are merged
        (sorted_, max(sizes) - 1, [], 2 * "rr"),
        (parts, max(sizes) - 1, [], "cc"),
        (parts, sum(sizes), [MemoryError()], "ggcc"),
    ]:
        gpu.has(free)
        gpu.failures.extend(failure)
        merged = merge_where_it_fits(given_, budget, "")
        assert contents(merged) == {b"the": (6, 0, 0), b"of": (2, 0, 4), b"a": (1, 0, 13)}
        assert "".join(gpu.places) == places
    gpu.has(sum(sizes))
    gpu.failures.append(ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        merge_where_it_fits(parts, budget, "")


def test_words_are_numbered_where_a_gpu_has_room(monkeypatch):
    gpu, words = FullGpu(monkeypatch), local(PAIR[0])
    for missing, place in (0, "g"), (1, "c"):
        gpu.has(NUMBERING_COPIES * words.nbytes - missing)
        found = where_vocabulary_fits(lambda v: len(v.hash_V), words, Budget("gpu", 1, 1))
        assert (found, gpu.places) == (2, [place])


@given(parts=st.lists(PARTS.filter(len), min_size=2, max_size=4), share=st.floats(0, 1))
def test_ranges_merge_as_all_at_once(device, parts, share):
    """A GPU has memory for the largest vocabulary, or more. Words and totals are the same."""
    given_ = [local(words, tokens=i, lines=2, checksums=[(i, 0, 1, 2)]) for i, words in enumerate(parts)]
    expected = merge_vocabularies(*given_)
    sizes = [MERGING_COPIES * v.nbytes for v in given_]
    with pytest.MonkeyPatch.context() as patch:
        if device == "cpu":
            FullGpu(patch)
        patch.setattr(Budget, "working_bytes", lambda self: int(max(sizes) + share * (sum(sizes) - max(sizes))))
        merged = merge_where_it_fits([move_vocabulary(v, device) for v in given_], Budget("gpu", 0, 1 << 40), "")
    assert contents(merged) == contents(expected) and np.array_equal(to_host(merged.hash_V), expected.hash_V)
    assert (merged.tokens, merged.lines, merged.checksums) == (expected.tokens, expected.lines, expected.checksums)


def test_a_lexicon_too_large_for_a_gpu_stays_on_the_host(device, tmp_path):
    lexicon = lexicon_of(100)  # 14 bytes a symbol, of a twentieth of the GPU
    roomy, crowded = Budget("gpu", 20 * 1400, 1 << 40), Budget("gpu", 20 * 1400 - 1, 1 << 40)
    assert [lexicon.place(b) for b in (roomy, crowded, Budget("cpu", 0, 1 << 40))] == ["gpu", "cpu", "cpu"]
    assert place_lexicon(lexicon, roomy, str(tmp_path)) is lexicon
    kept = place_lexicon(lexicon, crowded, str(tmp_path))
    assert not on_gpu(kept.hash_H) and kept.codes(np.array([11], np.uint64), "cpu").tolist() == [0, 99, UNFINISHED_CODE]


def test_codes_of_a_chunk(device):
    lexicon, _ = number({b"the": (5, 0, 0), b"a": (1, 0, 4), b"<s>": (1, 0, 6)}, device)
    hash_V = np.array([hash_of(w) for w in (b"a", b"<s>", b"the")], np.uint64)
    for place in {"cpu", device}:  # the vocabulary of a chunk may be on another device
        chunk = move_vocabulary(local({w: (1, 0, 0) for w in (b"a", b"<s>", b"the")}), place)
        assert chunk.hash_V.tolist() == hash_V.tolist()
        codes = lexicon.codes(chunk.hash_V, device)
        assert codes.dtype == np.uint32 and on_gpu(codes) == (device == "gpu")
        assert to_host(codes).tolist() == [0, 5, 2, 4, UNFINISHED_CODE]  # id + 1, and 0 at the ends of windows
        assert lexicon.codes(chunk.hash_V, "cpu").tolist() == [0, 5, 2, 4, UNFINISHED_CODE]
    assert to_host(lexicon.codes(np.empty(0, np.uint64), device)).tolist() == [0, UNFINISHED_CODE]


def lexicon_of(symbols):
    hash_H, ids_H = np.arange(10, 10 + symbols, dtype=np.uint64), np.arange(symbols, dtype=np.int32)
    return Lexicon("word", symbols, 99, hash_H, ids_H[::-1].copy(), 3, (ids_H % 3).astype(np.uint16))


def test_shards_are_copied_to_the_device(device):
    lexicon = lexicon_of(5)
    shard_V = lexicon.shards_on(device)
    assert on_gpu(shard_V) == (device == "gpu")
    assert to_host(shard_V).tolist() == [0, 1, 2, 0, 1]
    assert lexicon.shards_on(device) is shard_V  # copied once
    assert lexicon.shards_on("cpu").tolist() == [0, 1, 2, 0, 1]


def test_a_lexicon_is_pickled_without_its_copies(device):
    lexicon = lexicon_of(5)
    before = len(pickle.dumps(lexicon))
    hash_V = np.array([14, 10, 11], np.uint64)
    assert to_host(lexicon.codes(hash_V, device)).tolist() == [0, 1, 5, 4, UNFINISHED_CODE]
    lexicon.shards_on(device)
    assert len(pickle.dumps(lexicon)) == before
    there = pickle.loads(pickle.dumps(lexicon))
    assert (there.unit, there.symbols, there.tokens, there.num_shards) == ("word", 5, 99, 3)
    assert to_host(there.codes(hash_V, device)).tolist() == [0, 1, 5, 4, UNFINISHED_CODE]
    assert to_host(there.shards_on(device)).tolist() == [0, 1, 2, 0, 1]


def test_shards_follow_the_counts(device):
    words = {b"%d" % v: (1 + 4_000_000 // (v + 1), 0, v) for v in range(500)}
    lexicon, vocabulary = number(words, device)
    tokens = sum(count for count, _, _ in words.values())
    assert lexicon.num_shards == -(-tokens // (4 << 20)) > 5
    assert lexicon.shard_V.tolist() == deal_words(vocabulary.counts_V, lexicon.num_shards).tolist()


@pytest.mark.parametrize(
    ("words", "unit", "text"),
    [
        ([b"of", b"\xc3\xa9"], "word", True),
        ([b"of", b"\xc3", b"\xa9"], "word", False),
        ([], "word", True),
        ([b"a"], "byte", False),
    ],
)
def test_as_text(words, unit, text):
    v = local({w: (1, 0, 0) for w in words}, {w: i for i, w in enumerate(words)})
    vocabulary = Vocabulary(unit, v.offsets_V, v.data, v.counts_V, v.first_source_V, v.first_offset_V)
    assert vocabulary.as_text is text
    assert pickle.loads(pickle.dumps(vocabulary)).as_text is text


@pytest.mark.parametrize("unit", ["byte", "id"])
def test_bytes_and_ids_are_ordered_by_value(unit, device):
    values = [65535, 3, 256, 200, 0] if unit == "id" else [200, 3, 10, 0]
    size = 4 if unit == "id" else 1
    words = {v.to_bytes(size, "little"): (i + 1, 0, i) for i, v in enumerate(values)}
    hashes = {w: 1000 - i for i, w in enumerate(words)}
    lexicon, vocabulary = number_symbols(local(words, hashes, tokens=15), unit, False, 0, device)
    found = contents(vocabulary)
    assert [int.from_bytes(w, "little") for w in found] == sorted(values)
    assert found == words
    codes = to_host(lexicon.codes(np.array(sorted(hashes.values()), np.uint64), device)).tolist()
    by_hash = sorted(words, key=hashes.get)
    assert codes == [0, *(list(found).index(w) + 1 for w in by_hash), UNFINISHED_CODE]


def test_an_empty_corpus(device):
    lexicon, vocabulary = number({}, device)
    assert list(contents(vocabulary)) == [b"<unk>", b"<s>", b"</s>"] and lexicon.symbols == 3
    lexicon, vocabulary = number_symbols(local({}), "byte", False, 0, device)
    assert len(vocabulary) == lexicon.symbols == len(lexicon.hash_H) == 0


@pytest.mark.parametrize("chunk_bytes", [10, 40, 1 << 20])
def test_ids_do_not_depend_on_chunks(device, chunk_bytes):
    lines = ["of the of", "<s> the", "", "the end of it", "zzz zzz zzz"] * 5
    chunks = open_corpus(Lines(lines)).chunks(chunk_bytes)
    assert (len(chunks) > 1) == (chunk_bytes < 1000)
    parts = [tokenise(chunk, TokeniseOptions(device=device)).vocabulary for chunk in chunks]
    assert {on_gpu(getattr(part, name)) for part in parts for name in ARRAYS} == {device == "gpu"}
    found = contents(number_symbols(merge_vocabularies(*parts), "word", True, 0, device)[1])
    text = "".join(line + "\n" for line in lines)
    counts = Counter(text.split())
    expected = {b"<unk>": (0, -1, -1), b"<s>": (5 + 25, 0, 10), b"</s>": (25, -1, -1)}
    for word in sorted(set(counts) - {"<s>"}, key=lambda w: (-counts[w], w)):
        expected[word.encode()] = (counts[word], 0, f" {text}".replace("\n", " ").index(f" {word} "))
    assert list(found.items()) == list(expected.items())
