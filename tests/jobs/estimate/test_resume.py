"""Runs from text that ended early and are resumed by other runs."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from mgpu_ngram.cluster.executor import ResultLost
from mgpu_ngram.cluster.local import LocalExecutor
from mgpu_ngram.core.errors import InputWarning, RunError
from mgpu_ngram.core.inputs.corpus import open_corpus
from mgpu_ngram.engine.count import text_ids
from mgpu_ngram.engine.memory.budget import Budget
from mgpu_ngram.engine.memory.spill import to_file
from mgpu_ngram.jobs.context import RunContext
from mgpu_ngram.jobs.estimate import run as estimate
from mgpu_ngram.jobs.estimate.run import EstimateConfig
from mgpu_ngram.jobs.progress import Progress
from tests.support.interrupt import Interrupt
from tests.support.slow_cases import first_fast


class Ended(Progress):
    """End a run when all chunks are counted and saved."""

    def start(self, phase, *_):
        if phase == "adjust":
            raise KeyboardInterrupt


@pytest.fixture
def run(tmp_path):
    """Return run(config, workers): the result of an estimate to the file tmp_path/out."""

    def estimated(config, workers, name="out", **options):
        executor = LocalExecutor("cpu", workers)
        try:
            return estimate.run(config, RunContext(executor, tmp_path / name, single_file=True, **options))
        finally:
            executor.close()

    return estimated


@pytest.mark.parametrize(("before", "after"), first_fast([(2, 3), (3, 2), (4, 1)]))
@pytest.mark.parametrize("less_memory", [False, True])
def test_resume_with_other_workers_and_other_memory(corpus, tmp_path, part_tokens, run, before, after, less_memory):
    """The saved runs keep the number of shards that the first run chose."""
    config = EstimateConfig([str(path) for path in corpus], order=3, chunk_bytes=50_000)

    run(config, 1, "whole")
    with pytest.raises(KeyboardInterrupt):
        run(config, before, "resumed", progress=Ended(), checkpoint_seconds=0)
    if less_memory:
        part_tokens(5000)
    assert run(config, after, "resumed", resume=True).resumed_chunks > 3
    assert (tmp_path / "resumed").read_bytes() == (tmp_path / "whole").read_bytes()


def test_ranges_of_chunks(corpus, model_bytes, part_tokens, most_ranges):
    part_tokens(5000)
    config = EstimateConfig([str(path) for path in corpus], order=3, chunk_bytes=6000)
    ones = model_bytes(config)
    most_ranges(5)
    assert model_bytes(config) == ones


def test_resume_with_other_ranges_of_chunks(corpus, model_bytes, part_tokens, most_ranges, run, tmp_path):
    part_tokens(5000)
    config = EstimateConfig([str(path) for path in corpus], order=3, chunk_bytes=6000)
    ones = model_bytes(config)

    most_ranges(9)
    saved = Interrupt("tokenise", 20, until=lambda: any(tmp_path.glob("out.checkpoint/entries-*/vocabulary_0-*")))
    with pytest.raises(KeyboardInterrupt):
        run(config, 2, progress=saved, checkpoint_seconds=0)
    most_ranges(4)
    assert 0 < run(config, 3, resume=True).resumed_chunks < len(open_corpus(config.corpus).chunks(6000))
    assert (tmp_path / "out").read_bytes() == ones


class Entries:
    """The entries of a checkpoint after each loss."""

    def __init__(self, numbers):
        self.numbers = iter(numbers)

    def num_entries(self):
        return next(self.numbers)


@pytest.mark.parametrize(
    ("entries", "ends"), [([1, 2, 3, 4], False), ([0, 0, 0], True), ([1, 1, 2, 2, 2], True), ([1, 1, 2, 2], False)]
)
def test_results_that_are_lost_again_and_again(entries, ends, monkeypatch):
    """A run ends at the third loss between which nothing was saved."""
    monkeypatch.setattr(estimate, "MAX_LOSSES", 3)
    left = [*entries]

    def made():
        if left:
            left.pop()
            raise ResultLost("a worker was lost")
        return "the model"

    executor = SimpleNamespace(resume_hint="with --resume")
    ended = pytest.raises(RunError, match=r"lost workers 3 times and saved nothing .* run again with --resume")
    warns = pytest.warns(InputWarning, match=r"goes on from its checkpoint, which has \d entries")
    with warns, ended if ends else nullcontext():
        assert estimate._in_spite_of_losses(made, Entries(entries), executor) == "the model"


@pytest.mark.parametrize("kind", ["waiting-", "vocabulary_0-", "counted_"])
def test_a_full_disk(kind, corpus, model_bytes, part_tokens, full_disk, run, tmp_path, monkeypatch):
    """Tokens that have no room in memory, and entries of the checkpoint, find no room on the disk."""
    part_tokens(5000)
    monkeypatch.setattr(Budget, "fits_host", lambda budget, nbytes: False)
    config = EstimateConfig([str(path) for path in corpus], order=3, chunk_bytes=6000)
    expected = model_bytes(config)

    full_disk(of=f".{kind}")
    with pytest.raises(RunError, match=rf"^cannot write \S+/\.?{kind}\S+ after 0 bytes: No space left on device; free"):
        run(config, 2, checkpoint_seconds=0)
    has_saved = kind == "counted_"
    assert [path.name for path in tmp_path.iterdir() if path.name != "model"] == ["out.checkpoint"] * has_saved
    full_disk(room=1 << 30)
    assert (run(config, 2, resume=has_saved).resumed_chunks > 0) == has_saved
    assert (tmp_path / "out").read_bytes() == expected and not (tmp_path / "out.checkpoint").exists()


def test_a_full_disk_of_tokens_of_known_words(corpus, model_bytes, part_tokens, full_disk, run, tmp_path, monkeypatch):
    """The second pass over the text finds no room for them. The words of the first one are saved."""
    part_tokens(5000)
    config = EstimateConfig([str(path) for path in corpus], order=3, chunk_bytes=6000)
    expected = model_bytes(config)
    monkeypatch.setattr(text_ids, "spill", lambda ids, budget, folder: to_file(ids, folder))
    full_disk(of=".waiting-")
    with pytest.raises(RunError, match=r"^cannot write \S+/waiting-\S+ after 0 bytes: No space left on device; free"):
        run(config, 2, checkpoint_seconds=0)
    assert [path.name for path in tmp_path.iterdir() if path.name != "model"] == ["out.checkpoint"]
    full_disk(room=1 << 30)
    assert run(config, 2, resume=True).resumed_chunks > 0
    assert (tmp_path / "out").read_bytes() == expected and not (tmp_path / "out.checkpoint").exists()


def test_a_disk_that_fills_up(corpus, model_bytes, part_tokens, full_disk, run, tmp_path, monkeypatch):
    """While parts are saved: those before are kept."""
    part_tokens(5000)
    monkeypatch.setattr(estimate, "most_in_group", lambda *_: 1)
    config = EstimateConfig([str(path) for path in corpus], order=3, chunk_bytes=60_000)
    expected = model_bytes(config)

    full_disk(room=2000, of=".counted_", after=4)
    with pytest.raises(RunError, match=r"^cannot write \S+/counted_\S+ after [\d,]+ bytes: No space left on device"):
        run(config, 1, checkpoint_seconds=0)
    saved = [path.name for path in tmp_path.glob("out.checkpoint/entries-*/*counted_*")]
    assert len(saved) == 4 and not any(name.endswith(".tmp") for name in saved)
    full_disk(room=1 << 30)
    assert run(config, 2, resume=True).resumed_parts == 4
    assert (tmp_path / "out").read_bytes() == expected and not (tmp_path / "out.checkpoint").exists()
