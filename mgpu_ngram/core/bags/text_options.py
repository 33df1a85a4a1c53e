"""Options for making bags of words from text: those of scikit-learn's CountVectorizer, with the same defaults."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from mgpu_ngram.core.bags.english_stop_words import ENGLISH
from mgpu_ngram.core.bags.word_list import read_word_list
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.typed_config import is_count, number_or_share

DEFAULT_PATTERN = r"(?u)\b\w\w+\b"


@dataclass(frozen=True)
class TextOptions:
    r"""Options for making bags of words from text; picklable. For lists of tokens, only stop_words, min_df, max_df and
    max_features apply.

    lowercase      lowercase the text first, as str.lower does
    token_pattern  regular expression of a token, in Python's syntax; if it has a group, the group is the token. The
                   default is words of two or more letters, digits or underscores
    stop_words     words that are left out: "english", the path of a file with a word a line, or an iterable of str.
                   They are compared with the lowercased text
    min_df         leave out words in fewer documents: a number (int), or a share of the documents (float). 1 is one
                   document, and 1.0 all documents
    max_df         leave out words in more documents, in the same way
    max_features   keep this many words, the most frequent ones; ties are broken in alphabetical order

    Raises InputError for values out of range and for a pattern that does not compile.
    """

    lowercase: bool = True
    token_pattern: str = DEFAULT_PATTERN
    stop_words: Any = None
    min_df: int | float = 1
    max_df: int | float = 1.0
    max_features: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "stop_words", _stop_words(self.stop_words))
        for name in ("min_df", "max_df"):
            object.__setattr__(self, name, number_or_share(getattr(self, name), name))
        if self.max_features is not None:
            if not is_count(self.max_features):
                raise InputError(f"max_features is {self.max_features!r} but must be a whole number from 1 on, or None")
            object.__setattr__(self, "max_features", int(self.max_features))
        try:
            groups = re.compile(self.token_pattern).groups
        except (re.error, TypeError) as error:
            raise InputError(
                f"token_pattern {self.token_pattern!r} is not a regular expression: {error}; correct it"
            ) from None
        if groups > 1:
            raise InputError(f"token_pattern {self.token_pattern!r} has {groups} groups; use (?:...) for all but one")

    def refuse_for(self, matrix: str) -> None:
        """Raise InputError if an option is set.

        `matrix` is the name of a matrix of counts, to which no option applies.
        """
        defaults = TextOptions()
        for name, value in vars(self).items():
            if value != getattr(defaults, name):
                raise InputError(f"{name} is set but {matrix} is a matrix of counts, not text; leave {name} out")

    def tokens_of(self, text: str) -> list[str]:
        """Return the tokens of a text."""
        return re.findall(self.token_pattern, text.lower() if self.lowercase else text)

    @property
    def has_default_pattern(self) -> bool:
        """Return whether token_pattern is the default, for which there are kernels."""
        return self.token_pattern == DEFAULT_PATTERN


def _stop_words(value: Any) -> frozenset[str]:
    """Return stop words as a set of str."""
    if value is None:
        return frozenset()
    if isinstance(value, str) and value == "english":
        return ENGLISH
    if isinstance(value, (str, os.PathLike)):
        if str(value).isalpha() and not os.path.exists(value):
            raise InputError(
                f"stop_words is {str(value)!r}, but the only list here is english, and no file has this name; give the "
                "path of a file with a word a line"
            )
        return frozenset(word.strip() for word in read_word_list(value)) - {""}
    words = list(value) if isinstance(value, Iterable) else [value]
    if not all(isinstance(word, str) for word in words):
        raise InputError(f"stop_words is {value!r} but must be 'english', the path of a file, or a list of str")
    return frozenset(words)
