"""`BeamSearch`, a search with any step function for Python users."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np

from mgpu_ngram.api.model import Model
from mgpu_ngram.cluster.devices import cpu_cores
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.typed_config import fill
from mgpu_ngram.engine.decode.batch import Batching, Forced, search_all
from mgpu_ngram.engine.decode.best_words import Sampling
from mgpu_ngram.engine.decode.ensemble import Ensemble, WeightedModel
from mgpu_ngram.engine.decode.ngram_rows import NgramRows
from mgpu_ngram.engine.decode.search_options import MAX_STEPS, Hypothesis, SearchOptions
from mgpu_ngram.engine.decode.user_steps import GivenSteps


class BeamSearch:
    """Beam search, or sampling, for many sentences at once, with any step function and optionally an n-gram model.

    step            step(tokens, state) -> (logits, state). tokens (R,) int64: the last token of each row; logits (R,
                    vocab_size) of the next token. Softmax turns them into probabilities, so logarithms of probabilities
                    are logits, too. float32, float16 and bfloat16 of PyTorch are not converted (bfloat16 of CuPy and
                    NumPy is uint16, its bits); other dtypes become float32. A token with logit -inf is never chosen
    vocab_size      V, the number of tokens
    beam_size       number of hypotheses of each sentence, at most 64; each finished one takes a place
    eos             token that ends a sentence
    bos             token before the first one; None: eos
    unk             token that is never chosen, such as <unk> or padding; None: no such token
    n_best          number of results of each sentence, at most beam_size
    length_penalty  exponent a of score = (log-probability - word_penalty * length) / length^a
    word_penalty    penalty of each token, including the end of the sentence
    max_length      greatest number of tokens of a result, including the end of the sentence
    early_stopping  "amun": a sentence is finished when its beam has no places left; "first": when it has one result;
                    "bound": when no other result can be among the n best
    sample          draw beam_size results (at most 4,096) at random, from the top_k most probable tokens (0: all) that
                    hold top_p of the probability; temperature divides the logits before the draw. The same seed and
                    sentence give the same results, in any batch
    lm, lm_weight   n-gram model, an `ng.Model` on the device of the state, and the weight of its log-probabilities
    words           words of the n-gram model, one for each token; None: the model is of token ids (unit "id"), with
                    words "0", "1", ...

    A state is any tree of tuples, lists and dicts of arrays. The first axis of each array is the row. Arrays are
    NumPy or CuPy arrays or PyTorch tensors; tokens have the type and device of the first array. Tensors are passed
    by DLPack without a copy, and `step` runs without gradients. A GPU needs CuPy.

    Equal scores are ordered by rising row, then token. Raises InputError for settings that cannot be used.

    >>> import mgpu_ngram as ng
    >>> import numpy as np
    >>> table = np.log([[0.1, 0.6, 0.3], [0.2, 0.1, 0.7], [0.8, 0.1, 0.1]])  # next token by token; 0 ends
    >>> search = ng.BeamSearch(lambda tokens, state: (table[tokens], state), vocab_size=3, beam_size=4, n_best=2)
    >>> for best in search.run(np.zeros((1, 1)))[0]:
    ...     print(best.words, round(float(np.exp(best.score)), 3))
    (1, 2, 0) 0.336
    (2, 0) 0.24
    """

    def __init__(
        self,
        step: Callable[[Any, Any], tuple[Any, Any]],
        vocab_size: int,
        beam_size: int = 5,
        eos: int = 0,
        *,
        bos: int | None = None,
        unk: int | None = None,
        n_best: int = 1,
        length_penalty: float = 0.0,
        word_penalty: float = 0.0,
        max_length: int = 256,
        early_stopping: str = "amun",
        sample: bool = False,
        top_k: int = 0,
        top_p: float = 1.0,
        temperature: float = 1.0,
        seed: int = 0,
        lm: Model | None = None,
        lm_weight: float = 0.2,
        words: Sequence[str] | None = None,
    ):
        if not callable(step):
            raise InputError(f"step is {step!r} but must be a function: step(tokens, state) -> logits, state")
        if not (isinstance(vocab_size, (int, np.integer)) and vocab_size >= 1):
            raise InputError(f"vocab_size is {vocab_size!r} but must be 1 or more")
        for name, token in (("eos", eos), ("bos", bos), ("unk", unk)):
            if token is not None and not (isinstance(token, (int, np.integer)) and 0 <= token < vocab_size):
                raise InputError(f"{name} is {token!r} but must be a token, 0 to {vocab_size - 1}")
        if not (isinstance(max_length, (int, np.integer)) and 1 <= max_length <= MAX_STEPS):
            raise InputError(f"max_length is {max_length!r} but must be 1 to {MAX_STEPS:,}")
        if not isinstance(lm_weight, (int, float, np.number)):
            raise InputError(f"lm_weight is {lm_weight!r} but must be a number")
        draw = {"top_k": top_k, "top_p": top_p, "temperature": temperature, "seed": seed}
        sampling, plain = fill(Sampling, draw, "BeamSearch"), Sampling()
        for name, value in () if sample else draw.items():
            if value != getattr(plain, name):
                raise InputError(f"{name} is {value!r} but is for samples; add sample=True, or leave it out")
        self._step, self._V, self._eos = step, int(vocab_size), int(eos)
        self._bos, self._unk = int(eos if bos is None else bos), -1 if unk is None else int(unk)
        search = {
            "beam_size": beam_size, "n_best": n_best, "length_penalty": length_penalty, "word_penalty": word_penalty,
            "max_length_multiple": int(max_length), "allow_unk": unk is None, "early_stopping": early_stopping,
            "sampling": sampling if sample else None,
        }  # fmt: skip
        self._options = fill(SearchOptions, search, "BeamSearch")
        self._lm = None if lm is None else WeightedModel(self._rows(lm, words), lm_weight)
        self._lm_device = "" if lm is None else lm.device

    def run(
        self,
        initial_state: Any,
        batch: int = 256,
        prefixes: Sequence[Sequence[int]] | None = None,
        refill: bool = True,
    ) -> list[list[Hypothesis]]:
        """Return the results of each sentence, best first: a list of `Hypothesis` for each row of the state.

        initial_state  a state (see the class) with a row for each of the S sentences
        batch          number of sentences that are searched at once
        prefixes       first tokens of the results of each sentence
        refill         new sentences take the places of finished ones; False: a batch ends before the next one begins,
                       for states whose rows change shape from step to step, such as caches of a transformer

        A result has .words, its tokens with the end of the sentence (unless the result has max_length tokens), .score,
        .cost (natural log-probability; with `lm`, the weighted sum) and .word_scores, the contribution of each token to
        the cost.

        Raises InputError for states and logits of wrong shapes, and RunError for NaN in logits, with the sentence.
        """
        given = None if prefixes is None else _token_lists(prefixes, "prefixes")
        return self._search(initial_state, batch, Forced(given), refill)

    def score(
        self, initial_state: Any, targets: Sequence[Sequence[int]], batch: int = 256, refill: bool = True
    ) -> list[Hypothesis]:
        """Return a `Hypothesis` for the given result of each sentence, in the same form as `run`.

        targets  tokens of each result, without the end of the sentence, which is also scored

        The scores of a result with a token of probability 0 are -inf.
        """
        targets = _token_lists(targets, "targets")
        results = self._search(initial_state, batch, Forced(targets=targets), refill)
        pairs = zip(results, targets, strict=True)
        return [found[0] if found else Hypothesis.impossible((*target, self._eos)) for found, target in pairs]

    def _search(self, state: Any, batch: int, forced: Forced, refill: bool) -> list[list[Hypothesis]]:
        if not (isinstance(batch, (int, np.integer)) and batch >= 1):
            raise InputError(f"batch is {batch!r} but must be a number of sentences, 1 or more")
        given = GivenSteps(self._step, state, self._V, self._eos, self._bos, self._unk)
        forced.check(given.rows)
        if self._lm is not None and (self._lm_device == "gpu") != (given.gpu is not None):
            raise InputError(
                f"the n-gram model is on the {self._lm_device.upper()} but the state is not; "
                "load it with device='cpu' or device='gpu'"
            )
        options = self._options if forced.targets is None else self._options.for_targets()
        batching = Batching(batch, kind="refill" if refill else "drain")
        steps = Ensemble([given], [1.0], self._lm, cpu_cores())
        requests = {i: forced.request(i, 1, self._eos) for i in range(given.rows)}
        with given.gpu or nullcontext():
            found = search_all(steps, requests, range(given.rows), options, batching)
        return [found[i] for i in range(given.rows)]

    def _rows(self, lm: Model, words: Sequence[str] | None) -> NgramRows:
        """Return the rows of the n-gram model."""
        if not isinstance(lm, Model):
            raise InputError(f"lm is {lm!r} but must be a model, such as ng.Model.load(PATH)")
        names = [str(token) for token in range(self._V)] if words is None else list(words)
        if len(names) != self._V:
            raise InputError(f"there are {len(names)} words but vocab_size is {self._V}; give one for each token")
        if not any(name in lm.vocabulary for token, name in enumerate(names) if token != self._eos):
            raise InputError(
                f"the n-gram model knows none of the tokens, such as {names[-1]!r}; give words, one for each token"
            )
        return NgramRows(lm._next_word_model, names, self._eos)


def _token_lists(given: Any, name: str) -> list[list[int]]:
    """Return the forced tokens of each sentence, as they are given."""
    lists = list(given) if isinstance(given, Iterable) else [given]
    found = []
    for i, tokens in enumerate(lists):
        try:
            found.append([operator.index(token) for token in tokens])
        except TypeError:
            raise InputError(f"{name}[{i}] is {tokens!r} but must be a list of tokens, such as [5, 7]") from None
    return found
