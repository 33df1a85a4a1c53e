"""Merging vocabularies and numbering words, against dicts and Python's sort."""

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mgpu_ngram.core.corpus import open_corpus
from mgpu_ngram.core.lines import Lines
from mgpu_ngram.core.vocabulary import HashCollision, LocalVocabulary
from mgpu_ngram.engine.tokenise import TokeniseOptions, tokenise
from mgpu_ngram.engine.vocabulary import merge_vocabularies, number_symbols
from mgpu_ngram.kernels.count.find_tokens import find_tokens
from mgpu_ngram.kernels.count.hash_words import hash_words
from mgpu_ngram.kernels.dispatch import to_host

PREFIX = b"sixteen-bytes-of"  # 16 of them: longer words that share them are put in order another way
NAMES = [b"a", b"ab", b"b", b"\xc3\xa9", b"\xff", b"<s>", b"</s>", b"<unk>", PREFIX, PREFIX[:15],
         *(PREFIX + w for w in (b"a", b"ab", b"b", b"\x01", b"-and-many-more", b"-and-many-mora"))]  # fmt: skip


def hash_of(word, seed=0):
    text = np.frombuffer(word, np.uint8)
    return int(hash_words(text, find_tokens(text), seed)[0])


def local(words, hashes=None, **totals):
    """A LocalVocabulary of {word: (count, source, offset)}."""
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
    """symbol -> (count, source, offset), in order."""
    assert v.offsets_V.dtype == v.counts_V.dtype == v.first_offset_V.dtype == np.int64
    assert v.data.dtype == np.uint8 and v.first_source_V.dtype == np.int32
    data = v.data.tobytes()
    names = [data[a:b] for a, b in itertools.pairwise(v.offsets_V.tolist())]
    columns = v.counts_V.tolist(), v.first_source_V.tolist(), v.first_offset_V.tolist()
    return dict(zip(names, zip(*columns, strict=True), strict=True))


def summed(*parts):
    """Counts add up, the first place wins."""
    merged = {}
    for part in parts:
        for word, (count, *place) in part.items():
            known, *first = merged.get(word, (0, *place))
            merged[word] = (known + count, *min(first, place))
    return merged


PARTS = st.dictionaries(
    st.sampled_from(NAMES), st.tuples(st.integers(0, 9), st.integers(0, 3), st.integers(0, 2**40)), max_size=12
)


def test_merge_by_hand():
    a = local({b"of": (2, 1, 30), b"the": (1, 0, 5)}, tokens=3, lines=1, size_bytes=10, seconds={"read": 1.0})
    b = local({b"the": (4, 0, 2), b"to": (1, 2, 0)}, tokens=5, lines=2, size_bytes=20, seconds={"count": 2.0})
    merged = merge_vocabularies(a, b)
    assert contents(merged) == {b"of": (2, 1, 30), b"the": (5, 0, 2), b"to": (1, 2, 0)}
    assert (merged.tokens, merged.lines, merged.size_bytes) == (8, 3, 30)
    assert merged.seconds == {"read": 1.0, "count": 2.0}
    assert (np.diff(merged.hash_V.astype(object)) > 0).all()
    assert merged.hash_V.tolist() == [hash_of(w) for w in contents(merged)]


def test_the_first_source_wins_before_the_first_offset():
    merged = merge_vocabularies(local({b"of": (1, 2, 0)}), local({b"of": (1, 1, 99)}), local({b"of": (1, 1, 50)}))
    assert contents(merged) == {b"of": (3, 1, 50)}


@given(st.lists(PARTS, min_size=1, max_size=5))
def test_merge_against_a_dict(parts):
    assert contents(merge_vocabularies(*map(local, parts))) == summed(*parts)


@given(PARTS, PARTS, PARTS)
def test_merge_is_associative_and_commutative(a, b, c):
    a, b, c = local(a), local(b), local(c)
    left = merge_vocabularies(merge_vocabularies(a, b), c)
    for other in (
        merge_vocabularies(a, merge_vocabularies(b, c)),
        merge_vocabularies(c, b, a),
        merge_vocabularies(b, a, c),
    ):
        assert list(contents(other).items()) == list(contents(left).items())
        assert other.hash_V.tolist() == left.hash_V.tolist()


def test_chunks_of_blank_lines_merge():
    merged = merge_vocabularies(local({}, lines=2), local({}, lines=3))
    assert contents(merged) == {} and merged.lines == 5


@given(PARTS)
def test_an_empty_part_changes_nothing(part):
    merged = merge_vocabularies(local({}), local(part), local({}))
    assert contents(merged) == part


@pytest.mark.parametrize("other", [b"the", b"off", b"o", b"oe"])
def test_one_hash_for_two_words_is_found(other):
    a, b = local({b"of": (1, 0, 0)}, {b"of": 77}), local({other: (1, 0, 9)}, {other: 77})
    with pytest.raises(HashCollision):
        merge_vocabularies(a, b)
    with pytest.raises(HashCollision):
        merge_vocabularies(local({b"a": (1, 0, 0)}, {b"a": 1}), a, a, b)
    assert contents(merge_vocabularies(a, a)) == {b"of": (2, 0, 0)}


def in_order(words):
    return sorted(words, key=lambda w: (-words[w][0], w))


def number(words, device, markers=False, seed=0, lines=0):
    tokens = sum(count for count, _, _ in words.values())
    v = local(words, {w: hash_of(w, seed) for w in words}, tokens=tokens, lines=lines)
    return number_symbols(v, "word", markers, seed, device)


def test_ids_by_hand(device):
    lexicon = number({b"b": (1, 0, 8), b"the": (5, 0, 0), b"a": (1, 0, 4)}, device)
    assert list(contents(lexicon.vocabulary).items()) == [
        (b"<unk>", (0, -1, -1)), (b"<s>", (0, -1, -1)), (b"</s>", (0, -1, -1)),
        (b"the", (5, 0, 0)), (b"a", (1, 0, 4)), (b"b", (1, 0, 8)),
    ]  # fmt: skip
    assert (lexicon.tokens, lexicon.num_shards, lexicon.shard_V.tolist()) == (7, 1, [0] * 6)


def test_specials_that_stand_in_the_text(device):
    words = {b"<s>": (2, 1, 10), b"of": (9, 0, 0), b"<unk>": (3, 0, 7)}
    found = contents(number(words, device).vocabulary)
    assert list(found.items())[:3] == [(b"<unk>", (3, 0, 7)), (b"<s>", (2, 1, 10)), (b"</s>", (0, -1, -1))]
    assert list(found)[3:] == [b"of"]
    marked = number(words, device, markers=True, lines=4)
    assert [c for c, _, _ in contents(marked.vocabulary).values()] == [3, 6, 4, 9]
    assert marked.tokens == 14 + 8


@given(words=PARTS, seed=st.integers(0, 3))
def test_ids_against_pythons_sort(device, words, seed):
    lexicon = number(words, device, seed=seed)
    specials = [b"<unk>", b"<s>", b"</s>"]
    expected = specials + in_order({w: v for w, v in words.items() if w not in specials})
    found = contents(lexicon.vocabulary)
    assert list(found) == expected
    assert found == {w: words.get(w, (0, -1, -1)) for w in expected}
    assert (np.diff(lexicon.hash_H.astype(object)) > 0).all()
    assert {int(h): int(i) for h, i in zip(lexicon.hash_H, lexicon.ids_H, strict=True)} == {
        hash_of(w, seed): i for i, w in enumerate(expected)
    }


def test_ties_among_words_with_long_common_beginnings(device):
    rng = np.random.default_rng(1)
    tails = {bytes(rng.integers(97, 100, rng.integers(0, 6), np.uint8)) for _ in range(300)}
    words = {p + t: (int(rng.integers(1, 4)), 0, 0) for t in tails for p in (PREFIX, PREFIX + PREFIX, b"x")}
    assert list(contents(number(words, device).vocabulary))[3:] == in_order(words)


def test_codes_of_a_chunk(device):
    lexicon = number({b"the": (5, 0, 0), b"a": (1, 0, 4), b"<s>": (1, 0, 6)}, device)
    codes = lexicon.codes(np.array([hash_of(w) for w in (b"a", b"<s>", b"the")], np.uint64), device)
    assert codes.dtype == np.uint32
    assert to_host(codes).tolist() == [0, 5, 2, 4]  # id + 1, and 0 where windows end
    assert to_host(lexicon.codes(np.empty(0, np.uint64), device)).tolist() == [0]


@pytest.mark.parametrize("unit", ["byte", "id"])
def test_bytes_and_ids_go_by_value(unit, device):
    values = [65535, 3, 256, 200, 0] if unit == "id" else [200, 3, 10, 0]
    size = 4 if unit == "id" else 1
    words = {v.to_bytes(size, "little"): (i + 1, 0, i) for i, v in enumerate(values)}
    hashes = {w: 1000 - i for i, w in enumerate(words)}
    lexicon = number_symbols(local(words, hashes, tokens=15), unit, False, 0, device)
    found = contents(lexicon.vocabulary)
    assert [int.from_bytes(w, "little") for w in found] == sorted(values)
    assert found == words
    codes = to_host(lexicon.codes(np.array(sorted(hashes.values()), np.uint64), device)).tolist()
    by_hash = sorted(words, key=hashes.get)
    assert codes == [0, *(list(found).index(w) + 1 for w in by_hash)]


def test_an_empty_corpus(device):
    lexicon = number({}, device)
    assert list(contents(lexicon.vocabulary)) == [b"<unk>", b"<s>", b"</s>"]
    assert len(number_symbols(local({}), "byte", False, 0, device).vocabulary) == 0


@pytest.mark.parametrize("chunk_bytes", [10, 40, 1 << 20])
def test_ids_do_not_depend_on_chunks(device, chunk_bytes):
    lines = ["of the of", "<s> the", "", "the end of it", "zzz zzz zzz"] * 5
    chunks = open_corpus(Lines(lines)).chunks(chunk_bytes)
    assert (len(chunks) > 1) == (chunk_bytes < 1000)
    merged = merge_vocabularies(*(tokenise(chunk, TokeniseOptions(device=device)).vocabulary for chunk in chunks))
    found = contents(number_symbols(merged, "word", True, 0, device).vocabulary)
    text = "".join(line + "\n" for line in lines)
    counts = Counter(text.split())
    expected = {b"<unk>": (0, -1, -1), b"<s>": (5 + 25, 0, 10), b"</s>": (25, -1, -1)}
    for word in sorted(set(counts) - {"<s>"}, key=lambda w: (-counts[w], w)):
        expected[word.encode()] = (counts[word], 0, f" {text}".replace("\n", " ").index(f" {word} "))
    assert list(found.items()) == list(expected.items())
