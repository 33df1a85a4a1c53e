"""The ids of a text's words, against a dict and bytes.split, which ends words at the same six bytes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mgpu_ngram.kernels.common.find_tokens import find_tokens
from mgpu_ngram.kernels.common.murmur import index_hashes, murmur_hashes
from mgpu_ngram.kernels.common.word_table import HELD, held_bytes, index_words
from mgpu_ngram.kernels.compile_cpu import njit
from mgpu_ngram.kernels.dispatch import to_host
from mgpu_ngram.kernels.score.find_codes import BATCH, find_codes

LETTERS = st.lists(st.sampled_from(b"ab\x00\x1f\x85\xff"), max_size=40).map(bytes)
TEXTS = st.lists(st.one_of(LETTERS, st.sampled_from([b" ", b"\n", b"\t", b"\v", b"\f", b"\r"])), max_size=200)


def arrays(words):
    """offsets_V and data of a list of bytes."""
    return np.cumsum([0, *map(len, words)], dtype=np.int64), np.frombuffer(b"".join(words), np.uint8)


def codes(text, words, to_device, hashed=False):
    """Return the codes of a text in a vocabulary of <unk> and `words`, or of their hashes."""
    offsets_V, data = arrays([b"<unk>", *words])
    slots_C, duplicate = index_words(offsets_V, data)
    assert duplicate == -1
    if hashed:
        slots_C = index_hashes(murmur_hashes(offsets_V, data))
        offsets_V, data = offsets_V[:0], data[:0]
    text_B = to_device(np.frombuffer(text, np.uint8))
    found = find_codes(text_B, find_tokens(text_B, isspace=True), *map(to_device, (slots_C, offsets_V, data)))
    assert found.dtype == np.uint32
    return to_host(found).tolist()


def expected(text, words):
    code = {word: v + 2 for v, word in enumerate(words)}
    lines = [[code.get(word, 1) for word in line.split()] for line in text.split(b"\n")]
    return [c for line in lines for c in [*line, 0]][:-1]


@pytest.mark.parametrize("hashed", [False, True])
def test_by_hand(hashed, to_device):
    words = [b"<s>", b"</s>", b"of", b"the", "Straße".encode()]
    text = "the end of the Straße\n\n <unk>\tThe </s>".encode()
    assert codes(text, words, to_device, hashed) == [5, 1, 4, 5, 6, 0, 0, 1, 1, 3]


@given(TEXTS.map(b"".join))
def test_hashes_find_the_same_words(to_device, text):
    words = sorted(set(text.split()))[::2]
    assert codes(text, words, to_device, hashed=True) == expected(text, words)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (b"", []),
        (b"a", [2]),
        (b"b", [1]),
        (b" ", []),
        (b"\n", [0]),
        (b"a\x0ba\x0ca\ra\ta a\r\n", [2, 2, 2, 2, 2, 2, 0]),
        (b"a\x00 a a\x00a a\x1f", [3, 2, 1, 1]),  # NUL stays in words, as other control characters do
        (b"\xff\xfe \xff caf\xe9 caf\xc3\xa9 a\xc2\xa0a", [4, 1, 5, 1, 1]),  # so does what is no UTF-8
    ],
)
def test_odd_bytes_by_hand(text, found, to_device):
    assert codes(text, [b"a", b"a\x00", b"\xff\xfe", b"caf\xe9"], to_device) == found


def test_an_empty_vocabulary(to_device):
    assert codes(b"a <unk>\nb", [], to_device) == [1, 1, 0, 1]


@pytest.mark.parametrize("odd", range(9))
def test_words_at_the_end_of_the_text(odd, to_device):
    """Words of 0 to 40 bytes, prefixes of each other; words of even length are known, the last one in a table, too."""
    word = bytes(range(65, 65 + 41))
    known = [word[:n] for n in range(2, 41, 2)]
    for n in range(41):
        text = b" " * odd + word[:n]
        assert codes(text, known, to_device) == ([] if n == 0 else [1] if n % 2 else [n // 2 + 1])
        if n:
            assert codes(text, [word[:n]], to_device) == [2]


def test_words_longer_than_any(to_device):
    long = b"x" * 10_000
    assert codes(long + b" xx " + long + b"x", [b"xx"], to_device) == [1, 2, 1]
    assert codes(long + b" xx " + long + b"x", [b"xx", long], to_device) == [3, 2, 1]


@pytest.mark.parametrize("size", [HELD - 4, HELD - 3, HELD + 1, HELD + 8, HELD + 13])
def test_long_words_that_begin_alike(size, to_device):
    """300 words of one length in 512 slots: many meet a slot that differs only in its last bytes."""
    words = [b"a" * size + b"%03d" % n for n in range(600)]
    text = b" ".join(words)
    assert codes(text, words[::2], to_device) == [1 if n % 2 else n // 2 + 2 for n in range(600)]


@pytest.mark.parametrize("tokens", [BATCH - 1, BATCH, BATCH + 1, 3 * BATCH])
def test_whole_batches_and_parts(tokens, to_device):
    text = b"a bb \n" * tokens
    assert codes(text, [b"bb", b"a"], to_device) == [3, 2, 0] * tokens


@given(st.lists(LETTERS, unique=True), TEXTS)
def test_against_a_dict(to_device, words, parts):
    words = [word for word in words if word]
    text = b"".join([*parts, b" ", *(word + b" " for word in words), b"".join(words[:1])])
    assert codes(text, words, to_device) == expected(text, words)


def test_arrays_that_are_slices(to_device):
    offsets_V, data = arrays([b"<unk>", b"of", b"longer-than-eight"])
    table = to_device(index_words(offsets_V, data)[0]), to_device(offsets_V), to_device(np.append(data[:1], data))[1:]
    for cut in range(9):
        text_B = to_device(np.frombuffer(b"." * cut + b"of longer-than-eight of", np.uint8))[cut:]
        assert to_host(find_codes(text_B, find_tokens(text_B, isspace=True), *table)).tolist() == [2, 3, 2]


def test_the_first_duplicate_is_told():
    assert index_words(*arrays([b"<unk>", b"a", b"b", b"b", b"a"]))[1] == 3
    assert index_words(*arrays([b"<unk>", b"a" * 30, b"a" * 31, b"a" * 30]))[1] == 3
    assert index_words(*arrays([b"<unk>", b"a", b"a\x00"]))[1] == -1


@pytest.mark.parametrize("wrong", ["text_B", "positions_T", "slots_C", "offsets_V", "data"])
def test_other_dtypes_are_refused(wrong):
    offsets_V, data = arrays([b"<unk>"])
    inputs = {
        "text_B": np.zeros(1, np.uint8),
        "positions_T": np.zeros(1, np.uint32),
        "slots_C": index_words(offsets_V, data)[0],
        "offsets_V": offsets_V,
        "data": data,
    }
    with pytest.raises(TypeError, match="but got float32"):
        find_codes(**inputs | {wrong: inputs[wrong].astype(np.float32)})


@pytest.mark.parametrize("word", [b"a", b"eight888", b"nine99999", b"x" * 16 + b"yz", b"0123456789" * 4])
def test_the_hash_by_its_rule(word):
    """Every 8 bytes of a word count, in turn, as in word_table.cuh; otherwise a GPU would search other slots."""
    most = 2**64 - 1
    h = len(word)
    for i in range(0, len(word), 8):
        h = (h ^ int.from_bytes(word[i : i + 8], "little")) * 0x9E3779B97F4A7C15 & most
        h = (h ^ h >> 32) * 0xD6E8FEB86659FD93 & most
        h ^= h >> 32
    assert _hash(np.frombuffer(word, np.uint8)) == h


@njit()
def _hash(word):
    return held_bytes(word, 0, len(word))[3]
