"""`mgpu-ngram bench check`: new rows beside stored rows of the same device."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mgpu_ngram.benchmarks import BENCHES
from mgpu_ngram.benchmarks.harness import origin
from mgpu_ngram.benchmarks.harness.bench_modules import open_bench
from mgpu_ngram.benchmarks.harness.measured_code import code_of, files_of
from mgpu_ngram.benchmarks.harness.origin import git
from mgpu_ngram.benchmarks.harness.rows import Row, read_rows
from mgpu_ngram.core.errors import InputError, RunError

TOLERANCE = 0.1
TRAILER = "Benchmark-rows: valid"  # of commits that move or rename code, with the same outputs and the same work


@dataclass(frozen=True)
class Comparison:
    """A stored row and the new row of the same kernel, sizes and device.

    ratio  new over stored rate: above 1 is faster, or larger where a row has no time
    stale  why the stored row does not count for the code of today; empty where it does
    worse  the ratio is beyond the tolerance
    """

    new: Row
    stored: Row
    ratio: float
    stale: str
    worse: bool


def compare_folders(new: str | Path, stored: str | Path, name: str | None, tolerance: float) -> list[Comparison]:
    """Compare the CSV files of two folders: that of one bench, or of every bench that both folders have."""
    names = [name] if name else [n for n in BENCHES if (Path(new) / f"{n}.csv").is_file()]
    if not names:
        raise InputError(f"{new} holds no rows: none of {', '.join(f'{n}.csv' for n in BENCHES)}; name another folder")
    found: list[Comparison] = []
    for n in names:
        paths = [Path(folder) / f"{n}.csv" for folder in (new, stored)]
        for path in paths:
            if not path.is_file():
                raise InputError(f"{path}: no such file; run `mgpu-ngram bench {n} --results {path.parent}` first")
        found += compare(read_rows(paths[0]), read_rows(paths[1]), tolerance, Ages(n, paths[1]))
    if not found:
        raise InputError(
            f"no row of {new} has the kernel, sizes and device of a row in {stored}; compare results of the same "
            "device and the same options"
        )
    return found


def compare(new: Sequence[Row], stored: Sequence[Row], tolerance: float, ages: Ages | None = None) -> list[Comparison]:
    """Compare the rows that both have, in the order of the new rows.

    A row with a time is worse where its rate falls by more than the tolerance, a row without (a size in bytes) where
    its value differs by more.
    """
    before = {(row.device, row.kernel, row.sizes): row for row in stored}
    found = []
    for row in new:
        old = before.get((row.device, row.kernel, row.sizes))
        if old is None or not row.rate or not old.rate:
            continue
        ratio = row.rate / old.rate
        worse = ratio < 1 - tolerance if row.median_seconds is not None else abs(ratio - 1) > tolerance
        found.append(Comparison(row, old, ratio, ages.stale(old) if ages else "", worse))
    return found


def raise_if_worse(found: Sequence[Comparison], tolerance: float) -> None:
    """Raise RunError when any row is worse."""
    worse = sum(one.worse for one in found)
    if worse:
        raise RunError(
            f"{worse} of {len(found)} rows are beyond the tolerance of {tolerance:.0%}; measure again on a quiet "
            "machine, or find the change that made them slower"
        )


def show(found: Sequence[Comparison]) -> None:
    """Print a line for each comparison."""
    for one in found:
        words = [f"{one.ratio:6.2f}x", "WORSE" if one.worse else "     ", one.new.kernel, one.new.sizes, one.new.device]
        print("  ".join([*words, *([f"stored row is stale: {one.stale}"] if one.stale else [])]))


class Ages:
    """Tells which stored rows of a bench are older than the code that they measure, from the history in git."""

    def __init__(self, name: str, path: Path):
        self.modules, self.path = open_bench(name).MEASURES, path
        self.recorded: dict[tuple[str, ...], str] | None = None
        self.changes: dict[tuple[str, str], str] = {}  # by beginning of a kernel and commit
        self.codes: dict[tuple[str, str], str] = {}  # by commit and file
        self.names: dict[tuple[str, str], dict[str, str]] = {}  # by the two commits

    def stale(self, row: Row) -> str:
        """Return why a row is stale; nothing when the code that it measures is that of its commit, but for comments."""
        group = group_of(row.kernel, self.modules)
        if group is None:
            return "its bench does not say which code it measures"
        if not self.modules[group]:
            return ""
        commit = row.commit.removesuffix("-dirty") or self._recorded().get(_key(row.kernel, row.sizes, row.device), "")
        if not commit or not git("cat-file", "-t", commit):
            return "its commit is not known"
        if (group, commit) not in self.changes:
            files = {str(file.resolve().relative_to(origin.CHECKOUT)) for file in files_of(self.modules[group])}
            self.changes[group, commit] = self._change(commit, files)
        change = self.changes[group, commit]
        return f"its code changed by {change}" if change else ""

    def _change(self, commit: str, files: set[str]) -> str:
        """Return the last commit since `commit` that changed the code of files; nothing where none did.

        Commits with the trailer count as if the code had always been as they left it: before them, the files have the
        names that they had then.
        """
        end = "HEAD"
        since = ("log", "--first-parent", "--format=%H", f"--grep=^{TRAILER}$", f"{commit}..HEAD")
        for refactoring in [*git(*since).split(), ""]:
            start = refactoring or commit
            names = self._earlier_names(start, end)
            for file in sorted(files & names.keys()):
                if self._code(start, names[file]) != self._code(end, file):
                    return git("log", "-1", "--format=%h of %cs", f"{start}..{end}", "--", file).strip()
            if not refactoring:
                break
            end = f"{start}^"
            before = self._earlier_names(end, start)
            files = {before.get(name, name) for name in (names.get(file, file) for file in files)}
        return ""

    def _earlier_names(self, start: str, end: str) -> dict[str, str]:
        """Return the files that two commits do not have alike, with their names at the earlier one."""
        if (start, end) not in self.names:
            lines = git("diff", "--name-status", "-C40%", "-l0", start, end).splitlines() if start != end else []
            cells = (line.split("\t")[1:] for line in lines)
            self.names[start, end] = {names[-1]: names[0] for names in cells}
        return self.names[start, end]

    def _code(self, commit: str, file: str) -> str:
        if (commit, file) not in self.codes:
            self.codes[commit, file] = code_of(file, git("show", f"{commit}:{file}"))
        return self.codes[commit, file]

    def _recorded(self) -> dict[tuple[str, ...], str]:
        """Return the commits that brought rows into the CSV file as they are, for rows without a commit."""
        if self.recorded is None:
            self.recorded, lines = {}, {}
            # Commits come newest first; the last one that added a line is the first that had it.
            for line in git("log", "-p", "--format=commit %H", "--", str(self.path.resolve())).splitlines():
                if line.startswith("commit "):
                    commit = line.removeprefix("commit ")
                elif line.startswith("+") and not line.startswith("+++"):
                    lines[line[1:].rstrip(",")] = commit
            # Columns that were added later are empty: a line differs by commas at its end.
            for line in self.path.read_text().splitlines():
                if line.rstrip(",") in lines:
                    [cells] = csv.reader([line])
                    self.recorded[_key(*cells[:3])] = lines[line.rstrip(",")]
        return self.recorded


def group_of(kernel: str, modules: Mapping[str, Sequence[str]]) -> str | None:
    """Return the longest key of a bench's MEASURES that a kernel begins with; None if there is none."""
    return max((beginning for beginning in modules if kernel.startswith(beginning)), key=len, default=None)


def _key(kernel: str, sizes: str, device: str) -> tuple[str, ...]:
    return kernel, sizes, device
