"""Tasks that take ranges of chunks: the bytes of one chunk per task, also after an interruption, with few tasks."""

from collections import Counter

import numpy as np
import pytest

from mgpu_ngram.cluster.local import LocalExecutor
from mgpu_ngram.core.inputs.corpus import open_corpus
from mgpu_ngram.engine.count import count_chunk, text_ids
from mgpu_ngram.engine.count.count_chunk import Codes
from mgpu_ngram.engine.count.text_ids import TextIds, bundle_ids
from mgpu_ngram.engine.memory.budget import KEPT_SHARE, Budget, _held_bytes
from mgpu_ngram.engine.memory.spill import spill
from mgpu_ngram.jobs.context import RunContext
from mgpu_ngram.jobs.count import chunk_ranges, plan
from mgpu_ngram.jobs.count.chunk_ranges import ranges_of
from mgpu_ngram.jobs.count.run import CountConfig, run
from mgpu_ngram.jobs.progress import Progress
from tests.jobs.conftest import random_text
from tests.support.interrupt import Interrupt
from tests.support.slow_cases import first_fast

OPTIONS = {"order": 4, "chunk_bytes": 6000}


@pytest.fixture
def from_tokens(monkeypatch):
    """Make runs count from tokens in this process, too."""
    monkeypatch.setattr(plan.Budget, "kept_host_bytes", lambda budget: -1)


@pytest.fixture
def text(tmp_path):
    """A file of 50 lines with 99 bytes each."""
    path = tmp_path / "text"
    path.write_bytes(b"".join(b"%049d %048d\n" % (i, i) for i in range(50)))
    return path


def test_ranges_by_hand(text, most_ranges):
    chunks = open_corpus([str(text)]).chunks(495)
    assert len(chunks) == 10
    ones = ranges_of(chunks, workers=2, first=5)
    assert [(r.number, r.items) for r in ones] == [(5 + i, (i,)) for i in range(10)]
    assert str(ones[3]) == str(chunks[3]) == f"chunk 3: {text}, bytes 1,485 to 1,980"
    most_ranges(3)
    threes = ranges_of(chunks, workers=2)
    assert [r.items for r in threes] == [(0, 1, 2), (3, 4, 5), (6, 7, 8, 9)]
    assert [r.size_bytes for r in threes] == [3 * 495, 3 * 495, 4 * 495]
    assert str(threes[1]) == f"chunks 3 to 5, first chunk 3: {text}, bytes 1,485 to 1,980"
    assert threes[1].without({4, 5, 6}).items == (3,)
    assert [len(r.chunks) for r in ranges_of(chunks, workers=5)] == [2] * 5, "a range for each worker"
    assert ranges_of([], workers=5) == []
    in_memory = open_corpus([b"a b c"] * 10).chunks(6)
    assert len(ranges_of(in_memory, workers=2)) == len(in_memory) > 3, "the text of a task stays small"


@pytest.mark.parametrize("most", first_fast([7, 1, 30]))
@pytest.mark.parametrize("strategy", ["auto", "hash", "global", "tokens"])
def test_words(strategy, most, corpus, undisturbed, contents, run_here, several_shards, most_ranges, request, tmp_path):
    most_ranges(most)
    if strategy == "tokens":
        request.getfixturevalue("from_tokens")
    given = "auto" if strategy == "tokens" else strategy
    options = OPTIONS if strategy != "global" else {**OPTIONS, "order": 2}
    result = run_here(tmp_path / "out", corpus, strategy=given, **options)
    if strategy == "global":
        most_ranges(1 << 20)
        undisturbed = contents(run_here(tmp_path / "ones", corpus, strategy=given, **options).path)
    assert contents(result.path) == undisturbed


@pytest.mark.parametrize("strategy", ["hash", "tokens"])
def test_nothing_waits_in_memory(
    strategy, corpus, undisturbed, contents, run_here, several_shards, most_ranges, monkeypatch, request, tmp_path
):
    """Streams are dropped, and vocabularies, runs and tokens are in files."""
    monkeypatch.setitem(KEPT_SHARE, "cpu", 0)
    most_ranges(7)
    if strategy == "tokens":
        request.getfixturevalue("from_tokens")
    result = run_here(tmp_path / "out", corpus, strategy="hash" if strategy == "hash" else "auto", **OPTIONS)
    assert contents(result.path) == undisturbed
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("is_from_tokens", [False, True])
def test_each_chunk_is_read_once(is_from_tokens, corpus, run_here, most_ranges, monkeypatch, request, tmp_path):
    read, tokenise = [], chunk_ranges.tokenise

    def noted(chunk, reading):
        read.append(chunk.index)
        return tokenise(chunk, reading)

    if is_from_tokens:
        request.getfixturevalue("from_tokens")
    for module in chunk_ranges, text_ids, count_chunk:
        monkeypatch.setattr(module, "tokenise", noted)
    most_ranges(7)
    run_here(tmp_path / "out", corpus, strategy="auto" if is_from_tokens else "hash", **OPTIONS)
    assert sorted(read) == list(range(len(read))) and len(read) > 30


@pytest.mark.parametrize("unit", ["byte", "id"])
def test_bytes_and_ids(unit, contents, run_here, most_ranges, tmp_path):
    rng = np.random.default_rng(0)
    for name in "a", "b":
        np.minimum(rng.zipf(1.5, 3000), 60).astype(np.uint16).tofile(tmp_path / name)
    paths = [tmp_path / "a", tmp_path / "b"]
    options = {"unit": unit, "order": 3, "chunk_bytes": 500}
    ones = run_here(tmp_path / "ones", paths, **options)
    most_ranges(5)
    result = run_here(tmp_path / "out", paths, **options)
    assert contents(result.path) == contents(ones.path)


@pytest.mark.parametrize(("before", "after", "workers"), first_fast([(7, 5, 3), (100, 5, 1), (5, 100, 3)]))
@pytest.mark.parametrize("is_from_tokens", [False, True])
def test_resumed_with_other_ranges(
    is_from_tokens, before, after, workers, corpus, undisturbed, contents, run_here, several_shards, most_ranges,
    request, tmp_path,
):  # fmt: skip
    """A vocabulary file is lost, too: some ranges of pass 1 hold chunks that are counted already."""
    if is_from_tokens:
        request.getfixturevalue("from_tokens")
    strategy = "auto" if is_from_tokens else "hash"
    most_ranges(before)
    stop = Interrupt("count", 20, until=lambda: any(tmp_path.glob("out.checkpoint/entries-*/run-*")))
    stop = Interrupt("write", 1) if is_from_tokens else stop
    with pytest.raises(KeyboardInterrupt):
        run_here(tmp_path / "out", corpus, progress=stop, checkpoint_seconds=0, strategy=strategy, **OPTIONS)
    entries = next(tmp_path.glob("out.checkpoint/entries-*"))
    vocabularies = sorted(entries.glob("vocabulary_0-*"))
    assert len(vocabularies) > 1 and (is_from_tokens or any(entries.glob("run-*")))
    vocabularies[0].unlink()
    most_ranges(after)
    phases = Totals()
    result = run_here(tmp_path / "out", corpus, workers, phases, resume=True, strategy=strategy, **OPTIONS)
    assert result.resumed_chunks > 0 and contents(result.path) == undisturbed
    assert phases.done["tokenise"] == phases.done["count"] == phases.totals["count"] > 20, "progress is in chunks"


class Totals(Progress):
    """Counts the units of each phase."""

    def __init__(self):
        self.totals, self.done, self.phase = {}, Counter(), ""

    def start(self, phase, total, unit="", rate=""):
        self.phase, self.totals[phase] = phase, total

    def advance(self, done, amount=0):
        self.done[self.phase] += done


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["auto", "hash"])
@pytest.mark.parametrize("most", [2, 9])
def test_a_worker_dies_in_every_task_of_ranges(
    most, strategy, cluster, corpus, undisturbed, contents, hooks, hooks_folder, most_ranges, tmp_path
):
    second = "text_ids" if strategy == "auto" else "count_chunk"
    hooks(**dict.fromkeys([f"{task}.{when}" for task in ("tokenise", second) for when in ("before", "after")], ""))
    most_ranges(most)
    config = CountConfig([str(path) for path in corpus], strategy=strategy, **OPTIONS)
    result = run(config, RunContext(cluster, tmp_path / "out", checkpoint_seconds=0))
    assert [p.name for p in hooks_folder.iterdir()] == ["shard_tokens"], "a worker died in every task"
    assert contents(result.path) == undisturbed


class Counting(LocalExecutor):
    """Counts the tasks that are called, by name."""

    def __init__(self, workers):
        super().__init__("cpu", workers)
        self.called = Counter()

    def call(self, fn, *args, **how):
        self.called[getattr(fn, "__name__", type(fn).__name__)] += 1
        return super().call(fn, *args, **how)


@pytest.mark.parametrize("is_from_tokens", [False, True])
def test_many_chunks_have_few_tasks(is_from_tokens, most_ranges, request, tmp_path):
    if is_from_tokens:
        request.getfixturevalue("from_tokens")
    (tmp_path / "text").write_text(random_text(np.random.default_rng(0), 20_000, 100))
    config = CountConfig([str(tmp_path / "text")], order=3, chunk_bytes=64)
    most_ranges(20)
    executor = Counting(3)
    try:
        run(config, RunContext(executor, tmp_path / "out"))
    finally:
        executor.close()
    assert len(open_corpus(config.corpus).chunks(64)) > 1000
    second = "ids_of_range" if is_from_tokens else "count_range"
    assert executor.called["tokenise_range"] == executor.called["streams_of"] == executor.called[second] == 20
    assert executor.called.total() < 150


def test_held_memory_of_parts_stays_counted_with_the_whole():
    before = _held_bytes()
    budget = Budget("cpu", 0, before + (1 << 30))
    parts = [spill(TextIds([Codes(np.zeros(n, np.uint32), n)], (n,)), budget, "") for n in (10, 20)]
    assert _held_bytes() - before == 4 * 30
    whole = bundle_ids(*parts)
    del parts
    assert _held_bytes() - before == 4 * 30 and whole.chunks == (10, 20)
    assert spill(whole, budget, "") is whole, "it is not counted again"
    del whole
    assert _held_bytes() == before
