"""The command line: `mgpu-ngram run | plan | count | export | info | bench`.

Results go to stdout and can be piped; progress and errors go to stderr. Exit status 0: done; 1: the
run failed; 2: bad input.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterator
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, NoReturn

from mgpu_ngram.api import describe_cluster, open_executor
from mgpu_ngram.cluster.devices import resolve_device
from mgpu_ngram.config import STAGES, ClusterConfig, RunConfig, check_checkpoint_seconds, load
from mgpu_ngram.core.corpus import Corpus, open_corpus
from mgpu_ngram.core.counts import Ngram, read_counts
from mgpu_ngram.core.errors import InputError, RunError
from mgpu_ngram.core.memory import MemoryConfig
from mgpu_ngram.core.output import check_free
from mgpu_ngram.core.settings import fill
from mgpu_ngram.core.version import VERSION
from mgpu_ngram.engine.device import out_of_memory
from mgpu_ngram.jobs.count import CHECKPOINT_SECONDS, CountConfig, CountResult
from mgpu_ngram.report import Bars, show_info, show_plan, show_result

EXAMPLES = {
    None: """examples:
  mgpu-ngram run configs/quickstart.yaml
  mgpu-ngram count books/*.txt.gz -o counts --order 5
  mgpu-ngram export counts --order 3 --top 100
  mgpu-ngram count --help""",
    "run": """examples:
  mgpu-ngram run configs/quickstart.yaml
  mgpu-ngram run configs/quickstart.yaml cluster.workers=4 jobs.0.count.order=3 --overwrite
  mgpu-ngram run configs/quickstart.yaml --resume
  mgpu-ngram run configs/quickstart.yaml --scheduler-file scheduler.json""",
    "plan": """example:
  mgpu-ngram plan configs/quickstart.yaml""",
    "count": """examples:
  mgpu-ngram count books/*.txt.gz -o counts --order 5
  mgpu-ngram count page.html -o bytes --unit byte --order 4 --strategy hash
  mgpu-ngram count tokens.bin -o ids --unit id --dtype uint16 --separator-id 0
  zcat corpus.gz | mgpu-ngram count - -o counts --min-count 2""",
    "export": """examples:
  mgpu-ngram export counts --order 3 | grep '^of the'
  mgpu-ngram export counts --order 5 --top 100""",
    "info": """examples:
  mgpu-ngram info counts
  mgpu-ngram info counts --json | jq .orders""",
    "bench": """examples:
  mgpu-ngram bench count
  mgpu-ngram bench count --text big.txt --results results
  mgpu-ngram bench cluster --workers 1,2,4 --only speedup,shuffle --folder /dev/shm""",
}


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns its exit status."""
    arguments = _parse(argv)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # an n-gram that the terminal cannot show fails no run
    try:
        with contextlib.suppress(ValueError):  # outside the main thread there are no signals
            signal.signal(signal.SIGTERM, _terminated)
        arguments.verb(arguments)
        return 0
    except BaseException as error:
        if isinstance(error, SystemExit):
            raise
        if arguments.debug:
            traceback.print_exc()
        print(f"mgpu-ngram: {_one_line(error)}", file=sys.stderr)
        return 2 if isinstance(error, InputError) else 1


def _terminated(*_: object) -> None:
    """SIGTERM, as of `timeout` or a batch system, cleans up as Ctrl-C does."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in what a script runs in the background
    signal.raise_signal(signal.SIGINT)  # waits where interrupts are held


def _parse(argv: list[str] | None) -> argparse.Namespace:
    """The arguments of a command; texts and overrides may stand on both sides of flags."""
    parser = _parser()
    arguments, rest = parser.parse_known_args(argv)
    many = getattr(arguments, "overrides", getattr(arguments, "corpus", None))
    if rest and (many is None or any(word.startswith("-") for word in rest)):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if many is not None:
        many += rest
    return arguments


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, InputError | RunError):
        return text
    if isinstance(error, KeyboardInterrupt):
        return (
            "interrupted; outputs that were not finished are removed, what was saved of long ones goes on with --resume"
        )
    if out_of_memory(error):
        return f"out of memory ({text}); lower chunk_bytes, the order or the number of workers"
    return f"the run failed: {type(error).__name__}: {text}; --debug shows where"


@contextlib.contextmanager
def _stdout() -> Iterator[None]:
    """Around what prints results: a reader of the pipe that has seen enough is no failure, a full disk is."""
    try:
        yield
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains at its exit
        if not isinstance(error, BrokenPipeError):
            what = f"cannot write to stdout ({error.strerror})"
            raise RunError(f"{what}; free space there or pipe it elsewhere") from None


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"mgpu-ngram: {message}; see {self.prog} --help\n")


def _parser() -> argparse.ArgumentParser:
    parser = _command(_Parser, None, prog="mgpu-ngram", description="Count n-grams on GPUs and CPUs.")
    parser.add_argument("--version", action="version", version=f"mgpu-ngram {VERSION}")
    verbs = parser.add_subparsers(metavar="COMMAND", required=True)

    run = _command(verbs.add_parser, "run", help="run the jobs of a YAML file")
    run.add_argument("config", metavar="CONFIG.yaml")
    run.add_argument("overrides", nargs="*", metavar="key=value", help="settings over those of the file")
    _add_cluster_flags(run)
    run.add_argument("--overwrite", action="store_true", help="replace outputs that exist")
    run.set_defaults(verb=_run)

    plan = _command(verbs.add_parser, "plan", help="say what a YAML file would do; computes nothing")
    plan.add_argument("config", metavar="CONFIG.yaml")
    plan.add_argument("overrides", nargs="*", metavar="key=value")
    _add_scheduler_flags(plan)
    plan.set_defaults(verb=_plan)

    count = _command(verbs.add_parser, "count", help="count the n-grams of text")
    count.add_argument("corpus", nargs="+", metavar="TEXT", help="file, glob, directory, URL, or - for stdin")
    count.add_argument("-o", "--output", required=True, metavar="OUT", help="folder to write")
    count.add_argument("--overwrite", action="store_true", help="replace OUT if it exists")
    count.add_argument("--device", default="auto", choices=["auto", "cpu", "gpu"])
    count.add_argument(
        "--workers", type=int, metavar="N", help="Dask workers; 0: in this process (default: one per GPU or core)"
    )
    _add_cluster_flags(count)
    count.add_argument("--device-bytes", metavar="SIZE", help="of each GPU that the run may take (default: most of it)")
    count.add_argument("--host-bytes", metavar="SIZE", help="of each host's memory (default: half of what is free)")
    count.add_argument("--spill-dir", metavar="FOLDER", help="where what does not fit goes (default: beside OUT)")
    count.add_argument(
        "--checkpoint-seconds", type=float, metavar="S", default=CHECKPOINT_SECONDS,
        help=f"how often finished work is saved (default {CHECKPOINT_SECONDS:.0f})",
    )  # fmt: skip
    for setting, how in COUNT_FLAGS.items():
        count.add_argument("--" + setting.replace("_", "-"), **how)
    count.set_defaults(verb=_count)

    export = _command(verbs.add_parser, "export", help="print n-grams as text, ngram TAB count")
    export.description = (
        "Print n-grams, ngram TAB count. Bytes that are no printable ASCII appear as \\n, \\t or \\xff."
    )
    export.add_argument("path", metavar="OUT")
    export.add_argument("--order", type=int, required=True, metavar="N")
    export.add_argument("--top", type=int, metavar="K", help="only the K that occur most")
    export.set_defaults(verb=_export)

    info = _command(verbs.add_parser, "info", help="describe an output")
    info.add_argument("path", metavar="PATH")
    info.set_defaults(verb=_info)

    bench = _command(verbs.add_parser, "bench", help="measure a stage beside its limits")
    bench.add_argument("stage", choices=["count", "cluster"])
    bench.add_argument("--device", default="auto", choices=["auto", "cpu", "gpu"])
    bench.add_argument("--text", metavar="FILE", help="real text to draw lines from (default: the standard library's)")
    bench.add_argument(
        "--size",
        metavar="BYTES",
        help="text to count, such as '1 GiB'; of bench cluster, tables that a worker shuffles (default: by device)",
    )
    bench.add_argument("--tokens", type=int, metavar="N", help="words of the generated corpus (default: by device)")
    bench.add_argument("--results", default="benchmarks/results", metavar="FOLDER")
    bench.add_argument("--workers", metavar="G,G", help="of bench cluster, such as 1,2,4 (default: what there is)")
    bench.add_argument("--only", metavar="PART,PART", help="of bench cluster, such as 1,shuffle (default: all)")
    bench.add_argument("--folder", metavar="FOLDER", help="of bench cluster, for its corpus (default: a temporary one)")
    bench.set_defaults(verb=_bench)
    return parser


def _add_cluster_flags(parser: argparse.ArgumentParser) -> None:
    _add_scheduler_flags(parser)
    parser.add_argument("--resume", action="store_true", help="go on with a run that ended early")


def _add_scheduler_flags(parser: argparse.ArgumentParser) -> None:
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--scheduler", metavar="ADDRESS", help="use the Dask cluster there, as tcp://10.0.0.1:8786")
    which.add_argument("--scheduler-file", metavar="F", help="use the Dask cluster whose scheduler wrote this file")


def _command(make: Any, name: str | None, **options: Any) -> argparse.ArgumentParser:
    """A parser with examples under its help, and the flags that every command has."""
    parser = make(
        *([name] if name else []),
        epilog=EXAMPLES[name],
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        **options,
    )
    if name:
        parser.add_argument("--json", action="store_true", help="print JSON for machines")
        parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return parser


COUNT_FLAGS: dict[str, dict[str, Any]] = {
    "order": {"type": int, "metavar": "N", "help": "highest n-gram order; all from 1 are counted (default 5)"},
    "unit": {"choices": ["word", "byte", "id"], "help": "what n-grams are made of (default word)"},
    "dtype": {"choices": ["uint16", "uint32"], "help": "of raw token ids (default uint16)"},
    "separator_id": {"type": int, "metavar": "ID", "help": "token id that no n-gram crosses"},
    "sentence_markers": {"action": "store_true", "help": "one <s> and one </s> per line"},
    "lowercase": {"action": "store_true", "help": "turn A-Z into a-z (ASCII only: other letters stay as they are)"},
    "min_count": {"type": int, "metavar": "K", "help": "write only n-grams that occur at least K times"},
    "strategy": {"choices": ["auto", "global", "private", "sort", "hash"]},
    "histograms": {"type": int, "metavar": "K", "help": "copies of the histogram, strategy private (default 1)"},
    "text_column": {"metavar": "NAME", "help": "text column of Parquet inputs (default text)"},
    "chunk_bytes": {"metavar": "SIZE", "help": "text per task, such as '64 MiB'"},
}


def _run(arguments: argparse.Namespace) -> None:
    config = load(arguments.config, [*_scheduler_overrides(arguments), *arguments.overrides])
    jobs = [(stage, settings, config.output / settings.name) for stage, settings in config.jobs]
    _run_jobs(jobs, config, arguments)


def _scheduler_overrides(arguments: argparse.Namespace) -> list[str]:
    """The flags --scheduler and --scheduler-file as settings of a YAML file."""
    if arguments.scheduler:
        return [
            "cluster.kind=address",
            f"cluster.address={json.dumps(arguments.scheduler)}",
            "cluster.scheduler_file=null",
        ]
    if arguments.scheduler_file:
        file = json.dumps(arguments.scheduler_file)
        return ["cluster.kind=scheduler_file", f"cluster.scheduler_file={file}", "cluster.address=null"]
    return []


def _run_jobs(
    jobs: list[tuple[str, Any, Path]], config: RunConfig, arguments: argparse.Namespace, corpus: Corpus | None = None
) -> None:
    """Run jobs, each a (stage, settings, output), one after the other; show each result when it is there."""
    for _, _, target in jobs:
        check_free(target, arguments.overwrite)  # at once, for a cluster takes its time to start
    # all, before the first runs: a wrong path in the last job must not cost the work of those before
    corpora = [corpus or open_corpus(s.corpus, s.unit, s.dtype, s.text_column) for _, s, _ in jobs]
    results = []
    executor = open_executor(config.cluster, config.dask)
    try:
        if executor.dashboard and sys.stderr.isatty():
            print(f"dashboard: {executor.dashboard}", file=sys.stderr)
        for (stage, settings, target), inputs in zip(jobs, corpora, strict=True):
            with Bars() as bars:
                result = STAGES[stage].run(
                    settings, executor, target, arguments.overwrite, bars, inputs, config.memory,
                    config.checkpoint_seconds, arguments.resume,
                )  # fmt: skip
            results.append(_result_json(result))
            if not arguments.json:
                with _stdout():
                    show_result(result)
    finally:
        executor.close()
    if arguments.json:
        with _stdout():
            print(json.dumps(results, indent=2))


def _result_json(result: CountResult) -> dict[str, Any]:
    return {
        "path": str(result.path),
        "manifest": result.manifest,
        "plans": [asdict(p) for p in result.plans],
        "top": result.top,
        "seconds": result.seconds,
        "wall_seconds": result.wall_seconds,
        "tokens_per_second": result.tokens_per_second,
        "workers": result.workers,
        "device": result.device,
        "transport": result.transport,
        "worker_rates": result.worker_rates,
        "peak_device_bytes": result.peak_device_bytes,
        "resumed_chunks": result.resumed_chunks,
    }


def _plan(arguments: argparse.Namespace) -> None:
    config = load(arguments.config, [*_scheduler_overrides(arguments), *arguments.overrides])
    cluster = describe_cluster(config.cluster, config.dask)
    plans = [
        STAGES[stage].plan(
            settings, cluster["workers"], cluster["device"], cluster["free_bytes"], config.memory, config.output
        )
        | {"transport": cluster["transport"]}
        for stage, settings in config.jobs
    ]
    with _stdout():
        if arguments.json:
            print(json.dumps(plans, indent=2))
        else:
            for plan in plans:
                show_plan(plan)


def _count(arguments: argparse.Namespace) -> None:
    names = {f.name for f in fields(CountConfig)}
    given = {k: v for k, v in vars(arguments).items() if k in names and v is not None and v is not False}
    settings = fill(CountConfig, given, "count")
    where = {"address": arguments.scheduler, "scheduler_file": arguments.scheduler_file}
    where = {kind: at for kind, at in where.items() if at}
    settings_of_cluster = {"kind": next(iter(where), "local"), "device": arguments.device, "workers": arguments.workers}
    cluster = fill(ClusterConfig, settings_of_cluster | where, "cluster")
    sizes = {k: getattr(arguments, k) for k in ("device_bytes", "host_bytes", "spill_dir")}
    memory = fill(MemoryConfig, sizes, "memory")
    check_checkpoint_seconds(arguments.checkpoint_seconds)
    output = Path(arguments.output)
    config = RunConfig(output, [], cluster, memory, arguments.checkpoint_seconds)
    check_free(arguments.output, arguments.overwrite)  # at once, for a long pipe takes its time
    with _stdin_as_file(settings, output) as corpus:
        _run_jobs([("count", settings, output)], config, arguments, corpus)


@contextlib.contextmanager
def _stdin_as_file(settings: CountConfig, output: Path) -> Iterator[Corpus | None]:
    """The corpus with - kept in a file beside the output, which workers read in parallel; None where - is not in it."""
    if "-" not in settings.corpus:
        yield None
        return
    if sys.stdin is None:
        raise InputError("input '-' is standard input, which is closed; pipe text to it, or name a file")
    folder = output.absolute().parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = tempfile.NamedTemporaryFile(dir=folder, prefix=".stdin-")  # noqa: SIM115
    except OSError as error:
        raise InputError(f"cannot keep stdin in {folder} ({error.strerror}); give another output path") from None
    with file:
        try:
            shutil.copyfileobj(sys.stdin.buffer, file, 1 << 20)
            file.flush()
        except OSError as error:
            raise RunError(f"cannot keep stdin in {folder} ({error.strerror}); free space there") from None
        paths = [file.name if path == "-" else path for path in settings.corpus]
        corpus = open_corpus(paths, settings.unit, settings.dtype, settings.text_column)
        sources = (replace(s, name="-") if s.name == file.name else s for s in corpus.sources)
        yield replace(corpus, sources=tuple(sources))


def _export(arguments: argparse.Namespace) -> None:
    counts = read_counts(arguments.path)
    if not 1 <= arguments.order <= counts.max_order:
        raise InputError(f"{arguments.path}: has orders 1 to {counts.max_order}, not {arguments.order}")
    if arguments.top is not None and arguments.top < 1:
        raise InputError(f"--top is {arguments.top} but must be at least 1")
    order = counts.order(arguments.order)
    with _stdout():
        for ngram, n in order.top(arguments.top) if arguments.top else order:
            if arguments.json:
                line = json.dumps({"ngram": _json_ngram(ngram, counts.unit), "count": n}).encode()
            else:
                line = _text_ngram(ngram, counts.unit) + b"\t%d" % n
            sys.stdout.buffer.write(line + b"\n")


def _text_ngram(ngram: Ngram, unit: str) -> bytes:
    """Words as they are; ids in decimals; bytes that would break lines, or are not ASCII, as \\n or \\xff."""
    if isinstance(ngram, tuple):
        return " ".join(map(str, ngram)).encode()
    data = ngram.encode() if isinstance(ngram, str) else ngram
    return data.decode("latin-1").encode("unicode_escape") if unit == "byte" else data


def _json_ngram(ngram: Ngram, unit: str) -> Any:
    """Words as text; ids, and bytes by their values, as a list."""
    if isinstance(ngram, bytes):
        return list(ngram) if unit == "byte" else ngram.decode("utf-8", "backslashreplace")
    return ngram


def _info(arguments: argparse.Namespace) -> None:
    manifest = read_counts(arguments.path).manifest
    with _stdout():
        if arguments.json:
            print(json.dumps(manifest, indent=2))
        else:
            show_info(arguments.path, manifest)


def _bench(arguments: argparse.Namespace) -> None:
    from mgpu_ngram.benchmarks import cluster, count
    from mgpu_ngram.benchmarks.rows import show_rows

    device, a = resolve_device(arguments.device), arguments
    if a.stage == "cluster":
        rows = cluster.bench(device, a.tokens, a.size, a.results, a.workers, a.only, a.folder)
    else:
        rows = count.bench(device, a.text, a.size, a.tokens, a.results)
    if arguments.json:
        print(json.dumps(rows, indent=2))
    else:
        show_rows(rows)
