"""Texts that are normalised by kernels beside Python's unicodedata."""

import random
import unicodedata

import numpy as np
import pytest

from mgpu_ngram.core.documents.normalize import character_map, normalizer
from mgpu_ngram.kernels.dispatch import to_host
from mgpu_ngram.kernels.filter.count_words import count_words
from mgpu_ngram.kernels.filter.normalize_text import CharacterMap, map_of, normalize_text
from tests.support.slow_cases import first_fast

LETTERS = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]
CHANGED = [
    c for c in LETTERS
    if unicodedata.category(c)[0] == "M" or unicodedata.decomposition(c) or c.lower() != c or c.isspace()
]  # fmt: skip


def run(texts, characters, by_line, strip, to_device):
    """Return the sentences of each text; None if it failed."""
    parts = [text.encode() for text in texts]
    data, ends = np.frombuffer(b"".join(parts), np.uint8), np.cumsum([len(part) for part in parts], dtype=np.int64)
    characters = CharacterMap(*map(to_device, characters))
    out, sentences, failed = map(to_host, normalize_text(to_device(data), to_device(ends), characters, by_line, strip))
    lines = out.tobytes().decode().split("\n")[:-1]
    spans = zip([0, *sentences.tolist()], sentences.tolist(), failed, strict=False)
    return [None if bad else lines[a:b] for a, b, bad in spans]


def test_by_hand(to_device):
    characters = map_of({ord("A"): "a", ord("é"): "", ord("中"): "<zhong>", ord("Σ"): None})
    texts = ["", "A\n b \n", "\n", "éA中\u2003", "xΣ\ny", " "]
    assert run(texts, characters, True, True, to_device) == [[], ["a", "b", ""], ["", ""], ["a<zhong>"], None, [""]]
    assert run(["Aé b"], characters, False, False, to_device) == [["a b"]]
    assert run(["", "Σ"], characters, True, True, to_device) == [[], None]


def test_vowel_signs_join_the_letter_before_them(to_device):
    """Their combining class is 0, but NFC joins them, in Bengali, Tamil, Burmese and Sinhala."""
    pairs = ["\u09c7\u09be", "\u0bc6\u0bbe", "\u1025\u102e", "\u0dd9\u0dcf"]
    found = run(pairs, character_map("nfc", False), False, False, to_device)
    assert all(len(unicodedata.normalize("NFC", pair)) == 1 for pair in pairs)
    assert found == [None] * len(pairs), "these texts are left to Python"


@pytest.mark.parametrize("spaces", [1, 31, 32, 33, 64, 300])
def test_long_white_space(spaces, to_device):
    """White space of several windows is dropped around lines, and stays inside."""
    gap = "\u2003 " * spaces
    found = run([f"{gap}a{gap}", f"a{gap}b{gap}\n{gap}", gap], map_of({}), True, True, to_device)
    assert found == [["a"], [f"a{gap}b", ""], [""]]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ccnet", "nfc", "nfkc"])
def test_every_character(name, to_device):
    """Alone between letters; those that fail are left to Python, and are few."""
    normalize = normalizer(name)
    found = run([f"a{c}B" for c in LETTERS], character_map(name, False), False, name == "ccnet", to_device)
    assert sum(text is None for text in found) < 1100
    for c, text in zip(LETTERS, found, strict=True):
        assert text is None or text == [normalize(f"a{c}B").replace("\n", " ")], c


@pytest.mark.parametrize("name", ["none", "ccnet", "nfc", "nfkc"])
@pytest.mark.parametrize("by_line", first_fast([True, False]))
def test_random_lines(name, by_line, to_device):
    rng = random.Random(0)
    normalize = normalizer(name) or str
    texts = ["".join(rng.choices(CHANGED, k=rng.randrange(9))) for _ in range(6_000)]
    texts += [
        "".join(rng.choices("abcΣ Éàß“”—…0129٣\n\t \u0130\u017f\u212a\u212b", k=rng.randrange(40)))
        for _ in range(6_000)
    ]
    failed = 0
    found = run(texts, character_map(name, by_line), by_line, name == "ccnet", to_device)
    for text, sentences in zip(texts, found, strict=True):
        whole = [normalize(line) for line in text.split("\n")] if by_line else [normalize(text).replace("\n", " ")]
        failed += sentences is None
        assert sentences is None or sentences == (whole if text else [])
    assert failed < 6_000


def test_words_of_sentences(to_device):
    sentences = ["a b\n", "\u2003a\u3000b\xa0c \n", "\n", "é\u200b\n", "", " \x1f"]
    parts = [sentence.encode() for sentence in sentences]
    data, ends = np.frombuffer(b"".join(parts), np.uint8), np.cumsum([len(part) for part in parts], dtype=np.int64)
    found = to_host(count_words(to_device(data), to_device(ends), to_device(np.arange(7, 13, dtype=np.int32))))
    assert found.tolist() == [7, 3, 9, 1, 11, 12] and [len(sentence.split()) for sentence in sentences[1:4:2]] == [3, 1]
