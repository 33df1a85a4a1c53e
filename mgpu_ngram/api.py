"""The Python interface: what `import mgpu_ngram as ng` offers."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from mgpu_ngram.cluster.devices import resolve_device
from mgpu_ngram.cluster.executor import Executor
from mgpu_ngram.cluster.local import LocalExecutor
from mgpu_ngram.core.counts import Counts
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.scratch import scratch_folder
from mgpu_ngram.core.settings import fill
from mgpu_ngram.jobs import count as count_job
from mgpu_ngram.jobs.progress import Progress


def open_executor(device: str = "auto", workers: int | None = None, dask: dict[str, Any] | None = None) -> Executor:
    """Where a run's tasks go: a Dask cluster on this host, or this process when workers is 0."""
    device = resolve_device(device)
    if workers == 0:
        return LocalExecutor(device)
    from mgpu_ngram.cluster.dask import start_cluster

    return start_cluster(device, workers, dask)


def client_executor(client: Any, device: str = "auto") -> Executor:
    """Around a user's `distributed.Client`. Device "auto" is what the first worker finds."""
    from mgpu_ngram.cluster.dask import DaskExecutor

    if not hasattr(client, "submit"):
        raise InputError(f"client is {client!r} but must be a distributed.Client, such as Client({client!r})")
    if client.asynchronous:
        raise InputError("the client is asynchronous; give one made by Client(..., asynchronous=False)")
    devices = set(client.run(resolve_device, device).values())
    if not devices:
        raise InputError(f"the Dask cluster {client} has no workers; start some, then run again")
    if len(devices) > 1:
        raise InputError("some workers of the cluster see a GPU and some do not; pass device='cpu', or fix the workers")
    return DaskExecutor(client, devices.pop())


def count(
    corpus: Any,
    order: int = 5,
    *,
    output: str | Path | None = None,
    overwrite: bool = False,
    device: str = "auto",
    client: Any = None,
    progress: Progress | None = None,
    **options: Any,
) -> Counts:
    """Count the n-grams of a corpus, orders 1 to `order`.

    corpus   path, glob, directory or fsspec URL, or a list of them; or an iterable of str or bytes
             lines (a list of lines: `Lines([...])`), an Arrow string array, or token ids (unit "id")
    output   folder to write; a temporary one that goes with the result when None. With `client`,
             a folder that the workers see, too
    device   "auto", "cpu" or "gpu"
    client   an existing `distributed.Client`; in this process when None
    options  the other settings of `CountConfig`: unit, dtype, separator_id, sentence_markers,
             lowercase, min_count, strategy, histograms, text_column, chunk_bytes

    Returns `Counts`. Raises InputError for what cannot be used, RunError when the run fails.
    """
    if "workers" in options:
        raise InputError("ng.count runs in this process; for workers give client=distributed.Client(n_workers=2)")
    if "name" in options:
        raise InputError("name is for jobs of a YAML file; give output=FOLDER")
    config = fill(count_job.CountConfig, {"corpus": [], "order": order, **options}, "count")
    executor = LocalExecutor(resolve_device(device)) if client is None else client_executor(client, device)
    owned = scratch_folder() if output is None else None
    try:
        target = Path(owned) / "counts" if owned else output
        result = count_job.run(config, executor, target, overwrite, progress, inputs=corpus)  # type: ignore[arg-type]
        return Counts(result.path, owned_folder=owned)
    except BaseException:
        if owned:
            shutil.rmtree(owned, ignore_errors=True)
        raise
    finally:
        executor.close()
