"""Whole trainings of topic models: the same model from any workers, after lost workers and after a resume."""

import json
import os
import threading
import time
from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pytest

from mgpu_ngram.cluster.dask import start_cluster
from mgpu_ngram.cluster.devices import visible_gpus
from mgpu_ngram.cluster.gang import GangError
from mgpu_ngram.cluster.local import LocalExecutor
from mgpu_ngram.core.bags.bags import make_bags
from mgpu_ngram.core.bags.topic_model import Priors, TopicModel, load_topic_model
from mgpu_ngram.core.errors import InputError, RunError
from mgpu_ngram.core.memory_config import MemoryConfig
from mgpu_ngram.engine.bags.bag_corpus import BagCorpus
from mgpu_ngram.engine.bags.bags_of import bags_of
from mgpu_ngram.engine.bags.open_bags import open_bags
from mgpu_ngram.engine.lda import rank as lda_rank
from mgpu_ngram.engine.lda.hold_out import keep_training
from mgpu_ngram.jobs.context import RunContext
from mgpu_ngram.jobs.lda import run as lda_run
from mgpu_ngram.jobs.lda import train as job
from mgpu_ngram.jobs.lda.config import LdaConfig
from mgpu_ngram.jobs.lda.run import changed_since, run
from mgpu_ngram.jobs.lda.train import WAIT_SECONDS, Storage, corpus_of, split_parts, train
from mgpu_ngram.jobs.progress import Progress
from tests.support.slow_cases import first_fast

pytestmark = pytest.mark.timeout(100)
OPTIONS = {
    "topics": 8,
    "evaluate_every": 5,
    "held_out": 0.2,
    "optimise_every": 4,
    "block_tokens": 3000,
    "coherence": True,
    "seeds": {2: ["word03", "word44"], 5: {"word21": 7.5}},
}


@pytest.fixture(scope="module")
def documents(tmp_path_factory):
    """A file with a document a line: words of one of four topics each, some empty lines."""
    rng = np.random.default_rng(1)
    lines = []
    for d in range(600):
        words = 20 * (d % 4) + rng.integers(0, 20, rng.integers(0, 60))
        lines.append(" ".join(f"word{w:02}" for w in words))
    path = tmp_path_factory.mktemp("documents") / "docs.txt"
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def trained(executor, documents, output, sweeps=12, **how):
    """Return (result, model) of a run; closes the executor."""
    options = OPTIONS | {k: how.pop(k) for k in list(how) if k in LdaConfig.__dataclass_fields__}
    config = LdaConfig([documents], sweeps=sweeps, **options)
    try:
        result = run(config, RunContext(executor, output, **how))
    finally:
        executor.close()
    model = load_topic_model(output / "model.safetensors")
    bags = keep_training(open_bags(documents).read(), 0, config.held_out, config.seed)
    tokens_V = np.bincount(bags.words_P, bags.counts_P, bags.num_words)
    assert model.counts_VZ().sum(1).tolist() == tokens_V.tolist(), "each token of the training documents has a topic"
    return result, model


def assert_same(a, b):
    assert a.history == b.history
    assert a.counts_VZ().tolist() == b.counts_VZ().tolist()
    assert a.priors.alpha_Z.tolist() == b.priors.alpha_Z.tolist() and a.priors.beta == b.priors.beta
    seeds = [{word: prior_Z.tolist() for word, prior_Z in model.priors.seeds.items()} for model in (a, b)]
    assert seeds[0] == seeds[1] and len(seeds[0]) == 3


@pytest.fixture(scope="module")
def here_model(documents, tmp_path_factory):
    return trained(LocalExecutor(workers=2), documents, tmp_path_factory.mktemp("here") / "out")[1]


def test_a_folder_with_the_model_and_its_metrics(documents, tmp_path):
    result, model = trained(LocalExecutor(workers=1), documents, tmp_path / "out")
    picture = {"perplexity.png"} if find_spec("matplotlib") else set()
    assert set(os.listdir(tmp_path / "out")) == {"manifest.json", "model.safetensors"} | picture
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["documents"] == 600 and manifest["words"] == 80 == len(model.words)
    assert [metrics["sweep"] for metrics in model.history] == [5, 10, 12] and result.sweeps == 12
    assert model.history[-1]["held_out_perplexity"] < model.history[0]["held_out_perplexity"]
    tokens = open_bags(documents).read().tokens
    assert manifest["tokens"] == result.tokens == model.tokens, "a sweep draws these"
    assert manifest["held_out_tokens"] == result.held_out_tokens == tokens - model.tokens
    assert 0 < result.held_out_tokens < 0.4 * tokens
    assert result.tokens_per_second == pytest.approx(12 * model.tokens / result.seconds["train"])
    assert not os.path.exists(tmp_path / "out.checkpoint")


@pytest.mark.parametrize("block_tokens", [500, 10**6])
def test_threads_and_blocks_change_nothing(block_tokens, documents, tmp_path, here_model):
    assert_same(trained(LocalExecutor(workers=1), documents, tmp_path / "a", block_tokens=block_tokens)[1], here_model)


@pytest.mark.parametrize("workers", first_fast([3, 1]))
def test_a_cluster_makes_the_same_model(workers, start, documents, tmp_path, here_model):
    assert_same(trained(start(workers), documents, tmp_path / "out")[1], here_model)


@pytest.mark.parametrize(
    "gpus", [pytest.param(1, marks=pytest.mark.gpu), *(pytest.param(n, marks=pytest.mark.multigpu) for n in (2, 4))]
)
@pytest.mark.parametrize("device_bytes", [None, 1 << 30], ids=["resident", "streamed"])
def test_gpus_draw_the_topics_of_a_cpu(gpus, device_bytes, documents, tmp_path, here_model):
    """GPUs round logarithms in their own way, so metrics may differ in the last digits."""
    if visible_gpus() < gpus:
        pytest.skip(f"needs {gpus} GPUs")
    executor = LocalExecutor("gpu") if gpus == 1 else start_cluster("gpu", gpus)
    model = trained(executor, documents, tmp_path / "out", memory=MemoryConfig(device_bytes=device_bytes))[1]
    assert_same(replace(model, history=here_model.history), here_model)
    for found, expected in zip(model.history, here_model.history, strict=True):
        assert found == pytest.approx(expected, rel=1e-6)


@pytest.fixture
def starts(monkeypatch):
    """Return the sweeps from which trainings of this test start, or go on."""
    found, opened = [], job._Run._open

    def recorded(run, *arguments):
        opened(run, *arguments)
        found.append(run.state.sweep)

    monkeypatch.setattr(job._Run, "_open", recorded)
    return found


class Seen(Progress):
    """The totals of what is reported."""

    def __init__(self):
        self.sweeps, self.tokens, self.notes = 0, 0, []

    def advance(self, done, amount=0):
        self.sweeps, self.tokens = self.sweeps + done, self.tokens + amount

    def note(self, text):
        self.notes.append(text)


class AtSnapshot(Progress):
    """Calls a function once, when a snapshot is whole: then an older one is deleted."""

    def __init__(self, checkpoint, act):
        self.checkpoint, self.act, self.seen = checkpoint, act, set()

    def advance(self, done, amount=0):
        now = set(self.checkpoint.rglob("topics-*.safetensors"))
        if self.seen - now and self.act:
            act, self.act = self.act, None
            act()
        self.seen |= now


@pytest.mark.slow
def test_a_killed_worker_changes_nothing(start, documents, tmp_path, monkeypatch, starts):
    executor, waits = start(2), []
    gang_size = executor.gang_size
    monkeypatch.setattr(executor, "gang_size", lambda seconds=0: waits.append(seconds) or gang_size(seconds))
    pids = executor.everywhere(os.getpid)
    kill = AtSnapshot(tmp_path / "out.checkpoint", lambda: os.kill(pids[0], 9))
    with pytest.warns(UserWarning, match=r"^the training lost worker \S+; it goes on from its last snapshot$"):
        model = trained(executor, documents, tmp_path / "out", 400, progress=kill, checkpoint_seconds=0.05)[1]
    assert_same(model, trained(LocalExecutor(workers=2), documents, tmp_path / "again", 400)[1])
    assert starts[0] == starts[-1] == 0 < starts[1], "it goes on, it does not start again"
    assert waits[0] == 0 and {*waits[1:]} == {WAIT_SECONDS}, "the lost worker may come back"


def test_a_run_ends_at_the_fourth_loss_of_workers(monkeypatch):
    monkeypatch.setattr(job, "WAIT_SECONDS", 0)
    config, bags = LdaConfig(["given"], topics=2, sweeps=3), bags_of([["a", "b"], ["b", "c"]] * 9)
    corpus = corpus_of(config, bags, {})

    def run_with(losses):
        executor, left = LocalExecutor(workers=1), list(range(losses))
        gang = executor.gang

        def losing(*arguments, **how):
            if left:
                raise GangError("a worker was lost", [f"worker-{left.pop(0)}"])
            return gang(*arguments, **how)

        monkeypatch.setattr(executor, "gang", losing)
        try:
            return train(config, corpus, executor).model
        finally:
            executor.close()

    with pytest.warns(UserWarning, match="^the training lost worker worker-2; it starts again$"):
        assert run_with(3).counts_VZ().tolist() == run_with(0).counts_VZ().tolist()
    with (
        pytest.warns(UserWarning, match="worker-2"),
        pytest.raises(RunError, match="^the training lost workers 4 times, the last time worker-3; look at their logs"),
    ):
        run_with(5)


def test_a_gang_that_ends_without_a_lost_worker_ends_the_run(monkeypatch):
    bags, executor, starts = bags_of([["a", "b"], ["b", "c"]]), LocalExecutor(workers=1), []

    def failing(*arguments, **how):
        starts.append(arguments)
        raise GangError("the gang could not start")

    monkeypatch.setattr(executor, "gang", failing)
    config = LdaConfig(["given"], topics=2, sweeps=3)
    with pytest.raises(GangError, match="^the gang could not start$"):
        train(config, corpus_of(config, bags, {}), executor)
    assert len(starts) == 1
    executor.close()


def test_a_resumed_run_ends_as_an_undisturbed_one(documents, tmp_path, starts):
    def interrupt():
        time.sleep(0.2)
        raise KeyboardInterrupt

    expected = trained(LocalExecutor(workers=2), documents, tmp_path / "whole", 60)[1]
    executor = LocalExecutor(workers=2)
    with pytest.raises(KeyboardInterrupt):
        run_until(executor, documents, tmp_path / "out", interrupt)
    assert list((tmp_path / "out.checkpoint").rglob("topics-*.safetensors")), "a snapshot is there"
    assert not (tmp_path / "out").exists()
    with pytest.raises(InputError, match="block_tokens"):
        trained(LocalExecutor(workers=1), documents, tmp_path / "out", 60, resume=True, block_tokens=2999)
    seen = Seen()
    result, resumed = trained(LocalExecutor(workers=1), documents, tmp_path / "out", 60, resume=True, progress=seen)
    assert_same(resumed, expected)
    assert starts[:2] == [0, 0] and starts[-1] >= 20, "it goes on, it does not start again"
    assert (seen.sweeps, seen.tokens) == (60, (60 - starts[-1]) * result.tokens), "sweeps before have no rate"


@pytest.mark.slow
def test_a_training_that_stopped_early_is_not_continued_after_a_resume(documents, tmp_path, monkeypatch, starts):
    """The run is interrupted between the last sweep and the model file."""
    how = {"sweeps": 1000, "tolerance": 0.05, "checkpoint_seconds": 0.0}
    expected = trained(LocalExecutor(workers=2), documents, tmp_path / "whole", **how)[1]

    def interrupted(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(lda_run, "write_topic_model", interrupted)
        trained(LocalExecutor(workers=2), documents, tmp_path / "out", **how)
    resumed = trained(LocalExecutor(workers=2), documents, tmp_path / "out", **how, resume=True)[1]
    assert_same(resumed, expected)
    assert resumed.sweeps == expected.sweeps == starts[-1] < 1000, "no sweep was left to do"


def run_until(executor, documents, output, act):
    """Run 60 sweeps with a snapshot after each, and call `act` in this thread when some are done."""
    seen = threading.Event()

    def callback(sweep, metrics):
        if sweep >= 20:
            seen.set()
            act()

    from mgpu_ngram.jobs.lda import run as job

    original = job.train
    job.train = lambda *args, **how: original(*args, **how | {"callback": callback})
    try:
        trained(executor, documents, output, 60, checkpoint_seconds=0.0)
    finally:
        job.train = original
    assert seen.is_set()


def test_any_other_setting_makes_another_model(documents, tmp_path):
    """A run is not resumed, and a model is made again, when a setting has changed."""
    executor = LocalExecutor(workers=1)
    run(LdaConfig([documents], topics=2, sweeps=1), RunContext(executor, tmp_path / "out"))
    executor.close()
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    config = LdaConfig([documents], topics=2, sweeps=1, block_tokens=7, name="other")
    assert changed_since(config, manifest) == "", "these change no bit of the model"
    others = {
        "vocabulary": "words.txt", "text_column": "body", "lowercase": False, "token_pattern": "a",
        "stop_words": "english", "min_df": 2, "max_df": 5, "max_features": 3, "topics": 3, "sweeps": 2, "alpha": 1.0,
        "beta": 0.5, "seeds": {0: "word00"}, "optimise_every": 1, "exclude_self": False, "seed": 2,
        "evaluate_every": 1, "held_out": 0.1, "tolerance": 0.1, "coherence": True,
    }  # fmt: skip
    assert {*others} == LdaConfig.__dataclass_fields__.keys() - {"corpus", "name", "block_tokens"}
    for name, value in others.items():
        assert f"options.{name}" in changed_since(replace(config, **{name: value}), manifest), name


@pytest.mark.slow
def test_progress_counts_sweeps_and_shows_the_perplexity(documents, tmp_path):
    seen = Seen()
    result, model = trained(LocalExecutor(workers=2), documents, tmp_path / "out", 300, progress=seen)
    assert seen.sweeps == 300 and seen.tokens == 300 * result.tokens
    held_out = {f"perplexity {metrics['held_out_perplexity']:,.1f}" for metrics in model.history}
    assert seen.notes and {*seen.notes} <= held_out, "of the documents held out, where there are any"


def test_a_callback_stops_the_training(documents):
    bags = bags_of([["a", "b"], ["b", "c", "c"]] * 30)
    seen = []
    executor = LocalExecutor(workers=2)
    config = LdaConfig(["given"], topics=2, sweeps=50, evaluate_every=5)
    corpus = corpus_of(config, bags, {})
    done = train(config, corpus, executor, callback=lambda sweep, metrics: seen.append((sweep, metrics)) or sweep == 15)
    executor.close()
    assert [sweep for sweep, _ in seen] == [5, 10, 15] and done.model.sweeps == 15
    assert all(metrics.keys() == {"joint", "plugin", "perplexity", "changed"} for _, metrics in seen)


def test_training_stops_when_the_perplexity_stays(documents, tmp_path):
    result, model = trained(LocalExecutor(workers=2), documents, tmp_path / "out", 1000, tolerance=0.05)
    assert result.sweeps < 200 and model.history[-1]["sweep"] == result.sweeps


@pytest.mark.parametrize(
    ("perplexities", "held_out", "stays"),
    [
        ([100], [], False),
        ([100, 99], [], True),
        ([100, 98], [], False),
        ([200, 100, 99], [], True),  # the last two count
        ([200, 100, 101], [], True),
        ([100, 50], [100, 99], True),  # of held-out documents, where there are any
        ([100, 100], [100, 98], False),
    ],
)
def test_a_perplexity_stays_when_it_falls_by_less_than_the_tolerance(perplexities, held_out, stays):
    history = [{"perplexity": p} | ({"held_out_perplexity": held_out[i]} if held_out else {})
               for i, p in enumerate(perplexities)]  # fmt: skip
    assert lda_rank._stays(history, 0.015) is stays
    assert not lda_rank._stays(history, 0), "0: never"


def test_parts_are_split_into_consecutive_parts():
    assert split_parts([*"abcde"], 2) == [["a", "b"], ["c", "d", "e"]]
    assert split_parts([*"ab"], 5) == [["a"], ["b"]]
    assert Storage().entries() == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"corpus": ["a", "-"]}, "documents are read more than once, so standard input cannot be used; give"),
        ({"topics": 0}, "topics is 0 but must be at least 1"),
        ({"topics": 70_000}, "topics is 70,000 but must be at most 65,536"),
        ({"held_out": 1.0}, "held_out is 1.0 but must be a share of at least 0 and below 1"),
        ({"alpha": 0.0}, "alpha is 0.0 but must be 0.000001 to 1,000,000"),
        ({"beta": float("nan")}, "beta is nan but must be 0.000001 to 1,000,000"),
        ({"seed": 2**64}, r"seed is 18446744073709551616 but must be below 2\^64"),
        ({"min_df": 1.5}, "min_df is 1.5 but must be a whole number from 1 on, or a share from 0.0 to 1.0"),
        ({"sweeps": 0}, "sweeps is 0 but must be at least 1"),
        ({"topics": 100, "alpha": 1e5}, "alpha is 100,000 for each of 100 topics but must be at most 83,886.08"),
    ],
)
def test_settings_out_of_range_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        LdaConfig(**{"corpus": ["a"]} | options)


def test_default_priors_are_those_of_the_literature():
    """50 / K and 0.01, as Xie et al. use; Griffiths and Steyvers have 50 / K, too."""
    config = LdaConfig(["a"], topics=20)
    assert config.alphas == [2.5] * 20 and config.beta == 0.01


def test_counts_that_would_overflow_are_refused():
    def bags(count):
        return make_bags([0, 0, 2], [0, 1], [1, count], 2)

    def corpus(*parts, earlier=None):
        documents = BagCorpus("given", parts.__iter__, 2, None)
        return corpus_of(LdaConfig(["given"], topics=2), documents, {}, earlier=earlier)

    assert corpus(bags(2), bags(2**23 - 1)).tokens == 2**23 + 3
    with pytest.raises(InputError, match="document 3 has 8,388,609 tokens but a document may have at most 8,388,608"):
        corpus(bags(2), bags(2**23))
    earlier = TopicModel.of_counts(np.array([[0, 0], [2**31, 2**31 - 3]], np.uint32), Priors(np.ones(2), 0.1))
    assert corpus(bags(2), earlier=earlier).earlier is earlier
    with pytest.raises(InputError, match="word 1 of the vocabulary occurs 4,294,967,296 times but may"):
        corpus(bags(3), earlier=earlier)
    halves = make_bags([0, 2], [0, 1], [2**22, 2**22], 2)
    assert corpus(*[halves] * 600).tokens == 600 * 2**23, "more than 2^32"


def test_an_empty_corpus_is_refused(tmp_path):
    path = tmp_path / "empty.txt"
    path.write_text("\n\n")
    with pytest.raises(InputError, match="no word|no document"):
        trained(LocalExecutor(workers=1), str(path), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_counts_that_do_not_fit_memory_are_refused(documents, tmp_path, monkeypatch):
    """80 words and 8 topics, two tables of 4 bytes."""
    monkeypatch.setattr(lda_rank, "free_bytes", lambda device: 2 * 4 * 80 * 8 - 1)
    with pytest.raises(InputError, match="80 words and 8 topics take 5,120 bytes but 5,119 are free; lower topics"):
        trained(LocalExecutor(workers=1), documents, tmp_path / "out")
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(lda_rank, "free_bytes", lambda device: 2 * 4 * 80 * 8)
    assert trained(LocalExecutor(workers=1), documents, tmp_path / "out", 1)[0].sweeps == 1


def test_documents_that_do_not_fit_memory_are_read_from_files(documents, tmp_path, here_model, monkeypatch):
    memory = MemoryConfig(spill_dir=str(tmp_path / "spill"))
    for module in (lda_rank, lda_run):
        monkeypatch.setattr(module, "free_host_bytes", lambda: 100_000)
    (tmp_path / "spill").mkdir()
    seen = set()

    class Look(Progress):
        def advance(self, done, amount=0):
            seen.update(path.name for path in tmp_path.rglob("*.*"))

    assert_same(
        trained(LocalExecutor(workers=2), documents, tmp_path / "out", memory=memory, progress=Look())[1], here_model
    )
    parts = {name for name in seen if name.startswith("part-")}
    assert "1.bin" in seen and parts and "part-000000.safetensors" not in parts, "the first part stays in memory"
    assert not parts & {path.name for path in tmp_path.rglob("*")}, "files are deleted at the end"
    assert not list((tmp_path / "spill").iterdir())
