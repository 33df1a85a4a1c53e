"""Beam search over the outputs of acoustic models that are trained with CTC."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch

from mgpu_ngram.api.model import Model
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.models.row_options import check_flag
from mgpu_ngram.engine.memory.copies import to_host_fast
from mgpu_ngram.engine.states.ctc_search import MAX_BEAMS, MAX_TOKENS, CTCHypothesis, CTCOptions, CTCSearch
from mgpu_ngram.engine.states.ctc_tokens import read_labels
from mgpu_ngram.engine.torch.arrays import as_array, check_dense, not_compiled, on_stream_of
from mgpu_ngram.engine.trie.signed_backoffs import EMPTY, MAX_STATE

from .arguments import check_model, collection, finite_number, integer, ordered


class CTCBeamSearch:
    """Finds the texts of utterances from the log-probabilities of tokens, with an n-gram model of words.

    The rules are those of pyctcdecode 0.5.0; docs/ctc.md lists the differences. All utterances of a batch are searched
    at once, on the device of the model.

    labels             the label of each token of the acoustic model, in order: characters, with " " or "|"
                       between words, or pieces of words that begin with "▁" or "##"
    model              a loaded `Model` of words; None: texts are searched without one, on the device of log_probs
    unigrams           known words of the model; None: all. With an empty list, whole words are known, but unfinished
                       ones count as unknown
    alpha              weight of the model
    beta               added for each word
    unk_score_offset   amount added to log10 P of each unknown word. An unfinished word that begins no known word has
                       this score
    lm_score_boundary  whether a text begins with <s> and ends with </s>
    """

    def __init__(
        self,
        labels: Sequence[str],
        model: Model | None = None,
        *,
        unigrams: Iterable[str] | None = None,
        alpha: float = 0.5,
        beta: float = 1.5,
        unk_score_offset: float = -10.0,
        lm_score_boundary: bool = True,
    ):
        self.alphabet, self.model = read_labels(ordered("labels", labels, "strings, one for each token")), model
        if len(self.alphabet.texts) > MAX_TOKENS:
            raise InputError(
                f"there are {len(self.alphabet.texts):,} labels but at most {MAX_TOKENS:,} are allowed; use an "
                "acoustic model with fewer tokens"
            )
        if model is None and unigrams is not None:
            raise InputError("unigrams are given but no model; give a model of words, or leave unigrams out")
        if model is not None:
            check_model(model)
        self._known = None if unigrams is None else set(_words("unigrams", unigrams))
        self.alpha, self.beta = finite_number("alpha", alpha), finite_number("beta", beta)
        self.unk_score_offset = finite_number("unk_score_offset", unk_score_offset)
        check_flag("lm_score_boundary", lm_score_boundary)
        self.lm_score_boundary = bool(lm_score_boundary)
        self._searches: dict[str, CTCSearch] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy needs; it makes its searches on first use."""
        return self.__dict__ | {"_searches": {}}

    @not_compiled
    def __call__(
        self,
        log_probs: torch.Tensor,
        lengths: torch.Tensor | Sequence[int] | None = None,
        *,
        n_best: int = 1,
        beam_width: int = 100,
        beam_prune_logp: float = -10.0,
        token_min_logp: float = -5.0,
        prune_history: bool = False,
        hotwords: Iterable[str] | None = None,
        hotword_weight: float = 10.0,
        start_states: torch.Tensor | Sequence[int] | None = None,
    ) -> list[list[CTCHypothesis]]:
        """Return up to n_best hypotheses of each utterance, the best first.

        log_probs        (B, T, V) natural logarithms, such as logits.log_softmax(-1), of V labels with the blank
        lengths          (B,) frames of each utterance; None: all have T
        beam_width       beams that are kept in each frame
        beam_prune_logp  beams are dropped if their score is below the best one plus this number, which is at most 0
        token_min_logp   tokens below this number are skipped, except the best one of each frame
        prune_history    whether to keep only the best of the beams that end with the same N - 1 words, for a model of
                         order N
        hotwords         words, or phrases whose words are taken one by one
        hotword_weight   score of each hot word; an unfinished one gets a share by its length
        start_states     (B,) states of the model before each utterance, such as those of hypotheses; None: new texts

        Raises InputError for invalid arguments, NaN and numbers above 0.
        """
        N, K = integer("n_best", n_best, 1), integer("beam_width", beam_width, 1)
        if K > MAX_BEAMS:
            raise InputError(f"beam_width is {K:,} but must be at most {MAX_BEAMS:,}")
        if N > K:
            raise InputError(f"n_best is {N:,} but must be at most beam_width, which is {K:,}")
        prune = finite_number("beam_prune_logp", beam_prune_logp)
        least = finite_number("token_min_logp", token_min_logp)
        if prune > 0:
            raise InputError(f"beam_prune_logp is {prune} but must be at most 0; -10 drops beams 10 below the best one")
        phrases, weight = (
            _words("hotwords", () if hotwords is None else hotwords),
            finite_number("hotword_weight", hotword_weight),
        )
        check_flag("prune_history", prune_history)
        tensor = self._checked(log_probs)
        history = max(1, self.model.order - 1 if self.model else 0) if prune_history else 0
        rules = CTCOptions(
            beam_width=K, n_best=N, alpha=self.alpha, beta=self.beta, unknown=self.unk_score_offset,
            beam_prune_logp=prune, token_min_logp=least, history=history, has_model=self.model is not None,
        )  # fmt: skip
        B, T, _ = tensor.shape
        lengths_B = _integers("lengths", [T] * B if lengths is None else lengths, B)
        if B and not (0 <= lengths_B.min() and lengths_B.max() <= T):
            wrong = next(int(n) for n in lengths_B if not 0 <= n <= T)
            raise InputError(f"lengths have {wrong} but must be 0 to {T}, the frames of log_probs")
        with on_stream_of(tensor):
            search = self._search(tensor)
            return search.search(
                as_array(tensor), lengths_B.astype(np.int32), self._starts(start_states, B), phrases, weight, rules,
                self.lm_score_boundary, torch.get_num_threads(),
            )  # fmt: skip

    def _checked(self, log_probs: torch.Tensor) -> torch.Tensor:
        """Return log-probabilities as float32 without gaps, where the model is."""
        V = len(self.alphabet.texts)
        if not isinstance(log_probs, torch.Tensor):
            raise InputError(f"log_probs are {type(log_probs).__name__} but must be a tensor")
        check_dense(log_probs)
        if log_probs.ndim != 3 or not log_probs.is_floating_point():
            raise InputError(
                f"log_probs are {log_probs.dtype} of shape {tuple(log_probs.shape)} but must be floating-point numbers "
                "of shape (B, T, V)"
            )
        if log_probs.shape[2] != V:
            raise InputError(
                f"log_probs have {log_probs.shape[2]:,} tokens but there are {V:,} labels, with the blank; give the "
                "labels of this acoustic model"
            )
        place = "gpu" if log_probs.is_cuda else "cpu"
        if self.model is not None and self.model.device != place:
            raise InputError(
                f"log_probs are on {log_probs.device} but the model is on the {self.model.device}; move them, or load "
                f"it with device={place!r}"
            )
        if log_probs.is_cuda and log_probs.device.index != torch.cuda.current_device():
            raise InputError(
                f"log_probs are on {log_probs.device} but the current device is cuda:{torch.cuda.current_device()}; "
                "search in `with torch.cuda.device(...)`, with a model that was loaded there"
            )
        return log_probs.detach().to(torch.float32).contiguous()

    def _search(self, tensor: torch.Tensor) -> CTCSearch:
        """Return the search for the place of a tensor, made on first use."""
        place = str(tensor.device)
        if place not in self._searches:
            states = None if self.model is None else self.model._state_model
            words = None if self.model is None else self.model.vocabulary
            device = "gpu" if tensor.is_cuda else "cpu"
            self._searches[place] = CTCSearch(self.alphabet, states, words, self._known, device)
        return self._searches[place]

    def _starts(self, states: Any, batch: int) -> np.ndarray:
        if states is not None:
            if self.model is None:
                raise InputError("start_states are given but no model; make the search with a model, or leave them out")
            return np.clip(_integers("start_states", states, batch), EMPTY, MAX_STATE).astype(np.int32)
        if self.model is not None and self.lm_score_boundary:
            return np.full(batch, self.model._state_model.begin, np.int32)
        return np.full(batch, EMPTY, np.int32)


def _words(name: str, words: Iterable[str]) -> list[str]:
    if isinstance(words, (str, bytes)):
        raise InputError(f"{name} are {words!r:.60} but must be a list of words; give [{words!r:.60}]")
    made = collection(name, words, "words")
    for word in made:
        if not isinstance(word, str):
            raise InputError(f"{name} have {word!r:.60} but must be strings")
    return made


def _integers(name: str, values: Any, batch: int) -> np.ndarray:
    """Return an integer for each utterance, (B,) in host memory."""
    if isinstance(values, torch.Tensor):
        check_dense(values)
        values = values.detach().cpu().resolve_conj()
    try:
        array = to_host_fast(values) if hasattr(values, "__cuda_array_interface__") else np.asarray(values)
    except (TypeError, ValueError):  # of bfloat16, or rows of several lengths
        raise InputError(
            f"{name} are {values!r:.60} but must be an integer for each of the {batch} utterances"
        ) from None
    if array.shape != (batch,) or (batch and array.dtype.kind not in "iu"):
        raise InputError(
            f"{name} are {array.dtype} of shape {array.shape} but must be an integer for each of the {batch} utterances"
        )
    return array
