"""Merged tables written to Parquet: the same bytes for any blocks, and the rows of plain Python."""

import gc
import threading
import weakref
import zlib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow.parquet as pq
import pytest

from mgpu_ngram.core.counts import parquet as parquet_module
from mgpu_ngram.core.counts import parquet_deltas
from mgpu_ngram.core.counts.tables import Table
from mgpu_ngram.core.counts.vocabulary import Vocabulary
from mgpu_ngram.core.errors import InputError, RunError
from mgpu_ngram.engine.count import parquet_pages
from mgpu_ngram.engine.count import write_counts as write_module
from mgpu_ngram.engine.count.sorted_runs import MERGE_COPIES, SortedRun, StoredRun, bundle_runs, store_run, take_shards
from mgpu_ngram.engine.count.top_ngrams import summaries
from mgpu_ngram.engine.count.write_counts import WriteOptions, write_part
from mgpu_ngram.engine.memory.budget import Budget
from mgpu_ngram.engine.memory.stopwatch import Stopwatch
from mgpu_ngram.kernels.dispatch import to_host
from tests.support.slowness import scaled

SHARDS, BITS = 3, 4
AMPLE_BYTES = 1 << 40
ENCODED_ROW_BYTES = 128  # of a row while it is encoded: blocks, of a sixth of them, then hold whole shards
WORDS = [b"<unk>", b"<s>", b"</s>", b"of", b"the", b"\xc3\xa9", b"end"]
NOT_TEXT = [*WORDS[:-1], b"\xff"]


def vocabulary_of(symbols, unit="word"):
    V = len(symbols)
    offsets_V = np.cumsum([0, *map(len, symbols)]).astype(np.int64)
    data = np.frombuffer(b"".join(symbols), np.uint8)
    counts_V = np.arange(V)[::-1].copy()  # the last symbol does not occur
    return Vocabulary(unit, offsets_V, data, counts_V, np.zeros(V, np.int32), np.arange(V))


def plain_tables(seed, sizes=(12, 40, 60)):
    """Return {order: Counters of its shards}; order 1 in shard 0. Few different counts, so many are equal."""
    rng = np.random.default_rng(seed)
    tables = {n: [Counter() for _ in range(SHARDS)] for n in (1, 2, 3)}
    for n, size in zip(tables, sizes, strict=True):
        for ngram in map(tuple, rng.integers(1, len(WORDS) + 1, (size, n)).tolist()):
            tables[n][ngram[-2] % SHARDS if n > 1 else 0][ngram] += 1
    return tables


@pytest.fixture
def to_runs(to_sharded, tmp_path):
    """Return runs of plain tables.

    The last two are stored in files; one has tables as well, and both refer to one run.
    """

    def convert(plain, orders=(1, 2, 3)):
        runs = [SortedRun({n: [to_sharded(t[n], n, BITS)] for n in orders}) for t in plain]
        (tmp_path / "entries").mkdir(exist_ok=True)
        stored = [store_run(run, str(tmp_path / "entries")) for run in runs[-2:]]
        return [bundle_runs(*runs[:2], stored[0]), *runs[2:-2], SortedRun({}), bundle_runs(*stored)]

    return convert


def files_of(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.fixture
def write(tmp_path):
    """Return write(runs, budget, ...): the files of all shards and their descriptions, by name."""
    folders = []

    def all_parts(runs, budget, vocabulary, cuts=(0, SHARDS), orders=(1, 2, 3), **options):
        folders.append(tmp_path / f"out {len(folders)}")
        for n in orders:
            (folders[-1] / f"order={n}").mkdir(parents=True)
        written = []
        for first, last in zip(cuts, cuts[1:], strict=False):
            parts = [take_shards(run, first, last) for run in runs]
            files, seconds = write_part(
                parts, first, last, vocabulary, WriteOptions(str(folders[-1]), budget, **options)
            )
            assert set(seconds) <= {"reduce", "write"} and "write" in seconds
            written += files
        found = files_of(folders[-1])
        assert sorted(f.name for f in written) == sorted(found)  # each once
        for file in written:
            assert (file.size_bytes, file.crc32) == (len(found[file.name]), zlib.crc32(found[file.name]))
        return found, {f.name: f for f in written}, folders[-1]

    return all_parts


def text_of(codes, symbols):
    return b" ".join(symbols[c - 1] for c in codes)


def check_files(folder, written, plain, symbols, min_count, top, as_text):
    """Compare every file with the sum of the plain tables."""
    names = ["order=1/part-00000.parquet", *(f"order={n}/part-{s:05d}.parquet" for n in (2, 3) for s in range(SHARDS))]
    assert sorted(written) == names
    for name in names:
        n, shard = int(name[6]), int(name[13:18])
        total = sum((t[n][shard] for t in plain), Counter())
        kept = [g for g in sorted(total) if total[g] >= min_count]
        table, file = pq.read_table(folder / name), written[name]
        texts = [text_of(g, symbols) for g in kept]
        assert table["ngram"].to_pylist() == ([t.decode() for t in texts] if as_text else texts)
        assert table["count"].to_pylist() == [total[g] for g in kept]
        assert (file.order, file.rows, file.distinct, file.total) == (n, len(kept), len(total), sum(total.values()))
        best = sorted((-count, list(g)) for g, count in total.items())[:top]
        assert file.top == tuple(
            (-negative, codes, text_of(codes, symbols).decode("utf-8", "backslashreplace")) for negative, codes in best
        )


@pytest.mark.parametrize("symbols", [WORDS, NOT_TEXT], ids=["text", "not text"])
@pytest.mark.parametrize("min_count", [1, 3])
@pytest.mark.parametrize("top", [0, 5])
def test_files_do_not_depend_on_blocks(symbols, min_count, top, ample, few_rows, to_runs, write):
    plain = [plain_tables(seed) for seed in range(5)]
    runs, vocabulary = to_runs(plain), vocabulary_of(symbols)
    files, written, folder = write(runs, ample, vocabulary, min_count=min_count, top=top)
    check_files(folder, written, plain, symbols, min_count, top, as_text=symbols is WORDS)
    for rows in (1, 2, 9, 60):  # rows of a block; a shard has up to 49 rows
        again = write(runs, few_rows(rows, 1), vocabulary, min_count=min_count, top=top, threads=3)
        assert again[:2] == (files, written)


@pytest.mark.parametrize("cuts", [(0, 1, 2, 3), (0, 2, 3), (0, 0, 1, 3, 3)])
def test_files_do_not_depend_on_parts(cuts, ample, few_rows, to_runs, write):
    """A part may have no shard. Order 1 is only in the part of shard 0."""
    runs, vocabulary = to_runs([plain_tables(seed) for seed in range(5)]), vocabulary_of(WORDS)
    files, written, _ = write(runs, ample, vocabulary)
    assert [name for name in files if name.startswith("order=1")] == ["order=1/part-00000.parquet"]
    for budget in (ample, few_rows(9, 1)):
        assert write(runs, budget, vocabulary, cuts)[:2] == (files, written)


def test_row_groups_do_not_depend_on_blocks(ample, few_rows, to_runs, write, monkeypatch):
    monkeypatch.setattr(parquet_module, "GROUP_ROWS", 7)
    runs, vocabulary = to_runs([plain_tables(seed) for seed in range(4)]), vocabulary_of(WORDS)
    files, _, folder = write(runs, ample, vocabulary, min_count=2)
    file = pq.ParquetFile(folder / "order=3/part-00001.parquet")
    assert file.num_row_groups > 1 and file.metadata.row_group(0).num_rows == 7
    for rows in (1, 5, 9):
        assert write(runs, few_rows(rows, 1), vocabulary, min_count=2)[0] == files


def test_large_shards_in_pieces_and_small_ones_between(few_rows, ample, to_sharded, write):
    """Both kinds of blocks alternate; an empty shard has a file, too."""
    tables = [
        [{(1, 1): 1, (1, 2): 2, (2, 1): 3, (5, 5): 1}, {}, {(3, 3): 1}],
        [{(1, 2): 1, (6, 6): 9}, {(4, 4): 2}, {(3, 1): 4, (3, 2): 4, (3, 3): 1, (3, 4): 4}],
    ]
    runs, vocabulary = [SortedRun({2: [to_sharded(t, 2, BITS)]}) for t in tables], vocabulary_of(WORDS)
    files, written, folder = write(runs, few_rows(2, 1), vocabulary, orders=(2,), top=2)
    names = sorted(written)
    rows = [pq.read_table(folder / name).to_pylist() for name in names]
    assert [[(row["ngram"], row["count"]) for row in shard] for shard in rows] == [
        [("<unk> <unk>", 1), ("<unk> <s>", 3), ("<s> <unk>", 3), ("the the", 1), ("\u00e9 \u00e9", 9)],
        [("of of", 2)],
        [("</s> <unk>", 4), ("</s> <s>", 4), ("</s> </s>", 2), ("</s> of", 4)],
    ]
    assert [written[name].top for name in names] == [
        ((9, [6, 6], "\u00e9 \u00e9"), (3, [1, 2], "<unk> <s>")),
        ((2, [4, 4], "of of"),),
        ((4, [3, 1], "</s> <unk>"), (4, [3, 2], "</s> <s>")),
    ]
    assert write(runs, ample, vocabulary, orders=(2,), top=2)[:2] == (files, written)


class GpuBudget(Budget):
    """A budget of a GPU whose blocks have any number of rows, and whose encoder has room for `rows` rows."""

    rows = 1 << 20

    def working_bytes(self):
        return 1 << 40

    def block_bytes(self):
        return MERGE_COPIES["gpu"] * self.rows * ENCODED_ROW_BYTES

    def host_working_bytes(self):
        return 1 << 30


@pytest.fixture
def gpu_budget(monkeypatch):
    """Return a GpuBudget with which tables in host memory are encoded, as if they were on a GPU."""
    monkeypatch.setattr(write_module, "on_gpu", lambda array: True)
    monkeypatch.setattr(write_module, "Stopwatch", lambda device: Stopwatch("cpu"))
    monkeypatch.setattr("mgpu_ngram.engine.count.sorted_runs.to_device_together", lambda arrays, device: arrays)
    return GpuBudget("gpu", AMPLE_BYTES, AMPLE_BYTES)


@pytest.mark.parametrize("columns", ["text", "ids"])
@pytest.mark.parametrize("min_count", [1, 3])
@pytest.mark.parametrize("rows", [1 << 20, 60, 9, 6])
def test_encoded_shards_are_those_of_the_host(columns, min_count, rows, to_runs, write, gpu_budget, monkeypatch):
    """All shards, some shards, and some row groups of a shard are encoded at once."""
    monkeypatch.setattr(parquet_module, "GROUP_ROWS", 7)
    monkeypatch.setattr(parquet_module, "IDS_GROUP_ROWS", 7)
    runs, vocabulary = to_runs([plain_tables(seed) for seed in range(5)]), vocabulary_of(WORDS)
    runs = [replace(run, tables={n: [on_host(t) for t in ts] for n, ts in run.tables.items()}) for run in runs]
    expected = write(runs, Budget("cpu", AMPLE_BYTES, AMPLE_BYTES), vocabulary, columns=columns, min_count=min_count)
    encoded, places = [], []
    monkeypatch.setattr(parquet_pages, "row_bytes", lambda columns, order: ENCODED_ROW_BYTES)
    monkeypatch.setattr(GpuBudget, "rows", rows + (0 if columns == "ids" else 1))  # beside the words
    encode, add = parquet_pages.PageEncoder.encode, write_module._Writing.add

    def counted(self, table, summaries, make_room):
        found = encode(self, table, summaries, make_room)
        encoded.append(found is not None)
        return found

    def added(self, jobs, nbytes, place="host"):
        places.append((place, nbytes > 0))
        add(self, jobs, nbytes, place)

    monkeypatch.setattr(parquet_pages.PageEncoder, "encode", counted)
    monkeypatch.setattr(write_module._Writing, "add", added)
    found = write(runs, gpu_budget, vocabulary, columns=columns, min_count=min_count, threads=3)
    assert found[:2] == expected[:2]
    assert all(encoded) == (rows > 7) and any(encoded)
    on_device = [has_bytes for place, has_bytes in places if place == "device"]
    assert len(on_device) == sum(encoded) and any(on_device) == (rows > 7)  # if 6 rows fit, only an empty shard does


@pytest.mark.parametrize("where", ["write_counts.summaries", "parquet_pages.pack_deltas"])
def test_the_host_writes_the_shards_of_a_full_device(where, to_runs, write, gpu_budget, monkeypatch):
    runs, vocabulary = to_runs([plain_tables(seed) for seed in range(5)]), vocabulary_of(WORDS)
    runs = [replace(run, tables={n: [on_host(t) for t in ts] for n, ts in run.tables.items()}) for run in runs]
    expected = write(runs, Budget("cpu", AMPLE_BYTES, AMPLE_BYTES), vocabulary)
    tried = []

    def full(*args):
        tried.append(args)
        raise MemoryError

    monkeypatch.setattr(f"mgpu_ngram.engine.count.{where}", full)
    assert write(runs, gpu_budget, vocabulary)[:2] == expected[:2] and tried


@pytest.mark.parametrize(("host_bytes", "threads"), [(4 << 30, 16), (640 << 20, 10), (1, 1)])
def test_buffers_of_copies_take_a_quarter_of_the_host_memory_of_a_task(
    host_bytes, threads, to_runs, write, gpu_budget, monkeypatch
):
    """A buffer has 16 MiB."""
    made, copies = [], parquet_pages.SliceCopies
    monkeypatch.setattr(parquet_pages, "SliceCopies", lambda threads: made.append(threads) or copies(threads))
    monkeypatch.setattr(GpuBudget, "host_working_bytes", lambda budget: host_bytes)
    write(to_runs([plain_tables(0)]), gpu_budget, vocabulary_of(WORDS))
    assert set(made) == {threads}


def test_a_file_that_fails_keeps_no_buffer(gpu_budget, to_sharded, full_disk, tmp_path, monkeypatch):
    """Its error may wait long in its thread; other threads then wait for its buffer."""
    monkeypatch.setattr(parquet_module, "GROUP_ROWS", 1)
    monkeypatch.setattr(parquet_deltas, "WRITTEN_BYTES", 1)
    vocabulary, taken = vocabulary_of(WORDS), []

    class Copies:
        @contextmanager
        def copied(self, array, ranges):
            taken.append(array)
            try:
                yield [array[begin:end].data for begin, end in ranges]
            finally:
                taken.remove(array)

    table = on_host(to_sharded([{(1, 1): 1, (2, 2): 2}], 2, BITS))
    encoder = parquet_pages.PageEncoder(vocabulary, "text", 1, AMPLE_BYTES)
    [shard] = encoder.encode(table, summaries(table, 1))
    (tmp_path / "order=2").mkdir()
    full_disk(room=10, of="part-00000")  # for the first bytes of a file
    with pytest.raises(RunError, match="No space left") as error:
        write_module._write_shard(
            [replace(shard, copies=Copies())], 2, 0, vocabulary, WriteOptions(tmp_path, gpu_budget)
        )
    assert error.value.__cause__.__traceback__ and not taken


def on_host(table):
    return replace(table, keys=to_host(table.keys), counts=to_host(table.counts))


def test_the_first_file_that_fails_ends_the_writing(write, to_runs, few_rows, monkeypatch):
    runs, tried = to_runs([plain_tables(seed) for seed in range(3)]), []

    def fail(*args, shard, **options):
        tried.append(shard)
        raise OSError("no space")

    monkeypatch.setattr(write_module, "_write_shard", fail)
    with pytest.raises(OSError, match="no space"):
        write(runs, few_rows(9, 1), vocabulary_of(WORDS), threads=1)
    assert len(tried) < 4  # of 7 files


def test_an_error_of_the_last_files_ends_the_writing(write, to_runs, ample, monkeypatch):
    """The second file is written until the pool is told to end; then the third is not begun."""
    runs, tried, ends = to_runs([plain_tables(seed) for seed in range(3)], (3,)), [], threading.Event()

    class Pool(ThreadPoolExecutor):
        def shutdown(self, wait=True, *, cancel_futures=False):
            super().shutdown(False, cancel_futures=cancel_futures)
            ends.set()
            super().shutdown(wait)

    def fail(*args, shard, **options):
        tried.append(shard)
        if len(tried) == 1:
            raise OSError("no space")
        assert ends.wait(scaled(10))

    monkeypatch.setattr(write_module, "ThreadPoolExecutor", Pool)
    monkeypatch.setattr(write_module, "_write_shard", fail)
    with pytest.raises(OSError, match="no space"):
        write(runs, ample, vocabulary_of(WORDS), orders=(3,), threads=1)
    assert len(tried) <= 2  # of 3 files


def one_row(order=1):
    return Table(np.ones((1, 1), np.uint64), np.ones(1, np.int64), order, BITS)  # of 16 bytes each


@pytest.fixture
def writing():
    """Return options that write shards with two threads, with a GPU: 64 bytes may be buffered in host memory."""
    budget = Budget("gpu", 0, 645)  # 0.4 of it is working memory, a quarter of that for buffered rows
    with ThreadPoolExecutor(2) as pool:
        yield write_module._Writing(pool, budget)


def test_large_shards_are_written_concurrently(writing):
    """Pieces of one shard are written in order, beside those of the next shard, one shard per thread."""
    together = threading.Barrier(2)

    def write(tables):
        together.wait(scaled(10))
        return len(tables)

    writing.add_pieces(write, iter([one_row(), one_row()]))
    writing.add_pieces(write, iter([one_row()]))
    assert writing.finish() == [2, 1]


def test_buffered_rows_are_limited(writing):
    go_on, started = threading.Event(), []

    def write(tables):
        started.append(len(tables))
        assert go_on.wait(scaled(10))
        return len(tables)

    writing.add([partial(write, [one_row()] * 2)], 32)
    writing.add([partial(write, [one_row()])], 32)  # the limit is reached
    assert not go_on.is_set()
    threading.Timer(0.1, go_on.set).start()
    writing.add([lambda: 3], 16)
    assert go_on.is_set() and writing.finish() == [2, 1, 3] and sorted(started) == [1, 2]


def test_pages_on_the_device_have_room_of_their_own(writing):
    """Full host memory does not keep pages from waiting on the device, and the other way round."""
    writing._room = {"host": 64, "device": 100}
    go_on = threading.Event()

    def write(size):
        assert go_on.wait(scaled(10))
        return size

    writing.add([partial(write, 64)], 64)
    writing.add([partial(write, 60)], 60, "device")
    writing.add([partial(write, 40)], 40, "device")
    assert [batch.place for batch in writing._waiting] == ["host", "device", "device"]
    threading.Timer(0.1, go_on.set).start()
    writing.add([partial(write, 1)], 1, "device")
    assert go_on.is_set() and [batch.nbytes for batch in writing._waiting] == [40, 1]
    writing.free_device()
    assert not writing._waiting and writing.finish() == [64, 60, 40, 1]


def test_a_shard_larger_than_the_host_is_written_while_it_is_merged(writing):
    alive = weakref.WeakSet()

    def merged():
        for _ in range(9):
            table = Piece(np.ones((1, 1), np.uint64), np.ones(1, np.int64), 1, BITS)
            alive.add(table)
            yield table
            del table

    def write(tables):
        rows, most = 0, 0
        for table in tables:
            rows += len(table)
            del table
            gc.collect()
            most = max(most, len(alive))
        return rows, most

    writing.add_pieces(write, merged())
    [(rows, most)] = writing.finish()
    assert rows == 9 and most <= 6  # five of 16 bytes exceed 64, and one is merged ahead


class Piece(Table):
    """A table that a WeakSet can hold."""

    __hash__ = object.__hash__


def test_a_shard_that_is_pruned_completely_has_an_empty_file(few_rows, to_sharded, write):
    runs = [SortedRun({2: [to_sharded([{(1, 1): 1, (1, 2): 2, (2, 2): 1}, {}, {}], 2, BITS)]})]
    for rows in (1, 100):
        _, written, folder = write(runs, few_rows(rows, 1), vocabulary_of(WORDS), orders=(2,), min_count=3)
        assert [(f.rows, f.distinct, f.total) for _, f in sorted(written.items())] == [(0, 3, 4), (0, 0, 0), (0, 0, 0)]
        assert all(pq.read_table(folder / name).num_rows == 0 for name in written)


def test_a_stored_run_referenced_twice_counts_once(ample, to_sharded, write, tmp_path):
    """Every piece of a run refers to all of its stored runs."""
    stored = store_run(SortedRun({2: [to_sharded([{(1, 1): 5}, {}, {}], 2, BITS)]}), str(tmp_path))
    runs = [stored, replace(stored), SortedRun({}, stored=stored.stored * 2)]
    written = write(runs, ample, vocabulary_of(WORDS), orders=(2,))[1]
    assert sorted(f.total for f in written.values()) == [0, 0, 5]


def test_no_runs_no_files(ample, tmp_path):
    files, _ = write_part([SortedRun({})], 0, SHARDS, vocabulary_of(WORDS), WriteOptions(str(tmp_path), ample))
    assert files == [] and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("rows", [1, 1000])
def test_an_error_in_a_thread_reaches_the_caller(rows, few_rows, to_runs, write):
    with pytest.raises(RunError, match=r"cannot write .*order=3"):
        write(
            to_runs([plain_tables(seed) for seed in range(4)]), few_rows(rows, 1), vocabulary_of(WORDS), orders=(1, 2)
        )


def test_a_lost_stored_run_is_an_error(ample, tmp_path):
    runs = [SortedRun({}, stored=(StoredRun(str(tmp_path / "gone"), (0,)),))]
    with pytest.raises(InputError, match="gone"):
        write_part(runs, 0, SHARDS, vocabulary_of(WORDS), WriteOptions(str(tmp_path), ample))


@pytest.mark.parametrize("symbols", [WORDS, NOT_TEXT], ids=["text", "not text"])
@pytest.mark.parametrize("with_unigrams", [True, False])
def test_the_vocabulary_and_its_unigrams(symbols, with_unigrams, ample, tmp_path):
    (tmp_path / "order=1").mkdir()
    options = WriteOptions(str(tmp_path), ample, min_count=3, top=2, first_order=1 + with_unigrams)
    files, _ = write_part([SortedRun({})], 0, SHARDS, vocabulary_of(symbols), options, with_symbols=True)
    assert [f.name for f in files] == ["vocabulary.parquet", "order=1/part-00000.parquet"][: 1 + with_unigrams]
    found = files_of(tmp_path)
    assert {f.name: (f.size_bytes, f.crc32) for f in files} == {n: (len(b), zlib.crc32(b)) for n, b in found.items()}
    assert (files[0].rows, files[0].order) == (7, 0)
    assert pq.read_table(tmp_path / "vocabulary.parquet")["count"].to_pylist() == [6, 5, 4, 3, 2, 1, 0]
    if with_unigrams:
        table = pq.read_table(tmp_path / files[1].name)
        assert [t if isinstance(t, bytes) else t.encode() for t in table["ngram"].to_pylist()] == symbols[:4]
        assert table["count"].to_pylist() == [6, 5, 4, 3]
        assert (files[1].order, files[1].rows, files[1].distinct, files[1].total) == (1, 4, 6, 21)
        assert files[1].top == ((6, [1], "<unk>"), (5, [2], "<s>"))


@pytest.mark.parametrize(
    ("unit", "symbols", "text"),
    [
        ("word", [b"caf\xc3\xa9", b"\xff"], "caf\u00e9 \\xff caf\u00e9"),
        ("byte", [b"\xc3", b"\xa9"], "\u00e9\\xc3"),
        ("id", [(7).to_bytes(4, "little"), (70_000).to_bytes(4, "little")], "7 70000 7"),
    ],
)
def test_printable_ngrams(unit, symbols, text):
    assert write_module._display(vocabulary_of(symbols, unit), [1, 2, 1]) == text
