"""The labels of an acoustic model: the blank, the labels that begin or end words, and the characters of each label."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.kernels.ctc.search_arrays import BLANK, CLOSES, SPACE, STARTS, Tokens
from mgpu_ngram.kernels.ctc.search_beams import hashes

WORD_MARK = "▁"  # SentencePiece writes it where a word begins
UNKNOWN_SIGN = "⁇"
PAD = re.compile(r"[<\[]pad[>\]]", re.IGNORECASE)
NAMED_BLANK = re.compile(r"[<\[](blank|blk)[>\]]", re.IGNORECASE)  # of ESPnet and icefall
UNK_LABEL = re.compile(r"[<\[]unk[>\]]", re.IGNORECASE)
SPECIAL = re.compile(r"[<\[].+[>\]]")


class Alphabet(NamedTuple):
    """The labels of a model.

    texts    the characters that each token adds to a text; "" for the blank and for the end of a word
    symbols  all characters of the texts, in order; symbol s is symbols[s]
    tokens   the arrays of a search, in host memory
    """

    texts: list[str]
    symbols: str
    tokens: Tokens


def read_labels(labels: Sequence[str]) -> Alphabet:
    """Return the alphabet of labels, by the rules of pyctcdecode 0.5.0.

    Labels that begin with "▁" or "##" are pieces of words: those with "▁" begin a word, those with "##" do not. Other
    labels are characters, and " " ends a word. The blank is "", <pad>, [PAD] or, for characters, "_"; if there is none,
    a blank is added after the last label. "|" stands for " " if no label is " ".

    Beyond pyctcdecode, <blank> and <blk> are the blank unless a label is ""; so is a first "-" beside "|", as
    torchaudio has it, if there is no other blank.

    Raises InputError for labels that are not strings, for equal labels, for two blanks, and if no label has characters.
    """
    if isinstance(labels, str) or not all(isinstance(label, str) for label in labels):
        raise InputError(f"labels are {labels!r:.60} but must be a list of strings, one for each token")
    pieces = any(label.startswith((WORD_MARK, "##")) for label in labels)
    normal = _pieces(labels) if pieces else _characters(labels)
    seen: dict[str, int] = {}
    for token, label in enumerate(normal):
        if seen.setdefault(label, token) != token:
            raise InputError(
                f"labels {seen[label]} and {token} are both {label!r} (the blank is ''); give each label once"
            )
        if pieces and " " in label:
            raise InputError(f"label {token} is {label!r}, with a space, among pieces of words; write '▁' for a space")
    kinds, texts = [], []
    for label in normal:
        kind = BLANK if not label else SPACE if label == " " and not pieces else 0
        text = "" if kind else label
        if pieces and label[:1] == WORD_MARK:
            kind, text = STARTS, text[1:]
            if text[-1:] == WORD_MARK:
                kind, text = STARTS | CLOSES, text[:-1]
        kinds.append(kind)
        texts.append(text)
    symbols = "".join(sorted(set("".join(texts))))
    if not symbols:
        raise InputError(f"the {len(labels)} labels have no characters; give the labels of the tokens, in order")
    number = {symbol: i for i, symbol in enumerate(symbols)}
    first_V1 = np.cumsum([0, *map(len, texts)]).astype(np.int32)
    symbols_S = np.array([number[symbol] for text in texts for symbol in text], np.int32)
    tokens = Tokens(np.array(kinds, np.uint8), first_V1, symbols_S, hashes(first_V1, symbols_S))
    return Alphabet(texts, symbols, tokens)


def _with_blank(labels: Sequence[str], unknown: str) -> list[str]:
    is_named = "" not in labels and any(map(NAMED_BLANK.fullmatch, labels))
    blank = NAMED_BLANK if is_named else PAD
    made = ["" if blank.fullmatch(label) else unknown if UNK_LABEL.fullmatch(label) else label for label in labels]
    characters = unknown == UNKNOWN_SIGN
    if not any(made.count(blank) for blank in ("", *("_" * characters))):
        if characters and made[:1] == ["-"] and "|" in made:
            made[0] = ""
        else:
            made.append("")
    return made


def _characters(labels: Sequence[str]) -> list[str]:
    made = _with_blank(labels, UNKNOWN_SIGN)
    for old, new in ("|", " "), ("_", ""):
        if old in made and new not in made:
            made[made.index(old)] = new
    return made


def _pieces(labels: Sequence[str]) -> list[str]:
    made = list(labels)
    if any(label.startswith("##") for label in labels):
        made = [_of_wordpiece(label) for label in labels]
    return _with_blank(made, WORD_MARK + UNKNOWN_SIGN + WORD_MARK)


def _of_wordpiece(label: str) -> str:
    if label.startswith("##"):
        return label[2:]
    is_whole = SPECIAL.fullmatch(label) or label in ("", WORD_MARK, WORD_MARK + UNKNOWN_SIGN + WORD_MARK)
    return label if is_whole else WORD_MARK + label
