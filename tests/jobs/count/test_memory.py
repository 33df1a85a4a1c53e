"""A table of ten times the memory budget: the run stays within the budget, and the result is the same."""

import gzip
import itertools
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from functools import partial
from types import SimpleNamespace

import cloudpickle
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mgpu_ngram.cluster.dask import start_cluster
from mgpu_ngram.cluster.local import LocalExecutor
from mgpu_ngram.core.errors import RunError
from mgpu_ngram.core.freed_memory import keep_freed_memory
from mgpu_ngram.core.inputs.corpus import open_corpus
from mgpu_ngram.core.memory_config import MemoryConfig
from mgpu_ngram.core.storage.safetensors import load_arrays
from mgpu_ngram.engine.count import merge_vocabularies
from mgpu_ngram.engine.memory import spill
from mgpu_ngram.engine.memory.budget import Budget
from mgpu_ngram.jobs import budget as jobs_budget
from mgpu_ngram.jobs.budget import make_budget
from mgpu_ngram.jobs.context import RunContext
from mgpu_ngram.jobs.count import numbering
from mgpu_ngram.jobs.count import plan as count_plan
from mgpu_ngram.jobs.count import run as count_run
from mgpu_ngram.jobs.count.run import CountConfig, run
from mgpu_ngram.jobs.count.shuffle import parts_of

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers need not find this file

BUDGET = 64 << 20
OPTIONS = {"order": 8, "min_count": 2}

# A separate process: prints the peak memory of a run, and the bytes of its tables.
MEASURE = """
import sys, threading, time
from mgpu_ngram.jobs.context import RunContext
from mgpu_ngram.cluster.local import LocalExecutor
from mgpu_ngram.core.memory_config import MemoryConfig
from mgpu_ngram.jobs.count import run as count_run
from mgpu_ngram.jobs.count.run import CountConfig, run
from mgpu_ngram.jobs.count.shuffle import parts_of

def own_bytes():
    '''Of this process alone: what is mapped from files may be dropped at any time.'''
    with open("/proc/self/status") as file:
        return next(1024 * int(line.split()[1]) for line in file if line.startswith("RssAnon"))

def watch():
    global most
    while watching:
        most = max(most, own_bytes())
        time.sleep(0.002)

folder, budget = sys.argv[1], int(sys.argv[2])
executor = LocalExecutor(workers=2)
run(CountConfig([f"{folder}/small"], order=8), RunContext(executor, f"{folder}/warm"))
watching, before, most = True, own_bytes(), 0
watcher = threading.Thread(target=watch)
watcher.start()
memory = MemoryConfig(host_bytes=budget, spill_dir=f"{folder}/spill") if budget else MemoryConfig()
config = CountConfig([f"{folder}/text"], order=8, min_count=2)
result = run(config, RunContext(executor, f"{folder}/out", memory=memory))
watching = False
watcher.join()
columns = {n: 1 if 11 * n <= 64 else 2 for n in range(2, 9)}  # 2,000 words: 11 bits each
tables = sum(result.manifest["orders"][str(n)]["distinct"] * 8 * (c + 1) for n, c in columns.items())
print(most - before, tables)
"""


def random_words(path, tokens):
    """Write lines of 50 out of 2,000 words: nearly all n-grams are distinct from order 4 on."""
    words = np.array([f"w{i:04} " for i in range(2000)], "S6")
    rng = np.random.default_rng(0)
    with open(path, "wb") as file:
        for _ in range(tokens // 100_000):
            lines = words[rng.integers(0, 2000, 100_000)].reshape(-1, 50).view("S300").reshape(-1)
            file.write(b"\n".join(lines.tolist()) + b"\n")


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_table_of_ten_times_the_budget(contents, run_here, tmp_path):
    random_words(tmp_path / "small", 100_000)
    random_words(tmp_path / "text", 6_000_000)
    command = [sys.executable, "-c", MEASURE, str(tmp_path), str(BUDGET)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    most, tables = map(int, done.stdout.split())
    print(f"{most / BUDGET:.2f} of the budget, tables {tables / BUDGET:.1f}")
    assert tables >= 10 * BUDGET
    assert most <= BUDGET
    assert list((tmp_path / "spill").iterdir()) == []
    run_here(tmp_path / "plenty", [tmp_path / "text"], **OPTIONS)
    assert contents(tmp_path / "out") == contents(tmp_path / "plenty")


class Watch(threading.Thread):
    """The peak memory of each process beyond its present use, as `MEASURE` computes it."""

    def __init__(self, pids):
        super().__init__()
        self.before, self.most, self.over = {pid: own_bytes(pid) for pid in pids}, dict.fromkeys(pids, 0), False

    def run(self):
        while not self.over:
            for pid, before in self.before.items():
                self.most[pid] = max(self.most[pid], own_bytes(pid) - before)
            time.sleep(0.002)

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.over = True
        self.join()


def count_alone(config, folder):
    executor = LocalExecutor("cpu", 1)
    try:
        run(config, RunContext(executor, f"{folder}-{os.getpid()}"))
    finally:
        executor.close()


def own_bytes(pid):
    with open(f"/proc/{pid}/status") as file:
        return next(1024 * int(line.split()[1]) for line in file if line.startswith("RssAnon"))


@pytest.mark.slow
def test_small_budgets_of_two_processes(contents, run_here, tmp_path):
    """Each process may use half of the host's budget, and both together stay within it."""
    random_words(tmp_path / "small", 100_000)
    random_words(tmp_path / "text", 4_000_000)
    options = {"order": 5, "min_count": 2}
    memory = MemoryConfig(host_bytes=BUDGET, spill_dir=str(tmp_path / "spill"))

    small = CountConfig([str(tmp_path / "small")], chunk_bytes=50_000, **options)
    # In both processes, or one would import modules only later.
    warm_up = partial(count_alone, small, str(tmp_path / "warm"))
    executor = start_cluster("cpu", 2)
    try:
        executor.everywhere(warm_up)
        run(small, RunContext(executor, tmp_path / "warm"))
        executor.everywhere(keep_freed_memory, BUDGET // 2)
        with Watch(executor.everywhere(os.getpid)) as watch:
            config = CountConfig([str(tmp_path / "text")], **options)
            result = run(config, RunContext(executor, tmp_path / "out", memory=memory))
    finally:
        executor.close()
    print(*(f"{most / BUDGET:.2f} of the budget" for most in watch.most.values()))
    assert 16 * sum(order["distinct"] for order in result.manifest["orders"].values()) > 3 * BUDGET
    assert len(watch.most) == 2 and min(watch.most.values()) > 0 and sum(watch.most.values()) <= BUDGET
    assert list((tmp_path / "spill").iterdir()) == []
    run_here(tmp_path / "plenty", [tmp_path / "text"], **options)
    assert contents(tmp_path / "out") == contents(tmp_path / "plenty")


@pytest.mark.slow
def test_many_words_on_two_processes(contents, run_here, tmp_path):
    """1.5 M distinct words take 50 bytes each. No process has all: both merge and number ranges of them in files."""
    words = 1_500_000
    with open(tmp_path / "text", "w") as file:
        for first in range(0, words, 50):
            file.write(" ".join(f"{v * 7919 % (1 << 40) * 2654435761 % (1 << 40):x}" for v in range(first, first + 50)))
            file.write("\n")
    random_words(tmp_path / "small", 100_000)
    options = {"order": 2, "columns": "ids"}
    small = CountConfig([str(tmp_path / "small")], chunk_bytes=50_000, **options)
    executor = start_cluster("cpu", 2)
    try:
        executor.everywhere(partial(count_alone, small, str(tmp_path / "warm")))
        executor.everywhere(keep_freed_memory, BUDGET // 2)
        with Watch(executor.everywhere(os.getpid)) as watch:
            memory = MemoryConfig(host_bytes=BUDGET, spill_dir=str(tmp_path / "spill"))
            config = CountConfig([str(tmp_path / "text")], **options)
            result = run(config, RunContext(executor, tmp_path / "out", memory=memory))
    finally:
        executor.close()
    print(*(f"{most / words:.0f} bytes a word" for most in watch.most.values()))
    assert result.manifest["orders"]["1"]["distinct"] == words
    assert max(watch.most.values()) <= 72 * words  # 36 to 54 as a rule, on busy cores once over 66; 75 in one range
    assert list((tmp_path / "spill").iterdir()) == []
    run_here(tmp_path / "plenty", [tmp_path / "text"], **options)
    assert contents(tmp_path / "out") == contents(tmp_path / "plenty")


def test_no_memory_for_intermediate_results(
    contents, corpus, run_here, several_shards, undisturbed, tmp_path, monkeypatch
):
    """Every vocabulary, of one or more chunks, and every run is in a file; the text is read twice."""
    in_files = []
    monkeypatch.setattr(spill, "load_arrays", lambda *a, **o: in_files.append(1) or load_arrays(*a, **o))
    monkeypatch.setattr(Budget, "fits_host", lambda self, nbytes: False)
    memory = MemoryConfig(spill_dir=str(tmp_path / "spill"))
    result = run_here(tmp_path / "out", corpus, order=4, chunk_bytes=20_000, memory=memory)
    assert contents(result.path) == undisturbed and result.seconds["tokenise"] > 0
    chunks = sum(-(-path.stat().st_size // 20_000) for path in corpus)
    assert len(in_files) > chunks > numbering.MERGE_ARITY  # also merged runs
    assert list((tmp_path / "spill").iterdir()) == []


@pytest.mark.slow
def test_a_vocabulary_larger_than_its_budget(contents, run_here, tmp_path, monkeypatch):
    """400,000 words take 43 bytes each while they merge: more than results may keep, a fifth of 64 MiB."""
    stored = []

    def load(*how, **options):
        arrays, metadata = load_arrays(*how, **options)
        stored.append({name: len(array) for name, array in arrays.items()})
        return arrays, metadata

    monkeypatch.setattr(spill, "load_arrays", load)
    monkeypatch.setattr(merge_vocabularies, "ROWS_AT_ONCE", 1 << 14)
    rng = np.random.default_rng(0)
    ids = np.concatenate([rng.permutation(400_000), rng.integers(0, 999, 50_000)])
    words = [f"{v * 7919 % 1_000_003:x}" for v in ids.tolist()]
    (tmp_path / "text").write_text("".join(f"{' '.join(words[i : i + 50])}\n" for i in range(0, len(words), 50)))
    memory = MemoryConfig(host_bytes=64 << 20, spill_dir=str(tmp_path / "spill"))
    run_here(tmp_path / "out", [tmp_path / "text"], order=2, memory=memory, chunk_bytes=200_000)
    assert [sizes["hash_V"] for sizes in stored if "hash_V" in sizes][-1] == 400_000  # merged
    assert [sizes["hash_H"] for sizes in stored if "hash_H" in sizes] == [400_003]
    assert [sizes["counts_V"] for sizes in stored if "counts_V" in sizes][-1] == 400_003  # numbered
    assert list((tmp_path / "spill").iterdir()) == []
    counts = Counter(words)
    found = pq.read_table(tmp_path / "out" / "vocabulary.parquet")
    expected = [("<unk>", 0), ("<s>", 0), ("</s>", 0), *sorted(counts.items(), key=lambda item: (-item[1], item[0]))]
    assert list(zip(found["symbol"].to_pylist(), found["count"].to_pylist(), strict=True)) == expected
    monkeypatch.undo()
    run_here(tmp_path / "plenty", [tmp_path / "text"], order=2)
    assert contents(tmp_path / "out") == contents(tmp_path / "plenty")


@pytest.mark.parametrize(
    ("transport", "device_bytes", "expected"),
    [("memory", 1000, 2), ("ipc", 1000, 8), ("ipc", 5000, 4), ("ipc", 9000, 2)],
)
def test_parts_by_hand(transport, device_bytes, expected):
    """8 shards, tables of 4,000 bytes: of 5,000, a block takes 1,000, runs 2,000 and each of two parts 1,000."""
    executor = SimpleNamespace(workers=2, transport=transport)
    job = SimpleNamespace(executor=executor, budget=Budget("gpu", device_bytes, 1 << 20))
    counted = SimpleNamespace(totals=SimpleNamespace(num_shards=8), stored=[], table_bytes=4000)
    parts = parts_of(job, counted)
    assert len(parts) == expected and parts[0][0] == 0 and parts[-1][1] == 8
    assert all(a[1] == b[0] for a, b in itertools.pairwise(parts))


class Two(LocalExecutor):
    """Returns the facts that two processes of two hosts would report."""

    def everywhere(self, fn, *args):
        return [(0, 300 << 20, 30), (0, 200 << 20, 20)] if fn is jobs_budget._memory else [(5, 80), (7, 60)]


def test_the_budget_is_of_the_smallest_worker_and_the_peak_of_the_largest(tmp_path):
    (tmp_path / "text").write_text("a b c\n")
    executor = Two(workers=1)
    budget = make_budget(MemoryConfig(), executor)
    assert budget.host_bytes == 100 << 20 and budget.before_bytes == 20  # half of it; the fewest
    result = run(CountConfig([str(tmp_path / "text")], order=2), RunContext(executor, tmp_path / "out"))
    assert (result.peak_device_bytes, result.peak_host_bytes) == (7, 80)
    executor.close()


def test_a_budget_knows_of_tables_that_will_not_fit(monkeypatch):
    """4 times the bytes that devices may keep, 0.6 of each, if all n-grams were distinct."""
    executor = LocalExecutor(workers=1)
    monkeypatch.setattr(jobs_budget, "_memory", lambda device: (1000, 1 << 30, 0))
    memory = MemoryConfig(device_bytes=1 << 28)
    assert not make_budget(memory, executor).spills
    for device, table_bytes, spills in [
        ("cpu", 1 << 40, False),
        ("gpu", 644_245_094, False),
        ("gpu", 644_245_095, True),
    ]:
        executor.device = device
        assert make_budget(memory, executor, table_bytes).spills == spills
    executor.close()


def test_tables_of_a_corpus_whose_ngrams_are_all_distinct(tmp_path):
    (tmp_path / "ids").write_bytes(bytes(2000))
    corpus = open_corpus(str(tmp_path / "ids"), "id")
    config = CountConfig([str(tmp_path / "ids")], order=4, unit="id", dtype="uint16")
    # 10 bits for each of 1,000 ids: a column and a count for each order
    assert count_plan.most_table_bytes(config, corpus) == 1000 * (16 + 16 + 16)


def test_the_text_size_of_stored_files_is_estimated(tmp_path):
    """A compressed file holds three times its bytes as text; Parquet counts the text column."""
    (tmp_path / "plain").write_bytes(b"a word\n" * 1000)
    (tmp_path / "packed.gz").write_bytes(gzip.compress(b"a word\n" * 1000))
    rows = {"text": ["a word"] * 1000, "more": [bytes([i % 256]) * 1000 for i in range(1000)]}
    pq.write_table(pa.table(rows), tmp_path / "rows.parquet", use_dictionary=False)
    stored = (tmp_path / "packed.gz").stat().st_size
    expected = {"plain": (7000, 7000), "packed.gz": (3 * stored, 3 * stored), "rows.parquet": (6000, 20_000)}
    for name, (least, most) in expected.items():
        corpus = open_corpus(str(tmp_path / name), "word")
        assert least <= corpus.text_bytes <= most
        assert corpus.text_bytes == sum(chunk.size_bytes for chunk in corpus.chunks(1 << 40))
        tokens = int(corpus.text_bytes / count_plan.BYTES_PER_TOKEN["word"])
        assert count_plan.most_table_bytes(CountConfig([], order=2), corpus) == 16 * tokens


@pytest.mark.parametrize("strategy", ["sort", "global"])
def test_sizes_of_intermediate_runs(strategy, run_here, tmp_path, monkeypatch):
    """Parts are cut by these sizes: tables, and tables made of dense histograms."""
    random_words(tmp_path / "text", 100_000)
    write, sizes = count_run.write_parts, []

    def look(job, counted, runs, folder):
        sizes.append((counted.table_bytes, sum(r.nbytes for r in job.executor.gather(runs))))
        return write(job, counted, runs, folder)

    monkeypatch.setattr(count_run, "write_parts", look)
    run_here(tmp_path / "out", [tmp_path / "text"], order=2, strategy=strategy, chunk_bytes=200_000)
    [(said, held)] = sizes
    assert said == held > 0


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("strategy", "kind"), [("hash", "run"), ("auto", "waiting")])
def test_a_full_disk_of_spilled_results(strategy, kind, run_here, tmp_path, full_disk):
    """Sorted runs of chunks, or windows of a shard that does not fit memory."""
    random_words(tmp_path / "text", 600_000)
    full_disk(of=f".{kind}-")
    memory = MemoryConfig(host_bytes=BUDGET, spill_dir=str(tmp_path / "spill"))
    message = rf"cannot write \S+/spill/entries-\S+/{kind}-\w+.safetensors after 0 bytes: No space left on device; free"
    with pytest.raises(RunError, match=message):
        run_here(tmp_path / "out", [tmp_path / "text"], memory=memory, strategy=strategy, **OPTIONS)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["spill", "text"]
    assert list((tmp_path / "spill").iterdir()) == []
