"""Beam search in plain NumPy, sentence by sentence and in float64: the equations of Nematus' GRU model."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence

import numpy as np

from mgpu_ngram.core.ngrams.trie import Ngrams
from mgpu_ngram.kernels.dispatch import to_host

EOS, UNK = 0, 1


class PlainNgrams:
    """Rows of an n-gram model over the words of a translation model, from its sorted n-grams.

    levels   n-grams of orders 1 to N, log10
    id_V     word of the n-gram model for each word of the translation model
    begin    <s>
    """

    def __init__(self, levels: Sequence[Ngrams], id_V: np.ndarray, begin: int):
        self._ids, self._prob, self._backoff = [], [], []
        for level in levels:
            self._ids.append(to_host(level.ids))
            self._prob.append(to_host(level.prob).astype(np.float64))
            self._backoff.append(None if level.backoff is None else to_host(level.backoff).astype(np.float64))
        self._id_V, self._begin = id_V, begin

    def row(self, words: Sequence[int]) -> np.ndarray:
        """Return (V,) natural logarithms of the probabilities of the next word."""
        history = [self._begin, *(int(self._id_V[word]) for word in words)][-(len(self._ids) - 1) :]
        row = self._prob[0].copy()
        for n in range(1, len(history) + 1):
            suffix = history[-n:]
            first, end = _range_of(self._ids[n - 1], suffix)
            backoffs = self._backoff[n - 1]
            if first == end or backoffs is None:
                continue
            row += backoffs[first]
            first, end = _range_of(self._ids[n], suffix)
            row[self._ids[n][first:end, -1]] = self._prob[n][first:end]
        return row[self._id_V] * np.log(10)


def _range_of(ids_GN: np.ndarray, words: Sequence[int]) -> tuple[int, int]:
    """Return the first and the end of the n-grams that begin with words."""
    first, end = 0, len(ids_GN)
    for n, word in enumerate(words):
        column = ids_GN[:, n]
        # np.searchsorted would copy the column.
        first, end = (bisect(column, word, first, end) for bisect in (bisect_left, bisect_right))
    return first, end


class PlainSearch:
    """A model and its search. Results have as many words as the caller says, none of them EOS or UNK.

    tensors    by Nematus' names
    lm_weight  of the rows of `lm`
    """

    def __init__(self, tensors: Mapping[str, np.ndarray], lm: PlainNgrams | None = None, lm_weight: float = 0.0):
        self._t = {name: array.astype(np.float64) for name, array in tensors.items()}
        self._lm, self._lm_weight = lm, lm_weight
        self._found: dict[tuple[bytes, int, int], tuple[list[int], float]] = {}  # several rows ask for the same

    def best(self, source: np.ndarray, beam_size: int, length: int) -> tuple[list[int], float]:
        """Return (words, cost) of the best result of `length` words; ties by lower hypothesis, then word."""
        key = source.tobytes(), beam_size, length
        if key not in self._found:
            self._found[key] = self._search(source, beam_size, length)
        return self._found[key]

    def _search(self, source: np.ndarray, beam_size: int, length: int) -> tuple[list[int], float]:
        context_TC, h_KH = self._encode(source)
        costs_K, words_K = np.zeros(1), [list[int]()]
        for _ in range(length):
            last = [words[-1] if words else -1 for words in words_K]
            scores_KV, h_KH = self._step(last, words_K, h_KH, context_TC)
            scores_KV += costs_K[:, None]
            scores_KV[:, [EOS, UNK]] = -np.inf
            flat = np.argsort(-scores_KV, axis=None, kind="stable")[:beam_size]
            rows, words = np.unravel_index(flat, scores_KV.shape)
            costs_K, h_KH = scores_KV[rows, words], h_KH[rows]
            words_K = [[*words_K[row], int(word)] for row, word in zip(rows, words, strict=True)]
        return words_K[0], float(costs_K[0])

    def cost(self, source: np.ndarray, words: Sequence[int]) -> float:
        """Return the sum of the logarithms of the probabilities of words."""
        context_TC, h_KH = self._encode(source)
        total = 0.0
        for n, word in enumerate(words):
            scores_KV, h_KH = self._step([words[n - 1] if n else -1], [words[:n]], h_KH, context_TC)
            total += float(scores_KV[0, word])
        return total

    def _gru(self, prefix: str, x: np.ndarray, h: np.ndarray, nl: str = "") -> np.ndarray:
        t, w, H = self._t, prefix + ("Wc" if nl else "W"), h.shape[-1]
        gates = _sigmoid(x @ t[w] + h @ t[f"{prefix}U{nl}"] + t[f"{prefix}b{nl}"])
        reset, update = gates[..., :H], gates[..., H:]
        state, bias = h @ t[f"{prefix}Ux{nl}"], t[f"{prefix}bx{nl}"]
        inner = reset * (state + bias) if nl else reset * state + bias  # the second cell's bias is on the state's side
        return (1 - update) * np.tanh(x @ t[f"{w}x"] + inner) + update * h

    def _encode(self, source: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return (contexts (T, C), first state (1, H))."""
        t, x_TE = self._t, self._t["Wemb"][source]
        sides = []
        for prefix, order in (("encoder_", range(len(source))), ("encoder_r_", range(len(source) - 1, -1, -1))):
            h, states = np.zeros(t["encoder_Ux"].shape[0]), [np.empty(0)] * len(source)
            for i in order:
                states[i] = h = self._gru(prefix, x_TE[i], h)
            sides.append(np.stack(states))
        context_TC = np.concatenate(sides, axis=1)
        return context_TC, np.tanh(context_TC.mean(axis=0) @ t["ff_state_W"] + t["ff_state_b"])[None]

    def _step(
        self, last: Sequence[int], histories: Sequence[Sequence[int]], h: np.ndarray, context_TC: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return (log-probabilities (K, V), next states) after the last word of each hypothesis, -1 for none."""
        t, word_K = self._t, np.array(last)
        y = np.where(word_K[:, None] >= 0, t["Wemb_dec"][np.maximum(word_K, 0)], 0)
        h = self._gru("decoder_", y, h)
        memory_TA = context_TC @ t["decoder_Wc_att"] + t["decoder_b_att"]
        energy_KT = (np.tanh(memory_TA + (h @ t["decoder_W_comb_att"])[:, None]) @ t["decoder_U_att"])[:, :, 0]
        weight_KT = np.exp(_log_softmax(energy_KT))
        c = weight_KT @ context_TC
        h = self._gru("decoder_", c, h, "_nl")
        parts = zip(("lstm", "prev", "ctx"), (h, y, c), strict=True)
        top = np.tanh(sum(x @ t[f"ff_logit_{part}_W"] + t[f"ff_logit_{part}_b"] for part, x in parts))
        scores_KV = _log_softmax(top @ t["ff_logit_W"] + t["ff_logit_b"])
        if self._lm is not None:
            scores_KV = scores_KV + self._lm_weight * np.stack([self._lm.row(words) for words in histories])
        return scores_KV, h


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 0.5 * (1 + np.tanh(0.5 * x))


def _log_softmax(x: np.ndarray) -> np.ndarray:
    shifted = x - x.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
