"""Vocabularies that workers merge and number in ranges: equal to those of one task, and to Python's sort."""

import itertools
from collections import Counter

import numpy as np
import pytest

from mgpu_ngram.cluster.local import LocalExecutor
from mgpu_ngram.core.counts.shards import PartLimits
from mgpu_ngram.core.counts.vocabulary import HashCollision, LocalVocabulary, SpecialInText
from mgpu_ngram.core.ngrams.words import Words
from mgpu_ngram.core.storage.shared_maps import file_place_of
from mgpu_ngram.engine.count import merge_vocabularies as vocabulary_module
from mgpu_ngram.engine.count.sentence_markers import LmplzText
from mgpu_ngram.engine.memory.budget import Budget
from mgpu_ngram.jobs.count import numbering
from mgpu_ngram.jobs.count import passes as count_passes
from mgpu_ngram.jobs.count.numbering import Numbering, groups, number_in_ranges, number_vocabulary, ranges_needed
from mgpu_ngram.kernels.common.find_tokens import find_tokens
from mgpu_ngram.kernels.count.hash_words import hash_words
from tests.support.slow_cases import first_fast

PARTS = PartLimits(5, 5, 1, 1, 5)
BUDGET = Budget("cpu", 0, 1 << 30)
LMPLZ = {
    "count": None,
    "lmplz": LmplzText(True, PARTS),
    "srilm": LmplzText(True, PARTS, True, Words.of(["<unk>", "w1", "w30", "w99999", "<s>", "of", "other", "</s>"])),
}


def vocabulary_of(tokens, source, hashes=None, **totals):
    """Return the vocabulary of a chunk: words by their first places, as tokenising makes it."""
    first = {word: at for at, word in reversed(list(enumerate(tokens)))}
    words = sorted(first, key=first.get)
    text = np.frombuffer(b" ".join(words) + b" ", np.uint8)
    hash_V = hash_words(text, find_tokens(text), 0) if words else np.empty(0, np.uint64)
    if hashes:
        hash_V = np.array([hashes[w] for w in words], np.uint64)
    return LocalVocabulary(
        hash_V,
        np.cumsum([0, *map(len, words)]),
        np.frombuffer(b"".join(words), np.uint8),
        np.array([Counter(tokens)[w] for w in words], np.int64),
        np.full(len(words), source, np.int32),
        np.array([first[w] for w in words], np.int64),
        tokens=len(tokens),
        checksums=[(source, len(tokens))],
        **totals,
    )


def texts(chunks=6, words=3000):
    rng = np.random.default_rng(3)
    names = [b"w%d" % v if v % 5 else b"a-beginning-of-16-bytes-and-%d" % v for v in range(words)]
    made = [[names[v] for v in (rng.random(700) ** 3 * words).astype(int)] for _ in range(chunks)]
    made[1] += [b"<s>", b"<unk>", b"of"]
    return [*made, []]


@pytest.fixture
def executor():
    made = LocalExecutor(workers=2)
    yield made
    made.close()


def numbered(executor, vocabularies, folder, ranges, lmplz=None, budget=BUDGET):
    """Return what both ways make of the vocabularies of chunks; `ranges` 0: in one task."""
    how = Numbering("word", True, 0, lmplz, budget, str(folder), 3)
    handles = [executor.call(lambda v=v: v) for v in vocabularies]
    if not ranges:
        [made] = executor.gather([number_vocabulary(executor, handles, how)])
        return made
    sizes = [v.nbytes for v in vocabularies]
    [made] = executor.gather([number_in_ranges(executor, handles, sizes, how, ranges)])
    return made


def arrays_of(made):
    return made.lexicon.arrays() | made.vocabulary.arrays()


@pytest.mark.parametrize(("host_bytes", "threads"), [(1 << 40, 3), (1050 << 20, 2), (1 << 20, 1)])
def test_threads_that_number_words_fit_host_memory(host_bytes, threads, executor, tmp_path, monkeypatch):
    """Each takes 50 MiB, all together up to a tenth."""
    found, number = [], numbering.number_symbols
    monkeypatch.setattr(numbering, "number_symbols", lambda *args: found.append(args[-1]) or number(*args))
    numbered(executor, [vocabulary_of([b"of"], 0)], tmp_path, 0, budget=Budget("cpu", 0, host_bytes))
    assert found == [threads]


@pytest.mark.parametrize("text", LMPLZ)
@pytest.mark.parametrize("ranges", first_fast([7, 2, 40]))
@pytest.mark.parametrize("room", [True, False])
def test_ranges_change_nothing(text, ranges, room, executor, tmp_path, monkeypatch):
    monkeypatch.setattr(vocabulary_module, "ROWS_AT_ONCE", 100)
    chunks = [vocabulary_of(t, i, lines=i, unfinished_lines=i == 4) for i, t in enumerate(texts())]
    expected = numbered(executor, chunks, tmp_path, 0, LMPLZ[text])
    budget = Budget("cpu", 0, 1 << 30 if room else 1 << 16)  # small vocabularies in groups of one or two
    found = numbered(executor, chunks, tmp_path, ranges, LMPLZ[text], budget)
    for name, array in arrays_of(expected).items():
        other = arrays_of(found)[name]
        assert array.dtype == other.dtype and array.tolist() == other.tolist(), name
        assert room or file_place_of(other), name
    for name in "unit", "symbols", "tokens", "num_shards", "split":
        assert getattr(found.lexicon, name) == getattr(expected.lexicon, name)
    assert found.vocabulary.unit == "word" and found.lines == expected.lines == 21
    assert sorted(found.checksums) == sorted(expected.checksums)
    assert list(tmp_path.iterdir()) == []


def test_ranges_against_pythons_sort(executor, tmp_path):
    chunks = texts()
    found = numbered(executor, [vocabulary_of(t, i) for i, t in enumerate(chunks)], tmp_path, 7).vocabulary
    counts = Counter(itertools.chain(*chunks))
    specials = [b"<unk>", b"<s>", b"</s>"]
    words = specials + sorted(counts.keys() - set(specials), key=lambda w: (-counts[w], w))
    assert [found.symbol(v) for v in range(len(found))] == words
    assert found.counts_V.tolist() == [counts[w] for w in words]
    places = {w: (i, t.index(w)) for i, t in reversed(list(enumerate(chunks))) for w in set(t)}
    assert list(zip(found.first_source_V.tolist(), found.first_offset_V.tolist(), strict=True)) == [
        places.get(w, (-1, -1)) for w in words
    ]


def test_the_first_special_of_the_text_is_refused(executor, tmp_path):
    """They are in different ranges; a task that numbers one range does not know the other."""
    chunks = [vocabulary_of(t, i) for i, t in enumerate([[b"a", b"</s>"], [b"<s>", b"<unk>"], [b"</s>"]])]
    for ranges in 0, 2, 3, 50:
        with pytest.raises(SpecialInText) as found:
            numbered(executor, chunks, tmp_path, ranges, LmplzText(False, PARTS))
        assert found.value.args == (0, 1, b"</s>")


@pytest.mark.parametrize("h", [0, 1 << 63, (1 << 64) - 1])
@pytest.mark.parametrize("ranges", first_fast([3, 2, 64]))
def test_two_words_with_one_hash_are_found(h, ranges, executor, tmp_path):
    chunks = [vocabulary_of([w, b"the"], 0, {w: h, b"the": 5 << 61}) for w in (b"of", b"to")]
    assert len(numbered(executor, chunks[:1], tmp_path, ranges).vocabulary) == 5
    with pytest.raises(HashCollision):
        numbered(executor, chunks, tmp_path, ranges)


def test_groups_by_hand():
    assert groups("abcde", [3, 4, 9, 1, 6], 7) == [["a", "b"], ["c"], ["d", "e"]]
    assert groups("", [], 7) == []
    assert groups("ab", [0, 0], 0) == [["a", "b"]]


def test_ranges_by_hand():
    """Three copies of a range fit the memory of a task: 800 of 1,000 bytes."""
    budget = Budget("cpu", 0, 1000)
    assert [ranges_needed([n, n], budget) for n in (0, 133, 134, 1000)] == [1, 1, 2, 8]
    assert ranges_needed([1 << 40], budget) == 256


@pytest.fixture
def in_ranges(monkeypatch):
    """Every run merges and numbers words in ranges."""
    called = []
    monkeypatch.setattr(count_passes, "WORD_BYTES", 1 << 60)
    monkeypatch.setattr(count_passes, "ranges_needed", lambda *sizes: called.append(1) or 5)
    return called


@pytest.mark.parametrize("strategy", ["auto", "sort"])
def test_a_whole_run_in_ranges(strategy, contents, corpus, run_here, in_ranges, tmp_path, monkeypatch):
    options = {"order": 4, "chunk_bytes": 20_000, "strategy": strategy}
    run_here(tmp_path / "ranges", corpus, **options)
    assert in_ranges
    monkeypatch.undo()
    run_here(tmp_path / "one", corpus, **options)
    assert contents(tmp_path / "ranges") == contents(tmp_path / "one")
