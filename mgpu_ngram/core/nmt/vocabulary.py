"""The vocabularies of translation models, unlike those of n-gram models: JSON, YAML or a word a line, maybe gzipped."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import yaml

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.inputs.small_files import read_unpacked
from mgpu_ngram.core.nmt.bpe import words_in_line

EOS_TOKEN, UNK_TOKEN = "</s>", "<unk>"
MAX_GAPS = 1000  # ids without a word, besides as many as there are words
_PAIR = re.compile(r"^\s*(\S.*?)\s*:\s*(\d+)\s*$")


@dataclass(frozen=True)
class NmtVocabulary:
    """Words and their ids.

    tokens  word of each id; "" for an id without a word
    ids     {word: id}
    eos     id of the end of a sentence
    unk     id of unknown words
    """

    tokens: tuple[str, ...]
    ids: dict[str, int]
    eos: int = 0
    unk: int = 1

    def encode(self, line: str, rows: int) -> np.ndarray:
        """Return the ids of a line's words and of the end of the sentence, (T,) int64.

        rows  rows of the embeddings; a word with an id of `rows` or more is unknown
        """
        return self.encode_words(words_in_line(line), rows)

    def encode_words(self, words: Sequence[str], rows: int) -> np.ndarray:
        """Return the ids of words; otherwise as `encode`."""
        found = np.array([self.ids.get(word, self.unk) for word in words] + [self.eos], np.int64)
        found[found >= rows] = self.unk
        return found

    def decode(self, ids: Sequence[int] | np.ndarray) -> list[str]:
        """Return the words of ids, without the end of the sentence. An id without a word is unknown."""
        known = len(self.tokens)
        return [self.tokens[i] if i < known and self.tokens[i] else self.tokens[self.unk] for i in ids if i != self.eos]


def encode_factors(vocabularies: Sequence[NmtVocabulary], line: str, rows: Sequence[int]) -> np.ndarray:
    """Return the ids of words with factors, as "word|factor|factor", (T, F) int64."""
    tokens = [token.split("|") for token in words_in_line(line)]
    wrong = next((token for token in tokens if len(token) != len(vocabularies)), None)
    if wrong is not None:
        raise InputError(
            f"token {'|'.join(wrong)!r} has {len(wrong)} factors but the model has {len(vocabularies)}; "
            "join factors with |"
        )
    columns = [
        vocabulary.encode_words([token[f] for token in tokens], rows[f]) for f, vocabulary in enumerate(vocabularies)
    ]
    return np.stack(columns, axis=1)


def load_nmt_vocabulary(path: str, named_ends: bool = False) -> NmtVocabulary:
    """Return the vocabulary in a file.

    named_ends  False: id 0 is </s> and id 1 is <unk>, whatever words the file gives them, as in Nematus and Amun;
                True: the file names </s> and <unk>

    Raises InputError for a file that is not a vocabulary.
    """
    name, data = read_unpacked(path, "vocabulary")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        if name.endswith((".spm", ".model")):
            raise InputError(
                f"vocabulary {name!r} is a SentencePiece model; give its pieces, one a line, and text cut into pieces: "
                f"spm_export_vocab --model={shlex.quote(name)} | cut -f1 > vocab.txt; spm_encode cuts text"
            ) from None
        raise InputError(f"vocabulary {name!r} is not UTF-8 at byte {error.start}; convert it") from None
    pairs = _pairs(text, name)
    ids: dict[str, int] = {}
    for token, id in pairs:
        if ids.setdefault(token, id) != id:
            raise InputError(f"vocabulary {name!r} gives {token!r} the ids {ids[token]} and {id}; remove one")
    if not ids:
        raise InputError(f"vocabulary {name!r} has no words; give a JSON, YAML or plain list of words")
    size = max(ids.values()) + 1
    if size > 2 * len(ids) + MAX_GAPS:
        raise InputError(f"vocabulary {name!r} has {len(ids):,} words but id {size - 1:,}; give ids from 0")
    tokens = [""] * max(size, 2)
    for token, id in ids.items():
        if tokens[id] and id > 1:
            raise InputError(f"vocabulary {name!r} gives the id {id} to {tokens[id]!r} and {token!r}; remove one")
        tokens[id] = token
    if named_ends:
        missing = [token for token in (EOS_TOKEN, UNK_TOKEN) if token not in ids]
        if missing:
            raise InputError(f"vocabulary {name!r} lacks {missing[0]!r}, which this model needs; add it with its id")
        return NmtVocabulary(tuple(tokens), ids, ids[EOS_TOKEN], ids[UNK_TOKEN])
    ids = {token: id for token, id in ids.items() if id > 1} | {EOS_TOKEN: 0, UNK_TOKEN: 1}
    return NmtVocabulary((EOS_TOKEN, UNK_TOKEN, *tokens[2:]), ids)


def _pairs(text: str, name: str) -> list[tuple[str, int]]:
    """Return the words and ids of a vocabulary in any format."""
    start = text.lstrip("\ufeff \t\r\n")
    if start.startswith("{"):
        try:
            found = json.loads(start, object_pairs_hook=list)
        except (ValueError, RecursionError) as error:
            raise InputError(f"vocabulary {name!r} is damaged JSON ({error}); write it again") from None
        return [(token, _id(id, token, name)) for token, id in found]
    if start and name.removesuffix(".gz").endswith(".json"):
        raise InputError(f"vocabulary {name!r} starts with {start[:20]!r}, not with {{; write pairs of word and id")
    lines = start.split("\n") if start else []
    if lines and all(_PAIR.match(line) or line.lstrip().startswith("#") or not line.strip() for line in lines):
        return _yaml_pairs(start, name)
    if name.removesuffix(".gz").endswith((".yml", ".yaml")):
        return _yaml_pairs(start, name)
    # As in `words_in_line`, other spaces, such as U+00A0 and U+0085, are parts of words.
    words = [line.strip(" \t\r") for line in text.removeprefix("\ufeff").split("\n")]
    several = next((i for i, word in enumerate(words) if " " in word or "\t" in word), None)
    if several is not None:
        raise InputError(
            f"line {several + 1} of vocabulary {name!r} is {words[several][:80]!r} but must be one word; write a word "
            "a line, or JSON or YAML"
        )
    return [(word, i) for i, word in enumerate(words) if word]


def _yaml_pairs(text: str, name: str) -> list[tuple[str, int]]:
    """Return the words and ids of YAML. All scalars are text, so that `no: 7` is the word "no"."""
    try:
        node = yaml.compose(text, getattr(yaml, "CBaseLoader", yaml.BaseLoader))  # keeps words that come twice
    except yaml.YAMLError as error:
        raise InputError(
            f"vocabulary {name!r} is damaged YAML ({' '.join(str(error).split())}); write it again"
        ) from None
    if not isinstance(node, yaml.MappingNode):
        raise InputError(f"vocabulary {name!r} is a YAML {_kind(node)} but must be pairs of word and id")
    wrong = next((part for pair in node.value for part in pair if not isinstance(part, yaml.ScalarNode)), None)
    if wrong is not None:
        line = wrong.start_mark.line + 1
        raise InputError(
            f"line {line} of vocabulary {name!r} has a YAML {wrong.id}, not a word and its id; write pairs"
        )
    return [(token.value, _id(id.value, token.value, name)) for token, id in node.value]


def _kind(node: yaml.Node | None) -> str:
    """Return "mapping", "sequence", "scalar" or, for an empty document, "none"."""
    return type(node).__name__.removesuffix("Node").removesuffix("Type").lower()


def _id(value: object, token: object, name: str) -> int:
    if isinstance(value, str) and value.isascii() and value.isdigit():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0 or not isinstance(token, str):
        raise InputError(f"vocabulary {name!r} gives {token!r} the id {value!r}; ids are whole numbers from 0")
    return value
