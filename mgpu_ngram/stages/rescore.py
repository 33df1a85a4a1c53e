"""The rescore stage: the flags of its command, and how its plans, results and outputs are shown."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.jobs.rescore.config import ListsConfig, RescoreConfig
from mgpu_ngram.report import many, show_options, show_seconds, show_transport, shown_path, where
from mgpu_ngram.stages.contract import Product, Stage, Target, given
from mgpu_ngram.stages.cpu_rates import RESCORE_BYTES, opening_seconds
from mgpu_ngram.stages.flags import add_no_verify, add_overwrite, add_text, add_text_flags

if TYPE_CHECKING:
    import numpy as np

    from mgpu_ngram.core.corpus import Corpus
    from mgpu_ngram.jobs.context import PlanContext, RunContext
    from mgpu_ngram.jobs.rescore.run import RescoreResult

T = TypeVar("T")
EXAMPLES = """examples:
  mgpu-ngram rescore nbest.txt --lm model.safetensors --weights model=0.3 -o out.txt
  mgpu-ngram rescore nbest.txt.gz --lm a.safetensors --lm b.arpa --weights F0=1 a=0.2 b=0.1 --best
  mgpu-ngram rescore nbest.txt --lm a.arpa --names LM1 --weights LM1=0.5 TM=0.2,0.1 -o out.txt
  mgpu-ngram rescore nbest.jsonl --lm a.safetensors --weights a=0.3 -o out.jsonl
  mgpu-ngram rescore words.txt --kaldi --costs ac=ac.txt lm=lm.txt --lm a.arpa --weights ac=0.1 a=1 --best
  mgpu-ngram rescore nbest.txt --lm a.arpa --weights weights.yaml -o out.txt
  mgpu-ngram rescore lattices.txt --lattices kaldi --n-best 100 --lm a.arpa --weights ac=0.1 a=1 -o out.txt
  mgpu-ngram rescore - --lm a.arpa --weights a=0.2 --best < nbest.txt > best.txt"""


@dataclass(frozen=True)
class RescoreCommand(RescoreConfig):
    """Settings of the command, which prints lists unless it writes a file."""

    printed: bool = False


class RescoreStage(Stage[RescoreConfig, "RescoreResult"]):
    """n-best lists in, lists with the scores of n-gram models out, sorted by their new totals."""

    name = "rescore"
    config = RescoreConfig
    format = "mgpu_ngram rescored lists"
    memory_keys = frozenset({"device_bytes", "host_bytes"})
    needs: ClassVar[Mapping[str, Product]] = {"lm": "model", "weights": "weights"}
    examples = EXAMPLES
    stdin_setting = "text"

    def add_flags(self, parser: argparse.ArgumentParser) -> None:
        add_lists_flags(parser)
        parser.add_argument("--best", action="store_true", help="write only the text of the best line of each list")
        parser.add_argument("-o", "--output", metavar="OUT.txt", help="file to write (default: standard output)")
        add_overwrite(parser)

    def settings(self, arguments: argparse.Namespace) -> RescoreConfig:
        from mgpu_ngram.core.typed_config import fill

        found = lists_settings(arguments) | {"best": arguments.best, "printed": arguments.output is None}
        if arguments.output is None and arguments.json:
            raise InputError("--json prints a summary in place of the lists; give -o FILE for them")
        return fill(RescoreCommand, found, "rescore")

    def target(self, arguments: argparse.Namespace) -> Target:
        return Target(arguments.output or None, single_file=True)

    def check_target(self, config: RescoreConfig, target: Target, overwrite: bool) -> None:
        if not target.single_file or target.path is None:
            return super().check_target(config, target, overwrite)
        from mgpu_ngram.jobs.rescore.run import check_file

        check_file(config, target.path, overwrite)

    def check(self, config: RescoreConfig, made: Collection[str] = ()) -> None:
        from mgpu_ngram.jobs.rescore.run import check_inputs

        check_inputs(config, made)

    def open_inputs(self, config: RescoreConfig) -> Corpus:
        from mgpu_ngram.jobs.rescore.run import open_inputs

        return open_inputs(config)

    def cpu_seconds(self, config: RescoreConfig, inputs: Corpus | None) -> float:
        return scoring_seconds(config, self.work_bytes(config, inputs))

    def plan(self, config: RescoreConfig, context: PlanContext) -> dict[str, Any]:
        from mgpu_ngram.jobs.rescore.run import plan

        return plan(config, context)

    def run(self, config: RescoreConfig, context: RunContext, inputs: Corpus | None) -> RescoreResult:
        from mgpu_ngram.jobs.rescore.run import run

        return run(config, context, inputs, _print)

    def changed_since(self, config: RescoreConfig, manifest: dict[str, Any]) -> str:
        from mgpu_ngram.jobs.rescore.run import changed_since

        return changed_since(config, manifest)

    def shows_progress(self, config: RescoreConfig) -> bool:
        return not (getattr(config, "printed", False) and sys.stdout.isatty())  # a bar would be drawn between lines

    def show_result(self, config: RescoreConfig, result: RescoreResult) -> None:
        if result.path is None:
            return
        totals = result.totals
        print(f"{shown_path(result.path)}: {shown_totals(vars(totals))}")
        rate = f"{result.hypotheses_per_second:,.0f} hypotheses/s"
        print(f"{result.wall_seconds:.2f} s on {where(result)}: {rate}")
        show_seconds(result.seconds)
        show_transport(result)

    def show_plan(self, plan: dict[str, Any]) -> None:
        print(shown_lists_plan(plan))

    def show_info(self, path: str, described: dict[str, Any]) -> None:
        models = ", ".join(model["path"] for model in described["models"])
        print(f"{path}: {shown_totals(described['totals'])}, by {models or 'weights alone'}")
        show_options(described)


STAGE = RescoreStage()


def add_lists_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of commands that score n-best lists."""
    add_text(parser, "text", "NBEST")
    parser.add_argument(
        "--lm",
        action="append",
        metavar="MODEL",
        help="n-gram model: model file or ARPA file; repeat the flag for several models",
    )
    parser.add_argument(
        "--names", nargs="+", metavar="NAME", help="names of the models' features (default: file names)"
    )
    parser.add_argument(
        "--weights", nargs="+", metavar="NAME=W",
        help="weights of features, W,W for a feature with several values (default: 0; for the old total 1 if no other "
        "feature of the lists has a weight); or a YAML file of weights",
    )  # fmt: skip
    parser.add_argument("--kaldi", action="store_true", help="NBEST are Kaldi archives: lines 'ID-N word word'")
    parser.add_argument(
        "--costs", nargs="+", metavar="NAME=ARCHIVE", help="Kaldi archives of costs, which become features (negated)"
    )
    parser.add_argument(
        "--lattices", choices=["kaldi", "slf"], help="NBEST are lattices: kaldi (also OpenFst), or slf (HTK)"
    )
    parser.add_argument("--n-best", type=int, metavar="N", help="number of best texts of each lattice (default 1)")
    add_no_verify(parser)
    add_text_flags(parser, "8 MiB")


def lists_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the settings that the flags of `add_lists_flags` set."""
    found = given(arguments, ["text", "lm", "names", "kaldi", "lattices", "n_best", "text_column", "chunk_bytes"])
    weights = arguments.weights or []
    if len(weights) == 1 and "=" not in weights[0]:
        found["weights"] = weights[0]
    else:
        found["weights"] = once_each("weights", map(named_numbers, weights))
    costs = once_each("costs", map(_cost, arguments.costs or []))
    return found | {"verify": not arguments.no_verify, "costs": costs}


def once_each(flag: str, named: Iterable[tuple[str, T]]) -> dict[str, T]:
    """Return the values by their names. Raises InputError if a name comes twice."""
    found: dict[str, T] = {}
    for name, value in named:
        if name in found:
            raise InputError(f"--{flag} names {name} twice; leave one out")
        found[name] = value
    return found


def scoring_seconds(config: ListsConfig, size_bytes: int) -> float:
    """Return about how long 2 CPU cores work on lists of a size."""
    opening = sum(opening_seconds(model, scores_only=True) for model in config.lm)
    return opening + size_bytes / RESCORE_BYTES * max(1, len(config.lm))


def shown_lists_plan(plan: dict[str, Any]) -> str:
    """Return a plan for people."""
    weights = plan["weights"]
    if not isinstance(weights, str):
        weights = ", ".join(f"{name} {' '.join(map(str, values))}" for name, values in weights.items())
    return (
        f"{plan['job']}: {many(plan['inputs'], 'input')} of {plan['input_bytes']:,} bytes in "
        f"{many(plan['chunks'], 'chunk')}; {many(plan['workers'], plan['device'] + ' worker')}; models "
        f"{', '.join(plan['lm']) or 'none'}; weights {weights}"
    )


def named_numbers(text: str) -> tuple[str, Any]:
    """Return (name, number or numbers) of NAME=W or NAME=W,W."""
    name, _, values = text.rpartition("=")
    try:
        numbers = [float(value) for value in values.split(",")]
    except ValueError:
        numbers = []
    if not name or not numbers:
        raise InputError(f"weight {text!r} is not NAME=NUMBER; write it as F0=1 or TM=0.2,0.1")
    return name, numbers[0] if len(numbers) == 1 else numbers


def _cost(text: str) -> tuple[str, str]:
    """Return (name, path) of NAME=ARCHIVE."""
    name, _, path = text.partition("=")
    if not name or not path:
        raise InputError(f"costs {text!r} are not NAME=ARCHIVE; write them as ac=ac.txt")
    return name, path


def shown_totals(totals: dict[str, Any]) -> str:
    oovs = "".join(f", {oovs:,} unknown to {name}" for name, oovs in totals["oovs"].items())
    return f"{many(totals['lists'], 'list')}, {totals['hypotheses']:,} hypotheses, {totals['words']:,} words{oovs}"


def _print(lines: np.ndarray) -> None:
    sys.stdout.buffer.write(lines.data)
