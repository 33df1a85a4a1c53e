"""Counts of more text, added to earlier counts: the files of one count of all text, byte for byte."""

import shutil
import time

import numpy as np
import pytest

from mgpu_ngram.cluster.local import LocalExecutor
from mgpu_ngram.core.counts.counts import read_manifest
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.jobs.context import RunContext
from mgpu_ngram.jobs.count import run as job
from mgpu_ngram.jobs.count.config import CountConfig
from mgpu_ngram.jobs.progress import Progress
from tests.support.slow_cases import first_fast

pytestmark = pytest.mark.timeout(120)


def random_text(seed, lines=1500, words=300):
    rng = np.random.default_rng(seed)
    more = [b"<unk>", b"<s>", b"w\xff"]
    ids = rng.zipf(1.3, (lines, 8)).clip(1, words + len(more)) - 1
    return b"".join(b" ".join(more[w - words] if w >= words else b"w%d" % w for w in row) + b"\n" for row in ids)


@pytest.fixture
def texts(tmp_path):
    """Three texts; the second one has words that the first one lacks, and orders the frequent ones differently."""
    paths = [tmp_path / name for name in ("text1", "text2", "text3")]
    for seed, path in enumerate(paths):
        path.write_bytes(random_text(seed, lines=1500 if seed != 1 else 400))
    return paths


@pytest.fixture
def count(several_shards, texts, tmp_path):
    """Return a function that counts some texts, and adds them to earlier counts."""

    def run(name, which, add=(), workers=2, executor=None, resume=False, progress=None, **options):
        made = executor or LocalExecutor(workers=workers)
        try:
            corpus = [str(texts[i]) for i in which]
            config = CountConfig(corpus, add=[str(tmp_path / folder) for folder in add], **{"order": 4, **options})
            context = RunContext(
                made, tmp_path / name, resume=resume, checkpoint_seconds=0, progress=progress or Progress()
            )
            return job.run(config, context)
        finally:
            if executor is None:
                made.close()

    return run


@pytest.mark.parametrize("markers", [True, False])
@pytest.mark.parametrize("chunk_bytes", first_fast([6000, None]))
def test_the_files_of_one_count(markers, chunk_bytes, count, contents, tmp_path):
    how = {"sentence_markers": markers, "chunk_bytes": chunk_bytes}
    expected = count("whole", [0, 1, 2], **how)
    assert expected.manifest["num_shards"] > 2
    count("one", [0], **how)
    count("two", [1], ["one"], **how)
    found = count("three", [2], ["two"], workers=3, **how)
    assert contents(tmp_path / "three") == contents(tmp_path / "whole")
    assert found.manifest == expected.manifest
    count("b", [1], **how)
    count("both", [2], ["one", "b"], **how)
    assert contents(tmp_path / "both") == contents(tmp_path / "whole")


@pytest.mark.parametrize("strategy", ["sort", "hash", "private"])
def test_every_strategy(strategy, count, contents, tmp_path):
    order = 2 if strategy == "private" else 3
    count("whole", [0, 1], order=order, min_count=2)
    count("one", [0], order=4)  # more orders than are needed
    count("added", [1], ["one"], order=order, strategy=strategy, min_count=2)
    assert contents(tmp_path / "added") == contents(tmp_path / "whole")


def test_columns_of_ids(count, contents, tmp_path):
    count("whole", [0, 1, 2], columns="ids")
    count("one", [0], columns="ids")
    count("two", [1], ["one"])
    count("three", [2], ["two"], columns="ids")
    assert contents(tmp_path / "three") == contents(tmp_path / "whole")


def test_a_dense_histogram(count, contents, tmp_path, texts):
    """So few words that order 2 stays a histogram until all chunks are counted."""
    for path in texts:
        path.write_bytes(random_text(1, words=5))
    whole = count("whole", [0, 1], order=3, chunk_bytes=5000)
    assert {plan.order for plan in whole.plans if plan.strategy in ("global", "private")} >= {2}
    count("one", [0], order=3)
    count("added", [1], ["one"], order=3, chunk_bytes=5000)
    assert contents(tmp_path / "added") == contents(tmp_path / "whole")


@pytest.mark.slow
def test_workers_die(cluster, count, contents, hooks, hooks_folder, tmp_path):
    count("whole", [0, 1], sentence_markers=True)
    count("one", [0], sentence_markers=True)
    hooks(**{"count_earlier.before1": "", "count_earlier.after1": ""})
    count("added", [1], ["one"], executor=cluster, sentence_markers=True)
    assert [p.name for p in hooks_folder.iterdir()] == ["shard_tokens"], "a worker died in every task"
    assert contents(tmp_path / "added") == contents(tmp_path / "whole")


def test_resume(count, contents, tmp_path):
    class Interrupt(Progress):
        left, phase = 6, ""

        def start(self, phase, total, unit="", rate=""):
            self.phase = phase

        def advance(self, done, amount=0):
            self.left -= done * (self.phase == "count")
            time.sleep(0.03)  # for entries saved meanwhile
            if self.left < 0:
                raise KeyboardInterrupt

    how = {"sentence_markers": True, "chunk_bytes": 1000}
    count("whole", [0, 1], **how)
    count("one", [0], **how)
    with pytest.raises(KeyboardInterrupt):
        count("added", [1], ["one"], progress=Interrupt(), **how)
    shutil.copytree(tmp_path / "added.checkpoint", tmp_path / "kept")
    found = count("added", [1], ["one"], resume=True, **how)
    assert found.resumed_chunks > 0 and contents(tmp_path / "added") == contents(tmp_path / "whole")
    shutil.copytree(tmp_path / "kept", tmp_path / "other.checkpoint")
    with pytest.raises(InputError, match="other"):
        count("other", [1], ["whole"], resume=True, **how)


def test_changed_since(count, texts, tmp_path):
    count("one", [0])
    count("added", [1], ["one"])
    config = CountConfig([str(texts[1])], order=4, add=[str(tmp_path / "one")])
    manifest = read_manifest(tmp_path / "added")
    assert job.changed_since(config, manifest) == ""
    assert "inputs" in job.changed_since(CountConfig([str(texts[1])], order=4), manifest)


def test_refusals(count, texts, tmp_path):
    count("one", [0], order=3)
    count("rare", [0], order=3, min_count=2)
    count("bytes", [0], order=2, unit="byte")
    for add, options, told in (
        (["one"], {}, "order is 4 but .*one has orders up to 3; lower it, or count again with order 4"),
        (["rare"], {"order": 3}, "was counted with min_count 2 and lacks n-grams"),
        (["bytes"], {"order": 2}, "has counts of unit byte, but add needs counts of words"),
        (["one"], {"order": 3, "sentence_markers": True}, "counted with sentence_markers false, but this run has true"),
        (["one"], {"order": 3, "lowercase": True}, "was counted with lowercase false, but this run has true"),
        (["one", "one"], {"order": 3}, "which has a folder twice"),
        (["none"], {}, "is not an output of count: there is nothing at that path"),
    ):
        with pytest.raises(InputError, match=told):
            count("added", [1], add, **options)
        assert not (tmp_path / "added").exists()
    shutil.rmtree(tmp_path / "one" / "order=3")
    with pytest.raises(InputError, match="part-00000.parquet is missing, so the output of count is incomplete"):
        count("added", [1], ["one"], order=3)
    with pytest.raises(InputError, match="add needs unit word but unit is byte"):
        CountConfig(["text"], unit="byte", add=["one"])
