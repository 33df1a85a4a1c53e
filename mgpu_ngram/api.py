"""The Python interface: what `import mgpu_ngram as ng` offers."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from mgpu_ngram.cluster.devices import cpu_cores, free_memory, resolve_device, visible_gpus
from mgpu_ngram.cluster.executor import Executor
from mgpu_ngram.cluster.local import LocalExecutor
from mgpu_ngram.config import ClusterConfig, check_checkpoint_seconds
from mgpu_ngram.core.counts import Counts
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.memory import MemoryConfig
from mgpu_ngram.core.model import Model as Arrays
from mgpu_ngram.core.scratch import scratch_folder
from mgpu_ngram.core.settings import fill
from mgpu_ngram.core.words import Words
from mgpu_ngram.engine.device import device_of, moved_to, to_device, to_host_fast
from mgpu_ngram.engine.model import open_model
from mgpu_ngram.engine.score import BlockScores, Replica
from mgpu_ngram.jobs import count as count_job
from mgpu_ngram.jobs import score as score_job
from mgpu_ngram.jobs.progress import Progress


def open_executor(cluster: ClusterConfig, dask: dict[str, Any] | None = None) -> Executor:
    """Where a run's tasks go: a Dask cluster on this host, one that runs elsewhere, or this process (workers 0)."""
    if cluster.kind == "local" and cluster.workers == 0:
        return LocalExecutor(resolve_device(cluster.device))
    from mgpu_ngram.cluster.dask import connect, start_cluster

    if cluster.kind == "local":
        return start_cluster(resolve_device(cluster.device), cluster.workers, dask, cluster.protocol)
    return connect(cluster.address, cluster.scheduler_file, cluster.device, cluster.workers, dask)


def describe_cluster(cluster: ClusterConfig, dask: dict[str, Any] | None = None) -> dict[str, Any]:
    """What a run would find: workers, device, free bytes of a GPU or of the host, and how arrays would travel.

    A cluster that runs is asked, and so are two or more GPUs of this host; anything else starts nothing.
    """
    if cluster.kind == "local":
        device = resolve_device(cluster.device)
        workers = cluster.workers or (cpu_cores() if device == "cpu" else visible_gpus())
        if cluster.workers == 0 and device == "gpu":
            workers = 1
        if device == "cpu" or workers < 2:
            transport = "memory" if cluster.workers == 0 else "tcp"
            return {"workers": workers, "device": device, "free_bytes": free_memory(device), "transport": transport}
    executor = open_executor(cluster, dask)
    try:
        free = executor.gather([executor.call(free_memory, executor.device)])[0]
        found = {"workers": executor.workers, "device": executor.device, "transport": executor.transport}
        return found | {"free_bytes": free}
    finally:
        executor.close()


def client_executor(client: Any, device: str = "auto") -> Executor:
    """Around a user's `distributed.Client`. Device "auto" is what its workers find."""
    from mgpu_ngram.cluster.dask import DaskExecutor

    if not hasattr(client, "submit"):
        raise InputError(f"client is {client!r} but must be a distributed.Client, such as Client({client!r})")
    if client.asynchronous:
        raise InputError("the client is asynchronous; give one made by Client(..., asynchronous=False)")
    return DaskExecutor(client, device)


def count(
    corpus: Any,
    order: int = 5,
    *,
    output: str | Path | None = None,
    overwrite: bool = False,
    device: str = "auto",
    client: Any = None,
    progress: Progress | None = None,
    memory: dict[str, Any] | None = None,
    checkpoint_seconds: float = count_job.CHECKPOINT_SECONDS,
    resume: bool = False,
    **options: Any,
) -> Counts:
    """Count the n-grams of a corpus, orders 1 to `order`.

    corpus   path, glob, directory or fsspec URL, or a list of them; or an iterable of str or bytes
             lines (a list of lines: `Lines([...])`), an Arrow string array, or token ids (unit "id")
    output   folder to write; a temporary one that goes with the result when None. With `client`,
             a folder that the workers see, too
    device   "auto", "cpu" or "gpu"
    client   an existing `distributed.Client`; in this process when None
    memory   what the run may take: device_bytes of each GPU, host_bytes of each host, as 64 << 30 or
             "64 GiB"; and spill_dir, where sorted runs go that do not fit
    checkpoint_seconds  how often finished work is saved in OUTPUT.checkpoint
    resume   go on with the run that left OUTPUT.checkpoint
    options  the other settings of `CountConfig`: unit, dtype, separator_id, sentence_markers,
             lowercase, min_count, strategy, histograms, text_column, chunk_bytes

    Returns `Counts`. Raises InputError for what cannot be used, RunError when the run fails.
    """
    if "workers" in options:
        raise InputError("ng.count runs in this process; for workers give client=distributed.Client(n_workers=2)")
    if "name" in options:
        raise InputError("name is for jobs of a YAML file; give output=FOLDER")
    config = fill(count_job.CountConfig, {"corpus": [], "order": order, **options}, "count")
    limits = fill(MemoryConfig, memory or {}, "memory")
    check_checkpoint_seconds(checkpoint_seconds)
    if resume and output is None:
        raise InputError("resume=True needs the output of the run that ended early; give output=FOLDER")
    executor = LocalExecutor(resolve_device(device)) if client is None else client_executor(client, device)
    owned = scratch_folder() if output is None else None
    try:
        target: Any = Path(owned) / "counts" if owned else output
        result = count_job.run(
            config, executor, target, overwrite, progress, corpus, limits, checkpoint_seconds, resume
        )
        return Counts(result.path, owned_folder=owned)
    except BaseException:
        if owned:
            shutil.rmtree(owned, ignore_errors=True)
        raise
    finally:
        executor.close()


def score(
    model: str | Path,
    text: Any,
    output: str | Path | None = None,
    *,
    overwrite: bool = False,
    device: str = "auto",
    client: Any = None,
    progress: Progress | None = None,
    verify: bool = True,
    **options: Any,
) -> score_job.ScoreResult:
    """Score text of any size: `result.totals.perplexity`, and a table of all sentences or words in `output`.

    model    path of a model file or an ARPA file; with `client`, one that the workers see, too, and each loads
    text     path, glob, directory or fsspec URL, or a list of them; or what `count` takes: `Lines([...])`, Arrow arrays
    output   a Parquet file to write, rows in the order of the text; None: totals only
    device   "auto", "cpu" or "gpu"
    client   an existing `distributed.Client`; in this process when None
    verify   compare the checksums of a model file
    options  the other settings of `ScoreConfig`: level, sentence_markers, index, text_column, chunk_bytes

    The model stays in the memory of this process (with `client`: of each worker) for the next call. A call with another
    model, index or device frees it, and so does the end of the process (with `client`: `client.restart()`).

    For sentences that are in memory already see `Model`, which is freed like any object. Raises InputError for what
    cannot be used, RunError when the run fails.
    """
    if "name" in options:
        raise InputError("name is for jobs of a YAML file; give output=FILE")
    config = fill(score_job.ScoreConfig, {"model": str(model), "text": [], **options}, "score")
    if output is not None:
        score_job.check_file(output, overwrite)
    score_job.identify(config.model)
    executor = LocalExecutor(resolve_device(device)) if client is None else client_executor(client, device)
    try:
        return score_job.score(config, executor, output, progress=progress, inputs=text, verify=verify)
    finally:
        executor.close()


TEXT_BYTES = {"gpu": 64 << 20, "cpu": 1 << 20}  # of sentences that are scored at once
MOST_SENTENCE_BYTES = 2 << 30  # with what else is scored at once less than 4 GiB: positions are uint32


class Model:
    """A backoff language model on a device, which scores sentences as KenLM does.

    order       words of its longest n-grams
    vocabulary  its words: len(), iteration, .id("word") (0: unknown), .word(3)
    device      "cpu" or "gpu"

    A sentence is a string of words between white space; newlines in it are white space, too.
    """

    def __init__(self, model: Arrays, device: str = "auto", index: str = "edge"):
        self.arrays, self.device = model, resolve_device(device)
        self._replica = Replica(model, self.device, index, cpu_cores())

    @classmethod
    def load(cls, path: str | Path, device: str = "auto", index: str = "edge", verify: bool = True) -> Model:
        """From a model file, or an ARPA file, plain or compressed.

        device  "auto" (a GPU if there is one), "cpu" or "gpu"
        index   "edge": an edge table, faster; "btree": the trie alone, which takes a third of the memory
        verify  compare the checksums of a model file

        Raises InputError for what is neither, with the line where an ARPA file is wrong.
        """
        device = resolve_device(device)
        return cls(open_model(path, device, cpu_cores(), verify=verify), device, index)

    @property
    def order(self) -> int:
        return self.arrays.trie.order

    @property
    def vocabulary(self) -> Words:
        return self.arrays.words

    def __contains__(self, word: str | bytes) -> bool:
        return word in self.vocabulary

    def __repr__(self) -> str:
        return f"<Model of order {self.order}, {len(self.vocabulary):,} words, {len(self.arrays.trie):,} n-grams>"

    def score(self, sentences: str | Iterable[str | bytes], bos: bool = True, eos: bool = True) -> Any:
        """The log10 probability of each sentence: (S,) float32 in host memory; of a single string, a float.

        bos  <s> stands before it
        eos  </s> follows, which is scored, too
        """
        if isinstance(sentences, (str, bytes)):
            return float(self.score([sentences], bos, eos)[0])
        parts = [to_host_fast(block.total_S) for block in self._blocks(sentences, bos, eos)]
        return np.concatenate([np.empty(0, np.float32), *parts])

    def full_scores(self, sentence: str | bytes, bos: bool = True, eos: bool = True) -> list[tuple[float, int, bool]]:
        """Of each word: its log10 probability, the words of its longest match, and whether it is unknown."""
        [block] = self._blocks([sentence], bos, eos)
        arrays = block.prob_T, block.order_T, block.codes_T == 1
        words = list(zip(*(to_host_fast(a).tolist() for a in arrays), strict=True))
        return words if eos else words[:-1]

    def perplexity(self, sentences: str | Iterable[str | bytes]) -> float:
        """Of all the sentences together, with their </s> and their unknown words; NaN without sentences."""
        total, tokens = 0.0, 0
        for block in self._blocks([sentences] if isinstance(sentences, (str, bytes)) else sentences, True, True):
            total += float(block.total_S.sum(dtype=np.float64))
            tokens += len(block.codes_T)
        return score_job.perplexity(total, tokens)

    def score_ids(self, ids: Any, offsets: Any, bos: bool = True, eos: bool = True) -> Any:
        """The log10 probability of sentences of word ids, where the ids are: (S,) float32.

        ids      (T,) integers below len(vocabulary), NumPy or CuPy; brought to the device of the model if elsewhere
        offsets  (S + 1,) integers, NumPy or CuPy: sentence s is ids[offsets[s]:offsets[s + 1]]

        Raises InputError for ids or offsets that are out of range.
        """
        return moved_to(self._replica.score_ids(ids, offsets, bos, eos).total_S, device_of(ids))

    def _blocks(self, sentences: Iterable[str | bytes], bos: bool, eos: bool) -> Iterator[BlockScores]:
        """The scores of sentences, in their order, some at a time; a CPU's cores share them."""

        def scored(text: bytes) -> BlockScores:
            text_B = to_device(np.frombuffer(text, np.uint8), self.device)
            return self._replica.score_text(text_B, bos, eos)[0]

        texts = _texts(sentences, TEXT_BYTES[self.device])
        if self.device == "gpu":
            yield from map(scored, texts)
            return
        with ThreadPoolExecutor(cpu_cores()) as pool:
            while some := list(islice(texts, 2 * cpu_cores())):
                yield from pool.map(scored, some)


def _texts(sentences: Iterable[str | bytes], size_bytes: int) -> Iterator[bytes]:
    """Sentences as lines of text, about so many bytes at a time."""
    lines: list[bytes] = []
    size = 0
    for i, sentence in enumerate(sentences):
        if not isinstance(sentence, (str, bytes)):
            raise InputError(f"sentence {i} is {sentence!r} but must be a string of words")
        try:
            line = sentence.encode("utf-8", "surrogateescape") if isinstance(sentence, str) else sentence
        except UnicodeEncodeError as error:
            what = f"has {sentence[error.start]!r} at {error.start}, which UTF-8 cannot write"
            raise InputError(f"sentence {i} {what} ({error.reason}); leave it out, or give bytes") from None
        if len(line) > MOST_SENTENCE_BYTES:
            raise InputError(f"sentence {i} has {len(line):,} bytes but may have {MOST_SENTENCE_BYTES:,}; cut it up")
        lines.append(line.replace(b"\n", b" ") + b"\n")
        size += len(lines[-1])
        if size >= size_bytes:
            yield b"".join(lines)
            lines, size = [], 0
    if lines:
        yield b"".join(lines)
