"""N-grams as nodes of a trie, and their suffixes, against dictionaries; sums and weights of contexts by hand."""

import numpy as np
import pytest

from mgpu_ngram.engine.count.count_chunk import pack_codes
from mgpu_ngram.kernels.dispatch import to_host
from mgpu_ngram.kernels.estimate.count_counts import count_counts
from mgpu_ngram.kernels.estimate.find_suffixes import find_suffixes
from mgpu_ngram.kernels.estimate.link_histories import TILE, link_histories
from mgpu_ngram.kernels.estimate.weigh_contexts import weigh_contexts


def ngrams_of(text, n):
    return sorted({*zip(*(text[i:] for i in range(n)), strict=False)})


def keys_of(ngrams, n, bits):
    codes = np.array(ngrams, np.uint32).reshape(-1, n) + 1
    return pack_codes([np.ascontiguousarray(codes[:, i]) for i in range(n)], bits)


def text_of(words, size, seed):
    """Words by id; half of the text is word 0, so that one history has most n-grams."""
    rng = np.random.default_rng(seed)
    return np.where(rng.random(size) < 0.5, 0, rng.integers(0, words, size)).tolist()


@pytest.mark.parametrize("size", [5, 100, 3 * TILE])
@pytest.mark.parametrize("bits", [17, 21, 33])
def test_as_dictionaries_have_them(size, bits, to_device):
    """Keys of order 4 end in a second column, a word of which may begin in the first."""
    text, words = text_of(40, size, size), 40
    rows, links, suffixes = {(w,): w for w in range(words)}, {}, {}
    for n in range(2, 6):
        ngrams = ngrams_of(text, n)
        below = to_device(keys_of(sorted(rows, key=rows.get), n - 1, bits))
        links[n] = link_histories(below, to_device(keys_of(ngrams, n, bits)), n, bits)
        word_R, history_R, first_M1 = map(to_host, links[n])
        history = [rows[g[:-1]] for g in ngrams]
        assert word_R.tolist() == [g[-1] for g in ngrams] and history_R.tolist() == history
        assert first_M1.tolist() == np.searchsorted(history, np.arange(len(rows) + 1)).tolist()
        suffixes[n] = links[n].word_R
        if n > 2:
            lower = links[n - 1]
            suffixes[n], left_M = find_suffixes(*links[n][:2], lower.word_R, lower.first_M1, suffixes[n - 1])
            expected = [rows[g[1:]] for g in ngrams]
            assert to_host(suffixes[n]).tolist() == expected
            assert to_host(left_M).tolist() == np.bincount(expected, minlength=len(rows)).tolist()
        rows = {g: row for row, g in enumerate(ngrams)}


def test_a_missing_suffix_is_an_error(to_device):
    """Trigrams 0 1 2 and 0 1 3, bigrams 0 1 and 1 2: nothing has 1 3."""
    u32 = [[2, 3], [0, 0], [1, 2], [0, 1, 2, 2, 2], [1, 2]]
    word_R, history_R, word_M, first_L1, suffix_M = (to_device(np.array(values, np.uint32)) for values in u32)
    with pytest.raises(ValueError, match="1 of 2 n-grams lack"):
        find_suffixes(word_R, history_R, word_M, first_L1, suffix_M)


def test_keys_that_do_not_fit_their_orders_are_refused(to_device):
    below, columns = to_device(np.ones((1, 1), np.uint64)), to_device(np.ones((1, 3), np.uint64))
    with pytest.raises(ValueError, match="got keys of 1 columns but 4 words of 20 bits need 2"):
        link_histories(below, columns, 4, 20)
    with pytest.raises(ValueError, match="got 3 n-grams and 0 histories"):
        link_histories(below[:, :0], columns, 2, 20)


def test_weights_of_contexts(to_device):
    """Of a total of 8: 0.5 * 2 + 1.5 * 1 + 2.5 * 1, with or without 1 that is pruned; without n-grams, all."""
    total_C, kinds_C3 = to_device(np.array([8, 0])), to_device(np.array([[2, 1, 1], [0, 0, 0]], np.uint32))
    discounts = 0.5, 1.5, 2.5
    assert [to_host(a).tolist() for a in weigh_contexts(total_C, kinds_C3, None, discounts)] == [[8, 0], [5 / 8, 1]]
    pruned_C = to_device(np.array([1, 0]))
    assert to_host(weigh_contexts(total_C, kinds_C3, pruned_C, discounts)[1]).tolist() == [6 / 8, 1]


@pytest.mark.parametrize("most", [1, 4, 40])
@pytest.mark.parametrize("dtype", [np.uint32, np.int64])
def test_counts_of_counts(most, dtype, to_device):
    counts = np.arange(2_000, dtype=dtype) % 50
    counts[-1] = (1 << 31) + 1 if dtype == np.uint32 else (1 << 32) + 1  # not 1
    expected = [counts.tolist().count(j) for j in range(1, most + 1)]
    assert count_counts(to_device(counts), most) == expected
