"""`Model`, a language model for Python users: it scores sentences and gives next-word distributions."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from mgpu_ngram.api.functions import estimate_arrays
from mgpu_ngram.api.model_states import ModelStates
from mgpu_ngram.cluster.devices import cpu_cores, resolve_device
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.models.model_file import BackoffModel
from mgpu_ngram.core.models.model_head import ModelHead, read_head
from mgpu_ngram.core.ngrams.words import Words, line_of
from mgpu_ngram.engine.memory.copies import move_to, to_host_fast
from mgpu_ngram.engine.memory.device import device_of, synchronize, to_device
from mgpu_ngram.engine.score.replica import BlockScores, Replica, check_index
from mgpu_ngram.engine.torch.arrays import as_integers, on_stream_of, operator, tensors_like
from mgpu_ngram.engine.torch.model_numbers import number_of
from mgpu_ngram.engine.trie.open_model import KeyedModel, open_keyed, open_model
from mgpu_ngram.jobs.progress import Progress
from mgpu_ngram.jobs.score import run as score_job

TEXT_BYTES = {"gpu": 64 << 20, "cpu": 1 << 20}  # bytes of sentences that are scored at once


class Model(ModelStates):
    """A backoff language model on a device. Scores sentences as KenLM does; gives next-word distributions, states.

    order       words of its longest n-grams
    vocabulary  its words: len(), iteration, .id("word") (0: unknown), .word(3)
    device      "cpu" or "gpu"

    A sentence is a string of words that white space separates; a newline is white space, too.
    """

    def __init__(
        self,
        model: BackoffModel | KeyedModel,
        device: str = "auto",
        index: str = "edge",
        path: str | Path | ModelHead | None = None,
    ):
        check_index(index)
        self._model, self.device, self.path = model, resolve_device(device), None
        if path is not None:
            head = read_head(path)
            if Path(head.path).is_file():  # other processes load the same model from this file
                self.path, self.identity = Path(head.path).absolute(), head.identity
        self._index, self._loading = index, threading.Lock()
        self._number = number_of(self)

    @classmethod
    def load(cls, path: str | Path, device: str = "auto", index: str = "edge", verify: bool = True) -> Model:
        """Load a model file, an ARPA file, plain or compressed, or a KenLM binary model.

        device  "auto" (a GPU if there is one), "cpu" or "gpu"
        index   "edge": an edge table, faster, or the tables of a KenLM probing model in the form of its file; "btree":
                only the trie, which takes a third of the memory
        verify  compare the checksums of a model file

        Raises InputError for other files, and for a damaged file; for an ARPA file with the line. The n-grams of a
        probing model are recovered when a call other than scoring needs them, which may also raise InputError.
        """
        head = read_head(path)
        device = resolve_device(device)
        check_index(index)
        if index == "edge" and head.is_probing:
            return cls(open_keyed(head), device, index, head)
        return cls(open_model(head, device, cpu_cores(), verify=verify), device, index, head)

    @cached_property
    def arrays(self) -> BackoffModel:
        """The trie and the words of the model, in host memory."""
        if isinstance(self._model, BackoffModel):
            return self._model
        return open_model(self._model.path, self.device, cpu_cores())

    @property
    def order(self) -> int:
        return self._model.order

    @property
    def vocabulary(self) -> Words:
        return self._model.words

    def __contains__(self, word: str | bytes) -> bool:
        return word in self.vocabulary

    def __reduce__(self) -> tuple[type[Model], tuple[Any, ...]]:
        return Model, (self.arrays, self.device, self._index, self.path)

    def __deepcopy__(self, memo: Any) -> Model:
        """Return the same model: it never changes, and may fill a GPU."""
        return self

    def __repr__(self) -> str:
        return f"<Model of order {self.order}, {len(self.vocabulary):,} words, {self._model.ngrams:,} n-grams>"

    def score(self, sentences: str | Iterable[str | bytes], bos: bool = True, eos: bool = True) -> Any:
        """Return the log10 probability of each sentence, (S,) float32 in host memory; for a single string, a float.

        bos  whether <s> precedes each sentence
        eos  whether </s> follows each sentence and is scored
        """
        if isinstance(sentences, (str, bytes)):
            return float(self.score([sentences], bos, eos)[0])
        parts = [to_host_fast(block.total_S) for block in self._blocks(sentences, bos, eos)]
        return np.concatenate([np.empty(0, np.float32), *parts])

    def full_scores(self, sentence: str | bytes, bos: bool = True, eos: bool = True) -> list[tuple[float, int, bool]]:
        """Return (log10 probability, words of the longest match, whether it is unknown) for each word."""
        [block] = self._blocks([sentence], bos, eos)
        arrays = block.prob_T, block.order_T, block.codes_T == 1
        words = list(zip(*(to_host_fast(a).tolist() for a in arrays), strict=True))
        return words if eos else words[:-1]

    def perplexity(self, sentences: str | Iterable[str | bytes]) -> float:
        """Return the perplexity of all sentences together, with </s> and unknown words; NaN without sentences."""
        total, tokens = 0.0, 0
        for block in self._blocks([sentences] if isinstance(sentences, (str, bytes)) else sentences, True, True):
            total += float(block.total_S.sum(dtype=np.float64))
            tokens += len(block.codes_T)
        return score_job.perplexity(total, tokens)

    @operator(tensors=2)
    def score_ids(self, ids: Any, offsets: Any, bos: bool = True, eos: bool = True) -> Any:
        """Return the log10 probability of sentences of word ids, (S,) float32 on the device of `ids`.

        ids      (T,) integers below len(vocabulary), NumPy, CuPy or PyTorch; copied to the model's device if needed
        offsets  (S + 1,) integers: sentence s is ids[offsets[s]:offsets[s + 1]]

        From a PyTorch tensor, the result is a tensor; if it is on a GPU, the work is done on PyTorch's current stream.
        Raises InputError for ids or offsets that are out of range.
        """
        with on_stream_of(ids, offsets):
            given_T, given_S = as_integers("ids", ids), as_integers("offsets", offsets)
            total_S = self._replica.score_ids(given_T, given_S, bos, eos).total_S
            return tensors_like(ids, move_to(total_S, device_of(given_T)))[0]

    @cached_property
    def _replica(self) -> Replica:
        """The scorer, created on first use, because distributions do not need its index."""
        replica = Replica(self._model, self.device, self._index, cpu_cores())
        synchronize(self.device)  # the next call may use another stream
        return replica

    def _blocks(self, sentences: Iterable[str | bytes], bos: bool, eos: bool) -> Iterator[BlockScores]:
        """Yield the scores of sentences in batches, in order; a CPU's cores share them."""
        replica = self._replica

        def scored(text: bytearray) -> BlockScores:
            text_B = to_device(np.frombuffer(text, np.uint8), self.device)
            return replica.score_text(text_B, bos, eos)[0]

        texts = _texts(sentences, TEXT_BYTES[self.device])
        if self.device == "gpu":
            yield from map(scored, texts)
            return
        with ThreadPoolExecutor(cpu_cores()) as pool:
            while batch := list(islice(texts, 2 * cpu_cores())):
                yield from pool.map(scored, batch)


def _texts(sentences: Iterable[str | bytes], size_bytes: int) -> Iterator[bytearray]:
    """Yield sentences as lines of text, in batches of about `size_bytes`.

    Writable, as text of files is: for other arrays Numba would compile the kernels again.
    """
    if not isinstance(sentences, Iterable):
        raise InputError(f"sentences is {sentences!r} but must be a string of words, or several in a list")
    lines: list[bytes] = []
    size = 0
    for i, sentence in enumerate(sentences):
        lines.append(line_of(sentence, f"sentence {i}"))
        size += len(lines[-1])
        if size >= size_bytes:
            yield bytearray().join(lines)
            lines, size = [], 0
    if lines:
        yield bytearray().join(lines)


def estimate(
    source: Any,
    order: int | None = None,
    *,
    device: str = "auto",
    index: str = "edge",
    client: Any = None,
    progress: Progress | None = None,
    memory: dict[str, Any] | None = None,
    **options: Any,
) -> Model:
    """Estimate a model: modified Kneser-Ney as in KenLM's lmplz, or another smoothing as in SRILM's ngram-count.

    N-grams are the same as those of these programs, and log10 values agree within 1e-6.

    source   text as `count` takes it: a path, glob, directory or fsspec URL, or a list of them, an iterable of lines,
             an Arrow array; `Counts` from a run with sentence_markers=True; or `SrilmCounts`
    order    highest order; None: 5, or the highest order of the counts
    device   "auto", "cpu" or "gpu", the device that estimates and scores
    index    as in `Model.load`
    client   an existing `distributed.Client`; None: this process
    memory   memory limits, as in `count`
    options  the other settings of `EstimateConfig`: smoothing, interpolate, discount, delta, gt_max, vocabulary,
             closed, prune, limit_vocab_file, vocab_pad, discount_fallback, interpolate_unigrams, skip_symbols,
             exact_discounts, unit, dtype, separator_id, text_column, chunk_bytes

    Returns a model that is ready to score. A temporary folder holds only data that does not fit in memory. Raises
    InputError for unusable input, such as text without computable discounts, and RunError if the run fails.
    """
    return Model(estimate_arrays(source, order, device, client, progress, memory, options), device, index)
