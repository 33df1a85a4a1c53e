"""Sorted runs, compared with Counters: merged, stored, divided into parts, and merged in blocks."""

import bisect
import itertools
import pickle
import weakref
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mgpu_ngram.core.counts.tables import ShardedTable, Table
from mgpu_ngram.core.errors import RunError
from mgpu_ngram.engine.count import sorted_runs as runs_module
from mgpu_ngram.engine.count.sorted_runs import (
    SortedRun,
    StoredRun,
    add_bins,
    bins_of,
    bundle_runs,
    map_table,
    merge,
    merge_runs,
    merged_blocks,
    open_run,
    sort_together,
    spill_run,
    store_run,
    take_shards,
    take_shards_to_gpu,
    where_it_fits,
)
from mgpu_ngram.engine.memory import budget as memory_module
from mgpu_ngram.engine.memory.budget import Budget
from mgpu_ngram.engine.memory.device import to_device as move_to
from mgpu_ngram.kernels.dispatch import array_module, on_gpu, to_host

SHARDS = 3
BITS = 25  # three words take two columns; the second word spans both
CODES = st.sampled_from([1, 2, 3, 2**24, 2**25 - 1])
EARLIER = StoredRun("earlier", (97, 98))


def shards(order, S=SHARDS, most=6):
    """Return S Counters of n-grams. The same n-gram may be in several, because these tests need no owners."""
    counter = st.dictionaries(st.tuples(*[CODES] * order), st.integers(1, 2**40), max_size=most).map(Counter)
    return st.lists(counter, min_size=S, max_size=S)


@st.composite
def plain_runs(draw, most=4):
    """Return up to `most` runs as plain values: ({order: tables as Counters}, {order: histogram}), each maybe empty."""
    tables = st.dictionaries(st.sampled_from([1, 2, 3]), st.integers(1, 2), max_size=3)
    bins = st.fixed_dictionaries(
        {}, optional={n: st.lists(st.integers(0, 9), min_size=2**n, max_size=2**n) for n in (1, 2)}
    )
    return [
        ({n: [draw(shards(n)) for _ in range(times)] for n, times in draw(tables).items()}, draw(bins))
        for _ in range(draw(st.integers(1, most)))
    ]


@pytest.fixture(scope="session")
def to_run(to_sharded, to_device):
    """Return a run of plain values; run number i is of chunk i."""

    def convert(plain, index):
        tables, bins = plain
        return SortedRun(
            {n: [to_sharded(t, n, BITS) for t in ts] for n, ts in tables.items()},
            {n: to_device(np.array(b, np.uint32)) for n, b in bins.items()},
            (StoredRun(f"stored {index}", (100 + index,)),),
            (index,),
            {"count": 1.0, f"stage {index}": 2.0},
        )

    return convert


@pytest.fixture(scope="session")
def to_plain(to_counters):
    """Return the contents of a run as plain values, without seconds."""

    def convert(run):
        tables = {n: [to_counters(t) for t in tables] for n, tables in run.tables.items()}
        return tables, {n: to_host(b).tolist() for n, b in run.bins.items()}, run.stored, run.chunks

    return convert


def sums_of(plain):
    """Return the sum of runs of plain values: one table and one histogram per order."""
    tables, bins = {}, {}
    for some_tables, some_bins in plain:
        for n, ts in some_tables.items():
            for t in ts:
                tables[n] = [a + b for a, b in zip(tables.get(n, [Counter()] * SHARDS), t, strict=True)]
        for n, b in some_bins.items():
            bins[n] = [x + y for x, y in zip(bins.get(n, [0] * len(b)), b, strict=True)]
    return {n: [[dict(shard) for shard in t]] for n, t in tables.items()}, bins


def test_merge_by_hand(to_run, to_plain):
    a = to_run(({2: [[{(1, 2): 3}, {}, {(1, 2): 1}]]}, {1: [4, 0]}), 0)
    b = to_run(({2: [[{(1, 2): 2, (1, 1): 1}, {(3, 1): 7}, {}]], 1: [[{(1,): 9}, {}, {}]]}, {1: [1, 1]}), 1)
    run = merge_runs(a, b)
    tables = {1: [[{(1,): 9}, {}, {}]], 2: [[{(1, 1): 1, (1, 2): 5}, {(3, 1): 7}, {(1, 2): 1}]]}
    assert to_plain(run) == (tables, {1: [5, 1]}, (*a.stored, *b.stored), (0, 1))
    assert {s: run.seconds[s] for s in ("count", "stage 0", "stage 1")} == {
        "count": 2.0,
        "stage 0": 2.0,
        "stage 1": 2.0,
    }
    assert set(run.seconds) == {"count", "stage 0", "stage 1", "reduce"}


@settings(max_examples=40)
@given(data=st.data(), plain=plain_runs())
def test_runs_merge_in_any_order_and_grouping(to_run, to_plain, data, plain):
    expected = sums_of(plain)
    order = data.draw(st.permutations(range(len(plain))))
    cut = data.draw(st.integers(0, len(plain)))
    runs = [to_run(plain[i], i) for i in order]
    groups = [merge_runs(*runs[:cut], SortedRun({})), bundle_runs(SortedRun({}), *runs[cut:])]
    for merged in (merge_runs(*runs), merge_runs(*groups), merge_runs(*reversed(groups))):
        tables, bins, stored, chunks = to_plain(merged)
        assert (tables, bins) == expected and list(tables) == sorted(tables)
        assert sorted(chunks) == sorted(order) and set(stored) == {s for run in runs for s in run.stored}
        assert len(stored) == len(runs)


@settings(max_examples=40)
@given(tables=st.integers(1, 3).flatmap(lambda n: st.tuples(st.just(n), st.lists(shards(n), min_size=1, max_size=20))))
def test_many_tables_are_sorted_together(to_sharded, to_counters, tables):
    order, plain = tables
    expected = [dict(sum((table[s] for table in plain), Counter())) for s in range(SHARDS)]
    assert to_counters(sort_together([to_sharded(table, order, BITS) for table in plain])) == expected


@settings(max_examples=40)
@given(plain=plain_runs())
def test_inputs_stay_unchanged(to_run, to_plain, plain):
    """A task may run twice, and another task may read the same runs."""
    runs = [to_run(p, i) for i, p in enumerate(plain)]
    before = [(to_plain(run), dict(run.seconds)) for run in runs]
    for join in (bundle_runs, merge_runs):
        first, second = join(*runs), join(*runs)
        assert to_plain(first) == to_plain(second)
        merge_runs(first, second)
        for tables in first.tables.values():
            tables.append(None)  # lists of its own
        assert [(to_plain(run), run.seconds) for run in runs] == before
    joined = bundle_runs(*runs)
    assert to_plain(joined)[1] == sums_of(plain)[1]
    assert {n: len(ts) for n, ts in joined.tables.items()} == Counter(n for ts, _ in plain for n in ts for _ in ts[n])


def test_histograms_add_up_if_one_is_on_a_gpu(device, to_device):
    a, b, c = np.array([1, 2], np.uint32), to_device(np.array([3, 0], np.uint32)), np.array([5, 5], np.uint32)
    for some in itertools.permutations([a, b, c]):
        total = add_bins(*some)
        assert on_gpu(total) == (device == "gpu") and to_host(total).tolist() == [9, 7]
    assert [x.tolist() for x in (a, to_host(b), c)] == [[1, 2], [3, 0], [5, 5]]


def test_a_single_table_is_not_copied(to_sharded):
    table = to_sharded([{(1, 1): 1}], 2, BITS)
    assert merge([table]) is table


@settings(max_examples=25)
@given(plain=plain_runs())
def test_a_stored_run_opens_as_its_sum(to_run, to_plain, tmp_path_factory, plain):
    folder = tmp_path_factory.mktemp("runs")
    run = bundle_runs(*(to_run(p, i) for i, p in enumerate(plain)))
    before = to_plain(run)
    stored = store_run(run, str(folder))
    assert to_plain(run) == before
    if not run.tables and not run.bins:  # there is nothing to write
        assert stored is run and not list(folder.iterdir())
        return
    assert stored.tables == stored.bins == {} and stored.chunks == () and stored.nbytes == 0
    assert stored.stored[:-1] == run.stored
    assert stored.stored[-1].chunks == run.chunks and [str(p) for p in folder.iterdir()] == [stored.stored[-1].path]
    assert {s: stored.seconds[s] for s in run.seconds} == run.seconds
    opened = open_run(stored.stored[-1])
    assert to_plain(opened) == (*sums_of(plain), (), run.chunks)
    assert not any(on_gpu(t.counts) for ts in opened.tables.values() for t in ts)
    there = pickle.loads(pickle.dumps(take_shards(opened, 0, SHARDS)))  # pickling copies views of a file
    assert to_plain(there)[0] == sums_of(plain)[0]


def test_a_run_pickles(to_run, to_plain, tmp_path, device):
    plain = {2: [[{(1, 2): 3}, {}, {(2**24, 2): 1}]], 3: [[{}, {}, {(1, 2, 3): 8}]]}, {1: [4, 0]}
    run = to_run(plain, 0)
    there = pickle.loads(pickle.dumps(run))
    assert to_plain(there) == to_plain(run) and there.seconds == run.seconds
    assert (there.nbytes, there.host_bytes) == (16 * 2 + 24, 0 if device == "gpu" else 16 * 2 + 24)
    (stored,) = store_run(SortedRun(*to_run(plain, 0).__dict__.values()), str(tmp_path)).stored[1:]
    opened = open_run(stored)
    there = pickle.loads(pickle.dumps(opened))
    (tmp_path / stored.path).unlink()
    assert to_plain(there) == to_plain(opened) == (*plain, (), (0,))


def test_histograms_of_stored_runs_come_back(to_run, to_plain, tmp_path):
    stored = store_run(to_run(({2: [[{(1, 1): 1}, {}, {}]]}, {1: [1, 2], 2: [1, 0, 0, 5]}), 0), str(tmp_path))
    run = bundle_runs(SortedRun({}, to_run(({}, {1: [10, 0]}), 1).bins), SortedRun({}, stored=stored.stored[1:]))
    found = bins_of(run)
    assert to_plain(found) == ({}, {1: [11, 2], 2: [1, 0, 0, 5]}, (), ())
    assert to_plain(bins_of(run)) == to_plain(found)


@settings(max_examples=40)
@given(data=st.data(), plain=plain_runs(2), S=st.just(SHARDS))
def test_parts_hold_every_shard_once(to_run, to_plain, data, plain, S):
    run = bundle_runs(*(to_run(p, i) for i, p in enumerate(plain)))
    cuts = sorted(data.draw(st.lists(st.integers(0, S), max_size=3)))
    parts = [take_shards(run, a, b) for a, b in itertools.pairwise([0, *cuts, S])]
    whole = to_plain(run)[0]
    for (a, b), part in zip(itertools.pairwise([0, *cuts, S]), parts, strict=True):
        tables, bins, stored, chunks = to_plain(part)
        assert tables == {n: [t[a:b] for t in ts] for n, ts in whole.items()}
        assert bins == {} and stored == run.stored and chunks == run.chunks
    assert sum(p.nbytes for p in parts) == run.nbytes
    for part in parts:
        for n, tables in part.tables.items():
            for t, all_rows in zip(tables, run.tables[n], strict=True):
                assert len(t) == 0 or array_module(t.counts).shares_memory(t.counts, all_rows.counts)  # views


def test_parts_of_parts(to_run, to_plain):
    run = to_run(({2: [[{(1, 1): 1}, {(1, 2): 2, (2, 2): 5}, {(3, 3): 3}]]}, {}), 0)
    assert to_plain(take_shards(take_shards(run, 1, 3), 1, 2))[0] == {2: [[{(3, 3): 3}]]}
    assert to_plain(take_shards(take_shards(run, 1, 3), 0, 1))[0] == {2: [[{(1, 2): 2, (2, 2): 5}]]}


def out_of_memory(*args, **options):
    raise MemoryError


@pytest.mark.gpu
@pytest.mark.parametrize("room", ["enough", "seems", "none"])
def test_parts_on_the_host_move_to_the_gpu(room, to_run, to_plain, monkeypatch):
    run = to_run(({2: [[{(1, 1): 1}, {(1, 2): 2, (2, 2): 5}, {(3, 3): 3}]]}, {}), 0)
    run.tables = {2: [map_table(t, to_host) for t in run.tables[2]]}
    if room == "seems":
        monkeypatch.setattr(runs_module, "to_device_together", out_of_memory)
    elif room == "none":
        monkeypatch.setattr(runs_module, "free_bytes", lambda device: 0)
    part = take_shards_to_gpu(run, 1, 3)
    assert on_gpu(part.tables[2][0].counts) == on_gpu(part.tables[2][0].keys) == (room == "enough")
    assert to_plain(part) == to_plain(take_shards(run, 1, 3))


@pytest.fixture
def nothing_held(monkeypatch):
    """Set shares: results of other tests do not count, and results may take a quarter of host memory."""
    monkeypatch.setattr(memory_module, "_held", weakref.WeakSet())
    monkeypatch.setitem(memory_module.KEPT_SHARE, "cpu", 0.25)
    monkeypatch.setattr(memory_module, "KEPT_BESIDE_SHARE", 0.25)


def test_runs_stay_in_memory_while_they_fit(device, nothing_held, to_run, to_plain, tmp_path):
    """The GPU is full. Host memory keeps a quarter of 4 x 96 bytes, two runs of 48; files keep the rest."""
    budget = Budget(device, 0, 4 * 96)
    plain = {2: [[{(1, 1): 1, (1, 2): 4}, {}, {(3, 3): 3}]]}, {1: [1, 2]}
    kept = []
    for i, in_memory in enumerate([True, True, False]):
        run = to_run(plain, i)
        kept.append(spill_run(run, budget, str(tmp_path)))
        assert to_plain(run) == to_plain(to_run(plain, i)) and kept[i].seconds["count"] == 1.0
        assert (kept[i].nbytes, kept[i].host_bytes) == ((48, 48) if in_memory else (0, 0))
        assert len(kept[i].stored) == (1 if in_memory else 2)
    assert to_plain(kept[1]) == to_plain(run)[:2] + to_plain(kept[1])[2:]
    assert to_plain(open_run(kept[2].stored[-1]))[:2] == to_plain(run)[:2]
    assert len(list(tmp_path.iterdir())) == 1
    del kept[0]
    assert spill_run(run, budget, str(tmp_path)).host_bytes == 48  # memory is free again


@pytest.mark.gpu
def test_runs_stay_on_a_gpu_while_they_fit(pack_keys):
    run = SortedRun(
        {
            2: [
                map_table(
                    ShardedTable(pack_keys([(1, 1)], 2, BITS), np.array([1]), np.array([1]), 2, BITS),
                    lambda a: move_to(a, "gpu"),
                )
            ]
        }
    )
    kept = spill_run(run, Budget("gpu", 1 << 40, 0), "nowhere")
    assert (kept.nbytes, kept.host_bytes) == (16, 0)


def test_tables_moved_off_a_full_device_are_counted(nothing_held, monkeypatch, to_sharded, tmp_path):
    """where_it_fits may have put tables in host memory: the device has room again, but the tables stay on the host."""
    monkeypatch.setattr(Budget, "place", lambda self, nbytes: "device")
    monkeypatch.setattr(memory_module, "KEPT_BESIDE_SHARE", 0.25)
    table = map_table(to_sharded([{(1, 1): 1, (1, 2): 1}, {}, {}], 2, BITS), to_host)
    budget = Budget("gpu", 1 << 30, 4 * 48)
    first = spill_run(SortedRun({2: [table]}, chunks=(0,)), budget, str(tmp_path))
    assert first.host_bytes == 32 and not budget.fits_host(17) and budget.fits_host(16)
    second = spill_run(SortedRun({2: [table]}, chunks=(1,)), budget, str(tmp_path))
    assert second.host_bytes == 0 and [s.chunks for s in second.stored] == [(1,)]


def test_a_bundle_is_counted_and_a_sum_is_not(nothing_held, to_sharded):
    """A bundle waits for later tasks; a sum is written at once."""
    table = map_table(to_sharded([{(1, 1): 1, (1, 2): 1}, {}, {}], 2, BITS), to_host)  # of 32 bytes
    runs = [SortedRun({2: [table]}, chunks=(i,)) for i in range(2)]
    merged = merge_runs(*runs)
    assert memory_module._held_bytes() == 0 and merged.chunks == (0, 1)
    bundle = bundle_runs(*runs)
    assert memory_module._held_bytes() == 2 * 32 and bundle.chunks == (0, 1)


def test_a_full_device_falls_back_to_host_memory(monkeypatch):
    """where_it_fits tries the device first, then, only after an out-of-memory error, host arrays."""
    table = Table(np.array([[1 << 63]], np.uint64), np.array([2]), 1, 1)
    monkeypatch.setattr(runs_module, "on_gpu", lambda array: True)
    taken = []
    monkeypatch.setattr(runs_module, "to_host_fast", lambda array: taken.append(array) or array)

    def full_at_first(*tables):
        if not taken:
            raise MemoryError
        return len(tables)

    assert where_it_fits(full_at_first, table, table) == 2 and len(taken) == 4

    def broken(*tables):
        raise ValueError("not of memory")

    with pytest.raises(ValueError, match="not of memory"):
        where_it_fits(broken, table)
    monkeypatch.setattr(runs_module, "on_gpu", lambda array: False)
    taken.clear()
    with pytest.raises(MemoryError):  # the host is full, too: no fall-back is left
        where_it_fits(full_at_first, table)
    assert taken == []


def test_tables_on_device_and_host_are_merged_on_the_host(to_sharded, to_counters):
    a, b = to_sharded([{(1, 1): 1}], 2, BITS), to_sharded([{(1, 1): 4}], 2, BITS)
    merged = merge([map_table(a, to_host), b])
    assert not on_gpu(merged.counts) and to_counters(merged) == [{(1, 1): 5}]


@pytest.fixture(scope="session")
def stored_views(tmp_path_factory):
    """Return a table as views of a file."""
    folder = str(tmp_path_factory.mktemp("sources"))

    def store(table):
        (stored,) = store_run(SortedRun({table.order: [table]}), folder).stored
        return open_run(stored).tables[table.order][0]

    return store


def bounded(fn, most):
    """Return `fn`, which fails after more than `most` calls.

    A time limit would not do: Hypothesis treats it like any failure and tries again without a limit.
    """
    calls = itertools.count(1)

    def call(*args):
        assert next(calls) <= most, f"{fn.__name__} is called without end: {most} calls would do"
        return fn(*args)

    return call


def blocks_of(tables, first, budget):
    """Return all merged blocks. Every cut leaves rows on both sides, and compares one key with every table."""
    rows = [len(t) for t in tables]
    cuts = len(tables[0].ends_S) + 2 * sum(rows)
    looks = cuts * (1 + sum(n.bit_length() for n in rows))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs_module, "_by_key", bounded(runs_module._by_key, cuts))
        patch.setattr(runs_module, "to_host", bounded(to_host, looks))
        return list(merged_blocks(tables, first, budget))


def check_blocks(blocks, sources, first, most_rows, to_counters):
    """Check the contract of blocks: merged, in order, complete, and within the requested size."""
    S = len(sources[0])
    expected = [dict(sorted(sum((Counter(s[i]) for s in sources), Counter()).items())) for i in range(S)]
    found, at, goes_on = [{} for _ in range(S)], 0, False
    for block in blocks:
        rows = to_counters(block.table)
        last = block.first - first
        assert last == at - goes_on and (len(rows) == 1 or (block.whole and not goes_on))
        for shard, counter in enumerate(rows, last):
            if counter and found[shard]:  # the next block continues the shard with greater keys
                assert min(counter) > max(found[shard])
            found[shard] |= counter
        merged_rows = [sum(key in source[i] for key in c) for i, c in enumerate(rows, last) for source in sources]
        assert sum(merged_rows) <= most_rows or (len(rows) == 1 and max(merged_rows) < 2)
        at, goes_on = last + len(rows), not block.whole
    assert at == S and not goes_on
    assert [list(shard.items()) for shard in found] == [list(shard.items()) for shard in expected]


@settings(max_examples=60)
@given(
    data=st.data(),
    order=st.integers(1, 3),
    S=st.integers(1, 5),
    num_sources=st.integers(1, 4),
    most_rows=st.integers(1, 40),
    first=st.integers(0, 7),
)
def test_blocks_add_up_to_the_whole(
    to_sharded, to_counters, stored_views, few_rows, device, data, order, S, num_sources, most_rows, first
):
    sources = [data.draw(shards(order, S, most=12)) for _ in range(num_sources)]
    tables = [to_sharded(source, order, BITS) for source in sources]
    in_files = data.draw(st.lists(st.booleans(), min_size=num_sources, max_size=num_sources))
    tables = [stored_views(t) if in_file else t for t, in_file in zip(tables, in_files, strict=True)]
    blocks = blocks_of(tables, first, few_rows(most_rows, len(tables[0].keys)))
    check_blocks(blocks, sources, first, most_rows, to_counters)
    assert num_sources == 1 or {on_gpu(b.table.counts) for b in blocks} <= {device == "gpu"}
    whole = list(merged_blocks(tables, first, few_rows(10**6, len(tables[0].keys))))
    assert len(whole) == 1 and whole[0].whole and whole[0].first == first
    check_blocks(whole, sources, first, 10**6, to_counters)


def test_blocks_of_large_shards(to_sharded, to_counters, few_rows):
    """Thousands of rows of skewed words, in one block to hundreds of blocks."""
    rng = np.random.default_rng(9)
    sources = []
    for size in (3000, 10, 0, 1500):
        shards = [Counter() for _ in range(4)]
        for ngram in np.minimum(rng.zipf(1.3, (size, 2)), 5000).tolist():
            shards[ngram[0] % 3][tuple(ngram)] += 1  # shard 3 is empty
        sources.append(shards)
    tables = [to_sharded(source, 2, BITS) for source in sources]
    rows = sum(map(len, tables))
    numbers = []
    for most_rows in (rows, rows - 1, rows // 3, 100, 7):
        blocks = blocks_of(tables, 0, few_rows(most_rows, 1))
        check_blocks(blocks, sources, 0, most_rows, to_counters)
        numbers.append(len(blocks))
    assert numbers[0] == 1 and numbers == sorted(numbers) and numbers[-1] > rows // 7


def test_blocks_by_hand(to_sharded, to_counters, few_rows):
    sources = [[{(1, 1): 1, (1, 2): 1, (2, 1): 1, (3, 1): 1}, {}, {(1, 1): 1}], [{(1, 2): 1}, {(4, 4): 2}, {}]]
    tables = [to_sharded(source, 2, BITS) for source in sources]
    blocks = blocks_of(tables, 5, few_rows(3, 1))
    assert [(b.first, b.whole, to_counters(b.table)) for b in blocks] == [
        (5, False, [{(1, 1): 1, (1, 2): 2}]),  # cut at (2, 1), the middle of the larger source
        (5, True, [{(2, 1): 1, (3, 1): 1}]),
        (6, True, [{(4, 4): 2}, {(1, 1): 1}]),
    ]


def test_rows_of_one_key_are_never_cut(to_sharded, to_counters, few_rows):
    tables = [to_sharded([{(1, 1): n}], 2, BITS) for n in (1, 2, 4)]
    (block,) = blocks_of(tables, 0, few_rows(2, 1))
    assert (block.first, block.whole, to_counters(block.table)) == (0, True, [{(1, 1): 7}])


def test_empty_tables_are_one_block(to_sharded, to_counters, few_rows):
    tables = [to_sharded([{}, {}], 2, BITS)] * 2
    (block,) = merged_blocks(tables, 0, few_rows(1, 1))
    assert (block.first, block.whole, to_counters(block.table)) == (0, True, [{}, {}])


def test_no_shards_are_no_blocks(few_rows):
    nothing = ShardedTable(np.empty((1, 0), np.uint64), np.empty(0, np.int64), np.empty(0, np.int64), 2, BITS)
    assert list(merged_blocks([nothing], 3, few_rows(5, 1))) == []


def test_tables_are_not_read_before_their_block(to_sharded, few_rows, monkeypatch):
    """Blocks are lazy: the next block is merged on request."""
    made = []
    real = runs_module.merge
    monkeypatch.setattr(runs_module, "merge", lambda tables: made.append(1) or real(tables))
    blocks = merged_blocks([to_sharded([{(1, 1): 1}] * 3, 2, BITS)], 0, few_rows(1, 1))
    for n in (1, 2, 3):
        next(blocks)
        assert len(made) == n


def test_a_full_device_still_merges_blocks_of_rows(to_sharded, few_rows, monkeypatch):
    """Other arrays of the process take all working memory: 64 rows are merged in a few blocks, not one by one."""
    tables = [to_sharded([{(n, 1): 1 for n in range(1, 65)}], 2, BITS)] * 2
    budget = few_rows(32, 1)
    monkeypatch.setattr(type(budget), "working_bytes", lambda _: -(10**9))
    assert len(blocks_of(tables, 0, budget)) == 16  # of 32 / 4 rows each


def test_no_memory_for_a_block_is_one_clear_error(to_sharded, few_rows, monkeypatch):
    def full(tables):
        raise MemoryError

    monkeypatch.setattr(runs_module, "merge", full)
    with pytest.raises(RunError, match=r"out of (host|device) memory while merging tables"):
        next(merged_blocks([to_sharded([{(1, 1): 1}], 2, BITS)], 0, few_rows(1, 1)))


@given(ngrams=st.sets(st.tuples(CODES, CODES, CODES), max_size=30).map(sorted), wanted=st.tuples(CODES, CODES, CODES))
def test_rank_is_the_first_row_not_below(to_device, pack_keys, ngrams, wanted):
    keys = to_device(pack_keys(ngrams, 3, BITS))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs_module, "to_host", bounded(to_host, len(ngrams).bit_length()))
        row = runs_module._rank(keys, pack_keys([wanted], 3, BITS)[:, 0])
    assert row == bisect.bisect_left(ngrams, wanted)
