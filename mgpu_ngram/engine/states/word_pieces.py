"""Score tokens that are pieces of words under a model of words: the amount that each token adds to the score of a text.

The score of a text is the sum of ln P of its whole words, and of the look-ahead of its last word, which is partial. A
token adds the difference between the scores with and without its piece.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.models.row_options import RowOptions
from mgpu_ngram.engine.memory.device import to_device
from mgpu_ngram.engine.states.spellings import Spellings
from mgpu_ngram.engine.states.state_model import StateModel
from mgpu_ngram.engine.states.text_ends import TextEnds
from mgpu_ngram.engine.trie.signed_backoffs import EMPTY
from mgpu_ngram.kernels.dispatch import array_module

PARTIAL = ("sum", "lexicon", "none")
MIN_LN = np.float32(-1e4)  # for ln 0, so that scores have differences
PROB_UNIT = 2.0**-60  # unit of sums of probabilities: sums are integers, so differences are exact on all devices
MAX_SUM_BITS = 3  # a row that sums to 2^3 or more, as only models that are not normalised have, gets a greater unit
ROOM_BYTES = {"gpu": 1 << 30, "cpu": 64 << 20}  # bytes of rows and scores that are made together
ROW_WORD_BYTES, ROW_TOKEN_BYTES = 24, 32  # for each word of a row, and for each token
LookAhead = Callable[[Any], Any]  # of nodes (B, X) or (1, X): ln, (B, X) or (1, X)


class OpenPath(NamedTuple):
    """Tokens that complete the same whole words, path `number`, and then begin a word: the node of each token."""

    number: int
    tokens_X: Any
    nodes_X: Any


class WordPieces:
    """The pieces of a tokenizer, split into words, under one model.

    pieces   bytes of each token; white space separates words
    partial  the look-ahead of a partial word. "sum": ln of the sum of P(word | words before) of all words that begin so
             and of <unk>. "lexicon": the same with P(word). "none": 0

    A piece may end a word (its head), hold whole words, and begin a word (its tail). Tokens with the same head and the
    same whole words take the same path.

    Raises InputError for a piece that is not bytes, and if no piece begins a word of the model.
    """

    def __init__(self, model: StateModel, spellings: Spellings, pieces: Sequence[bytes], partial: str):
        self._model, self._spellings, self._tokens = model, spellings, len(pieces)
        within: list[int] = []  # tokens without white space
        heads: dict[bytes, int] = {b"": 0}
        paths: dict[tuple[int, tuple[bytes, ...]], int] = {(0, ()): 0}  # path 0 ends the partial word
        closed: list[tuple[int, int]] = []  # (token, path) without a tail
        tails: dict[int, dict[int, bytes]] = {}  # by path and token
        for token, piece in enumerate(pieces):
            if not isinstance(piece, bytes):
                raise InputError(f"piece {token} is {piece!r} but must be bytes; pieces_of(tokenizer) makes them")
            words = piece.split()
            if words == [piece]:
                within.append(token)
            elif piece:
                head = b"" if piece[:1].isspace() else words.pop(0)
                tail = b"" if piece[-1:].isspace() else words.pop()
                key = heads.setdefault(head, len(heads)), tuple(words)
                path = paths.setdefault(key, len(paths))
                if tail:
                    tails.setdefault(path, {})[token] = tail
                else:
                    closed.append((token, path))
        self._within_X = self._numbers(within)
        self._within_texts = spellings.texts([pieces[token] for token in within])
        self._heads = spellings.texts(list(heads))
        self._head_P = self._numbers([head for head, _ in paths])
        self._words = list(self._steps([words for _, words in paths]))
        self._closed_X, self._closed_path_X = (self._numbers([pair[i] for pair in closed]) for i in (0, 1))
        self._open = [
            OpenPath(path, self._numbers(list(of)), spellings.walk_from_root(spellings.texts(list(of.values()))))
            for path, of in tails.items()
        ]
        begun = [spellings.walk_from_root(self._within_texts), *(path.nodes_X for path in self._open)]
        if not any((nodes_X < spellings.nodes).any() for nodes_X in begun):
            raise InputError(
                f"none of the {len(pieces):,} pieces begins a word of the model; check how the model writes words"
            )
        self._look_ahead = {"sum": self._sums, "lexicon": self._lexicon, "none": _nothing}[partial]
        if partial == "lexicon":
            xp = array_module(self._within_X)
            no_words = self._sums(xp.full(1, EMPTY, np.int32))
            self._ln_M = no_words(xp.arange(spellings.nodes + 1)[None])[0]

    def scores(self, ends: TextEnds) -> tuple[Any, Any]:
        """Return the ln scores that each token adds to each text, (B, T) float32, and that the end adds, (B,)."""
        xp, B = array_module(ends.states_B), len(ends.states_B)
        made_BT, final_B = xp.zeros((B, self._tokens), np.float32), xp.empty(B, np.float32)
        room = ROOM_BYTES[self._model.device]
        step = max(1, room // (ROW_WORD_BYTES * self._model.words + ROW_TOKEN_BYTES * self._tokens))
        for i in range(0, B, step):
            self._fill(made_BT[i : i + step], final_B[i : i + step], TextEnds(*(array[i : i + step] for array in ends)))
        return made_BT, final_B

    def _fill(self, made_BT: Any, final_B: Any, ends: TextEnds) -> None:
        """Fill the scores of tokens, which are 0, and of the end."""
        xp, (states_B, nodes_B, begun_B) = array_module(made_BT), ends
        ln_BP, states_BP = self._over_paths(ends)
        look_ahead = self._look_ahead(states_B)
        before_B1 = xp.where(begun_B[:, None], look_ahead(nodes_B[:, None]), np.float32(0))
        made_BT[:, self._within_X] = look_ahead(self._spellings.walk(nodes_B, self._within_texts)) - before_B1
        del look_ahead  # frees its rows before others are made
        ln_BP -= before_B1
        made_BT[:, self._closed_X] = ln_BP[:, self._closed_path_X]
        for path in self._open:
            look_ahead = self._look_ahead(xp.ascontiguousarray(states_BP[:, path.number]))
            made_BT[:, path.tokens_X] = look_ahead(path.nodes_X[None]) + ln_BP[:, path.number, None]
            del look_ahead
        ended_B = xp.ascontiguousarray(states_BP[:, 0])
        final_B[:] = ln_BP[:, 0] + self._step(ended_B, xp.full(len(ended_B), self._model.end, np.int32))[0]

    def _over_paths(self, ends: TextEnds) -> tuple[Any, Any]:
        """Return ln P of the words that end on each path, (B, P), and the states after them."""
        xp, (states_B, nodes_B, begun_B) = array_module(ends.states_B), ends
        words_BH = self._spellings.word_M[self._spellings.walk(nodes_B, self._heads)]
        ln_BH, states_BH = self._step(states_B[:, None], words_BH)
        ln_BH[:, 0] *= begun_B  # without a partial word, path 0 ends none
        states_BH[:, 0] = xp.where(begun_B, states_BH[:, 0], states_B)
        ln_BP, states_BP = ln_BH[:, self._head_P], states_BH[:, self._head_P]
        for paths_X, words_X in self._words:
            ln_BX, states_BP[:, paths_X] = self._step(states_BP[:, paths_X], words_X)
            ln_BP[:, paths_X] += ln_BX
        return ln_BP, states_BP

    def _step(self, states: Any, words: Any) -> tuple[Any, Any]:
        """Return ln P of words after states, broadcast to each other, and the states after them."""
        xp = array_module(states)
        both = [xp.ascontiguousarray(array) for array in xp.broadcast_arrays(states, words)]
        states_Q, words_Q = (array.reshape(-1) for array in both)
        ln, after = self._model.step(states_Q, words_Q, "ln")
        return xp.maximum(ln, MIN_LN).reshape(both[0].shape), after.reshape(both[0].shape)

    def _sums(self, states_B: Any) -> LookAhead:
        xp, spellings, B = array_module(states_B), self._spellings, len(states_B)
        rows_BV, _ = self._model.advance(states_B, RowOptions((self._model.order,), scale="prob"), next_states=False)
        bits_B1 = xp.frexp(rows_BV.sum(axis=1, keepdims=True))[1]
        unit_B1 = xp.ldexp(xp.full((B, 1), PROB_UNIT, np.float32), xp.maximum(bits_B1 - MAX_SUM_BITS, 0))
        units = xp.zeros(B * len(spellings.ids_W) + 1, np.uint64)
        units[1:].reshape(B, -1)[:] = xp.take(rows_BV, spellings.ids_W, axis=1) * (1 / unit_B1)
        sums = xp.cumsum(units)  # summed over all rows; differences are exact modulo 2^64
        first_B1 = xp.arange(B)[:, None] * len(spellings.ids_W)
        unknown_B1 = self._step(states_B, xp.zeros(B, np.int32))[0][:, None]

        def look_ahead(nodes: Any) -> Any:
            mass_BX = sums[first_B1 + spellings.end_M[nodes]] - sums[first_B1 + spellings.first_M[nodes]]
            with np.errstate(divide="ignore"):
                known_BX = xp.log(mass_BX.astype(np.float32) * unit_B1)
            return xp.logaddexp(known_BX, unknown_B1)

        return look_ahead

    def _lexicon(self, states_B: Any) -> LookAhead:
        return lambda nodes: self._ln_M[nodes]

    def _steps(self, words_P: Sequence[tuple[bytes, ...]]) -> Any:
        """Yield (paths, words): the paths that have a first whole word, a second one, and so on, and these words."""
        for i in range(max(map(len, words_P))):
            has = [path for path, words in enumerate(words_P) if len(words) > i]
            nodes_X = self._spellings.walk_from_root(self._spellings.texts([words_P[path][i] for path in has]))
            yield self._numbers(has), self._spellings.word_M[nodes_X]

    def _numbers(self, numbers: list[int]) -> Any:
        return to_device(np.array(numbers, np.int64), self._model.device)


def _nothing(states_B: Any) -> LookAhead:
    return lambda nodes: np.float32(0)
