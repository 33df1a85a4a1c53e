"""Decode sentences in batches; results come in the order of the sentences and do not depend on the batches."""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.nmt.model import NmtModel
from mgpu_ngram.engine.decode.beam_search import Collected, SentenceSearch
from mgpu_ngram.engine.decode.ensemble import Ensemble, WeightedModel
from mgpu_ngram.engine.decode.nmt_steps import NmtSteps
from mgpu_ngram.engine.decode.search_options import Hypothesis, NBestList, Request, SearchOptions
from mgpu_ngram.engine.decode.step_function import StepFunction
from mgpu_ngram.engine.memory.cuda_graphs import capture_stream

BATCHINGS = ("refill", "drain", "naive")
MAX_SENTENCES = {"cpu": 256, "gpu": 4096}  # greatest number at once
MAX_HYPOTHESES = {"cpu": 256 * 64, "gpu": 6144}  # greatest number at once; more are no faster per hypothesis
# Greatest number of source positions at once; 0: no limit. With 1,024 states, a position takes 16 KB, and as many more
# positions are being encoded.
POSITIONS = {"cpu": 0, "gpu": 64 * 2048}


def sentences_at_once(device: str, beam_size: int) -> int:
    """Return the default number of sentences that are searched at once on a device."""
    return max(1, min(MAX_SENTENCES[device], MAX_HYPOTHESES[device] // beam_size))


@dataclass(frozen=True)
class Batching:
    """How sentences share a device.

    sentences  number of sentences that are searched at once
    words      greatest number of source words that are searched at once, with ends and padding; 0: no limit
    pool       number of sentences that are sorted by length together; 0: all
    kind       "refill": new sentences enter when a quarter of the places is free; "drain": a batch shrinks until all
               its sentences are done; "naive": it does not shrink
    """

    sentences: int = 256
    words: int = 0
    pool: int = 0
    kind: str = "refill"

    def __post_init__(self) -> None:
        if self.sentences < 1:
            raise InputError(f"a batch has {self.sentences} sentences but must have 1 or more")
        if self.words < 0 or self.pool < 0:
            raise InputError(f"words is {self.words} and pool is {self.pool} but both must be 0 or more")
        if self.kind not in BATCHINGS:
            raise InputError(f"the batching is {self.kind!r} but must be one of {', '.join(BATCHINGS)}")

    def most(self, length: int) -> int:
        """Return the number of sentences of `length` source words that are searched at once, at least 1."""
        return min(self.sentences, max(1, self.words // length)) if self.words else self.sentences


@dataclass(frozen=True)
class Forced:
    """Words that are forced in the results.

    prefixes  first words of the results of each sentence; None: no prefixes
    targets   whole results to score, without their ends; None: no targets
    """

    prefixes: Sequence[Sequence[int]] | None = None
    targets: Sequence[Sequence[int]] | None = None

    def request(self, i: int, length: int, eos: int, first: int = 0) -> Request:
        """Return the request for sentence i, whose number is first + i."""
        if self.targets is not None:
            return Request(first + i, length, (*map(int, self.targets[i]), eos), whole=True)
        prefix = () if self.prefixes is None else tuple(map(int, self.prefixes[i]))
        return Request(first + i, length, prefix)

    def check(self, sentences: int) -> None:
        """Raise InputError unless there is an entry for each sentence."""
        if self.prefixes is not None and self.targets is not None:
            raise InputError("both prefixes and targets are given, but a target has its own prefix; give one of them")
        for name, given in (("prefixes", self.prefixes), ("targets", self.targets)):
            if given is not None and len(given) != sentences:
                raise InputError(f"there are {sentences} sentences but {len(given)} {name}; give one for each")


def decode(
    models: Sequence[NmtModel | StepFunction] | Ensemble,
    sources: Sequence[Any],
    options: SearchOptions | None = None,
    batching: Batching | None = None,
    weights: Sequence[float] | None = None,
    lm: WeightedModel | None = None,
    forced: Forced | None = None,
    first: int = 0,
) -> list[list[Hypothesis]]:
    """Return up to `n_best` results of each sentence, best first; no results for an empty sentence.

    models    models of an ensemble on NumPy or CuPy arrays, or step functions. An `Ensemble` has its own weights and lm
    sources   the source of each sentence; for a translation model its ids, with the end of the sentence:
              (T,), or (T, factors)
    weights   weights of the models, 1 each by default
    lm        n-gram model whose rows are added
    first     number of the first sentence, for samples and error messages
    """
    options, batching, forced = options or SearchOptions(), batching or Batching(), forced or Forced()
    forced.check(len(sources))
    if isinstance(models, Ensemble):
        model = models
    else:
        steps = [NmtSteps(model) if isinstance(model, NmtModel) else model for model in models]
        model = Ensemble(steps, [1.0] * len(steps) if weights is None else weights, lm)
    if forced.targets is not None:
        options = options.for_targets()
    waiting = [i for i in range(len(sources)) if len(sources[i]) > 1 or forced.targets is not None]
    requests = {i: forced.request(i, len(sources[i]), model.eos, first) for i in waiting}
    found = search_all(model, requests, sources, options, batching)
    return [found.get(i, []) for i in range(len(sources))]


def search_all(
    model: Ensemble,
    requests: dict[int, Request],
    sources: Sequence[Any],
    options: SearchOptions,
    batching: Batching,
) -> dict[int, list[Hypothesis]]:
    """Return the results of each request, best first, by its index in `sources`."""
    results: dict[int, list[Hypothesis]] = {}
    index = {request.number: i for i, request in requests.items()}
    waiting = list(requests)
    pool = batching.pool or max(1, len(waiting))
    with paused_collector(), nullcontext() if model.version is None else capture_stream():
        for start in range(0, len(waiting), pool):
            order = sorted(waiting[start : start + pool], key=lambda i: -requests[i].length)
            entering = [requests[i] for i in order]
            with closing(
                SentenceSearch(model, options, entering, batching.sentences, batching.kind == "naive")
            ) as search:
                for found in _run(search, order, requests, sources, batching):
                    results[index[found.number]] = found.hypotheses
    return results


@contextmanager
def paused_collector() -> Iterator[None]:
    """Keep Python's garbage collector from running.

    It would visit all results again and again, although they are in no cycles. That takes three times as long as making
    them.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _run(
    search: SentenceSearch,
    order: list[int],
    requests: dict[int, Request],
    sources: Sequence[Any],
    batching: Batching,
) -> list[NBestList]:
    """Return the results of sentences, in the order in which they are done."""
    found: list[NBestList] = []
    unread: deque[Collected] = deque()
    encoding: list[Any] = []  # sources of the next sentences
    at = most = 0
    while at < len(order) or search.searched:
        if at < len(order):
            if not encoding:
                most = batching.most(requests[order[at]].length)
                encoding = [sources[i] for i in order[at : at + most]]
                search.prepare(encoding)
            room = most - search.searched
            if not search.searched or (batching.kind == "refill" and room >= (most + 3) // 4):
                unread.extend(search.collect())
                entering, encoding = encoding[:room], encoding[room:]
                search.enter([requests[i] for i in order[at : at + len(entering)]], entering)
                at += len(entering)
        search.advance()
        if unread:
            found += search.read(unread.popleft())  # a GPU searches meanwhile
    unread.extend(search.collect())
    for collected in unread:
        found += search.read(collected)
    return found
