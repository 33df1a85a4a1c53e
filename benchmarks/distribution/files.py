"""Dense rows on the disk: whole jobs of several workers, beside plain writes of as many bytes to the same folder."""

from __future__ import annotations

import shutil
import statistics
from functools import partial
from pathlib import Path
from typing import Final

from mgpu_ngram.api.executors import open_executor
from mgpu_ngram.benchmarks.harness.machine_rates import write_plainly
from mgpu_ngram.benchmarks.inputs.distribution_cases import LARGE, SHAPES, Case, DistributionBench
from mgpu_ngram.benchmarks.inputs.plain_distributions import check_rows
from mgpu_ngram.benchmarks.inputs.scoring_subjects import head
from mgpu_ngram.benchmarks.score.text import host_model, write_text
from mgpu_ngram.cluster.devices import cpu_cores
from mgpu_ngram.cluster.executor import Executor
from mgpu_ngram.core.models.distributions import array_files
from mgpu_ngram.core.models.model_file import save_model
from mgpu_ngram.jobs.context import RunContext
from mgpu_ngram.jobs.distribution.run import DistributionConfig, DistributionResult
from mgpu_ngram.jobs.distribution.run import run as run_job
from mgpu_ngram.kernels.dispatch import to_host
from mgpu_ngram.stages.run_file import ClusterConfig

ROUNDS = 2
DISK_BYTES = {"gpu": 32 << 30, "cpu": 128 << 20}  # bytes of an output
FORMAT: Final = "zarr"


def disk(bench: DistributionBench) -> None:
    """Rows for each number of workers: the job from text in the page cache to its output, and the plain writes.

    Whether the bytes stay in the page cache, or wait for the disk, is up to the host: it is the same for both.
    """
    case, suite, folder = bench.case(SHAPES[LARGE]), bench.suite, bench.folder
    model, text = folder / "model", folder / "text"
    save_model(model, host_model(case.subject))
    histories = DISK_BYTES[suite.device] // case.options().row_bytes(case.symbols)
    codes_T = to_host(head(case.subject.text_T, histories))
    write_text(text, codes_T, case.subject.words)
    write_plainly(folder / "plain", DISK_BYTES[suite.device], cpu_cores())  # virtual hosts are slow at first
    for G in bench.clusters:
        suite.say(f"{G} workers write rows")
        executor = open_executor(ClusterConfig(device=suite.device, workers=G))  # type: ignore[arg-type]
        try:
            _rows(bench, case, executor, partial(_job, executor, model, text, folder))
        finally:
            executor.close()
    for path in model, text:
        path.unlink()


def _job(executor: Executor, model: Path, text: Path, folder: Path) -> DistributionResult:
    config = DistributionConfig(str(model), [str(text)], format=FORMAT)
    return run_job(config, RunContext(executor, folder / "rows", overwrite=True))


def _rows(bench: DistributionBench, case: Case, executor: Executor, job: partial[DistributionResult]) -> None:
    """Both by turns. The first job, whose rows are compared with those of array code, is the warm-up."""
    plain_seconds, seconds, size_bytes = [], [], 0
    for k in range(1 + ROUNDS):
        result = job()
        manifest, size_bytes = result.manifest, result.manifest["size_bytes"]
        if k == 0:
            [file] = array_files(result.path, FORMAT, manifest["arrays"])
            H, n = manifest["histories"], file.chunk_rows  # of views, where a copy would take as much memory again
            rows = [row for h in range(0, H, n) for row in file.read(h, min(h + n, H))]
            check_rows(case, case.options(), rows)
            del rows
        shutil.rmtree(result.path)
        if k == 0:
            continue
        seconds.append(result.wall_seconds)
        plain_seconds.append(write_plainly(bench.folder / "plain", size_bytes, cpu_cores()))
    sizes = f"{case.sizes(manifest['histories'])} bytes={size_bytes} workers={executor.workers}"
    plain = bench.suite.add(
        "distribution/disk plain writes", sizes, plain_seconds, items=size_bytes, unit="B/s",
        notes=f"{cpu_cores()} threads, files as large as the chunks of {FORMAT}",
    )  # fmt: skip
    bench.suite.add(
        f"distribution/disk {FORMAT}", sizes, seconds, items=size_bytes, unit="B/s",
        target=bench.target(plain.rate or 0), baseline="plain writes",
        baseline_seconds=statistics.median(plain_seconds), notes="text to files",
    )  # fmt: skip
