"""Adapted models are those of all text together, byte for byte, for any workers, deaths and interruptions."""

import numpy as np
import pytest

from mgpu_ngram.cluster.local import LocalExecutor
from mgpu_ngram.core.errors import InputError, RunError
from mgpu_ngram.jobs.adapt import run as adapt_job
from mgpu_ngram.jobs.adapt.config import AdaptConfig
from mgpu_ngram.jobs.context import RunContext
from mgpu_ngram.jobs.count import run as count_job
from mgpu_ngram.jobs.count.config import CountConfig
from mgpu_ngram.jobs.estimate import run as estimate_job
from mgpu_ngram.jobs.estimate.config import EstimateConfig
from tests.support.interrupt import Interrupt

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def texts(tmp_path):
    """Three texts; each new one has new words."""
    paths = []
    for seed, (lines, words) in enumerate([(600, 150), (200, 400), (300, 250)]):
        rows = np.random.default_rng(seed).zipf(1.3, (lines, 8)).clip(1, words)
        paths.append(tmp_path / f"text{seed}")
        paths[-1].write_bytes(b"".join(b" ".join(b"w%d" % w for w in row) + b"\n" for row in rows))
    return paths


@pytest.fixture
def earlier(texts, several_shards, here, tmp_path):
    """The counts of the first text, of order 4, in several shards."""
    config = CountConfig([str(texts[0])], 4, sentence_markers=True)
    count_job.run(config, RunContext(here, tmp_path / "earlier"))
    return tmp_path / "earlier"


@pytest.fixture
def together(texts, here, tmp_path):
    """Return a function: the bytes of the model of the first texts."""

    def model(number, **options):
        config = EstimateConfig([str(path) for path in texts[:number]], **options)
        path = tmp_path / f"together{number}.{config.format}"
        estimate_job.run(config, RunContext(here, path, single_file=True, overwrite=True))
        return path.read_bytes()

    return model


def adapt(earlier, text, output, executor, estimate=(), chunk_bytes=None, **how):
    config = AdaptConfig(str(earlier), [str(text)], dict(estimate), chunk_bytes=chunk_bytes)
    return adapt_job.run(config, RunContext(executor, output, checkpoint_seconds=0, **how))


@pytest.mark.parametrize("workers", [1, 3])
def test_the_model_of_all_text(workers, earlier, texts, together, tmp_path):
    options = {"order": 3, "prune": [0, 0, 1], "discount_fallback": []}
    executor = LocalExecutor(workers=workers)
    try:
        found = adapt(earlier, texts[1], tmp_path / "one", executor, options, chunk_bytes=900)
        assert found.path == tmp_path / "one" and (found.before, found.added) == (4800, 1600)
        assert (tmp_path / "one" / "model.safetensors").read_bytes() == together(2, **options)
        adapt(tmp_path / "one", texts[2], tmp_path / "two", executor, {"format": "arpa"})
        expected = together(3, format="arpa", **options)
        assert (tmp_path / "two" / "model.arpa").read_bytes() == expected, "the other options are those of before"
        adapt(tmp_path / "one", texts[2], tmp_path / "three", executor, {"prune": [0], "order": 2})
        expected = together(3, **options | {"prune": [], "order": 2})
        assert (tmp_path / "three" / "model.safetensors").read_bytes() == expected
    finally:
        executor.close()


@pytest.mark.slow
def test_workers_die(cluster, earlier, texts, together, hooks, hooks_folder, contents, here, tmp_path):
    adapt(earlier, texts[1], tmp_path / "undisturbed", here, {"discount_fallback": []}, chunk_bytes=900)
    hooks(
        **{
            "count_earlier.before1": "",
            "text_ids.after1": "",
            "write_windows.before1": "",
            "estimate_one.before1": "",
            "save.after1": "",
        }
    )
    adapt(earlier, texts[1], tmp_path / "made", cluster, {"discount_fallback": []}, chunk_bytes=900)
    assert [p.name for p in hooks_folder.iterdir()] == ["shard_tokens"], "a worker died in every task"
    assert contents(tmp_path / "made") == contents(tmp_path / "undisturbed")


@pytest.mark.parametrize(("phase", "done"), [("count", 7), ("adjust", 1)])
def test_resume(phase, done, earlier, texts, here, contents, tmp_path):
    how = {"estimate": {"discount_fallback": []}, "chunk_bytes": 900}
    adapt(earlier, texts[1], tmp_path / "undisturbed", here, **how)
    stop = Interrupt(phase, done, until=lambda: any(tmp_path.glob("made.checkpoint/entries-*/run-*")))
    with pytest.raises(KeyboardInterrupt):
        adapt(earlier, texts[1], tmp_path / "made", here, progress=stop, **how)
    assert not (tmp_path / "made").exists() and (tmp_path / "made.checkpoint").is_dir()
    how["estimate"] = {"discount_fallback": []}
    found = adapt(earlier, texts[1], tmp_path / "made", here, resume=True, **how)
    assert found.count.resumed_chunks > 0 and not (tmp_path / "made.checkpoint").exists()
    assert contents(tmp_path / "made") == contents(tmp_path / "undisturbed")


@pytest.mark.parametrize(("of", "after"), [(".run-", 0), (".run-", 3), (".model.safetensors", 0)])
def test_a_full_disk(of, after, earlier, texts, here, contents, full_disk, tmp_path):
    """At the first file, or after some entries of counts."""
    how = {"estimate": {"discount_fallback": []}, "chunk_bytes": 900}
    adapt(earlier, texts[1], tmp_path / "undisturbed", here, **how)
    full_disk(of=of, after=after)
    with pytest.raises(RunError, match=r"^cannot write \S+ after 0 bytes: No space left on device; free space"):
        adapt(earlier, texts[1], tmp_path / "made", here, **how)
    assert not (tmp_path / "made").exists() and (tmp_path / "made.checkpoint").is_dir()
    full_disk(room=1 << 30)
    found = adapt(earlier, texts[1], tmp_path / "made", here, resume=True, **how)
    assert (found.count.resumed_chunks > 0) == (after > 0 or of == ".model.safetensors")
    assert contents(tmp_path / "made") == contents(tmp_path / "undisturbed")


def test_a_marker_in_the_new_text(earlier, here, tmp_path):
    (tmp_path / "new").write_text("w1 <s> w2\n")
    with pytest.raises(InputError, match="the text of .*/earlier and of the new text, but") as error:
        adapt(earlier, tmp_path / "new", tmp_path / "out", here)
    assert "partial" not in str(error.value) and not (tmp_path / "out").exists()
