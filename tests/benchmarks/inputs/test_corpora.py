"""The corpora of the benchmarks have the stated properties."""

import hashlib
from collections import Counter

import numpy as np
import pytest

from mgpu_ngram.benchmarks.inputs.corpora import (
    ENGLISH_FILE,
    QUANTILES,
    _zipf_ranks,
    english_like_text,
    shuffled_lines,
    spellings,
    zipf_ids,
    zipf_text,
    zipf_texts,
)
from mgpu_ngram.core.errors import InputError

pytestmark = pytest.mark.slow

SYMBOLS, DIGEST = 88, "72e315f39d729115"


def test_shuffled_lines_are_whole_passes_over_the_source(tmp_path):
    source = tmp_path / "source.txt"
    source.write_bytes(b"to be\nor not\nto be\nthat is")
    lines = [b"to be\n", b"or not\n", b"to be\n", b"that is\n"]
    size = len(b"".join(lines))
    text = shuffled_lines(3 * size, source).tobytes()
    passes = [text[i * size : (i + 1) * size].splitlines(keepends=True) for i in range(3)]
    assert [sorted(p) for p in passes] == [sorted(lines)] * 3
    assert len(set(map(tuple, passes))) > 1
    assert shuffled_lines(3 * size, source, seed=1).tobytes() != text
    assert len(shuffled_lines(7, source)) == 7


def test_shuffled_lines_need_text(tmp_path):
    empty = tmp_path / "empty.txt"
    empty.write_bytes(b" \n\n")
    with pytest.raises(InputError, match=r"empty\.txt"):
        shuffled_lines(10, empty)


def windows(text, n):
    return Counter(text[t : t + n] for t in range(len(text) - n + 1))


def test_english_like_text_is_the_same_everywhere():
    text = english_like_text(3_000_000).tobytes()
    assert (
        len(text) == 3_000_000
        and text.endswith(b"\n")
        and text[:-1] == english_like_text(3_500_000).tobytes()[:2_999_999]
    )
    assert len(set(text)) == SYMBOLS == len(set(ENGLISH_FILE.read_bytes()))  # all counts have the same alphabet
    assert hashlib.sha256(text).hexdigest()[:16] == DIGEST
    assert english_like_text(100, seed=1).tobytes() != text[:100] and len(english_like_text(0)) == 0


def test_english_like_text_has_the_4_grams_of_its_source_and_no_more():
    source = ENGLISH_FILE.read_bytes()
    known, text = windows(source + source[:3], 4), english_like_text(1_000_000).tobytes()
    made = windows(text[:-1], 4)
    assert set(made) <= set(known)
    for ngram, count in known.most_common(20):
        assert made[ngram] / 1_000_000 == pytest.approx(count / len(source), rel=0.2)
    assert len(windows(text, 12)) > 5 * len(windows(source, 12))  # not a repetition of the source


@pytest.fixture(scope="module")
def stream():
    return zipf_ids(200_000, vocabulary=5_000, seed=3)


def test_sentences(stream):
    assert int((stream > 0).sum()) == 200_000 and stream.max() <= 5_000
    assert stream[0] > 0 and stream[-1] == 0
    lengths = np.diff(np.flatnonzero(np.concatenate([[True], stream == 0]))) - 1
    lengths[0] += 1  # the first sentence has no 0 before it
    assert lengths[:-1].min() >= 10 and lengths.max() <= 30 and 19 < lengths.mean() < 21


def test_words_follow_zipf(stream):
    counts = np.bincount(stream[stream > 0], minlength=5_001)[1:]
    of_rank = np.log1p(1 / np.arange(1, 5_001)) / np.log(5_001)
    # Successors are sampled once per word, so single words deviate from their share; ranges of ranks do not.
    for a, b in ((0, 10), (10, 100), (100, 1_000), (1_000, 5_000)):
        assert counts[a:b].sum() / 200_000 == pytest.approx(of_rank[a:b].sum(), rel=0.25)


def test_half_of_the_words_follow_one_of_four_successors(stream):
    after = Counter(stream[1:][(stream[:-1] == 1) & (stream[1:] > 0)].tolist())
    share = sum(n for _, n in after.most_common(4)) / after.total()
    assert 0.5 < share < 0.75  # with independent samples, the four heaviest words alone would be a quarter
    assert len(after) > 200


def test_seeds_differ_and_blocks_are_stable(stream):
    assert not np.array_equal(stream[:100], zipf_ids(100, vocabulary=5_000, seed=4)[:100])
    assert np.array_equal(stream, zipf_ids(200_000, vocabulary=5_000, seed=3))


def test_text_spells_the_stream(tmp_path, stream):
    path = tmp_path / "corpus.txt"
    totals = zipf_text(path, 200_000, vocabulary=5_000, seed=3)
    offsets, data = spellings(5_000)
    words = [data[a:b].tobytes() for a, b in zip(offsets[:-1], offsets[1:], strict=True)]
    assert len(set(words)) == 5_000 and len(words[0]) == 1 and max(map(len, words)) <= 12
    assert [len(w) for w in words] == sorted(len(w) for w in words)
    expected = []
    for code in stream.tolist():
        expected.append(words[code - 1] if code else b"\n")
    lines = path.read_bytes().splitlines()
    assert [w for line in lines for w in [*line.split(b" "), b"\n"]] == expected
    assert totals == [sum(max(0, len(line.split()) - n + 1) for line in lines) for n in range(1, 6)]


def test_a_vocabulary_larger_than_the_table_of_the_law(tmp_path):
    """Its ranks lie between those of the table, too; text and stream are the same."""
    V = QUANTILES + 300_000
    totals, stream = zipf_text(tmp_path / "corpus.txt", 20_000, vocabulary=V), zipf_ids(20_000, vocabulary=V)
    offsets, data = spellings(V)
    ids = stream[stream > 0].astype(np.int64) - 1
    words = [data[offsets[i] : offsets[i + 1]].tobytes() for i in ids]
    assert (tmp_path / "corpus.txt").read_bytes().split() == words and totals[0] == len(words) == 20_000
    assert ids.max() < V and len(np.setdiff1d(ids, _zipf_ranks(V))) > 100
    # By Zipf's law, half of all words have a rank below sqrt(V).
    assert abs(np.mean(ids < V**0.5) - 0.5) < 0.02


def test_texts_share_words_and_differ(tmp_path):
    files = zipf_texts(tmp_path, 2_500, file_tokens=1_000, vocabulary=300, order=2)
    texts = [path.read_bytes() for path, _ in files]
    assert [len(text.split()) for text in texts] == [1_000, 1_000, 500] == [totals[0] for _, totals in files]
    assert len(set(texts)) == 3 and len(set(b" ".join(texts).split())) <= 300
    zipf_text(tmp_path / "alone.txt", 1_000, vocabulary=300, seed=1)
    assert (tmp_path / "alone.txt").read_bytes() == texts[1]


@pytest.mark.gpu
def test_the_gpu_makes_the_same_stream(stream):
    import cupy

    assert np.array_equal(zipf_ids(200_000, vocabulary=5_000, seed=3, xp=cupy).get(), stream)
