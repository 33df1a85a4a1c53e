"""giLM (Li, 2018): its tables, figures and hypotheses, by parts of `bench distribution`."""

from __future__ import annotations

from mgpu_ngram.benchmarks.distribution.steps import TABLE_54
from mgpu_ngram.benchmarks.distribution.thesis import ORDERS, PROBABILITIES_PER_SECOND, TABLE_51, TABLE_53
from mgpu_ngram.benchmarks.harness.units import DISTRIBUTIONS_PER_SECOND, QUERIES_PER_SECOND
from mgpu_ngram.benchmarks.inputs.distribution_cases import LARGE, SMALL
from mgpu_ngram.benchmarks.reproduce.paper import (
    FAILS,
    HOLDS,
    Claim,
    Figure,
    Item,
    Judge,
    JudgedRows,
    Paper,
    Verdict,
    number,
    of_gpu,
    percent,
    result_of,
    saturated,
    times,
    verdict_of,
)

K80 = "one GPU of a Tesla K80"
WORDS = {LARGE: 101_359, SMALL: 1_350}  # of the vocabularies, in the thesis and here
MODELS = {LARGE: f"Europarl, V = {WORDS[LARGE]:,}", SMALL: f"small model, V = {WORDS[SMALL]:,}"}
SATURATED = {"rows": 50, "scores": 10_000}  # sentences at once
GILM_ENDS, GLM_ENDS = 0.36e6, 13.08e6  # a second, of the large model, saturated
ROWS, SCORES = "smoothed float32", "scores"
SMALL_LARGE = (LARGE, SMALL)


def _pair(found: JudgedRows, part: str, name: str) -> tuple[float, float]:
    """Return (distributions, scores) a second of a model."""
    return found.rate(f"distribution/{part} {name} {ROWS}", "n=5"), found.rate(
        f"distribution/{part} {name} {SCORES}", "n=5"
    )


def _glm_first(found: JudgedRows) -> Verdict:
    def of_model(name: str) -> tuple[bool, str]:
        rows, scores = _pair(found, "table5.1", name)
        why = f"{number(scores)} scores against {number(rows)} distributions a second on the {name} model"
        return scores > rows, why

    return verdict_of(map(of_model, SMALL_LARGE))


def _gilm_first_on_small(found: JudgedRows) -> Verdict:
    rows, scores = _pair(found, "table5.1", SMALL)
    why = f"{number(rows)} distributions of {WORDS[SMALL]:,} words against {number(scores)} scores a second"
    because = "memory takes as long to write a distribution as its words ask for, and a score writes one number"
    return Verdict(HOLDS if rows > scores else FAILS, why, because)


def _outputs(found: JudgedRows) -> Verdict:
    def of_model(name: str) -> tuple[bool, str]:
        rows = found.rate(f"distribution/table5.2 {name} smoothed")
        scores = found.rate(f"distribution/table5.2 {name} scores")
        return rows > scores, f"{number(rows)} against {number(scores)} numbers a second on the {name} model"

    return verdict_of(map(of_model, SMALL_LARGE))


def _cost(found: JudgedRows) -> Verdict:
    outputs = _outputs(found)
    return Verdict(
        outputs.result, f"both run on one device of one price, so it follows from the outputs: {outputs.why}"
    )


def _gains_without(found: JudgedRows, name: str) -> tuple[float, str]:
    """Return by what share distributions without backoffs are faster, and a sentence with the rates."""
    smoothed = found.rate(f"distribution/table5.1 {name} {ROWS}")
    stored = found.rate(f"distribution/table5.1 {name} stored float32")
    bare = found.rate(f"distribution/table5.1 {name}, no backoffs, stored float32")
    said = f"{number(smoothed)} smoothed, {number(stored)} stored, {number(bare)} of a model without backoffs"
    return max(stored, bare) / smoothed - 1, f"{name} model: {said}"


def _no_backoff(found: JudgedRows) -> Verdict:
    (large, said), (small, also) = (_gains_without(found, name) for name in SMALL_LARGE)
    because = "backoffs are applied in registers while memory writes"
    return Verdict(result_of([large < 0.1, small > 0.1]), f"{said}; {also}", because)


def _backoff_costs_nothing(found: JudgedRows) -> Verdict:
    (large, said), (small, also) = (_gains_without(found, name) for name in SMALL_LARGE)
    return Verdict(result_of([large < 0.1, small < 0.1]), f"{said}; {also}")


def _slower_orders(found: JudgedRows) -> Verdict:
    def of_model(name: str) -> tuple[bool, str]:
        rates = found.by(f"distribution/table5.3 {name} {ROWS}", "n")
        why = f"{name} model {', '.join(number(rates[n]) for n in ORDERS)} with orders 5, 4, 3"
        return rates[3] < 0.9 * rates[5], why

    return verdict_of(map(of_model, SMALL_LARGE), "a row has as many words to write, whatever the order")


def _faster_scores(found: JudgedRows) -> Verdict:
    def of_model(name: str) -> tuple[bool, str]:
        rates = found.by(f"distribution/table5.3 {name} {SCORES}", "n")
        why = f"{name} model {', '.join(number(rates[n]) for n in ORDERS)} scores with orders 5, 4, 3"
        return rates[3] > 1.05 * rates[5], why

    return verdict_of(map(of_model, SMALL_LARGE))


def _similar_effects(found: JudgedRows) -> Verdict:
    order_same = _slower_orders(found).result == FAILS
    large, small = (found.by(f"distribution/table5.3 {name} {ROWS}", "n")[5] for name in SMALL_LARGE)
    scores = [found.by(f"distribution/table5.3 {name} {SCORES}", "n") for name in SMALL_LARGE]
    why = (
        f"size: distributions fall {times(small / large)} times from V = 1,350 to 101,359, which have "
        f"{WORDS[LARGE] / WORDS[SMALL]:.3g} times the words, and scores "
        f"{scores[1][5] / scores[0][5]:.3g} times; order: distributions take "
        f"{'the same time' if order_same else 'other times'} with orders 5 to 3, and scores of the large model gain "
        f"{percent(scores[0][3] / scores[0][5] - 1)}"
    )
    return Verdict(result_of([small > large and scores[1][5] > scores[0][5], not order_same]), why)


def _times(found: JudgedRows, name: str) -> tuple[float, float, float]:
    """Return nanoseconds a distribution: to search, to fetch besides, to write besides."""
    steps = [found.rate(f"distribution/table5.4 {name} {step}") for step in ("only search", "no write")]
    search, fetch, whole = (1e9 / rate for rate in (*steps, found.rate(f"distribution/table5.4 {name} normal {ROWS}")))
    return search, fetch - search, whole - fetch


def _fetch_takes_most(found: JudgedRows) -> Verdict:
    def of_model(name: str) -> tuple[bool, str]:
        search, fetch, write = _times(found, name)
        row = found.row(f"distribution/table5.4 {name} normal {ROWS}")
        share = row.share_of_ceiling or 0.0
        return share < 0.8, (
            f"{name} model: {search:.2g} ns to search, {fetch:.2g} ns more without stores, {write:.2g} ns more with "
            f"them, and rows are written at {percent(share)} of what the device can write"
        )

    because = "a kernel without stores waits for its reads, and stores hide these waits, so writing bounds it"
    return verdict_of(map(of_model, SMALL_LARGE), because)


def _writing_takes_most(found: JudgedRows) -> Verdict:
    other = _fetch_takes_most(found)
    return Verdict({HOLDS: FAILS, FAILS: HOLDS}.get(other.result, other.result), other.explained().why)


def _saturates(found: JudgedRows, kind: str, unit: str, because: str = "") -> Verdict:
    enough, highest = saturated(found.by(f"distribution/saturation {kind}", "sentences"))
    why = f"nine tenths of the highest rate, {number(highest)} {unit} a second, are reached with {enough:,} sentences"
    return Verdict(HOLDS if enough <= SATURATED[kind] else FAILS, f"{why} at once", because)


def _gilm_saturates(found: JudgedRows) -> Verdict:
    return _saturates(found, "rows", "distributions")


def _glm_saturates(found: JudgedRows) -> Verdict:
    return _saturates(found, "scores", "scores", "a GPU of today has more threads to fill")


def _hypothesis(number_: int, text: str, conclusion: str, judge: Judge) -> Claim:
    return Claim(f"Hypothesis {number_}: {text} The thesis: {conclusion}.", of_gpu(judge))


def _large_and_small(table: dict[str, dict[str, float]], keys: dict[str, tuple[str, str]]) -> tuple[Figure, ...]:
    return tuple(
        Figure(f"{who}, {MODELS[name]}", table[key][name], unit, K80)
        for key, (who, unit) in keys.items()
        for name in SMALL_LARGE
    )


PAPER = Paper(
    name="gilm",
    title="giLM: complete distributions from n-gram models on GPUs",
    source="Li, thesis, 2018",
    bench="distribution",
    work="The thesis has a model of Europarl, V = 101,359, 88.7 M n-grams of order 5, and a small one, V = 1,350, "
    "23,120 n-grams. Here models of generated text have the same vocabularies, 22 M n-grams on a GPU, 1 M on a CPU, "
    "and the small one as many as in the thesis. gLM stands for scores of single words, here by the edge table. Rows "
    "are compared with those of plain array code before they are timed. giLM's program is not public.",
    items=(
        Item(
            ("T5.1", "T5.2"),
            "distributions with and without backoff, scores, and numbers that come out",
            (
                Claim("gLM outperforms giLM on the large model, 13.08 M to 0.36 M a second.", of_gpu(_glm_first)),
                Claim("giLM outperforms gLM on the small model, 27.90 M to 21.45 M.", of_gpu(_gilm_first_on_small)),
                Claim(
                    "Without backoff giLM gains nothing on the large model and 38 % on the small one.",
                    of_gpu(_no_backoff),
                ),
                Claim("giLM puts out more numbers a second than gLM.", of_gpu(_outputs)),
            ),
            (
                *_large_and_small(
                    TABLE_51,
                    {
                        "smoothed": ("giLM", DISTRIBUTIONS_PER_SECOND),
                        "scores": ("gLM", QUERIES_PER_SECOND),
                        "stored": ("giLM without backoff", DISTRIBUTIONS_PER_SECOND),
                    },
                ),
                *(
                    Figure(
                        f"giLM, outputs, {MODELS[name]}",
                        TABLE_51["smoothed"][name] * WORDS[name],
                        PROBABILITIES_PER_SECOND,
                        K80,
                    )
                    for name in SMALL_LARGE
                ),
            ),
            ("throughput",),
            differs="Table 5.2 says how outputs are reckoned from Table 5.1. The thesis prints 3,648.92 M for the "
            "large model, where its own figures give 36,489 M.",
        ),
        Item(
            ("T5.3", "F5.3"),
            "the order of the model",
            (
                Claim(
                    "Lower orders are slower: giLM falls from 0.36 M to 0.18 M from order 5 to 3.",
                    of_gpu(_slower_orders),
                ),
                Claim("gLM is faster with lower orders.", of_gpu(_faster_scores)),
            ),
            tuple(
                Figure(f"giLM, {MODELS[name]}, order {n}", rate, DISTRIBUTIONS_PER_SECOND, K80)
                for name in SMALL_LARGE
                for n, rate in TABLE_53[name].items()
            ),
            ("order",),
            pictures=("distribution_order",),
        ),
        Item(
            ("T5.4",),
            "the steps of a query",
            (
                Claim(
                    "Fetching the probabilities takes most of the time, more than writing them.",
                    of_gpu(_fetch_takes_most),
                ),
            ),
            tuple(
                Figure(f"giLM, {MODELS[name]}, {step}", rate, DISTRIBUTIONS_PER_SECOND, K80)
                for name in SMALL_LARGE
                for step, rate in TABLE_54[name].items()
            ),
            ("steps",),
            pictures=("distribution_steps",),
        ),
        Item(
            ("F5.1", "F5.2"),
            "sentences at once",
            (
                Claim("giLM is saturated from 50 sentences on.", of_gpu(_gilm_saturates)),
                Claim("gLM is saturated from 10,000 sentences on.", of_gpu(_glm_saturates)),
            ),
            (
                Figure("giLM, saturated", GILM_ENDS, DISTRIBUTIONS_PER_SECOND, K80),
                Figure("gLM, saturated", GLM_ENDS, QUERIES_PER_SECOND, K80),
                Figure("giLM, sentences from which it is saturated", str(SATURATED["rows"]), "", K80),
                Figure("gLM, sentences from which it is saturated", f"{SATURATED['scores']:,}", "", K80),
            ),
            ("saturation",),
            pictures=("distribution_saturation",),
        ),
        Item(
            ("hypotheses",),
            "the six hypotheses of section 4.3",
            (
                _hypothesis(1, "gLM outperforms giLM in queries a second.", "false, or not to be ensured", _glm_first),
                _hypothesis(2, "giLM outperforms gLM in numbers that come out a second.", "true", _outputs),
                _hypothesis(3, "giLM outperforms gLM in cost-effectiveness.", "true", _cost),
                _hypothesis(
                    4,
                    "Backoff does not affect the speed of giLM.",
                    "depends on the size of the model",
                    _backoff_costs_nothing,
                ),
                _hypothesis(
                    5,
                    "Order and size of the model affect giLM as they affect gLM.",
                    "false for the order, partly true for the size",
                    _similar_effects,
                ),
                _hypothesis(
                    6,
                    "Writing the results takes most of the time of a query.",
                    "false, traversal takes most",
                    _writing_takes_most,
                ),
            ),
            of=("T5.1", "T5.3", "T5.4"),
        ),
    ),
    programs=(),
    not_made={"The thesis' own program": "it is not public, and its backoff is simulated by a second search"},
    unused=("workers",),
)
