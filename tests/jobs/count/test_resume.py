"""Runs that end early and resume: the output of an undisturbed run from the saved entries, or a refusal in one line."""

import gc
import os
import shutil
import signal
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import numpy as np
import psutil
import pytest

from mgpu_ngram.core.counts.vocabulary import LocalVocabulary
from mgpu_ngram.core.errors import InputError, RunError
from mgpu_ngram.core.inputs.corpus import open_corpus
from mgpu_ngram.core.memory_config import MemoryConfig
from mgpu_ngram.core.storage.claim import claimed
from mgpu_ngram.core.storage.safetensors import load_arrays
from mgpu_ngram.engine.memory.budget import Budget
from mgpu_ngram.jobs.count import chunk_ranges
from mgpu_ngram.jobs.count import passes as count_passes
from mgpu_ngram.jobs.progress import Progress
from tests.support.interrupt import Interrupt
from tests.support.slow_cases import first_fast
from tests.support.slowness import wait_until

HOOKS = Path(__file__).parents[2] / "support" / "task_hooks.py"
OPTIONS = {"order": 4, "chunk_bytes": 6000}
NEVER = 1e9
SMALL = 64 << 20  # bytes, the least chunk size
pytestmark = pytest.mark.timeout(100)


@pytest.fixture(scope="session")
def num_chunks(corpus):
    return len(open_corpus([str(path) for path in corpus]).chunks(OPTIONS["chunk_bytes"]))


def saved(folder, kind="run"):
    """Return item -> its file, of the entries below a folder."""
    files = folder.rglob(f"{kind}-*.safetensors")
    return {item: file for file in files for item in load_arrays(file)[1]["items"]}


def names(folder):
    return sorted(p.name for p in folder.iterdir())


# The driver as a separate process


def wait_for(found, process, seconds=60):
    wait_until(lambda: found() or process.poll() is not None, seconds, 0.005)
    assert process.poll() is None, process.communicate()
    assert found()


def is_gone(process):
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


MOMENTS = {  # the files beside the output at that moment
    "tokenise": lambda folder: len(list(folder.glob("out.checkpoint/entries-*/vocabulary_0-*.safetensors"))) >= 5,
    "count": lambda folder: len(list(folder.glob("out.checkpoint/entries-*/run-*.safetensors"))) >= 5,
    "write": lambda folder: any(folder.glob("out.partial-*/order=4")),
    "number": lambda folder: Path(os.environ["NGRAM_TEST_HOOKS"], "text_ids.waits").exists(),
    "files": lambda folder: any(folder.glob("out.checkpoint/entries-*/written-*.safetensors")),
}


def end_early(folder, corpus, workers, moment, number, strategy="hash"):
    """Signal a driver at a moment; return (its exit status, stderr) when all its processes have ended.

    strategy  "hash": it merges sorted runs; "auto": several workers make shards from the tokens
    """
    command = [sys.executable, str(HOOKS), "count", *map(str, corpus), "-o", str(folder / "out"), "--order", "4"]
    command += ["--chunk-bytes", "6000", "--checkpoint-seconds", "0", "--workers", str(workers), "--device", "cpu"]
    command += ["--strategy", strategy]
    process = subprocess.Popen(command, text=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        wait_for(lambda: MOMENTS[moment](folder), process)
        started = psutil.Process(process.pid).children(recursive=True)
        assert len(started) >= workers
        process.send_signal(number)
        err = process.communicate()[1]
    finally:
        process.kill()
    assert wait_until(lambda: all(map(is_gone, started)), 30), started
    return process.returncode, err


SLOW = {
    "tokenise.slow": 0.1, "count_chunk.slow": 0.15, "write_part.slow": 1, "text_ids.slow": 0.1,
    "write_windows.slow": 0.3,
}  # fmt: skip


@pytest.fixture
def slow(hooks):
    """Slow tasks, so that each moment lasts long enough to hit."""
    hooks(**SLOW)


@pytest.mark.parametrize(
    ("moment", "workers"),
    first_fast([("count", 2), ("count", 0), *((moment, n) for moment in ("tokenise", "write") for n in (0, 2))]),
)
def test_the_driver_is_killed(moment, workers, corpus, num_chunks, undisturbed, contents, run_here, slow, tmp_path):
    status, _ = end_early(tmp_path, corpus, workers, moment, signal.SIGKILL)
    assert status == -signal.SIGKILL
    finished = len(saved(tmp_path))
    assert {"tokenise": finished == 0, "count": 5 <= finished < num_chunks, "write": finished == num_chunks}[moment]
    with claimed([tmp_path / "out"]):  # as commands and ng.count do
        result = run_here(tmp_path / "out", corpus, 3, resume=True, **OPTIONS)
    assert result.resumed_chunks == finished
    assert contents(result.path) == undisturbed
    assert names(tmp_path) == ["out"]


@pytest.mark.parametrize("moment", first_fast(["files", "number"]))
def test_the_driver_of_a_run_from_tokens_is_killed(moment, corpus, undisturbed, contents, run_here, slow, tmp_path):
    status, _ = end_early(tmp_path, corpus, 2, moment, signal.SIGKILL, "auto")
    assert status == -signal.SIGKILL
    finished = len(saved(tmp_path, "written"))
    assert finished < 10 and (finished > 0) == (moment == "files")
    with claimed([tmp_path / "out"]):
        result = run_here(tmp_path / "out", corpus, 3, resume=True, **OPTIONS)
    assert result.resumed_shards == finished
    assert contents(result.path) == undisturbed
    assert names(tmp_path) == ["out"]


@pytest.mark.parametrize("workers", first_fast([0, 2]))
def test_interrupted(workers, corpus, num_chunks, undisturbed, contents, hooks, slow, tmp_path):
    status, err = end_early(tmp_path, corpus, workers, "count", signal.SIGINT)
    assert status == 130 and err.count("\n") == 1 and err.startswith("mgpu-ngram: interrupted; ")
    assert names(tmp_path) == ["out.checkpoint"]
    finished = len(saved(tmp_path))
    assert 5 <= finished < num_chunks
    hooks(**dict.fromkeys(SLOW, 0))
    command = [sys.executable, str(HOOKS), "count", *map(str, corpus), "-o", str(tmp_path / "out"), "--order", "4"]
    again = subprocess.run([*command, "--workers", "0"], capture_output=True, text=True)
    assert again.returncode == 2 and again.stderr.count("\n") == 1
    assert "holds an unfinished run" in again.stderr and "--resume" in again.stderr and "--overwrite" in again.stderr
    again = subprocess.run([*command, "--workers", "0", "--resume"], capture_output=True, text=True)
    assert (again.returncode, again.stderr) == (0, "")
    assert contents(tmp_path / "out") == undisturbed
    assert names(tmp_path) == ["out"]


# Interrupted in this process


@pytest.fixture
def unfinished(corpus, num_chunks, run_here, several_shards, tmp_path):
    """Return a private copy of the corpus, with the checkpoint of a run that counted part of it."""
    (tmp_path / "text").mkdir()
    mine = [Path(shutil.copy2(path, tmp_path / "text")) for path in corpus]
    stop = Interrupt("count", 20, until=lambda: saved(tmp_path))
    with pytest.raises(KeyboardInterrupt):
        run_here(tmp_path / "out", mine, progress=stop, checkpoint_seconds=0, **OPTIONS)
    assert names(tmp_path) == ["out.checkpoint", "text"] and 1 <= len(saved(tmp_path)) < num_chunks
    return mine


@pytest.mark.slow
def test_finished_chunks_are_saved_while_others_wait(corpus, num_chunks, run_here, tmp_path, monkeypatch):
    count_chunk, found = chunk_ranges.count_chunk, []

    def is_saved():
        return any(tmp_path.glob("out.checkpoint/entries-*/run-*.safetensors"))

    def slow(*args):
        wait_until(is_saved, 1)
        return count_chunk(*args)

    monkeypatch.setattr(chunk_ranges, "count_chunk", slow)

    class Look(Progress):
        def advance(self, done, amount=0):
            found.append(is_saved())

    run_here(tmp_path / "out", corpus, progress=Look(), checkpoint_seconds=0.05, **OPTIONS)
    after = 1 + num_chunks + 1  # calls until counting begins
    assert any(found[after : after + num_chunks // 2])


def test_saved_runs_are_released(corpus, num_chunks, run_here, tmp_path, monkeypatch):
    """The last chunk waits until only the files of the other chunks remain."""
    count_chunk, made, left = chunk_ranges.count_chunk, [], []

    def count(chunk, *options):
        run = count_chunk(chunk, *options)
        if chunk.index == num_chunks - 1:
            wait_until(lambda: gc.collect() is not None and all(other() is None for other in made))
            left.append(sum(other() is not None for other in made))
        made.append(weakref.ref(run))
        return run

    monkeypatch.setattr(chunk_ranges, "count_chunk", count)
    run_here(tmp_path / "out", corpus, 1, checkpoint_seconds=0, **OPTIONS)
    assert len(made) == num_chunks and left == [0]


def test_vocabularies_are_saved_while_a_chunk_is_slow(corpus, run_here, tmp_path, monkeypatch):
    tokenise, saved_first = chunk_ranges.tokenise, []

    def slow(chunk, *options):
        if chunk.index == 0:
            saved_first.append(bool(wait_until(lambda: saved(tmp_path, "vocabulary_0"))))
        return tokenise(chunk, *options)

    monkeypatch.setattr(chunk_ranges, "tokenise", slow)
    run_here(tmp_path / "out", corpus, checkpoint_seconds=0, **OPTIONS)
    assert saved_first == [True]


@pytest.mark.parametrize("worth_it", [True, False])
def test_the_last_vocabularies_are_saved_if_worthwhile(worth_it, corpus, num_chunks, run_here, tmp_path, monkeypatch):
    """During the count, which does not end before the save; the summary holds the seconds of the save."""
    saves, reduce = [], threading.Event()

    def save(vocabularies, items, folder, seed, budget):
        saves.append((len(vocabularies), sorted(items)))
        assert not reduce.wait(1.5)
        return {"checkpoint": 1000.0}

    class UntilReduce(Progress):
        def start(self, phase, total, unit="", rate=""):
            if phase == "reduce":
                reduce.set()

    monkeypatch.setattr(count_passes, "save_vocabularies", save)
    monkeypatch.setattr(count_passes, "WORTH_SAVING_SECONDS", 0 if worth_it else NEVER)
    result = run_here(tmp_path / "out", corpus, progress=UntilReduce(), checkpoint_seconds=NEVER, **OPTIONS)
    assert saves == [(num_chunks, [(i,) for i in range(num_chunks)])] * worth_it
    assert result.seconds.get("checkpoint") == (1000.0 if worth_it else None)


@pytest.mark.parametrize("ranges", first_fast([5, 1]))
def test_vocabularies_of_a_checkpoint_are_merged_in_ranges(
    ranges, unfinished, run_here, contents, undisturbed, tmp_path, monkeypatch
):
    """A run in ranges is interrupted, and goes on in ranges or without: vocabularies come from files, and from text."""
    monkeypatch.setattr(count_passes, "WORD_BYTES", 1 << 60)
    monkeypatch.setattr(count_passes, "ranges_needed", lambda sizes, budget: 6 - ranges)
    with pytest.raises(KeyboardInterrupt):
        stop = Interrupt("count", 10)
        run_here(tmp_path / "out", unfinished, progress=stop, checkpoint_seconds=0, resume=True, **OPTIONS)
    monkeypatch.setattr(count_passes, "ranges_needed", lambda sizes, budget: ranges)
    result = run_here(tmp_path / "out", unfinished, resume=True, **OPTIONS)
    assert result.resumed_chunks and tables(contents(result.path)) == tables(undisturbed)


def test_vocabularies_are_saved_in_as_many_files_as_memory_asks_for(tmp_path):
    sizes = {"u8": 1, "i8": 2, "u1": 0}
    word = LocalVocabulary(*(np.zeros(n, t) for t, n in sizes.items()), *(np.zeros(1, t) for t in ("i8", "i4", "i8")))
    budget = Budget("cpu", 0, 15 * word.nbytes)  # a block has 0.4 of it
    count_passes.save_vocabularies([word] * 9, [(2 * i, 2 * i + 1) for i in range(9)], str(tmp_path), 3, budget)
    entries = [load_arrays(path)[1]["items"] for path in tmp_path.glob("vocabulary_3-*.safetensors")]
    assert sorted(map(len, entries)) == [6, 12]
    assert sorted(item for items in entries for item in items) == list(range(18))


def test_existing_output_needs_resume_or_overwrite(unfinished, run_here, contents, tmp_path):
    before = contents(tmp_path / "out.checkpoint")
    with pytest.raises(InputError, match=r"holds an unfinished run of .* add --resume .* or --overwrite .* to start"):
        run_here(tmp_path / "out", unfinished, **OPTIONS)
    assert contents(tmp_path / "out.checkpoint") == before and not (tmp_path / "out").exists()


def tables(files):
    """Return an output without the names of its inputs."""
    return {name: data for name, data in files.items() if name != "manifest.json"}


@pytest.mark.parametrize(
    "changes",
    first_fast(
        [{"chunk_bytes": 20_000}, {"strategy": "hash"}, {"workers": 1}, {"memory": MemoryConfig(host_bytes=SMALL)}]
    ),
    ids=lambda changes: next(iter(changes)),
)
def test_resume_with_changed_settings_that_do_not_matter(
    changes, unfinished, undisturbed, contents, run_here, tmp_path
):
    finished = len(saved(tmp_path))
    result = run_here(tmp_path / "out", unfinished, resume=True, **{**OPTIONS, **changes})
    assert result.resumed_chunks == finished
    assert tables(contents(result.path)) == tables(undisturbed)
    assert names(tmp_path) == ["out", "text"]


def test_overwritten(unfinished, undisturbed, contents, run_here, tmp_path):
    result = run_here(tmp_path / "out", unfinished, overwrite=True, **OPTIONS)
    assert result.resumed_chunks == 0
    assert tables(contents(result.path)) == tables(undisturbed)
    assert names(tmp_path) == ["out", "text"]


@pytest.mark.parametrize(
    ("options", "message"),
    first_fast(
        [
            ({"order": 3}, "the settings changed: settings.order was 4, is 3; undo the change"),
            ({"min_count": 2}, "the settings changed: settings.min_count was 1, is 2; undo the change"),
            ({"unit": "byte"}, 'the settings changed: settings.unit was "word", is "byte"; undo the change'),
            ({"lowercase": True}, "the settings changed: settings.lowercase was false, is true; undo the change"),
        ]
    ),
)
def test_other_settings_are_refused(options, message, unfinished, run_here, tmp_path):
    with pytest.raises(InputError, match=message) as error:
        run_here(tmp_path / "out", unfinished, resume=True, **{**OPTIONS, **options})
    assert "\n" not in str(error.value)
    assert names(tmp_path) == ["out.checkpoint", "text"], "it can still be resumed"


def longer(folder):
    with open(folder / "one.txt", "a") as file:
        file.write("more\n")


def touched(folder):
    os.utime(folder / "two.txt", (1, 1))


def one_more(folder):
    (folder / "zoo.txt").write_text("a b\n")


@pytest.mark.parametrize(
    ("change", "message"),
    first_fast(
        [
            (longer, r"the corpus changed: corpus.inputs.0.size_bytes was (\d+), is \d+"),
            (touched, r"the corpus changed: corpus.inputs.1.modified was \d+, is 1000000000; undo the change"),
            (one_more, r"the corpus changed: corpus.inputs.2.name was absent, is .*zoo.txt"),
        ]
    ),
)
def test_another_corpus_is_refused(change, message, unfinished, run_here, tmp_path):
    change(tmp_path / "text")
    with pytest.raises(InputError, match=message):
        run_here(tmp_path / "out", sorted((tmp_path / "text").iterdir()), resume=True, **OPTIONS)
    assert names(tmp_path) == ["out.checkpoint", "text"]


@pytest.mark.parametrize("kind", first_fast(["run", "vocabulary_0"]))
def test_a_damaged_entry_is_made_again(kind, unfinished, undisturbed, contents, run_here, tmp_path):
    before = saved(tmp_path)
    damaged = next(iter(saved(tmp_path, kind).values()))
    data = bytearray(damaged.read_bytes())
    data[-9] ^= 1
    damaged.write_bytes(data)
    with pytest.warns(UserWarning, match=r"is damaged: .* \(its items are computed again\)"):
        result = run_here(tmp_path / "out", unfinished, resume=True, **OPTIONS)
    assert result.resumed_chunks == sum(file != damaged for file in before.values())
    assert tables(contents(result.path)) == tables(undisturbed)
    assert names(tmp_path) == ["out", "text"]


class Phases(Progress):
    """Records the phases of a run, as [name, units, unit, finished units]."""

    def __init__(self):
        self.all = []

    def start(self, phase, total, unit="", rate=""):
        self.all.append([phase, total, unit, 0])

    def advance(self, done, amount=0):
        self.all[-1][3] += done


def test_tasks_verify_saved_entries(unfinished, run_here, tmp_path, monkeypatch):
    paths = {str(file) for kind in ("run", "vocabulary_0") for file in saved(tmp_path, kind).values()}
    runs, vocabularies = (len(set(saved(tmp_path, kind).values())) for kind in ("run", "vocabulary_0"))
    damage_of, verified = count_passes.damage_of, []

    def verify(path):
        verified.append((path, threading.current_thread()))
        return damage_of(path)

    monkeypatch.setattr(count_passes, "damage_of", verify)
    phases = Phases()
    run_here(tmp_path / "out", unfinished, progress=phases, resume=True, **OPTIONS)
    assert [phase for phase in phases.all if phase[0] == "verify"] == [
        ["verify", n, "files", n] for n in (runs, vocabularies)
    ]
    assert [total for _, total, _, _ in phases.all] == [finished for *_, finished in phases.all]
    assert sorted(path for path, _ in verified) == sorted(paths)
    assert threading.current_thread() not in {thread for _, thread in verified}
    phases = Phases()
    run_here(tmp_path / "again", unfinished, progress=phases, **OPTIONS)
    assert "verify" not in [phase[0] for phase in phases.all]


# Spilled


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """Random words: 1.8 million distinct n-grams, 29 MB."""
    path = tmp_path_factory.mktemp("large") / "text"
    words = np.array([f"w{i}" for i in range(2000)])[np.random.default_rng(0).integers(0, 2000, 600_000)]
    path.write_text("\n".join(" ".join(line) for line in words.reshape(-1, 50)) + "\n")
    return path


@pytest.fixture(scope="module")
def large_counted(large, contents, run_here, tmp_path_factory):
    return contents(run_here(tmp_path_factory.mktemp("large") / "out", [large], order=4).path)


def test_resumed_from_spilled_runs(large, large_counted, contents, run_here, tmp_path):
    gc.collect()  # results of earlier tests, in cycles, would count as held
    spill, out = tmp_path / "spill", tmp_path / "out"
    options = {"order": 4, "chunk_bytes": 300_000, "checkpoint_seconds": NEVER, "strategy": "hash"}
    options["memory"] = MemoryConfig(host_bytes=SMALL, spill_dir=str(spill))
    for attempt in range(2):
        with pytest.raises(KeyboardInterrupt):
            run_here(out, [large], progress=Interrupt("write", 0), overwrite=attempt > 0, **options)
        assert names(tmp_path) == ["out.checkpoint", "spill"] and len(names(spill)) == 1
        spilled = len(saved(spill))
        assert 1 <= spilled < 11
    result = run_here(out, [large], resume=True, **options)
    assert result.resumed_chunks == spilled
    assert contents(out) == large_counted
    assert names(tmp_path) == ["out", "spill"] and names(spill) == []
    run_here(out, [large], overwrite=True, **options)
    assert contents(out) == large_counted
    assert names(tmp_path) == ["out", "spill"] and names(spill) == []


def test_a_run_without_entries_leaves_nothing(corpus, run_here, tmp_path):
    memory = MemoryConfig(spill_dir=str(tmp_path / "spill"))
    with pytest.raises(KeyboardInterrupt):
        run_here(tmp_path / "out", corpus, progress=Interrupt("count", 5), memory=memory, **OPTIONS)
    assert names(tmp_path) == ["spill"] and names(tmp_path / "spill") == []


@pytest.mark.parametrize("of", [".vocabulary_0-", ".run-"])
def test_a_full_disk_of_entries(of, corpus, run_here, contents, undisturbed, several_shards, full_disk, tmp_path):
    """The run resumes if something was saved."""
    full_disk(of=of)
    with pytest.raises(RunError, match=rf"^cannot write \S+/{of[1:]}\S+ after 0 bytes: No space left on device; free"):
        run_here(tmp_path / "out", corpus, checkpoint_seconds=0, **OPTIONS)
    has_saved = of == ".run-"
    assert names(tmp_path) == ["out.checkpoint"] * has_saved
    full_disk(room=1 << 30)
    result = run_here(tmp_path / "out", corpus, resume=has_saved, **OPTIONS)
    assert contents(result.path) == undisturbed and names(tmp_path) == ["out"]
