"""The functions of the Python interface, `import mgpu_ngram as ng`."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mgpu_ngram.api.executors import client_executor, executor_of
from mgpu_ngram.cluster.devices import cpu_cores
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.inputs.files import check_path
from mgpu_ngram.core.memory_config import MemoryConfig
from mgpu_ngram.core.storage.claim import claimed
from mgpu_ngram.core.storage.output import check_not_input, no_empty_folders
from mgpu_ngram.core.storage.scratch import scratch_folder
from mgpu_ngram.core.typed_config import fill
from mgpu_ngram.jobs.context import RunContext
from mgpu_ngram.jobs.progress import Progress, given_progress
from mgpu_ngram.jobs.saver import CHECKPOINT_SECONDS
from mgpu_ngram.stages.run_file import check_checkpoint_seconds

if TYPE_CHECKING:
    from mgpu_ngram.core.counts.counts import Counts
    from mgpu_ngram.core.models.model_file import BackoffModel
    from mgpu_ngram.jobs.score.run import ScoreResult


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
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    resume: bool = False,
    **options: Any,
) -> Counts:
    """Count the n-grams of a corpus, orders 1 to `order`.

    corpus   path, glob, directory or fsspec URL, or a list of them; or an iterable of str or bytes
             lines (a list of lines: `Lines([...])`), an Arrow string array, or token ids (unit "id")
    output   folder to write; None: a temporary folder that is deleted with the result. With `client`,
             the workers must see the folder, too
    device   "auto", "cpu" or "gpu"
    client   an existing `distributed.Client`; None: this process
    memory   limits: device_bytes of each GPU, host_bytes of each host, as 64 << 30 or "64 GiB"; and
             spill_dir, the folder for sorted runs that do not fit
    checkpoint_seconds  seconds between saves of finished work in OUTPUT.checkpoint
    resume   resume the run that left OUTPUT.checkpoint
    options  the other settings of `CountConfig`: unit, dtype, separator_id, sentence_markers,
             lowercase, min_count, columns, strategy, histograms, text_column, chunk_bytes

    Returns `Counts`. Raises InputError for invalid input and RunError if the run fails.
    """
    from mgpu_ngram.core.counts.counts import Counts
    from mgpu_ngram.core.inputs.corpus import open_corpus
    from mgpu_ngram.jobs.count import run as count_job

    if "workers" in options:
        raise InputError("ng.count runs in this process; to use workers, give client=distributed.Client(n_workers=2)")
    if "name" in options:
        raise InputError("name is for jobs of a YAML file; give output=FOLDER")
    config = fill(count_job.CountConfig, {"corpus": [], "order": order, **options}, "count")
    limits = fill(MemoryConfig, memory or {}, "memory")
    check_checkpoint_seconds(checkpoint_seconds)
    if resume and output is None:
        raise InputError("resume=True needs the output of the run that ended early; give output=FOLDER")
    if output is not None:
        check_path(output, "output")
    executor = executor_of(device, client)
    owned = scratch_folder() if output is None else None
    try:
        inputs = open_corpus(corpus, config.unit, config.dtype, config.text_column)
        if output is not None:
            check_not_input(output, [*config.add, *inputs.local_files])
        context = RunContext(
            executor,
            Path(owned) / "counts" if owned else output,
            overwrite=overwrite,
            resume=resume,
            progress=given_progress(progress),
            memory=limits,
            checkpoint_seconds=checkpoint_seconds,
        )
        with no_empty_folders([context.target]), claimed([context.target]):
            result = count_job.run(config, context, inputs)
        return Counts(result.path, owned_folder=owned)
    except BaseException:
        if owned:
            shutil.rmtree(owned, ignore_errors=True)
        raise
    finally:
        executor.close()


def estimate_arrays(
    source: Any,
    order: int | None,
    device: str,
    client: Any,
    progress: Progress | None,
    memory: dict[str, Any] | None,
    options: dict[str, Any],
) -> BackoffModel:
    """Return an estimated model in host memory: see `mgpu_ngram.estimate`."""
    from mgpu_ngram.core.counts.counts import Counts
    from mgpu_ngram.core.counts.srilm_counts import SrilmCounts
    from mgpu_ngram.core.inputs.corpus import open_corpus
    from mgpu_ngram.jobs.estimate import run as estimate_job
    from mgpu_ngram.jobs.estimate.config import EstimateConfig

    for name, why in {"name": "jobs of a YAML file", "format": "files", "verbose_header": "ARPA files"}.items():
        if name in options:
            raise InputError(f"{name} is for {why}; leave it out")
    if source is None:
        raise InputError("source is None; give text or counts: a path, a list of paths, Lines([...]) or ng.Counts")
    given = {name: list(value) if isinstance(value, tuple) else value for name, value in options.items()}
    is_counted = isinstance(source, (Counts, SrilmCounts))
    which = {"counts": str(source.path)} if is_counted else {"corpus": ["given"]}
    config = fill(EstimateConfig, {**which, "order": order, **given}, "estimate")
    limits = fill(MemoryConfig, memory or {}, "memory")
    executor = executor_of(device, client)
    folder = scratch_folder()
    try:
        inputs = None
        if not is_counted:
            inputs = open_corpus(source, config.unit, config.dtype, config.text_column)
        context = RunContext(executor, folder, progress=given_progress(progress), memory=limits)
        return estimate_job.run_to_model(config, context, inputs)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
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
) -> ScoreResult:
    """Score text of any size: `result.totals.perplexity`, and a table of all sentences or words in `output`.

    model    path of a model file, an ARPA file or a KenLM binary model; with `client`, all workers must see it
    text     path, glob, directory or fsspec URL, or a list of them; or an in-memory corpus, as in
             `count`: `Lines([...])`, Arrow arrays
    output   a Parquet file to write, rows in the order of the text; None: totals only
    device   "auto", "cpu" or "gpu"
    client   an existing `distributed.Client`; None: this process
    verify   compare the checksums of a model file
    options  the other settings of `ScoreConfig`: level, sentence_markers, index, text_column, chunk_bytes

    The model stays in the memory of this process (with `client`: of each worker) for the next call. A call with another
    model, index or device frees it, and so does the end of the process (with `client`: `client.restart()`).

    For sentences in memory, use `Model`, which is freed like any object. Raises InputError for invalid input and
    RunError if the run fails.
    """
    from mgpu_ngram.core.inputs.corpus import open_corpus
    from mgpu_ngram.core.models.model_head import identify
    from mgpu_ngram.jobs.score import run as score_job
    from mgpu_ngram.jobs.score.config import ScoreConfig

    if "name" in options:
        raise InputError("name is for jobs of a YAML file; give output=FILE")
    check_path(model, "model")
    config = fill(ScoreConfig, {"model": str(model), "text": [], "verify": verify, **options}, "score")
    if output is not None:
        check_path(output, "output")
        score_job.check_file(output, overwrite)
    identify(config.model)
    executor = executor_of(device, client)
    try:
        inputs = open_corpus(text, text_column=config.text_column)
        if output is not None:
            check_not_input(output, [config.model, *inputs.local_files])
        context = RunContext(executor, output, single_file=True, overwrite=overwrite, progress=given_progress(progress))
        with claimed([] if output is None else [output]):
            return score_job.run(config, context, inputs)
    finally:
        executor.close()


def filter(
    documents: Any,
    model: str | Path,
    output: str | Path | None = None,
    *,
    overwrite: bool = False,
    resume: bool = False,
    device: str = "auto",
    client: Any = None,
    progress: Progress | None = None,
    **options: Any,
) -> Any:
    """Add the perplexity of a model to documents, and drop documents by it.

    documents  files: a path, glob, directory or fsspec URL, or a list of them. Or a pandas DataFrame, a Dask DataFrame
               or a Dask bag of dicts or texts
    model      path of a model file, an ARPA file, a KenLM binary or a table of models; with {language}, one for each
               language. With `client`, all workers must see it
    output     for files: the folder to write
    resume     for files: resume the run that left OUTPUT.checkpoint
    device     "auto", "cpu" or "gpu"; without `client`, the process that computes a partition chooses for "auto"
    client     an existing `distributed.Client`; None: files and pandas are filtered in this process
    options    the other settings of `FilterConfig`: contrast_model, text_column, tokenizer, normalize, sentences,
               buckets, fixed_buckets, bucket_by, sample, cutoffs, language_column, min_perplexity, max_perplexity,
               min_difference, max_difference, only, keep, report, block_bytes, verify

    For files, returns the `FilterResult` of a run. For a DataFrame or a bag, returns one with the new columns or keys,
    and without the dropped documents. Results of Dask are lazy: nothing is scored before `compute`, and each
    worker opens the model once. Percentiles (`buckets` without `cutoffs`) need files.

    Raises InputError for invalid input and RunError if the run fails.
    """
    from mgpu_ngram.jobs.filter import run as filter_job
    from mgpu_ngram.jobs.filter.config import FilterConfig

    if hasattr(documents, "assign") or hasattr(documents, "map_partitions"):
        of_files = {"output": output, "overwrite": overwrite, "resume": resume, "progress": progress}
        for name, value in of_files.items():
            if value:
                raise InputError(f"{name} is for files; leave it out, and write the result with its own methods")
        return _filter_memory(documents, model, device, client, options)
    paths = [documents] if isinstance(documents, str | Path) else documents
    if not isinstance(paths, list | tuple) or not paths or not all(isinstance(path, str | Path) for path in paths):
        raise InputError(
            f"documents is of type {type(documents).__name__} but must be paths, a DataFrame of pandas or Dask, or a "
            "Dask bag"
        )
    if output is None:
        raise InputError("documents are files but output is not given; give output=FOLDER")
    check_path(output, "output")
    if "name" in options:
        raise InputError("name is for jobs of a YAML file; give output=FOLDER")
    check_path(model, "model")
    settings = {"text": [str(path) for path in paths], "model": str(model), **options}
    config = fill(FilterConfig, settings, "filter")
    executor = executor_of(device, client)
    try:
        context = RunContext(executor, output, overwrite=overwrite, resume=resume, progress=given_progress(progress))
        with no_empty_folders([output]), claimed([output]):
            return filter_job.run(config, context)
    finally:
        executor.close()


def _filter_memory(documents: Any, model: str | Path, device: str, client: Any, options: dict[str, Any]) -> Any:
    from mgpu_ngram.api.document_filter import DocumentFilter, check_column_names, filter_frame, filter_records

    is_lazy, is_frame = hasattr(documents, "map_partitions"), hasattr(documents, "assign")
    if client is not None and not is_lazy:
        raise InputError("client is given but the documents are not Dask's; leave it out, or give a Dask DataFrame")
    if not is_frame and not hasattr(documents, "foldby"):
        raise InputError(f"documents is a Dask {type(documents).__name__}; give a bag, or a DataFrame (to_frame)")
    given = DocumentFilter(model, device, 1 if is_lazy else cpu_cores(), **options)
    if is_frame:
        check_column_names(list(documents.columns), given.config)
    if client is not None:
        executor = client_executor(client, device)
        try:
            given.device = executor.device
            executor.everywhere(given.check_files)
        finally:
            executor.close()
    if not is_lazy:
        return filter_frame(documents, given)
    if not is_frame:
        return documents.map_partitions(filter_records, documents=given)
    from mgpu_ngram.cluster.dask_private import empty_partition

    return documents.map_partitions(filter_frame, given, meta=filter_frame(empty_partition(documents), given))


def open_distributions(path: str | Path) -> Any:
    """Open an output of `mgpu-ngram distribution`; data is read on demand.

    Whole rows: returns a Dask array (H, orders, V). With top_k: two Dask arrays, (ids, values), each (H, orders, k).
    bfloat16 becomes float32. Columns and ids are words of the model, which words.safetensors lists
    (`mgpu_ngram.core.models.distributions.read_words`). Format compact: returns a sequence of `CompactBlock`s with
    .words and .prob_V; `mgpu_ngram.compact.densify` makes their rows. Raises InputError for other folders, and for
    Parquet.
    """
    from mgpu_ngram.cluster.dask_arrays import rows_on_demand
    from mgpu_ngram.core.models.distributions import CompactBlocks, array_files, read_distributions

    manifest = read_distributions(path)
    format = manifest["options"]["format"]
    if format == "parquet":
        raise InputError(
            f"{path} is of format parquet; read {path}/part-*.parquet with a Parquet reader, such as polars"
        )
    if format == "compact":
        return CompactBlocks(path)
    files = array_files(Path(path).absolute(), format, manifest["arrays"])
    arrays = [rows_on_demand(file.read, file.shape, file.read(0, 0).dtype, file.chunk_rows) for file in files]
    return arrays[0] if len(arrays) == 1 else tuple(arrays)
