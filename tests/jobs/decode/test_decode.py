"""Whole runs of the decode job: the same bytes from any workers, after a killed worker and after a resume."""

import json
from pathlib import Path

import numpy as np
import pytest

from mgpu_ngram.cluster.local import LocalExecutor
from mgpu_ngram.core.errors import InputError, RunError
from mgpu_ngram.engine.decode import lines as decode_lines
from mgpu_ngram.engine.decode.batch import Batching
from mgpu_ngram.jobs.context import RunContext
from mgpu_ngram.jobs.decode import run as job
from mgpu_ngram.jobs.decode.config import DecodeConfig
from mgpu_ngram.jobs.decode.options import batching_of, options_of, sentences_of_task
from mgpu_ngram.jobs.progress import Progress
from tests.support.slow_cases import first_fast

pytestmark = pytest.mark.timeout(100)
LINES, OF_TASK = 43, 4
SOURCE = ["<pad>", "<unk>", "</s>", *"abcdefgh"]
TARGET = ["<pad>", "<unk>", "<s>", "</s>", *"stuvwxyz"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model of random weights without attention, its vocabulary and a text; some lines are empty."""
    folder, rng = tmp_path_factory.mktemp("system"), np.random.default_rng(0)
    V, E, H = len(TARGET), 6, 8
    sizes = {"enc_emb": (len(SOURCE), E), "dec_emb": (V, E), "fc_w": (V, H), "fc_b": (V,)}
    for side in ("enc", "dec"):
        sizes |= {f"{side}_w_ih": (3 * H, E), f"{side}_w_hh": (3 * H, H), f"{side}_b_ih": (3 * H,)}
        sizes |= {f"{side}_b_hh": (3 * H,)}
    np.savez(folder / "model.npz", **{name: rng.normal(size=size).astype(np.float32) for name, size in sizes.items()})
    for name, words in (("src.json", SOURCE), ("trg.json", TARGET)):
        (folder / name).write_text(json.dumps({word: i for i, word in enumerate(words)}))
    lines = [" ".join(rng.choice(SOURCE[3:], rng.integers(0, 9))) for _ in range(LINES)]
    (folder / "text").write_text("".join(f"{line}\n" for line in lines))
    return folder


def config_of(folder, **options):
    options = {"beam_size": 4, "n_best": 4, "chunk_sentences": OF_TASK, **options}
    model, source, target = (str(folder / name) for name in ("model.npz", "src.json", "trg.json"))
    return DecodeConfig([model], [str(options.pop("text", folder / "text"))], [source], target, **options)


def decoded(executor, folder, output, context=None, **options):
    """Return the lines that a run wrote."""
    config = config_of(folder, **options)
    result = job.run(config, RunContext(executor, output, single_file=True, **(context or {})))
    lines = Path(config.text[0]).read_text().splitlines()
    assert (result.sentences, result.source_words) == (len(lines), sum(len(line.split()) for line in lines))
    return output.read_bytes()


@pytest.fixture(scope="module")
def undisturbed(folder, tmp_path_factory):
    executor = LocalExecutor(workers=1)
    yield decoded(executor, folder, tmp_path_factory.mktemp("undisturbed") / "out")
    executor.close()


@pytest.fixture
def numbers(monkeypatch):
    """Return a list that gets the first line of each task that runs in this process."""
    found = []

    def counted(first, *rest):
        found.append(first)
        return decode_lines.decode_lines(first, *rest)

    monkeypatch.setattr(job, "decode_lines", counted)
    return found


def test_lists_of_all_lines_in_order(undisturbed, folder):
    numbers = [int(line.split(b" ||| ")[0]) for line in undisturbed.splitlines()]
    lines = (folder / "text").read_text().splitlines()
    assert numbers == sorted(numbers) and set(numbers) == set(range(len(lines)))
    assert max(map(numbers.count, numbers)) == 4


def test_any_workers_write_the_same_bytes(undisturbed, folder, here, cluster, tmp_path):
    assert decoded(here, folder, tmp_path / "here") == undisturbed
    assert decoded(cluster, folder, tmp_path / "cluster") == undisturbed
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cluster", "here"]


@pytest.mark.parametrize("when", first_fast(["after", "before"]))
def test_a_killed_worker_changes_no_byte(when, undisturbed, folder, cluster, hooks, hooks_folder, tmp_path):
    """Tasks take a while, so that a worker that dies a moment later cannot finish the run alone."""
    hooks(**{"decode_lines.slow": 0.05, f"decode_lines.{when}": "", f"decode_lines.{when}2": 0.2})
    assert decoded(cluster, folder, tmp_path / "out") == undisturbed
    assert not list(hooks_folder.glob(f"decode_lines.{when}*")), "workers died"


class Interrupt(Progress):
    """Ctrl-C after some tasks."""

    def __init__(self, after):
        self.left = after

    def advance(self, done, amount=0):
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


@pytest.mark.parametrize("seconds", [0, 1000], ids=["saved after each task", "saved at the end"])
def test_an_interrupted_run_is_resumed(seconds, undisturbed, folder, numbers, tmp_path):
    """Only the lines that were not saved are decoded again."""
    executor, out = LocalExecutor(workers=1), tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        decoded(executor, folder, out, {"progress": Interrupt(6), "checkpoint_seconds": seconds})
    assert [path.name for path in tmp_path.iterdir()] == ["out.checkpoint"]
    with pytest.raises(InputError, match="holds an unfinished run"):
        decoded(executor, folder, out)
    with pytest.raises(InputError, match=r"cannot be resumed: .*beam_size"):
        decoded(executor, folder, out, {"resume": True}, beam_size=5)
    executor.close()  # it waits for the task that was running
    numbers.clear()
    executor = LocalExecutor(workers=1)
    assert decoded(executor, folder, out, {"resume": True}, chunk_sentences=None if seconds else OF_TASK) == undisturbed
    assert numbers == list(range(5 * OF_TASK, LINES, OF_TASK)), "5 tasks were collected before the interrupt"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    executor.close()


@pytest.mark.parametrize("beside", ["prefixes", "targets"])
def test_a_run_of_other_files_is_not_resumed(beside, folder, tmp_path):
    """Each file that the results depend on."""
    executor, out, files = LocalExecutor(workers=1), tmp_path / "out", {}
    for name, content in ((beside, "s\n" * LINES), ("softmax_filter", "s a 0.5\n"), ("bpe", "a b\n")):
        files[name] = tmp_path / name
        files[name].write_text(content)
    options = {name: str(path) for name, path in files.items()} | {"bpe": [str(files["bpe"])], "n_best": 1}
    with pytest.raises(KeyboardInterrupt):
        decoded(executor, folder, out, {"progress": Interrupt(3), "checkpoint_seconds": 0}, **options)
    for path in files.values():
        content = path.read_text()
        path.write_text(content.replace("s", "t").replace("b", "c"))
        with pytest.raises(InputError, match=rf"cannot be resumed: .*{path.name}"):
            decoded(executor, folder, out, {"resume": True}, **options)
        path.write_text(content)
    resumed = decoded(executor, folder, out, {"resume": True}, **options)
    assert resumed == decoded(executor, folder, tmp_path / "whole", **options)
    executor.close()


def test_lines_that_fail_leave_what_is_done(undisturbed, folder, numbers, tmp_path):
    """A damaged entry is decoded again, with a warning; a corrected text is another text."""
    executor, out, text = LocalExecutor(workers=1), tmp_path / "out", tmp_path / "text"
    lines = (folder / "text").read_text().splitlines()
    text.write_text("\n".join([*lines[:30], "a\tb", *lines[31:]]) + "\n")
    with pytest.raises(InputError, match="line 31 of the text: a line has 2 columns"):
        decoded(executor, folder, out, {"checkpoint_seconds": 0}, text=text)
    entries = list((tmp_path / "out.checkpoint").glob("entries-*/*.safetensors"))
    assert 1 <= len(entries) <= 7
    with pytest.raises(InputError, match=r"cannot be resumed: .*text"):
        decoded(executor, folder, out, {"resume": True})
    assert decoded(executor, folder, out, {"overwrite": True}) == undisturbed
    executor.close()


def test_a_file_that_changes_during_the_run_is_noticed(folder, tmp_path, monkeypatch):
    """A worker compares its files with those of the driver."""
    options = job.options_of
    changed = lambda config, identity, *rest: options(config, dict.fromkeys(identity, "0"), *rest)  # noqa: E731
    monkeypatch.setattr(job, "options_of", changed)
    executor = LocalExecutor(workers=1)
    with pytest.raises(RunError, match=r"model.npz is \w{8} on this worker but was 0 at the start; run again"):
        decoded(executor, folder, tmp_path / "out")
    executor.close()


def test_a_folder_says_what_it_was_made_of(folder, here, tmp_path, undisturbed):
    config = config_of(folder)
    result = job.run(config, RunContext(here, tmp_path / "out"))
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"translations.txt", "manifest.json"}
    assert (tmp_path / "out" / "translations.txt").read_bytes() == undisturbed
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["totals"] == {
        "sentences": LINES,
        "source_words": result.source_words,
        "words": result.words,
        "cut": 0,
    }
    assert manifest["text"]["lines"] == LINES and len(manifest["files"]) == 3
    assert job.changed_since(config, manifest) == ""
    assert "beam_size" in job.changed_since(config_of(folder, beam_size=5), manifest)


def test_other_contents_of_texts_are_noticed(folder, here, tmp_path):
    """Of the text and of the file of prefixes, by their last lines."""
    files = {"text": tmp_path / "text", "prefixes": tmp_path / "prefixes"}
    files["text"].write_text("a b c d e f g h\n" * 20)
    files["prefixes"].write_text("s t u\n" * 20)
    config = config_of(folder, **{name: str(path) for name, path in files.items()})
    job.run(config, RunContext(here, tmp_path / "out"))
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert job.changed_since(config, manifest) == ""
    for name, path in files.items():
        before = path.read_text()
        path.write_text(before[:-2] + "z\n")
        assert {"text": "text.crc32", "prefixes": "beside.prefixes"}[name] in job.changed_since(config, manifest)
        path.write_text(before)


def test_no_lines_give_an_empty_file(folder, here, tmp_path):
    (tmp_path / "empty").write_text("")
    assert decoded(here, folder, tmp_path / "out", text=tmp_path / "empty") == b""


@pytest.mark.parametrize(
    ("device", "options", "sentences", "words"),
    [
        ("cpu", {"beam_size": 12}, 256, 0),
        ("gpu", {"beam_size": 1}, 4096, 131_072),
        ("gpu", {"beam_size": 12}, 512, 131_072),
        ("gpu", {"mini_batch": 100}, 100, 0),
        ("gpu", {"beam_size": 12, "mini_batch_words": 0}, 512, 0),
        ("gpu", {"mini_batch": 100, "mini_batch_words": 900}, 100, 900),
    ],
)
def test_batches_fit_the_device_unless_sizes_are_given(device, options, sentences, words):
    batching = batching_of(DecodeConfig(["m.npz"], ["text"], ["source"], "target", **options), device)
    assert (batching.sentences, batching.words) == (sentences, words)


def test_settings_that_change_no_result_reach_the_tasks(folder):
    given = {"mini_batch": 5, "mini_batch_words": 90, "maxi_batch": 9, "batching": "naive", "table_bytes": 123}
    options = options_of(config_of(folder, **given), {}, "cpu", 3)
    assert options.batching == Batching(5, 90, 9, "naive")
    assert (options.table_bytes, options.threads) == (123, 3)


def test_short_texts_have_tasks_for_several_cores(folder):
    auto = config_of(folder, chunk_sentences=None)
    sizes = [sentences_of_task(auto, sentences, "cpu") for sentences in (0, 65, 2_000, 4_096, 10_000, 32_768, 100_000)]
    assert sizes == [64, 64, 125, 256, 256, 512, 1024]
    assert sentences_of_task(auto, 2_000, "gpu") == 2_048 and sentences_of_task(config_of(folder), 2_000, "cpu") == 4
