"""Pass 1, compared with regular expressions and dicts."""

import gc
import itertools
import re
import weakref
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mgpu_ngram.core.counts.vocabulary import HashCollision
from mgpu_ngram.core.inputs.corpus import Chunk, open_corpus
from mgpu_ngram.core.inputs.in_memory import Lines
from mgpu_ngram.engine.count import token_streams, tokenise_words
from mgpu_ngram.engine.count import tokenise as tokenise_module
from mgpu_ngram.engine.count.merge_vocabularies import merge_vocabularies, move_vocabulary
from mgpu_ngram.engine.count.token_streams import TokeniseOptions, lower_ascii
from mgpu_ngram.engine.count.tokenise import tokenise, without_words
from mgpu_ngram.engine.memory import budget as memory_module
from mgpu_ngram.engine.memory.budget import Budget
from mgpu_ngram.engine.memory.spill import in_file
from mgpu_ngram.kernels.common.integer_hash import mix64
from mgpu_ngram.kernels.count.hash_words import hash_ids
from mgpu_ngram.kernels.dispatch import on_gpu, to_host


def files(tmp_path, *texts):
    """Return paths of new files, one per text."""
    for i, text in enumerate(texts):
        (tmp_path / f"{i}").write_bytes(text)
    return [str(tmp_path / f"{i}") for i in range(len(texts))]


def only_chunk(inputs, options):
    (chunk,) = open_corpus(inputs, options.unit, options.dtype).chunks(1 << 30)
    return tokenise(chunk, options)


def symbols(vocabulary):
    """Return symbol -> (count, first source, first offset), in the vocabulary's order."""
    data, offsets = vocabulary.data.tobytes(), vocabulary.offsets_V.tolist()
    names = [data[a:b] for a, b in itertools.pairwise(offsets)]
    columns = vocabulary.counts_V, vocabulary.first_source_V, vocabulary.first_offset_V
    return dict(zip(names, zip(*(c.tolist() for c in columns), strict=True), strict=True))


def streams(found):
    return [to_host(s.tokens_T).tolist() for s in found.streams]


def words_of(texts):
    """Return symbol -> (count, source, offset) in order of appearance."""
    seen, counts = {}, Counter()
    for source, text in enumerate(texts):
        for m in re.finditer(rb"[^\x00\t\n\r ]+", text):
            seen.setdefault(m.group(), (source, m.start()))
            counts[m.group()] += 1
    return {word: (counts[word], *place) for word, place in seen.items()}


def test_words_by_hand(device, tmp_path):
    options = TokeniseOptions(device=device)
    found = only_chunk(files(tmp_path, b"of the of\nend", b"the\r\n\nnew of"), options)
    v = found.vocabulary
    assert list(symbols(v).items()) == [
        (b"of", (3, 0, 0)), (b"the", (2, 0, 3)), (b"end", (1, 0, 10)), (b"new", (1, 1, 6)),
    ]  # fmt: skip
    assert streams(found) == [[1, 2, 1, 0, 3, 0, 2, 0, 0, 4, 1, 0]]
    assert (v.tokens, v.lines, v.size_bytes) == (7, 5, 27)  # the last line gets its missing newline
    assert [(source, length) for source, _, length, _ in v.checksums] == [(0, 13), (1, 12)]
    assert on_gpu(found.streams[0].tokens_T) == (device == "gpu")
    assert set(v.seconds) >= {"read", "tokenise"}


def test_words_as_lmplz_reads_them_by_hand(device, tmp_path):
    """V + 1 = 5 ends a line that gets no </s>; specials have a position but no count."""
    options = TokeniseOptions(device=device, lmplz=True)
    found = only_chunk(files(tmp_path, b"of the <s> of\nend", b"<unk>", b"the\n \n of", b"a\n <s> "), options)
    v = found.vocabulary
    assert list(symbols(v).items()) == [
        (b"of", (3, 0, 0)), (b"the", (2, 0, 3)), (b"<s>", (0, 0, 7)), (b"end", (1, 0, 14)), (b"<unk>", (0, 1, 0)),
        (b"a", (1, 3, 0)),
    ]  # fmt: skip
    assert streams(found) == [[1, 2, 1, 0, 4, 7, 2, 0, 0, 1, 7, 6, 0]]
    assert (v.tokens, v.lines, v.unfinished_lines, v.size_bytes) == (7, 6, 2, 42)


def test_ids_as_lmplz_would_read_them_by_hand(device, tmp_path):
    """Tokens 1, 2 and 3 are <unk>, <s> and </s>."""
    file, other = [2, 4, 3, 0, 2, 3, 0, 2, 5, 4, 0], [2, 5, 3, 0, 0, 0]
    cut = [(file, 10), (other, 5)]  # after three ids, with a halo of two
    for block_bytes, expected in (1 << 20, [(file + other, 17)]), (6, cut):
        options = TokeniseOptions("id", 3, separator_id=0, device=device, block_bytes=block_bytes, lmplz=True)
        texts = [np.array(ids, "<u2").tobytes() for ids in ([7, 0, 0, 9, 7], [9, 0])]
        found = only_chunk(files(tmp_path, *texts), options)
        assert [(to_host(s.tokens_T).tolist(), s.owned) for s in found.streams] == expected
        assert (found.vocabulary.tokens, found.vocabulary.lines, found.vocabulary.unfinished_lines) == (11, 4, 1)


def test_empty_files(device, tmp_path):
    for texts in ([b""], [b"", b"\n"], [b" \t\r\n"]):
        found = only_chunk(files(tmp_path, *texts), TokeniseOptions(device=device))
        assert symbols(found.vocabulary) == {}
        assert found.vocabulary.tokens == 0 and found.vocabulary.lines == sum(t.count(b"\n") for t in texts)


@settings(max_examples=30)
@given(
    lines=st.lists(st.lists(st.sampled_from([b"a", b"bb", b"c" * 20, b"\xff", b"\x0b"]), max_size=8), max_size=20),
    block_bytes=st.integers(1, 80),
)
def test_words_against_a_regular_expression(device, lines, block_bytes):
    text = b"".join(b" ".join(line) + b"\n" for line in lines)
    corpus = open_corpus(Lines([b" ".join(line) for line in lines]))
    expected = words_of([text])
    options = TokeniseOptions(device=device, block_bytes=block_bytes)
    for chunk in corpus.chunks(1 << 20):
        found = tokenise(chunk, options)
        assert list(symbols(found.vocabulary).items()) == list(expected.items())
        names = [b"\n", *expected]
        tokens = [names[t] for stream in streams(found) for t in stream]
        assert tokens == re.findall(rb"[^\x00\t\n\r ]+|\n", text)


def test_lower_case_is_ascii_only(device, to_device):
    text_B = to_device(np.arange(256, dtype=np.uint8))
    lower_ascii(text_B)
    assert to_host(text_B).tobytes() == bytes(range(256)).lower()  # bytes.lower() is ASCII only
    options = TokeniseOptions(device=device, lowercase=True)
    found = only_chunk(Lines(["The THE the \u00c9t\u00e9 \u00e9t\u00e9 [@"]), options)
    names = ["the", "\u00c9t\u00e9", "\u00e9t\u00e9", "[@"]
    assert {w.decode(): c for w, (c, _, _) in symbols(found.vocabulary).items()} == dict(
        zip(names, [3, 1, 1, 1], strict=True)
    )


def room_for(nbytes, monkeypatch):
    """Return budgets by device: of a full GPU, and of host memory that keeps `nbytes` of results."""
    monkeypatch.setattr(memory_module, "_held", weakref.WeakSet())  # results of other tests do not count
    monkeypatch.setitem(memory_module.KEPT_SHARE, "cpu", 0.25)
    monkeypatch.setattr(memory_module, "KEPT_BESIDE_SHARE", 0.25)
    return lambda device: Budget(device, 0, 4 * nbytes)


def test_chunks_stay_in_host_memory_while_they_fit(device, monkeypatch, tmp_path):
    """Streams and vocabularies stay. Others go to unlinked files, but not streams of a GPU: it reads the text again."""
    tokens, hashes = 3 * 4, 2 * 8
    needed = tokens + hashes  # pass 2 reads it again
    words = 2 * (8 + 8 + 8 + 4 + 8) + 8 + len("ofthe")  # all arrays of a vocabulary
    budget = room_for(2 * (tokens + words), monkeypatch)(device)
    options = TokeniseOptions(device=device, budget=budget, spill_folder=str(tmp_path))
    first, second, third = (only_chunk(Lines(["of the"]), options) for _ in range(3))
    for found in (first, second):
        assert not on_gpu(found.streams[0].tokens_T) and streams(found) == [[1, 2, 0]]
        assert not on_gpu(found.vocabulary.data) and (found.host_bytes, found.vocabulary.nbytes) == (needed, words)
    if device == "gpu":
        assert third.streams is None and without_words(third) is None
    else:
        assert in_file(third.streams[0].tokens_T) and streams(third) == [[1, 2, 0]]
        assert without_words(third).host_bytes == 0
    assert symbols(third.vocabulary) == symbols(first.vocabulary) and list(tmp_path.iterdir()) == []
    assert not third.vocabulary.data.flags.owndata and not third.vocabulary.data.flags.writeable  # views of a file
    merged = merge_vocabularies(*(move_vocabulary(f.vocabulary, device) for f in (first, third)))
    assert symbols(merged) == {b"of": (2, 0, 0), b"the": (2, 0, 3)}
    kept = without_words(first)
    del first, found, second
    gc.collect()
    assert memory_module._held_bytes() == kept.host_bytes == needed  # without the words
    assert streams(only_chunk(Lines(["of the"]), options)) == [[1, 2, 0]]  # memory is free again


def test_a_full_device_tokenises_in_host_memory(monkeypatch):
    """The tokens and words are the same; errors other than out of memory are raised."""
    on_host, tried = TokeniseOptions(), []

    def full(chunk, options, error=MemoryError):
        tried.append(options.device)
        if options.device == "gpu":
            raise error
        return real(chunk, options)

    real = tokenise_module.tokenise_words
    monkeypatch.setattr(tokenise_module, "tokenise_words", full)
    found, expected = (only_chunk(Lines(["of the"]), replace(on_host, device=d)) for d in ("gpu", "cpu"))
    assert tried == ["gpu", "cpu", "cpu"]
    assert streams(found) == streams(expected) and symbols(found.vocabulary) == symbols(expected.vocabulary)
    monkeypatch.setattr(tokenise_module, "device_alone", nullcontext)
    monkeypatch.setattr(Budget, "place", lambda self, nbytes: "device")  # memory is free again
    budget = room_for(12 + 85, monkeypatch)("gpu")
    found = only_chunk(Lines(["of the"]), replace(on_host, device="gpu", budget=budget))
    assert memory_module._held_bytes() == 12 + 85 and not budget.fits_host(1) and found.streams is not None
    monkeypatch.setattr(tokenise_module, "tokenise_words", partial(full, error=ZeroDivisionError))
    with pytest.raises(ZeroDivisionError):
        only_chunk(Lines(["of the"]), replace(on_host, device="gpu"))


@pytest.mark.gpu
def test_streams_stay_on_the_device_while_they_fit():
    found = only_chunk(Lines(["of the"]), TokeniseOptions(device="gpu", budget=Budget("gpu", 1 << 40, 0)))
    assert on_gpu(found.streams[0].tokens_T) and found.host_bytes == 0


@pytest.mark.parametrize("unit", ["word", "byte", "id"])
def test_an_empty_chunk_always_fits(device, unit, monkeypatch, tmp_path):
    """Its streams are kept, with no tokens."""
    budget = room_for(0, monkeypatch)(device)
    (chunk,) = open_corpus(np.empty(0, np.uint16) if unit == "id" else Lines([]), unit).chunks(100) or [Chunk(0, (), 0)]
    options = TokeniseOptions(unit, device=device, budget=budget, spill_folder=str(tmp_path))
    assert sum(s.owned for s in tokenise(chunk, options).streams) == 0


def test_another_seed_gives_other_hashes(device):
    first, second = (only_chunk(Lines(["of the"]), TokeniseOptions(device=device, seed=s)).vocabulary for s in (0, 1))
    assert symbols(first) == symbols(second)
    assert not set(first.hash_V.tolist()) & set(second.hash_V.tolist())


def test_a_collision_is_found(device, monkeypatch):
    def worse(text_B, positions_T, seed):
        hash_T = real(text_B, positions_T, seed)
        hash_T[hash_T != 0] = 5
        return hash_T

    real = tokenise_words.hash_words
    monkeypatch.setattr(tokenise_words, "hash_words", worse)
    assert only_chunk(Lines(["of of"]), TokeniseOptions(device=device)).vocabulary.tokens == 2
    with pytest.raises(HashCollision):
        only_chunk(Lines(["of the"]), TokeniseOptions(device=device))


def test_a_collision_with_a_word_of_an_earlier_block_is_found(device, monkeypatch):
    real = tokenise_words.hash_words
    monkeypatch.setattr(tokenise_words, "hash_words", lambda *a: (real(*a) != 0).astype(np.uint64))
    with pytest.raises(HashCollision):
        only_chunk(Lines(["of", "the"]), TokeniseOptions(device=device, block_bytes=4))


def bytes_of(texts):
    """Return byte -> (count, source, offset), by rising value."""
    data = b"".join(texts)
    places = {v: next((i, t.find(v)) for i, t in enumerate(texts) if v in t) for v in set(data)}
    return {bytes([v]): (data.count(v), *places[v]) for v in sorted(places)}


def owned_windows(found, order):
    """Return a Counter of the n-grams that start in the owned part of a chunk's streams, as symbols; 0 ends windows."""
    windows = Counter()
    for stream in found.streams:
        tokens = to_host(stream.tokens_T)
        codes = tokens.astype(int) + (tokens.dtype == np.uint8)  # raw bytes have no terminator: byte + 1
        for t in range(min(stream.owned, len(codes) - order + 1)):
            window = tuple(codes[t : t + order].tolist())
            if 0 not in window:
                windows[bytes(c - 1 for c in window)] += 1
    return windows


def windows_of(texts, order):
    return Counter(text[t : t + order] for text in texts for t in range(len(text) - order + 1))


@pytest.mark.parametrize("order", [1, 3])
@pytest.mark.parametrize(
    "texts",
    [
        [b"abracadabra\n"],
        [b"abc", b"", b"cab", b"x"],
        [b"a longer file of bytes", b"tiny"],  # one small file beside a large one
        [b"tiny", b"a longer file of bytes"],
        [b"a longer file of bytes", b"tiny", b"small", b"another longer file"],
    ],
    ids=["one", "small", "large, small", "small, large", "mixed"],
)
@pytest.mark.parametrize("block_bytes", [5, 17, 1 << 20])
def test_bytes_of_several_files(device, tmp_path, monkeypatch, texts, order, block_bytes):
    monkeypatch.setattr(token_streams, "SMALL_BYTES", 8)
    options = TokeniseOptions("byte", order, device=device, block_bytes=block_bytes)
    found = only_chunk(files(tmp_path, *texts), options)
    assert symbols(found.vocabulary) == bytes_of(texts)
    assert found.vocabulary.tokens == found.vocabulary.size_bytes == len(b"".join(texts))
    assert owned_windows(found, order) == windows_of(texts, order)


def test_first_positions_of_late_bytes(device, tmp_path):
    text = b"a" * 70_000 + b"b" + b"a" * 5 + b"cb"  # past the prefix that is searched as a whole
    found = only_chunk(files(tmp_path, text), TokeniseOptions("byte", 2, device=device))
    assert symbols(found.vocabulary) == {b"a": (70_005, 0, 0), b"b": (2, 0, 70_000), b"c": (1, 0, 70_006)}


def test_bytes_in_lower_case(device):
    found = only_chunk(Lines([b"AbB\xc9"]), TokeniseOptions("byte", 1, lowercase=True, device=device))
    assert {k: c for k, (c, _, _) in symbols(found.vocabulary).items()} == {b"\n": 1, b"a": 1, b"b": 2, b"\xc9": 1}


def little(v):
    return int(v).to_bytes(4, "little")


@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
def test_ids_by_hand(device, dtype, tmp_path):
    ids = [7, 9, 7, 0, 65535, 9]
    options = TokeniseOptions("id", 2, dtype, separator_id=0, device=device)
    found = only_chunk(files(tmp_path, np.array(ids, dtype).tobytes()), options)
    size = np.dtype(dtype).itemsize
    assert list(symbols(found.vocabulary).items()) == [
        (little(7), (2, 0, 0)), (little(9), (2, 0, size)), (little(65535), (1, 0, 4 * size)),
    ]  # fmt: skip
    assert streams(found) == [[1, 2, 1, 0, 3, 2, 0]]
    assert found.vocabulary.tokens == 5


@settings(max_examples=30)
@given(
    ids=st.lists(st.integers(0, 6), max_size=60),
    separator=st.sampled_from([None, 0, 3]),
    block_bytes=st.integers(2, 40),
    order=st.integers(1, 4),
)
def test_ids_against_counter(device, ids, separator, block_bytes, order):
    options = TokeniseOptions("id", order, separator_id=separator, device=device, block_bytes=block_bytes)
    chunks = open_corpus(np.array(ids, np.uint16), "id").chunks(1 << 20)
    expected = Counter(tuple(ids[t : t + order]) for t in range(len(ids) - order + 1))
    expected = {g: c for g, c in expected.items() if separator not in g}
    windows = Counter()
    for chunk in chunks:
        found = tokenise(chunk, options)
        names = [int.from_bytes(s, "little") for s in symbols(found.vocabulary)]
        for stream in found.streams:
            tokens = to_host(stream.tokens_T).tolist()
            for t in range(min(stream.owned, len(tokens) - order + 1)):
                window = tokens[t : t + order]
                if 0 not in window:
                    windows[tuple(names[c - 1] for c in window)] += 1
        counts = {int.from_bytes(s, "little"): c for s, (c, _, _) in symbols(found.vocabulary).items()}
        assert counts == {v: c for v, c in Counter(ids).items() if v != separator}
    assert windows == expected


def test_hash_of_ids_is_mix64_and_never_0():
    ids = np.array([0, 1, 65535, 2**32 - 1], np.uint32)
    assert hash_ids(ids).tolist() == [int(mix64(np.uint64(v) + np.uint64(1))) for v in ids]
    assert hash_ids(ids)[0] == 0xB456BCFC34C2CB2C  # known value of the finaliser at 1
    assert hash_ids(np.arange(65536)).all()
