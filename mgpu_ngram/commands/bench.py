"""`mgpu-ngram bench`."""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mgpu_ngram.benchmarks import BENCHES, PAPER_RESULTS, PAPERS, RESULTS
from mgpu_ngram.commands.run_flags import DEVICES
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.json_text import to_json

if TYPE_CHECKING:
    from mgpu_ngram.benchmarks.harness.options import BenchOptions

EXAMPLES = """examples:
  mgpu-ngram bench count
  mgpu-ngram bench count --text big.txt --results results
  mgpu-ngram bench cluster --workers 1,2,4 --only speedup,shuffle --folder /dev/shm
  mgpu-ngram bench score --only table3,ceilings
  mgpu-ngram bench distribution --only dense,saturation
  mgpu-ngram bench estimate --only ids,text --folder /dev/shm
  mgpu-ngram bench estimate --only lmplz --text reviews.txt
  mgpu-ngram bench lda --only speed
  mgpu-ngram bench lda --only quality,cpu --text docword.kos.train.txt.xz
  mgpu-ngram bench decode --only pass,step
  mgpu-ngram bench decode --only whole --tokens 2500000
  mgpu-ngram bench paper glm --only T3,F9
  mgpu-ngram bench check score --only table3
  mgpu-ngram bench check --new results
  mgpu-ngram bench quote"""
CHECK, QUOTE, PAPER = "check", "quote", "paper"
CHECK_FLAGS = {"new", "tolerance"}


def add(bench: argparse.ArgumentParser, verb: str) -> None:
    bench.epilog = EXAMPLES
    bench.add_argument("what", choices=[*BENCHES, CHECK, QUOTE, PAPER], help="bench to run, or an action")
    bench.add_argument(
        "of", nargs="*", metavar="OF",
        help="for bench check: the bench to run again; for bench quote: the pages (default: README.md, docs/*.md and "
        f"{RESULTS}/*.md); for bench paper: {', '.join(PAPERS)}",
    )  # fmt: skip
    bench.add_argument("--device", default="auto", choices=DEVICES, help="auto (default): a GPU if the host has one")
    bench.add_argument(
        "--text",
        metavar="FILE",
        help="real text: for bench count, to draw lines from; for bench estimate, to compare with lmplz; for "
        "bench lda, a docword file or a sparse matrix: with .train. in its name, and one with .test. beside it, or one "
        "file that the bench splits (default: a generated text)",
    )
    bench.add_argument(
        "--size",
        metavar="BYTES",
        help="text to count, such as '1 GiB'; for bench cluster, tables that a worker shuffles; for bench "
        "distribution, rows made at once; for bench filter, text of all documents (default: by device)",
    )
    bench.add_argument(
        "--tokens",
        type=int,
        metavar="N",
        help="words of the generated text, training text or sentences (default: by device)",
    )
    bench.add_argument(
        "--results",
        metavar="FOLDER",
        help=f"folder for rows and figures (default: {RESULTS}; for bench paper: {PAPER_RESULTS})",
    )
    bench.add_argument(
        "--workers", metavar="G,G", help="numbers of workers, such as 1,2,4 (default: by the GPUs of the host)"
    )
    bench.add_argument(
        "--only",
        metavar="PART,PART",
        help="parts of the bench, such as speedup,shuffle for bench cluster; for bench paper, tables and figures, such "
        "as T3,F9 (default: all)",
    )
    bench.add_argument("--folder", metavar="FOLDER", help="folder for texts and models (default: a temporary one)")
    bench.add_argument("--new", metavar="FOLDER", help="for bench check: results to compare with the ones in --results")
    bench.add_argument(
        "--tolerance", type=float, metavar="SHARE", help="for bench check: rates may fall by this share (default: 0.1)"
    )
    bench.set_defaults(verb=_bench)


def _bench(arguments: argparse.Namespace) -> None:
    if arguments.results is None:
        arguments.results = PAPER_RESULTS if arguments.what == PAPER else RESULTS
    if arguments.what == PAPER:
        _paper(arguments)
    elif arguments.what == QUOTE:
        _quote(arguments)
    elif arguments.what == CHECK:
        _check(arguments)
    elif arguments.of:
        raise InputError(f"bench {arguments.what} takes no {arguments.of[0]!r}; leave it out")
    else:
        rows = _run(arguments.what, arguments, arguments.results)
        if arguments.json:
            print(to_json(rows, indent=2))
        else:
            from mgpu_ngram.benchmarks.harness.rows import show_rows

            show_rows(rows)


def _paper(arguments: argparse.Namespace) -> None:
    from mgpu_ngram.benchmarks.reproduce.measure import reproduce
    from mgpu_ngram.benchmarks.reproduce.paper import open_paper

    if len(arguments.of) != 1 or arguments.of[0] not in PAPERS:
        raise InputError(f"bench paper takes one of {', '.join(PAPERS)}, not {' '.join(arguments.of)!r}")
    paper = open_paper(arguments.of[0])
    _refuse_others(arguments, paper.flags)
    page = reproduce(paper, _options(arguments, arguments.results))
    print(to_json(str(page)) if arguments.json else f"wrote {page}")


def _run(name: str, arguments: argparse.Namespace, results: str) -> list[dict[str, Any]]:
    """Run a bench; return its rows."""
    from mgpu_ngram.benchmarks.harness.bench_modules import open_bench

    bench = open_bench(name)
    allowed = bench.FLAGS | (CHECK_FLAGS if arguments.what == CHECK else set())
    _refuse_others(arguments, allowed)
    return bench.bench(_options(arguments, results))


def _options(arguments: argparse.Namespace, results: str) -> BenchOptions:
    from mgpu_ngram.benchmarks.harness.options import BenchOptions
    from mgpu_ngram.cluster.devices import resolve_device

    flags = {f.name: getattr(arguments, f.name) for f in fields(BenchOptions)}
    return BenchOptions(**flags | {"device": resolve_device(arguments.device), "results": results})


def _check(arguments: argparse.Namespace) -> None:
    from mgpu_ngram.benchmarks.harness import check

    stage = arguments.of[0] if arguments.of else None
    if len(arguments.of) > 1 or (stage is not None and stage not in BENCHES):
        raise InputError(f"bench check takes one of {', '.join(BENCHES)}, not {' '.join(arguments.of)!r}")
    if stage is None and arguments.new is None:
        raise InputError("bench check needs a bench to run again, such as score, or results to compare (--new FOLDER)")
    tolerance = check.TOLERANCE if arguments.tolerance is None else arguments.tolerance
    if not 0 <= tolerance < 1:
        raise InputError(f"tolerance is {tolerance} but must be a share from 0 to 1, such as 0.1")
    with tempfile.TemporaryDirectory(prefix="mgpu-ngram-bench-") as place:
        if arguments.new is None:
            _run(str(stage), arguments, place)
        else:
            _refuse_others(arguments, CHECK_FLAGS)
        found = check.compare_folders(arguments.new or place, arguments.results, stage, tolerance)
    if arguments.json:
        print(to_json([asdict(one) for one in found], indent=2))
    else:
        check.show(found)
    check.raise_if_worse(found, tolerance)


def _quote(arguments: argparse.Namespace) -> None:
    from mgpu_ngram.benchmarks.reproduce.page import refresh
    from mgpu_ngram.benchmarks.reproduce.quote import papers_beside, update

    _refuse_others(arguments, set())
    pages = [Path(page) for page in arguments.of]
    pages = pages or [Path("README.md"), *sorted([*Path("docs").glob("*.md"), *Path(RESULTS).glob("*.md")])]
    for page in pages:
        if not page.is_file():
            raise InputError(f"{page}: no such file; run in the checkout, or name the pages")
    changed = [] if arguments.of else [str(page) for page in refresh(papers_beside(arguments.results))]
    changed += [str(page) for page in pages if update(page, arguments.results)]
    print(to_json(changed) if arguments.json else "\n".join(f"updated {page}" for page in changed) or "up to date")


def _refuse_others(arguments: argparse.Namespace, allowed: set[str]) -> None:
    """Raise InputError for the first flag, in alphabetical order, that is given and not allowed."""
    from mgpu_ngram.benchmarks.harness.bench_modules import open_bench

    flags_of = {name: open_bench(name).FLAGS for name in BENCHES} | {CHECK: CHECK_FLAGS}
    for flag in sorted(set().union(*flags_of.values()) - allowed):
        if getattr(arguments, flag) is not None:
            others = ", ".join(f"bench {name}" for name, flags in flags_of.items() if flag in flags)
            asked = " ".join(["bench", arguments.what, *arguments.of])
            raise InputError(f"{asked} takes no --{flag}, which is of {others}; leave it out")
