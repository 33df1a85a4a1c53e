"""Queries a second of each structure, codes and scores on the device: Tables 3, 4 and 5 of gLM."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from mgpu_ngram.benchmarks.harness.rows import Row
from mgpu_ngram.benchmarks.harness.suite import DOES_NOT_FIT, Suite
from mgpu_ngram.benchmarks.harness.units import QUERIES_PER_SECOND
from mgpu_ngram.benchmarks.inputs.plain_scoring import ScoreWork
from mgpu_ngram.benchmarks.inputs.scoring_subjects import (
    EDGES,
    QUANTISED,
    TEXT_WORDS,
    TREE,
    Index,
    Subject,
    edge_table,
    in_threads,
    queries,
    tree,
)
from mgpu_ngram.benchmarks.score.ceilings import bound
from mgpu_ngram.benchmarks.score.peers import PEER, glm_on_text, kenlm_on_ids, kenlm_seconds
from mgpu_ngram.cluster.devices import cpu_cores
from mgpu_ngram.engine.memory.out_of_memory import out_of_memory
from mgpu_ngram.engine.trie.quantize import quantize

BITS = 8
ORDERS = (5, 4, 3)
LARGER = {"gpu": 26, "cpu": 4}  # times the training text: over 400 M n-grams on a GPU
TARGETS = {EDGES: 18e9, TREE: 4e9}  # of one H200, as are all
LARGER_TARGETS = {EDGES: 6e9, TREE: 1.5e9}
BOTH = f"{EDGES} and trie"
MAX_BYTES = {BOTH: 50.0, TREE: 18.0, QUANTISED: 11.0}  # an n-gram


def table3(suite: Suite, subject: Subject, folder: Path) -> None:
    """Rows: rate and size of each structure, beside KenLM's module, its benchmark and gLM where they are installed."""
    suite.say("Table 3: structures")
    codes_T, repeated = queries(subject, suite.device)
    sizes = subject.sizes(codes_T, repeated)
    peer_seconds = kenlm_seconds(suite, subject, codes_T[: len(codes_T) // repeated], folder)
    kenlm_on_ids(suite, subject, codes_T[: len(codes_T) // repeated], folder)
    if suite.device == "gpu":
        glm_on_text(suite, subject, codes_T, repeated, folder)
    coded = quantize(subject.trie, BITS)
    size_bytes: dict[str, int] = {}
    for floats, indexes in (
        (subject.trie, (edge_table(subject.trie), tree(subject.trie))),
        (coded.decoded(), (tree(coded),)),
    ):
        work = ScoreWork.of(floats, codes_T)
        for index in indexes:
            size_bytes[index.name] = index.size_bytes
            how: dict[str, Any] = {"baseline": PEER, "baseline_seconds": peer_seconds and peer_seconds * repeated}
            rate(suite, "table3", sizes, index, codes_T, work, TARGETS, **how)
            if suite.device == "cpu":
                with ThreadPoolExecutor(cpu_cores()) as pool:
                    rate(suite, "table3", sizes, in_threads(index, cpu_cores(), pool), codes_T, work, {}, **how)
    size_bytes[BOTH] = size_bytes.pop(EDGES) + size_bytes[TREE]
    for name, size in size_bytes.items():
        row = suite.add_note(f"score/table3 size of {name}", subject.model_sizes, "target: at most")
        row.rate, row.rate_unit, row.target = size / len(subject.trie), "B/n-gram", MAX_BYTES[name]


def table4(suite: Suite, subject: Subject) -> None:
    """Rows: the model of Table 3 and one several times larger, on text that is not repeated."""
    suite.say("Table 4: the size of the model")
    _both(suite, "table4", subject, subject.text_T)
    tokens = LARGER[suite.device] * int((subject.training_T > 0).sum())
    suite.say(f"a model of {tokens:,} words")
    try:
        larger = Subject.make(tokens, TEXT_WORDS[suite.device], suite.device)
        suite.release()
        _both(suite, "table4", larger, larger.text_T, targets=LARGER_TARGETS)
        bound(suite, larger, larger.text_T)
    except Exception as error:
        if not out_of_memory(error):
            raise
        suite.release()
        note = f"{DOES_NOT_FIT}: {' '.join(str(error).split())}"
        suite.add_note("score/table4 larger model", f"words={tokens}", note)


def table5(suite: Suite, subject: Subject) -> None:
    """Rows: the same text by models of falling order."""
    suite.say("Table 5: order")
    codes_T, repeated = queries(subject, suite.device)
    for order in ORDERS:
        _both(suite, "table5", subject.of_order(order), codes_T, repeated)


def _both(
    suite: Suite, part: str, subject: Subject, codes_T: Any, repeated: int = 1, targets: dict[str, float] | None = None
) -> None:
    work, sizes = ScoreWork.of(subject.trie, codes_T), subject.sizes(codes_T, repeated)
    for make in edge_table, tree:
        rate(suite, part, sizes, make(subject.trie), codes_T, work, targets or {})
        suite.release()


def rate(
    suite: Suite,
    part: str,
    sizes: str,
    index: Index,
    codes_T: Any,
    work: ScoreWork,
    targets: dict[str, float],
    **how: Any,
) -> Row:
    """Add the row of an index, in queries a second. Targets hold for a GPU."""
    target = targets.get(index.name) if suite.device == "gpu" else None
    call = partial(index.score, codes_T)
    what: dict[str, Any] = {"items": len(codes_T), "unit": QUERIES_PER_SECOND, "target": target}
    return suite.run(f"score/{part} {index.name}", sizes, call, check=work.check, **what, **how)
