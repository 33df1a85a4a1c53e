"""A drop-in for the `kenlm` Python module: a program changes only to `from mgpu_ngram import kenlm`.

Names, signatures, types, scores and the equality of states are those of kenlm 0.3.0. Scoring runs in host memory.
Beyond the original, a model may have any order, and may be a file that `core.model_file.save_model` wrote. Settings of
how KenLM loads are accepted and have no effect.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import total_ordering
from typing import Any, NamedTuple

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.file_heads import KenlmBinaryError
from mgpu_ngram.core.words import Words
from mgpu_ngram.engine.open_model import open_model
from mgpu_ngram.engine.states import EMPTY, model_arguments, score_word, score_words

MAX_IDS = 1 << 16  # words whose ids a model caches


class LoadMethod:
    LAZY, POPULATE_OR_LAZY, POPULATE_OR_READ, READ, PARALLEL_READ = range(5)


class ARPALoadComplain:
    ALL, EXPENSIVE, NONE = range(3)


class Config:
    """Settings of how KenLM loads and what it prints meanwhile; they have no effect here."""

    __slots__ = ("arpa_complain", "load_method", "show_progress")

    def __init__(self) -> None:
        self.load_method = LoadMethod.POPULATE_OR_READ
        self.show_progress = True
        self.arpa_complain = ARPALoadComplain.ALL


class FullScoreReturn(NamedTuple):
    """The score of a word: log10 probability, words of the longest match, and whether the word is unknown."""

    log_prob: float
    ngram_length: int
    oov: bool

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.log_prob!r}, {self.ngram_length!r}, {self.oov!r})"


@total_ordering
class State:
    """What a model remembers of the words so far: their longest suffix that can affect later scores.

    A new state is the empty history. Equal states give equal scores to all later words. Shorter states sort first.
    """

    __slots__ = ("_node",)

    def __init__(self) -> None:
        self._node = EMPTY  # of the model's trie, where shorter n-grams come first

    def __eq__(self, other: object) -> bool:
        return self._node == other._node if isinstance(other, State) else NotImplemented

    def __lt__(self, other: object) -> bool:
        return self._node < other._node if isinstance(other, State) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._node)

    def __copy__(self) -> State:
        made = State()
        made._node = self._node
        return made

    def __deepcopy__(self, memo: Any = None) -> State:
        return self.__copy__()


class Model:
    """A language model from an ARPA file, plain or compressed, a KenLM binary model or a model file.

    path   bytes, absolute
    order  words of its longest n-grams
    """

    def __init__(self, path: str | bytes, config: Config | None = None):
        """Load a model. Raises OSError if that fails, but ValueError for a compressed KenLM binary model."""
        if config is not None:
            _check("config", config, Config)
        self.path = os.path.abspath(_bytes(path))
        try:
            model = open_model(os.fsdecode(self.path))
            self._arguments = model_arguments(model)
        except KenlmBinaryError:  # not an OSError: a client may delete the file as damaged
            raise
        except (InputError, OSError, OverflowError) as error:
            raise OSError(f"Cannot read model '{path!s}' ({error})") from RuntimeError(str(error))  # KenLM's cause
        self._words, self._ids, self._table = model.words, _Ids(model.words), model.words.table
        self._order = model.trie.order
        self._begin = model.words.id("<s>") if self._order > 1 else EMPTY
        self._end = model.words.id("</s>")

    @property
    def order(self) -> int:
        return self._order

    def score(self, sentence: str | bytes, bos: bool = True, eos: bool = True) -> float:
        """Return the log10 probability of a sentence, given without <s>.

        bos  whether <s> precedes the sentence
        eos  whether </s> follows it
        """
        text = _bytes(sentence)
        if bos and eos:
            text = text.partition(b"\0")[0]  # KenLM reads a whole sentence as a C string
        return self._score(text, bos, eos)[0]

    def perplexity(self, sentence: str | bytes) -> float:
        """Return the perplexity of a sentence, with its </s>."""
        words = len(_bytes(sentence).split()) + 1
        return 10.0 ** (-self.score(sentence) / words)

    def full_scores(
        self, sentence: str | bytes, bos: bool = True, eos: bool = True
    ) -> Iterator[tuple[float, int, bool]]:
        """Yield (log10 probability, words of the longest match, whether it is unknown) of each word."""
        _, prob_T, order_T, id_T = self._score(_bytes(sentence), bos, eos)
        yield from zip(prob_T.tolist(), order_T.tolist(), (id_T == 0).tolist(), strict=True)

    def _score(self, text: bytes, bos: bool, eos: bool) -> tuple:
        if b"\0" in text:  # a word before a NUL may be empty, and then is unknown as NUL is
            text = b" ".join(_word(word) or b"\0" for word in text.split())
        node, end = self._begin if bos else EMPTY, self._end if eos else -1
        return score_words(*self._arguments, *self._table, node, text, end)  # type: ignore[call-arg]

    def BeginSentenceWrite(self, state: State) -> None:
        """Set a state to the beginning of a sentence."""
        _check("state", state, State)
        state._node = self._begin

    def NullContextWrite(self, state: State) -> None:
        """Set a state to the empty history."""
        _check("state", state, State)
        state._node = EMPTY

    def BaseScore(self, in_state: State, word: str, out_state: State) -> float:
        """Return the log10 probability of a word after in_state; sets out_state to the state after the word."""
        try:
            prob, _, out_state._node = score_word(*self._arguments, in_state._node, self._ids[word])  # type: ignore[call-arg]
        except AttributeError:
            _check("in_state", in_state, State)
            _check("out_state", out_state, State)
            raise
        return prob

    def BaseFullScore(self, in_state: State, word: str, out_state: State) -> FullScoreReturn:
        """As BaseScore, but also returns the words of the longest match and whether the word is unknown."""
        id = self._ids[word]
        try:
            prob, order, out_state._node = score_word(*self._arguments, in_state._node, id)  # type: ignore[call-arg]
        except AttributeError:
            _check("in_state", in_state, State)
            _check("out_state", out_state, State)
            raise
        return FullScoreReturn(prob, order, id == 0)

    def __contains__(self, word: str | bytes) -> bool:
        return self._words.id(_word(_bytes(word))) != 0

    def __repr__(self) -> str:
        return f"<Model from {os.path.basename(self.path)!r}>"

    def __reduce__(self) -> tuple[type[Model], tuple[bytes]]:
        return Model, (self.path,)


class LanguageModel(Model):
    """The old name of Model."""


class _Ids(dict):
    """A cache of ids of recent words: faster than a lookup, at about 120 bytes per word."""

    def __init__(self, words: Words):
        self._words = words

    def __missing__(self, word: str) -> int:
        if word is not None:
            _check("word", word, str)
        if len(self) == MAX_IDS:
            self.clear()
        id = self[word] = self._words.id(_word(_bytes(word)))
        return id


def _word(text: bytes) -> bytes:
    """Return a word as KenLM reads it: it ends at a NUL byte."""
    return text.partition(b"\0")[0]


def _check(name: str, value: object, kind: type) -> None:
    """Raise TypeError, with KenLM's message, for an argument of another type."""
    if not isinstance(value, kind):
        named = kind.__name__ if kind is str else f"kenlm.{kind.__name__}"
        raise TypeError(
            f"Argument '{name}' has incorrect type (expected {named}, got {type(value).__name__})"
        ) from None


def _bytes(text: str | bytes) -> bytes:
    if isinstance(text, str):
        return text.encode()
    if isinstance(text, bytes):
        return text
    raise TypeError(f"Cannot convert {type(text)} to string")
