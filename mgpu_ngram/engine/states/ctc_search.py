"""Search for the texts of utterances in CTC outputs: copy the arrays to a device, and make words of the results."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import numpy as np

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.ngrams.words import Words
from mgpu_ngram.engine.memory.device import synchronize, to_device
from mgpu_ngram.engine.memory.out_of_memory import memory_guard
from mgpu_ngram.engine.memory.threads import in_pieces
from mgpu_ngram.engine.states.ctc_lexicon import make_hot_words, make_lexicon
from mgpu_ngram.engine.states.ctc_tokens import Alphabet
from mgpu_ngram.engine.states.state_model import StateModel
from mgpu_ngram.engine.trie.signed_backoffs import EMPTY
from mgpu_ngram.kernels.compile_cpu import njit
from mgpu_ngram.kernels.ctc.search_arrays import (
    BLANK,
    CLOSES,
    MAX_BEAMS,
    MAX_TOKENS,
    NAN,
    SPACE,
    STARTS,
    CTCOptions,
    HotWords,
    NGrams,
    UtteranceResults,
)
from mgpu_ngram.kernels.ctc.search_beams import edges_of_trie, search_beams
from mgpu_ngram.kernels.dispatch import to_host
from mgpu_ngram.kernels.score.step_states import StateTable

__all__ = ["MAX_BEAMS", "MAX_TOKENS", "CTCHypothesis", "CTCOptions", "CTCSearch", "CTCWord"]


class CTCWord(NamedTuple):
    """A word of a hypothesis, from frame `start` to frame `end` - 1."""

    word: str
    start: int
    end: int


class CTCHypothesis(NamedTuple):
    """A text that was found.

    text         its words, separated by spaces
    words        a list of `CTCWord`
    logit_score  ln P of the acoustic model, summed over the alignments that the search has kept
    score        logit_score plus the scores of the words
    state        state of the n-gram model after the last word, to start the next search; -1 without a model
    """

    text: str
    words: list[CTCWord]
    logit_score: float
    score: float
    state: int


class CTCSearch:
    """A search on a device.

    words  words of the model; None: no model
    known  as `make_lexicon` takes it
    """

    def __init__(
        self,
        alphabet: Alphabet,
        model: StateModel | None,
        words: Words | None,
        known: Collection[str] | None,
        device: str,
    ):
        self.alphabet, self.device, self.model = alphabet, device, model
        lexicon = make_lexicon(alphabet, words, known)
        with memory_guard("making a lexicon", device, "use a smaller model"):
            self._tokens = type(alphabet.tokens)(*(to_device(array, device) for array in alphabet.tokens))
            self._lexicon = lexicon._replace(
                table=lexicon.table.map_arrays(self._moved), word_G=self._moved(lexicon.word_G)
            )
            if model is None:
                node = np.zeros(1, np.uint32), np.ones(2, np.uint32), np.zeros(1, bool)
                states = StateTable(self._moved(np.zeros((0, 2), np.uint64)), self._moved(np.full(1, EMPTY, np.int32)))
                self._ngrams = NGrams(edges_of_trie(*node).map_arrays(self._moved), 1, states, -1)
            else:
                self._ngrams = NGrams(model.edges, model.order, model.table, model.end)
            synchronize(device)  # the next call may use another stream
        self._hot: tuple[tuple[tuple[str, ...], float], HotWords] | None = None

    def _moved(self, array: Any) -> Any:
        return to_device(array, self.device)

    def _hot_words(self, phrases: Sequence[str], weight: float) -> HotWords:
        """Return the trie of hot words; that of the call before is kept."""
        key, held = (tuple(phrases), weight), self._hot
        if held is None or held[0] != key:
            made = make_hot_words(self.alphabet, phrases, weight)
            arrays = self._moved(made.score_G), self._moved(made.whole_G)
            hot = HotWords(made.table.map_arrays(self._moved), *arrays, weight)
            synchronize(self.device)
            held = self._hot = key, hot
        return held[1]

    def search(
        self,
        log_probs_BTV: Any,
        lengths_B: np.ndarray,
        starts_B: np.ndarray,
        phrases: Sequence[str],
        weight: float,
        rules: CTCOptions,
        score_end: bool,
        threads: int,
    ) -> list[list[CTCHypothesis]]:
        """Return the hypotheses of utterances, the best first.

        log_probs_BTV  (B, T, V) float32 on the device
        lengths_B      (B,) int32 in host memory
        starts_B       (B,) int32 in host memory: states of the n-gram model before each utterance
        phrases        hot words
        score_end      whether </s> is scored
        threads        threads that share the utterances on a CPU
        """
        B, T, _ = log_probs_BTV.shape
        hot_words = self._hot_words(phrases, weight)
        ngrams = self._ngrams if score_end else self._ngrams._replace(end=-1)
        frames_B, states_B = self._moved(lengths_B), self._moved(starts_B)

        def search(begin: int, end: int) -> UtteranceResults:
            return search_beams(
                log_probs_BTV[begin:end], frames_B[begin:end], states_B[begin:end], self._tokens, self._lexicon,
                hot_words, ngrams, rules,
            )  # fmt: skip

        with memory_guard(f"searching {B} utterances of {T} frames", self.device, "give fewer utterances or beams"):
            parts = in_pieces(search, B, threads if self.device == "cpu" else 1, 1)
            found = UtteranceResults(
                *(np.concatenate(list(map(to_host, arrays))) for arrays in zip(*parts, strict=True))
            )
        for b in np.flatnonzero(found.errors_B)[:1]:
            wrong = "NaN" if found.errors_B[b] & NAN else "numbers above 0"
            raise InputError(f"log_probs[{b}] has {wrong}; give natural logarithms, such as logits.log_softmax(-1)")
        return [self._hypotheses(found, b, int(lengths_B[b])) for b in range(B)]

    def _hypotheses(self, found: UtteranceResults, b: int, length: int) -> list[CTCHypothesis]:
        kind_V, first_V1 = self.alphabet.tokens.kind_V, self.alphabet.tokens.first_V1
        paths = np.ascontiguousarray(found.paths_BNT[b, : found.found_B[b], :length])
        made = []
        for r, path in enumerate(paths):
            tokens, ends, frames = _read_path(path, kind_V, first_V1)
            texts = [self.alphabet.texts[token] for token in tokens.tolist()]
            bounds = [0, *ends.tolist()]
            spelled = ["".join(texts[begin:end]) for begin, end in zip(bounds[:-1], bounds[1:], strict=True)]
            words = [CTCWord(word, *times) for word, times in zip(spelled, frames.tolist(), strict=True)]
            logit_score, score = found.scores_BN2[b, r].tolist()
            made.append(CTCHypothesis(" ".join(spelled), words, logit_score, score, int(found.states_BN[b, r])))
        return made


@njit(nogil=True, cache=True)
def _read_path(path_T, kind_V, first_V1):
    """Return (the tokens of a path's words, W ends of words among them, (W, 2) frames of words)."""
    T = len(path_T)
    tokens, ends, frames = np.empty(T, np.int32), np.empty(T + 1, np.int32), np.empty((T + 1, 2), np.int32)
    count, words, length, start, end, last, closed = 0, 0, 0, -1, -1, -1, False
    for t in range(T):
        token = path_T[t]
        kind = kind_V[token]
        if kind & BLANK:
            pass
        elif token == last:
            end = t + 1
        else:
            if kind & (SPACE | STARTS) or closed:
                if length:
                    ends[words], frames[words, 0], frames[words, 1] = count, start, end
                    words += 1
                start, length = -1, 0
            if not kind & SPACE:
                start, end = (t if start < 0 else start), t + 1
                tokens[count] = token
                count += 1
                length += first_V1[token + 1] - first_V1[token]
            closed = kind & CLOSES != 0
        last = token
    if length:
        ends[words], frames[words, 0], frames[words, 1] = count, start, end
        words += 1
    return tokens[:count], ends[:words], frames[:words]
