"""The bound of scoring (gLM, section 5.7): its reads beside random reads of an equally large table."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from mgpu_ngram.benchmarks.cuda_source import compiled
from mgpu_ngram.benchmarks.score_models import Subject, of_edges, queries, tree
from mgpu_ngram.benchmarks.score_work import ScoreWork, lookups
from mgpu_ngram.benchmarks.suite import Suite
from mgpu_ngram.benchmarks.units import QUERIES_PER_SECOND
from mgpu_ngram.engine.trie import edges_of
from mgpu_ngram.kernels.launch import grid_for, launch

SECTORS, LINES = "random 32-byte sectors", "random 128-byte lines"
READ_BYTES = {SECTORS: 32, LINES: 128}
READS = 1 << 27
THREADS = 256
CACHED_BYTES = 32 << 20  # bytes of a table that stays in the L2 cache
# Tables hold zeros: nothing is written, and the compiler cannot know. A sector is read by a thread, a line by a warp.
SOURCE = """
extern "C" __global__ void random_sectors(const uint4* table, i64 sectors, i64 reads, u32* out) {
  u32 sum = 0;
  GRID_STRIDE_LOOP(i, reads) sum += table[2 * __umul64hi(mix64(i + 1), sectors)].x;
  if (sum) *out = sum;
}
extern "C" __global__ void random_lines(const u32* table, i64 lines, i64 reads, u32* out) {
  u32 sum = 0;
  GRID_STRIDE_LOOP(i, 32 * reads) sum += table[32 * __umul64hi(mix64(i / 32 + 1), lines) + i % 32];
  if (sum) *out = sum;
}
"""
KERNELS = {SECTORS: "random_sectors", LINES: "random_lines"}


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


def random_reads(suite: Suite, kind: str, table_bytes: int) -> str:
    """Measure independent random reads of a table; return the name under which `suite.ceilings` has bytes a second."""
    import cupy

    name = f"{kind} of {table_bytes / 2**20:,.0f} MiB"
    table, out = cupy.zeros(table_bytes // 128 * 32, np.uint32), cupy.zeros(1, np.uint32)
    rows = table.nbytes // READ_BYTES[kind]
    fn = compiled(SOURCE, KERNELS[kind])
    threads = READS * (32 if kind == LINES else 1)
    call = partial(launch, fn, grid_for(threads, THREADS), THREADS, (table, rows, READS, out))
    row = suite.run(
        f"ceiling/{kind}", f"{table.nbytes} bytes", call, items=READS, unit="reads/s",
        bytes_moved=READS * READ_BYTES[kind],
    )  # fmt: skip
    if row.bytes_per_second:
        suite.ceilings[name] = row.bytes_per_second
    return name
