"""The exchange alone: tables are lists of the contents of each shard."""

from dataclasses import dataclass

import pytest

from mgpu_ngram.cluster.local import LocalExecutor
from mgpu_ngram.engine.count.sorted_runs import SortedRun, StoredRun
from mgpu_ngram.jobs.count.shuffle import shuffle

SHARDS = 12


@dataclass
class Rows:
    shards: list

    def part(self, first, last):
        return Rows(self.shards[first:last])


def make_run(i):
    return SortedRun({2: [Rows([f"run {i} shard {s}" for s in range(SHARDS)])]}, chunks=(i,))


def found_in(pieces):
    """Return (tables in memory, files) of the arguments of a part."""
    rows = [row for piece in pieces for tables in piece.tables.values() for table in tables for row in table.shards]
    return rows, [stored.path for piece in pieces for stored in piece.stored]


@pytest.mark.parametrize("num_parts", [1, 3, 12])
@pytest.mark.parametrize("files", [[], ["a", "b"]])
@pytest.mark.parametrize("num_runs", [0, 1, 3])
def test_every_part_gets_its_shards_of_all_runs(num_runs, files, num_parts):
    executor = LocalExecutor(workers=2)
    handles = [executor.call(make_run, i) for i in range(num_runs)]
    stored = [SortedRun({}, stored=(StoredRun(path, (number,)),)) for number, path in enumerate(files, num_runs)]
    parts = [(p * SHARDS // num_parts, (p + 1) * SHARDS // num_parts) for p in range(num_parts)]
    runs, called, finished = list(handles), {}, []

    def call(part, pieces):
        assert runs == [], "or their memory would stay in use"
        called[part] = executor.call(found_in, pieces)
        assert len(called) - len(finished) <= 2 * executor.workers
        return called[part]

    shuffle(executor, runs, stored, parts, call, finished.append)
    assert list(called) == list(range(num_parts)) and sorted(map(id, finished)) == sorted(map(id, called.values()))
    for part, handle in called.items():
        rows = [f"run {i} shard {s}" for i in range(num_runs) for s in range(*parts[part])]
        assert handle.result() == (rows, files)
    executor.close()
