"""Stages that score n-best lists: the parts that they share."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.jobs.rescore.config import RescoreConfig
from mgpu_ngram.jobs.tune.config import TuneConfig
from mgpu_ngram.stages.contract import Product, Result, Stage, Target, given
from mgpu_ngram.stages.cpu_rates import RESCORE_BYTES, opening_seconds
from mgpu_ngram.stages.flags import add_no_verify, add_text, add_text_flags
from mgpu_ngram.stages.report import many, where_planned

if TYPE_CHECKING:
    from mgpu_ngram.core.inputs.corpus import Corpus

T = TypeVar("T")
C = TypeVar("C", RescoreConfig, TuneConfig)
R = TypeVar("R", bound=Result)


class ListsStage(Stage[C, R]):
    """A stage whose command scores n-best lists, and prints its result or writes it to a file."""

    memory_keys = frozenset({"device_bytes", "host_bytes"})
    needs: ClassVar[Mapping[str, Product]] = {"lm": "model", "weights": "weights"}
    files: tuple[str, ...] = ("costs",)
    stdin_setting = "text"
    stdout = "printed"

    def target(self, arguments: argparse.Namespace) -> Target:
        return Target(arguments.output or None, single_file=True)

    def open_inputs(self, config: C) -> Corpus:
        from mgpu_ngram.jobs.rescore.run import open_inputs

        return open_inputs(config)

    def cpu_seconds(self, config: C, inputs: Corpus | None) -> float:
        opening = sum(opening_seconds(model, scores_only=True) for model in config.lm)
        return opening + self.work_bytes(config, inputs) / RESCORE_BYTES * max(1, len(config.lm))


def add_lists_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of commands that score n-best lists."""
    add_text(parser, "text", "NBEST")
    parser.add_argument(
        "--lm",
        action="append",
        metavar="MODEL",
        help="n-gram model: model file, ARPA file or KenLM binary; repeat the flag for several models",
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
    add_text_flags(parser, "8 MiB", "column of Parquet inputs (default text)")


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


def shown_lists_plan(plan: dict[str, Any]) -> str:
    """Return a plan for people."""
    weights = plan["weights"]
    if not isinstance(weights, str):
        weights = ", ".join(f"{name} {' '.join(map(str, values))}" for name, values in weights.items())
    return (
        f"{plan['job']}: {many(plan['inputs'], 'input')} of {plan['input_bytes']:,} bytes in "
        f"{many(plan['chunks'], 'chunk')}; {where_planned(plan)}; models "
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
    """Return totals for people."""
    oovs = "".join(f", {oovs:,} unknown to {name}" for name, oovs in totals["oovs"].items())
    rejects = f", {many(totals['rejects'], 'reject')}" if totals["rejects"] else ""
    lists = many(totals["lists"], "list")
    return f"{lists}, {totals['hypotheses']:,} hypotheses, {totals['words']:,} words{oovs}{rejects}"
