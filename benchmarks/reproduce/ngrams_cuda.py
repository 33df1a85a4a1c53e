"""Ngrams with CUDA (Bianco): experiments A and B, by parts of `bench count`."""

from __future__ import annotations

from mgpu_ngram.benchmarks.count.byte_ngrams import DENSE_ORDERS, EXPERIMENT_B_ORDER
from mgpu_ngram.benchmarks.harness.rows import Row
from mgpu_ngram.benchmarks.harness.suite import DOES_NOT_FIT
from mgpu_ngram.benchmarks.reproduce.paper import (
    FAILS,
    HOLDS,
    Claim,
    Figure,
    Item,
    JudgedRows,
    NoFigure,
    Paper,
    Verdict,
    number,
    of_gpu,
    result_of,
    times,
)

GPU, CPU = "a GPU that the report does not name", "Python on a processor that it does not name"
V1, V2, B = "V1, one global histogram", "V2, 128 private histograms", "B, map-sort-reduce"
KERNELS = {V1: "global", V2: "private K=128", B: "sort"}
# Seconds on the GPU and on the CPU by order.
SECONDS: dict[str, dict[int, tuple[float | str, float]]] = {
    V1: {1: (0.031, 2.686), 2: (0.029, 3.727), 3: (0.174, 3.676), 4: (DOES_NOT_FIT, 4.003)},
    V2: {1: (0.073, 2.818), 2: (0.040, 4.555), 3: (DOES_NOT_FIT, 3.516), 4: (DOES_NOT_FIT, 3.692)},
    B: {1: (0.155, 3.095), 2: (0.144, 4.783), 3: (0.156, 4.259), 4: (0.203, 4.362)},
}


def _figures() -> tuple[Figure, ...]:
    found = []
    for name, orders in SECONDS.items():
        for n, (on_gpu, on_cpu) in orders.items():
            found += [Figure(f"{name}, n = {n}", on_gpu, "s", GPU), Figure(f"its CPU run, n = {n}", on_cpu, "s", CPU)]
    return tuple(found)


def _rates(found: JudgedRows, n: int) -> dict[str, float]:
    """Return the rates of the report's three algorithms at an order, of those that ran."""
    rates = {}
    for name, kernel in KERNELS.items():
        try:
            rates[name] = found.rate(f"bytes/a {kernel}", f"n={n}")
        except NoFigure:
            continue
    return rates


def _global_wins(found: JudgedRows) -> Verdict:
    best = {n: max(rates, key=rates.__getitem__) for n in (1, 2, 3) if (rates := _rates(found, n))}
    if not best:
        raise NoFigure("no strategy was measured at n = 1 to 3")
    listed = ", ".join(f"{name} at n = {n} ({number(_rates(found, n)[name])} n-grams/s)" for n, name in best.items())
    because = "many histograms share out the atomics of a symbol"
    return Verdict(result_of([name == V1 for name in best.values()]), f"the fastest of the three is {listed}", because)


def _private_does_not_fit(found: JudgedRows) -> Verdict:
    fits = [n for n in DENSE_ORDERS if V2 in _rates(found, n)]
    symbols = max(found.by("bytes/a sort", "A"))
    why = (
        f"128 histograms fit at n = {', '.join(map(str, fits)) or 'none'}, with bins for the {symbols} symbols of the "
        "text in place of 256"
    )
    return Verdict(HOLDS if max(fits, default=0) < 3 else FAILS, why)


def _sort_alone(found: JudgedRows) -> Verdict:
    at_4 = _rates(found, 4)
    longer = [found.rate("bytes/a sort", f"n={n}") for n in (5, 8)]
    dense = max((found.rate(f"bytes/a {kernel}", "n=4") for kernel in ("private K=1", "global")), default=0.0)
    is_alone = dense < at_4[B]
    why = (
        f"at n = 4 a histogram of the text's own symbols counts {number(dense)} n-grams/s and the sort "
        f"{number(at_4[B])}; from n = 5 to 8 histograms do not fit, and the sort counts {number(longer[0])} to "
        f"{number(longer[1])}"
    )
    return Verdict(result_of([is_alone, longer[1] > 0]), why)


def _speedup(found: JudgedRows) -> Verdict:
    timed = sorted((row for row in found.rows if row.kernel.startswith("bytes/a ") and row.speedup), key=_speed)
    if not timed:
        raise NoFigure("no strategy was timed beside the plain Python loop")
    worst, best = timed[0], timed[-1]
    why = (
        f"strategies are {times(_speed(worst))} times (`{worst.kernel.removeprefix('bytes/a ')}`, {worst.sizes}) to "
        f"{times(_speed(best))} times (`{best.kernel.removeprefix('bytes/a ')}`, {best.sizes}) as fast as a plain loop "
        "in Python"
    )
    return Verdict(HOLDS if _speed(worst) >= 20 else FAILS, why)


def _speed(row: Row) -> float:
    return row.speedup or 0.0


def _no_best(found: JudgedRows) -> Verdict:
    sizes = found.by("bytes/b sort", "T")
    best = {}
    for size in sizes:
        rows = [row for row in found.rated("bytes/b ") if f"T={size}" in row.sizes.split()]
        best[size] = max(rows, key=lambda row: row.rate or 0.0)
    listed = ", ".join(
        f"`{row.kernel.removeprefix('bytes/b ')}` with {size:,} bytes ({number(row.rate or 0.0)} n-grams/s)"
        for size, row in best.items()
    )
    names = {row.kernel for row in best.values()}
    return Verdict(HOLDS if len(names) > 1 else FAILS, f"the fastest is {listed}")


def _sort_is_linear(found: JudgedRows) -> Verdict:
    rates = list(found.by("bytes/b sort", "T").items())
    if len(rates) < 2:
        raise NoFigure("one size alone was measured")
    (small, slow), (large, fast) = rates[-2:]
    why = f"the sort counts {number(slow)} n-grams/s of {small:,} bytes and {number(fast)} of {large:,}"
    because = "a radix sort passes over its keys as often as their bits ask for, however many they are"
    return Verdict(HOLDS if fast < 0.9 * slow else FAILS, why, because)


PAPER = Paper(
    name="ngrams-cuda",
    title="Ngrams with CUDA: experiments A and B",
    source="Bianco, a report of the University of Florence",
    bench="count",
    work="The report counts the n-grams of bytes of a text that is repeated to a size that it does not tell. Here the "
    "text is generated, English-like, 1 GiB on a GPU and 16 MiB on a CPU. All tables are compared with those of "
    "sorted windows before they are timed.",
    items=(
        Item(
            ("A",),
            "time by n, at one size of the text",
            (
                Claim("V1 dominates for n up to 3.", of_gpu(_global_wins)),
                Claim("The histograms of V2 do not fit from n = 3.", of_gpu(_private_does_not_fit)),
                Claim("B is the only algorithm that can count n-grams of 4 bytes and more.", of_gpu(_sort_alone)),
                Claim("A GPU is 20 to 127 times as fast as a sequential loop.", of_gpu(_speedup)),
            ),
            _figures(),
            ("a",),
            pictures=("experiment_a",),
            shown=("bytes/",),
            differs="Bins are of the symbols that the text has, not of 256. `private K=1` and `hash` are strategies "
            "that the report lacks.",
        ),
        Item(
            ("B",),
            f"throughput by the size of the text, n = {EXPERIMENT_B_ORDER}",
            (
                Claim("There is no single best algorithm.", of_gpu(_no_best)),
                Claim("Map-sort-reduce takes O(N log N) time, where histograms take O(N).", of_gpu(_sort_is_linear)),
            ),
            (Figure("curves without numbers", "see the report", "", GPU),),
            ("b",),
            pictures=("experiment_b",),
            shown=("bytes/",),
        ),
    ),
    programs=(),
    not_made={"The report's own program": "it is not public"},
    unused=("tokens",),
)
