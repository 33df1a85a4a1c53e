"""The bound of scoring (gLM, section 5.7): its reads beside random reads of an equally large table."""

from __future__ import annotations

from functools import partial
from typing import Any

from mgpu_ngram.benchmarks.harness.machine_rates import LINES, READ_BYTES, SECTORS, random_reads
from mgpu_ngram.benchmarks.harness.suite import Suite
from mgpu_ngram.benchmarks.harness.units import QUERIES_PER_SECOND
from mgpu_ngram.benchmarks.inputs.plain_scoring import ScoreWork, lookups
from mgpu_ngram.benchmarks.inputs.scoring_subjects import Subject, of_edges, queries, tree
from mgpu_ngram.engine.trie.build import edges_of

CACHED_BYTES = 32 << 20  # bytes of a table that stays in the L2 cache


def ceilings(suite: Suite, subject: Subject) -> None:
    """Rows: random reads of a table in the cache, then `bound` of the model and text of Table 3."""
    if suite.device == "gpu":
        for kind in READ_BYTES:
            random_reads(suite, kind, CACHED_BYTES)
    bound(suite, subject, *queries(subject, suite.device))


def bound(suite: Suite, subject: Subject, codes_T: Any, repeated: int = 1) -> None:
    """Rows of each structure: its reads for a query; and on a GPU its rate, as a share of what random reads allow.

    Reads that the caches serve count, too: a share may exceed 1.
    """
    suite.say("reads of a query, and what bounds them")
    work, sizes = ScoreWork.of(subject.trie, codes_T), subject.sizes(codes_T, repeated)
    table = edges_of(subject.trie)
    kinds = (
        (of_edges(table, subject.trie.order), SECTORS, lookups(subject.trie, codes_T, table.filter_bits)),
        (tree(subject.trie), LINES, work.lines),
    )
    for index, kind, count in kinds:
        row = suite.add_note(f"score/reads of {index.name}", sizes, kind)
        row.rate, row.rate_unit = count / len(codes_T), "reads/query"
        if suite.device == "gpu":
            ceiling = random_reads(suite, kind, index.size_bytes)
            suite.run(
                f"score/bound of {index.name}", sizes, partial(index.score, codes_T), check=work.check,
                items=len(codes_T), unit=QUERIES_PER_SECOND, bytes_moved=count * READ_BYTES[kind], ceiling=ceiling,
                notes="share of its reads; caches may serve some",
            )  # fmt: skip
        suite.release()
