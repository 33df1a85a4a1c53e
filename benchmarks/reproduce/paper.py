"""A paper: its tables and figures, the parts of the benches that measure them, and its claims, judged by rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from mgpu_ngram.benchmarks import PAPERS
from mgpu_ngram.benchmarks.harness.bench_modules import open_bench
from mgpu_ngram.benchmarks.harness.rows import Row, read_rows, rounded, with_unit

HOLDS, IN_PART, FAILS, UNKNOWN = "holds", "holds in part", "does not hold", "cannot be judged"


class Figure(NamedTuple):
    """A published figure: what it is of, its value or a word in place of one, its unit, and the hardware."""

    what: str
    value: float | str
    unit: str
    hardware: str


class Verdict(NamedTuple):
    """HOLDS, IN_PART, FAILS or UNKNOWN, and a sentence that says why.

    because  what explains a claim that does not hold, or holds in part
    """

    result: str
    why: str
    because: str = ""

    def explained(self) -> Verdict:
        """Return the verdict with its explanation in the sentence, where it applies."""
        applies = self.because and self.result in (FAILS, IN_PART)
        return Verdict(self.result, f"{self.why}; {self.because}" if applies else self.why)


def result_of(parts: Sequence[bool]) -> str:
    """Return the result of several statements: HOLDS, FAILS, or IN_PART where they differ."""
    return HOLDS if all(parts) else IN_PART if any(parts) else FAILS


def verdict_of(parts: Iterable[tuple[bool, str]], because: str = "", ending: str = "") -> Verdict:
    """Return the verdict of several statements, each with a clause that says why; `ending` follows the clauses."""
    is_so, whys = zip(*parts, strict=True)
    return Verdict(result_of(is_so), "; ".join(whys) + ending, because)


def saturated(rates: Mapping[int, float]) -> tuple[int, float]:
    """Return (the least number whose rate is nine tenths of the highest rate, the highest rate)."""
    highest = max(rates.values())
    return min(n for n, rate in rates.items() if rate >= 0.9 * highest), highest


def number(value: float) -> str:
    """Return a figure for a sentence, such as 8.13 G."""
    return with_unit(value, "")


def times(ratio: float) -> str:
    """Return a ratio with three digits, such as 181,000."""
    return rounded(ratio, 3)


def percent(share: float) -> str:
    """Return a share as whole per cent."""
    return f"{100 * share:.0f} %"


class NoFigure(Exception):
    """The rows lack a figure; the message says which, and why."""


class JudgedRows:
    """The rows of a table or figure on one device, for judges."""

    def __init__(self, rows: Sequence[Row]):
        self.rows = list(rows)
        self.device = rows[0].device
        self.is_gpu = "cores" not in self.device

    def row(self, kernel: str, sizes: str = "") -> Row:
        """Return the first row of a kernel with these parts of sizes and a rate. Raises NoFigure without one."""
        known = [row for row in self.rows if row.kernel == kernel and set(sizes.split()) <= set(row.sizes.split())]
        rated = [row for row in known if row.rate is not None]
        if not rated:
            why = known[0].notes if known else "it was not measured"
            raise NoFigure(f"`{' '.join([kernel, sizes]).strip()}` has no figure: {why}")
        return rated[0]

    def rate(self, kernel: str, sizes: str = "") -> float:
        """Return the rate of `row`."""
        rate = self.row(kernel, sizes).rate
        assert rate is not None
        return rate

    def by(self, kernel: str, letter: str, column: str = "rate") -> dict[int, float]:
        """Return a column of the rows of a kernel by a number of their sizes, in rising order.

        Raises NoFigure where no row has it.
        """
        found = {}
        for row in self.rows:
            sizes = [word.split("=")[1] for word in row.sizes.split() if word.startswith(f"{letter}=")]
            value = getattr(row, column)
            if row.kernel == kernel and value is not None and sizes:
                found[int(sizes[0])] = value
        if not found:
            raise NoFigure(f"`{kernel}` has no figure by {letter}")
        return dict(sorted(found.items()))

    def ratios(self, kernel: str, other: str, letter: str, column: str = "rate") -> dict[int, float]:
        """Return a column of a kernel divided by that of another one, as `by` does, where both have it.

        Raises NoFigure where no size has both.
        """
        values, divisors = (self.by(name, letter, column) for name in (kernel, other))
        found = {n: values[n] / divisors[n] for n in values if n in divisors}
        if not found:
            raise NoFigure(f"`{kernel}` and `{other}` have no figures of the same {letter}")
        return found

    def rated(self, start: str) -> list[Row]:
        """Return the rows with a rate whose kernels begin so."""
        return [row for row in self.rows if row.kernel.startswith(start) and row.rate]


Judge = Callable[[JudgedRows], Verdict]


def of_gpu(judge: Judge) -> Judge:
    """Return a judge of a claim on a GPU: figures of a CPU are told, but judge nothing."""

    def judged(found: JudgedRows) -> Verdict:
        verdict = judge(found)
        return verdict if found.is_gpu else Verdict(UNKNOWN, f"it is a claim on a GPU; on this CPU {verdict.why}")

    return judged


@dataclass(frozen=True)
class Claim:
    """A sentence of a paper, and the function that judges it by rows."""

    text: str
    judge: Judge

    def verdict(self, rows: Sequence[Row]) -> Verdict:
        """Return the verdict; UNKNOWN where rows lack a figure."""
        if not rows:
            return Verdict(UNKNOWN, "nothing was measured yet")
        try:
            return self.judge(JudgedRows(rows)).explained()
        except NoFigure as missing:
            return Verdict(UNKNOWN, str(missing))


@dataclass(frozen=True)
class Item:
    """A table, figure or section of a paper; several where one measurement gives them.

    names     such as T3, F9 or 5.6; the first one names the files
    figures   as published
    parts     of the bench, which measure the same work; none where rows of other items are judged,
    of        which have these names
    pictures  of the bench, without the device; none: bars of the rows that have the unit of the figures
    shown     beginnings of the kernels in the page's table; all rows when empty
    differs   how the work differs from the paper's
    """

    names: tuple[str, ...]
    title: str
    claims: tuple[Claim, ...]
    figures: tuple[Figure, ...] = ()
    parts: tuple[str, ...] = ()
    of: tuple[str, ...] = ()
    pictures: tuple[str, ...] = ()
    shown: tuple[str, ...] = ()
    differs: str = ""

    @property
    def name(self) -> str:
        return self.names[0]


@dataclass(frozen=True)
class Program:
    """An original program: words by which its rows are known, and how it was built and put on the PATH."""

    name: str
    marks: tuple[str, ...]
    built: str


@dataclass(frozen=True)
class Paper:
    """A paper.

    bench     whose parts measure its work
    work      what stands in for the paper's data
    not_made  tables and figures that are not made, each with the reason
    unused    options of the bench that its other parts alone obey
    """

    name: str
    title: str
    source: str
    bench: str
    work: str
    items: tuple[Item, ...]
    programs: tuple[Program, ...] = ()
    not_made: dict[str, str] = field(default_factory=dict)
    unused: tuple[str, ...] = ()

    def item(self, name: str) -> Item:
        """Return the item that has a name."""
        return next(item for item in self.items if name in item.names)

    @property
    def flags(self) -> set[str]:
        """Options of the bench that the paper takes, too."""
        return (open_bench(self.bench).FLAGS - {"text", *self.unused}) | {"only"}


def open_paper(name: str) -> Paper:
    """Return a paper of PAPERS."""
    return import_module(PAPERS[name]).PAPER


def rows_of(folder: Path, item: Item) -> list[Row]:
    """Return the stored rows of an item of all devices: its own, or those of the items that it judges."""
    paths = [folder / f"{name}.csv" for name in item.of or (item.name,)]
    return [row for path in paths if path.is_file() for row in read_rows(path)]


def by_device(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Return rows by their device; GPUs come first."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row.device, []).append(row)
    return dict(sorted(found.items(), key=lambda pair: ("cores" in pair[0], pair[0])))
