"""gLM (Bogoychev and Lopez, 2016): its tables, figures and sections, by parts of `bench score`."""

from __future__ import annotations

import math
import re

from mgpu_ngram.benchmarks.harness.units import QUERIES_PER_SECOND
from mgpu_ngram.benchmarks.inputs.scoring_subjects import EDGES, TREE
from mgpu_ngram.benchmarks.reproduce.paper import (
    FAILS,
    HOLDS,
    IN_PART,
    Claim,
    Figure,
    Item,
    JudgedRows,
    NoFigure,
    Paper,
    Program,
    Verdict,
    number,
    of_gpu,
    percent,
    saturated,
    times,
    verdict_of,
)
from mgpu_ngram.benchmarks.score.peers import PEER
from mgpu_ngram.benchmarks.score.published import (
    GLM,
    GLM_BEST_FANOUT,
    KENLM_TRIE,
    MEASURED,
    PROBING,
    PUBLISHED,
    PUBLISHED_ORDERS,
    PUBLISHED_SIZES,
)
from mgpu_ngram.benchmarks.score.sustained import ON_END

TITAN_X, I7, XEONS = "GeForce GTX Titan X", "Core i7-4720HQ", "two Xeon E5-2680"
H200 = "one NVIDIA H200, or its host of 16 cores"
HARDWARE = {GLM: TITAN_X, PROBING: I7, KENLM_TRIE: I7}
NAMES = {GLM: "gLM", PROBING: "KenLM probing, 1 thread", KENLM_TRIE: "KenLM trie, 1 thread"}
KENLM_32 = 120.4e6  # queries a second of the probing table in 32 threads
MODEL, LARGER_MODEL = 88.7e6, 423e6  # n-grams
SIZES = {GLM: 1.2e9, PROBING: 1.8e9, KENLM_TRIE: 0.8e9}
STUMPS = {2: 0.88, 3: 0.97, 4: 0.99, 5: 0.99}
CONSTANTS = {"parameters": 59.0e6, "compile-time constants": 65.6e6}
TREES = {TREE: "the B+-tree", EDGES: "the edge table"}
CLOCK = re.compile(r"(first|last) ([^;]*?) at SM (\d+) MHz")


def _table3() -> tuple[Figure, ...]:
    rates = [Figure(NAMES[who], rate, QUERIES_PER_SECOND, HARDWARE[who]) for who, rate in PUBLISHED.items()]
    rates += [Figure("KenLM probing, 16 threads", 49.8e6, QUERIES_PER_SECOND, XEONS)]
    rates += [Figure("KenLM probing, 32 threads", KENLM_32, QUERIES_PER_SECOND, XEONS)]
    sizes = [
        Figure(f"{NAMES[who].partition(',')[0]}, size", size, "bytes", HARDWARE[who]) for who, size in SIZES.items()
    ]
    later = [Figure(f"{who}, measured later", rate, QUERIES_PER_SECOND, H200) for who, rate in MEASURED.items()]
    return (*rates, *sizes, *later)


def _kenlm(found: JudgedRows) -> tuple[str, float]:
    """Return who stands for KenLM on one thread, and its queries a second."""
    try:
        return "KenLM's module on one thread of the same host", found.rate(f"score/table3 {PEER}")
    except NoFigure:
        return "KenLM as published", PUBLISHED[PROBING]


def _faster(found: JudgedRows) -> Verdict:
    who, theirs = _kenlm(found)
    ours = found.rate(f"score/table3 {TREE}")
    why = f"the B+-tree answers {number(ours)} queries a second, {times(ours / theirs)} times {who} ({number(theirs)})"
    return Verdict(HOLDS if ours >= 6 * theirs else FAILS, why)


def _all_threads(found: JudgedRows) -> Verdict:
    ours, measured = found.rate(f"score/table3 {TREE}"), found.rated("score/table3 kenlm_benchmark")
    if measured:
        who, theirs = f"`{measured[0].kernel.removeprefix('score/table3 ')}`", measured[0].rate or 0.0
    else:
        who, theirs = "KenLM on 32 threads as published", KENLM_32
    why = f"{who} answers {number(theirs)} queries a second, the B+-tree {number(ours)}, {times(ours / theirs)} times"
    return Verdict(HOLDS if theirs > ours else FAILS, why, "a GPU of today gains more than a processor of today")


def _size(found: JudgedRows) -> Verdict:
    ours = found.rate(f"score/table3 size of {TREE}")
    theirs = {who: size / MODEL for who, size in SIZES.items()}
    why = (
        f"the B+-tree takes {ours:.3g} bytes an n-gram; reckoned from the paper, gLM takes {theirs[GLM]:.3g}, KenLM's "
        f"probing table {theirs[PROBING]:.3g} and its trie {theirs[KENLM_TRIE]:.3g}"
    )
    return Verdict(HOLDS if ours < theirs[PROBING] else FAILS, why)


def _loss(small: tuple[float, float], large: tuple[float, float]) -> float:
    """Return the share of the rate that a model of five times the n-grams loses, from (n-grams, rate) of two."""
    power = math.log(large[1] / small[1]) / math.log(large[0] / small[0])
    return 1 - 5**power


def _model_size(found: JudgedRows) -> Verdict:
    def of_tree(kind: str, name: str) -> tuple[bool, str]:
        rates = list(found.by(f"score/table4 {kind}", "G").items())
        if len(rates) < 2:
            raise NoFigure("the larger model was not measured: " + "; ".join(r.notes for r in found.rows if r.notes))
        loss = _loss(rates[0], rates[-1])
        return 0 < loss <= 0.3, (
            f"{name} {'falls' if loss > 0 else 'rises'} from {number(rates[0][1])} to {number(rates[-1][1])} queries "
            f"a second with {rates[-1][0] / rates[0][0]:.3g} times the n-grams, {percent(abs(loss))} for each fivefold"
        )

    return verdict_of(of_tree(*tree) for tree in TREES.items())


def _order(found: JudgedRows) -> Verdict:
    def of_tree(kind: str, name: str) -> tuple[bool, str]:
        rates = found.by(f"score/table5 {kind}", "n")
        rise = rates[3] / rates[5]
        listed = ", ".join(number(rates[n]) for n in (5, 4, 3))
        why = f"{name} answers {listed} queries a second with orders 5, 4 and 3, {rise:.3g} times from 5 to 3"
        return rise > 1.05, why

    return verdict_of(of_tree(*tree) for tree in TREES.items())


def _node_size(found: JudgedRows) -> Verdict:
    rates = found.by(f"score/figure9 {TREE}", "fanout")
    best = max(rates, key=rates.__getitem__)
    larger = {K: rate for K, rate in rates.items() if K > GLM_BEST_FANOUT}
    if not larger:
        raise NoFigure(f"no node larger than {GLM_BEST_FANOUT} was measured")
    worst = min(larger, key=larger.__getitem__)
    fall = 1 - larger[worst] / rates[best]
    rises = rates[best] > 1.1 * rates[min(rates)]
    why = (
        f"the rate rises from {number(rates[min(rates)])} with {min(rates)} words to {number(rates[best])} with "
        f"{best}; beyond {GLM_BEST_FANOUT} it loses at most {percent(fall)}"
    )
    because = "a level reads whole lines of memory, and a warp takes a larger node in several steps"
    near = 27 <= best <= GLM_BEST_FANOUT
    return Verdict(HOLDS if rises and near and fall > 0.2 else IN_PART if rises else FAILS, why, because)


def _stumps(found: JudgedRows) -> Verdict:
    shares = found.by("score/stumps of nodes", "order")
    listed = ", ".join(f"{100 * share:.4g}" for share in shares.values())
    why = f"of the nodes that lead to n-grams of order 2 and more, {listed} % are B-stumps"
    is_so = all(shares[n] >= STUMPS[n] for n in shares)
    return Verdict(HOLDS if is_so else FAILS, why)


def _saturation(found: JudgedRows) -> Verdict:
    def of_tree(kind: str, name: str) -> tuple[bool, str]:
        rates = found.by(f"score/figure10 {kind}", "batch")
        enough, highest = saturated(rates)
        at, largest = rates.get(10_000), ", the most that is measured," if enough == max(rates) else ""
        return enough <= 10_000, (
            f"{name} reaches nine tenths of its highest rate, {number(highest)}, with {enough:,} queries at once"
            + largest
            + (f" and {percent(at / highest)} of it with 10,000" if at else "")
        )

    because = "a GPU of today has many more threads to fill, and a start takes as long as in 2016"
    verdict = verdict_of((of_tree(*tree) for tree in TREES.items()), because)
    return verdict._replace(result=HOLDS if verdict.result == HOLDS else FAILS)


def _copies(found: JudgedRows) -> Verdict:
    rates = found.by(f"score/figure10 {TREE}, copies", "batch")
    most, bare = max(rates.values()), max(found.by(f"score/figure10 {TREE}", "batch").values())
    why = (
        f"with the copies of codes and results the B+-tree answers {number(most)} queries a second, {most / bare:.2g} "
        f"of its rate without and {times(most / PUBLISHED[PROBING])} times KenLM as published "
        f"({number(PUBLISHED[PROBING])})"
    )
    return Verdict(HOLDS if most > 3 * PUBLISHED[PROBING] else FAILS, why)


def _constants(found: JudgedRows) -> Verdict:
    def of_tree(kind: str, name: str) -> tuple[bool, str]:
        before = found.rate(f"score/constants, parameters of {kind}")
        after = found.rate(f"score/constants, numbers in {kind}")
        gain = after / before - 1
        return gain >= 0.05, f"{name} gains {percent(gain)} ({number(before)} to {number(after)})"

    ending = f"; the paper's code gained {percent(65.6 / 59 - 1)}"
    return verdict_of((of_tree(*tree) for tree in TREES.items()), ending=ending)


def _bound(found: JudgedRows) -> Verdict:
    shares = {kind: found.row(f"score/bound of {kind}", "repeated=8").share_of_ceiling for kind in TREES}
    edges, tree = shares[EDGES], shares[TREE]
    if edges is None or tree is None:
        raise NoFigure("random reads of a table as large were not measured")
    why = (
        f"the edge table reads sectors at {edges:.2g} of the rate of random reads in a table as large, so memory "
        f"bounds it; the B+-tree asks for lines at {tree:.2g} of that rate, "
        + ("which only caches can serve, so its steps bound it" if tree > 1 else "so memory bounds it, too")
    )
    return Verdict(IN_PART if edges >= 0.6 and tree > 1 else FAILS if edges >= 0.6 else HOLDS, why)


def _clocks(found: JudgedRows) -> Verdict:
    row = found.row(ON_END)
    seen = {when: (rate, int(mhz)) for when, rate, mhz in CLOCK.findall(row.notes)}
    if len(seen) < 2:
        raise NoFigure("no clocks were read")
    (first, fast), (last, slow) = seen["first"], seen["last"]
    if fast - slow < 0.03 * fast:
        raise NoFigure(f"the clock of the cores stayed at {slow} MHz, so nothing shows what a slower one costs")
    lost = 1 - parse_number(last) / parse_number(first)
    why = (
        f"no clock was set here, but in a run on end the power limit lowers that of the cores from {fast} to {slow} "
        f"MHz, {percent(1 - slow / fast)}, at the same clock of the memory, and the edge table loses {percent(lost)}"
    )
    return Verdict(HOLDS if lost > 0.5 * (1 - slow / fast) else FAILS, why)


def parse_number(text: str) -> float:
    """Return the number that `with_unit` wrote without a unit."""
    digits, _, prefix = text.strip().partition(" ")
    return float(digits.replace(",", "")) * {"": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}[prefix]


PAPER = Paper(
    name="glm",
    title="gLM: N-gram language models for massively parallel devices",
    source="Bogoychev and Lopez, ACL 2016",
    bench="score",
    work="The paper scores 74 M words of Common Crawl with the 5-gram model of Moses 3.0, 88 M n-grams. Here a model "
    "and a text of the same language are generated: 23 M n-grams on a GPU, 1 M on a CPU. All scores are compared with "
    "those of plain array code before they are timed.",
    items=(
        Item(
            ("T3",),
            "queries a second and size, by data structure",
            (
                Claim(
                    "gLM is just over six times faster than the fast probing hash table on one thread.", of_gpu(_faster)
                ),
                Claim("KenLM on all threads of two processors is about twice as fast as gLM.", of_gpu(_all_threads)),
                Claim("gLM has a smaller memory footprint than the probing table.", _size),
            ),
            _table3(),
            ("table3",),
            pictures=("score_table3",),
        ),
        Item(
            ("T4",),
            "the size of the model",
            (Claim("A model of five times the n-grams slows gLM by 18 % and KenLM by 20 %.", _model_size),),
            tuple(
                Figure(f"{NAMES[who]}, {n / 1e6:.4g} M n-grams", rate, QUERIES_PER_SECOND, HARDWARE[who])
                for who, rates in PUBLISHED_SIZES.items()
                for n, rate in rates.items()
            ),
            ("table4",),
            pictures=("score_table4",),
            differs="The larger model has twenty times the n-grams on a GPU and four times on a CPU. KenLM is measured "
            "beside the model of Table 3 alone.",
        ),
        Item(
            ("T5",),
            "the order of the model",
            (Claim("Lower orders are faster: gLM gains 43 % from order 5 to 3, KenLM 13 %.", _order),),
            tuple(
                Figure(f"{NAMES[who]}, order {n}", rate, QUERIES_PER_SECOND, HARDWARE[who])
                for who, rates in PUBLISHED_ORDERS.items()
                for n, rate in rates.items()
            ),
            ("table5",),
            pictures=("score_table5",),
        ),
        Item(
            ("F9",),
            "the size of a B-tree node",
            (
                Claim(
                    "Throughput rises until a node of 33, about a warp and a coalesced read, then drops steeply.",
                    of_gpu(_node_size),
                ),
                Claim("88 % of the nodes of bigrams, 97 % of trigrams and over 99 % above are B-stumps.", _stumps),
            ),
            (
                Figure("gLM, fastest node", str(GLM_BEST_FANOUT), "", TITAN_X),
                Figure("gLM, node of 31", PUBLISHED[GLM], QUERIES_PER_SECOND, TITAN_X),
                *(Figure(f"B-stumps of order {n}", share, "of nodes", "any") for n, share in STUMPS.items()),
            ),
            ("figure9", "stumps"),
            pictures=("score_figure9", "score_stumps"),
        ),
        Item(
            ("F10",),
            "queries scored at once",
            (
                Claim(
                    "The device is nearly saturated by 1,000 queries at once and fully by 10,000.", of_gpu(_saturation)
                ),
                Claim(
                    "With the cost of copying queries, throughput is over three times that of KenLM on one thread.",
                    of_gpu(_copies),
                ),
            ),
            tuple(
                Figure(f"{NAMES[who]}, saturated", rate, QUERIES_PER_SECOND, HARDWARE[who])
                for who, rate in PUBLISHED.items()
            ),
            ("figure10",),
            pictures=("score_figure10",),
        ),
        Item(
            ("5.6",),
            "parameters as compile-time constants",
            (Claim("Compile-time constants raise throughput from 59.0 to 65.6 M queries a second.", _constants),),
            tuple(Figure(f"gLM, {what}", rate, QUERIES_PER_SECOND, TITAN_X) for what, rate in CONSTANTS.items()),
            ("constants",),
        ),
        Item(
            ("5.7",),
            "computation or memory",
            (
                Claim("gLM is computation-bound.", _bound),
                Claim("Cores at a clock 10 % lower cost 10 % of the rate; memory 25 % lower costs 1 %.", _clocks),
            ),
            (
                Figure("gLM, clock of the cores 10 % lower", "-10 %", "", TITAN_X),
                Figure("gLM, clock of the memory 25 % lower", "-1 %", "", TITAN_X),
                Figure("gLM", PUBLISHED[GLM], QUERIES_PER_SECOND, TITAN_X),
            ),
            ("ceilings", "sustained"),
            differs="Clocks are not set here, which needs the rights of an administrator. Reads of each structure "
            "stand beside random reads of a table as large.",
        ),
    ),
    programs=(
        Program(
            "KenLM",
            ("kenlm module", "kenlm_benchmark"),
            "`pip install kenlm` gives the module. `cmake -DCMAKE_BUILD_TYPE=Release` and `make` in "
            "github.com/kpu/kenlm give `build_binary` and `kenlm_benchmark`, which are put on the PATH.",
        ),
        Program(
            "gLM",
            ("table3 gLM",),
            "`cmake -DCOMPUTE_VER=90` and `make` in github.com/XapaJIaMnu/gLM, with the flags in shared memory of its "
            "search kernel declared volatile, without which an H200 stops it; `binarize_v2` and `batch_query_v2` are "
            "put on the PATH.",
        ),
    ),
    not_made={
        "Table 1": "latencies from NVIDIA's guide; not a measurement of the paper",
        "Table 2": "a survey of data structures, without figures",
        "Figures 1 to 8": "theoretical rates of processors, and drawings of data structures",
    },
    unused=("workers",),
)
