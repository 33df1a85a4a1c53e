"""Checkpoints: which entries are kept, found, refused and removed."""

import json
import os
import socket
import subprocess
import sys
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mgpu_ngram.core.storage.checkpoint as checkpoint_module
import mgpu_ngram.core.storage.checkpoint_entries as entries_module
from mgpu_ngram.core.errors import InputError, RunError
from mgpu_ngram.core.storage.checkpoint import Checkpoint
from mgpu_ngram.core.storage.checkpoint_entries import SPILLED, damage_of, delete_older, save_entry
from mgpu_ngram.core.storage.manifest_changes import what_changed
from mgpu_ngram.core.storage.output import Output, _host
from mgpu_ngram.core.storage.safetensors import load_arrays, save_arrays

IDENTITY = {
    "corpus": {"inputs": [{"name": "a.txt", "size_bytes": 12}, {"name": "b.txt", "size_bytes": 5}]},
    "settings": {"order": 5, "lowercase": False},
}
ARRAYS = {"keys": np.arange(4, dtype=np.uint64)}


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def open_checkpoint(tmp_path, resume=False, restart=False, identity=IDENTITY, **more):
    return Checkpoint.open(tmp_path / "out", identity, resume, restart, **more)


def save(checkpoint, items, kind="run", **more):
    return save_entry(str(checkpoint.entries_folder), kind, items, ARRAYS, **more)


def damage(path):
    """Change the last byte of an entry."""
    with open(path, "r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\1")


@pytest.fixture
def unfinished(tmp_path):
    """An unfinished run with one entry, for items 1 and 2."""
    with open_checkpoint(tmp_path, chosen={"chunk_bytes": 7}) as checkpoint:
        save(checkpoint, [1, 2])
    return checkpoint


def dead_process():
    """The number of an ended process."""
    process = subprocess.Popen([sys.executable, "-S", "-c", ""])
    process.wait()
    return process.pid


def write_owner(checkpoint, host, pid, token="0123456789abcdef"):
    (checkpoint.folder / "owner.json").write_text(json.dumps({"host": host, "pid": pid, "token": token}))


def test_an_entry_comes_back(tmp_path):
    checkpoint = open_checkpoint(tmp_path)
    path = save_entry(str(checkpoint.entries_folder), "run", np.array([4, 2]), ARRAYS, {"bits": {"2": 19}})
    (entry,) = checkpoint.entries("run")
    assert (entry.path, entry.items, entry.metadata["bits"]) == (path, (4, 2), {"2": 19})
    assert load_arrays(entry.path)[0]["keys"].tolist() == [0, 1, 2, 3]
    assert checkpoint.entries("vocabulary") == []
    checkpoint.discard()
    assert names(tmp_path) == []


def test_a_run_that_fails_keeps_its_entries_and_resumes(tmp_path):
    with pytest.raises(KeyboardInterrupt), open_checkpoint(tmp_path, chosen={"chunk_bytes": 7}) as first:
        save(first, [1, 2])
        raise KeyboardInterrupt
    assert names(tmp_path) == ["out.checkpoint"]
    assert not (first.folder / "owner.json").exists()
    with open_checkpoint(tmp_path, resume=True, chosen={"chunk_bytes": 8}) as second:
        assert second.folder == tmp_path / "out.checkpoint"
        assert second.identity == IDENTITY
        assert second.chosen == {"chunk_bytes": 7}
        assert [entry.items for entry in second.entries("run")] == [(1, 2)]
        save(second, [3])
        second.discard()
    assert names(tmp_path) == []


def test_a_run_that_fails_without_entries_leaves_nothing(tmp_path):
    with pytest.raises(ValueError, match="odd"), open_checkpoint(tmp_path):
        raise ValueError("odd")
    assert names(tmp_path) == []


def test_spilled_results_are_no_entries(tmp_path):
    """Another task may write one for a moment, after the error that ends the run: nothing can be resumed."""
    with pytest.raises(ValueError, match="odd"), open_checkpoint(tmp_path) as checkpoint:
        save(checkpoint, [], kind=SPILLED, durable=False)
        assert checkpoint.num_entries() == 0
        raise ValueError("odd")
    assert names(tmp_path) == []


def test_an_unfinished_run_needs_resume_or_overwrite(tmp_path, unfinished):
    with pytest.raises(InputError, match=r"unfinished run of 2\d\d\d-.* with 1 entries; add --resume .*--overwrite"):
        open_checkpoint(tmp_path)
    assert len(names(unfinished.entries_folder)) == 1
    with open_checkpoint(tmp_path, restart=True) as checkpoint:
        assert checkpoint.entries("run") == []
        assert checkpoint.entries_folder != unfinished.entries_folder
        with pytest.raises(RunError, match="cannot write"):  # a worker of the old run is still working
            save(unfinished, [5])
        assert checkpoint.entries("run") == []
    assert names(tmp_path) == []


def test_nothing_to_resume(tmp_path):
    with pytest.raises(InputError, match=r"nothing to resume: .*out\.checkpoint does not exist; leave out --resume"):
        open_checkpoint(tmp_path, resume=True)
    assert names(tmp_path) == []


def test_a_killed_run_without_entries_is_replaced(tmp_path):
    checkpoint = open_checkpoint(tmp_path)
    write_owner(checkpoint, socket.gethostname(), dead_process())
    with open_checkpoint(tmp_path, identity={"corpus": 1}) as again:
        assert again.identity == {"corpus": 1}
        assert names(tmp_path) == ["out.checkpoint"]


def test_a_run_killed_before_its_first_entry_resumes(tmp_path):
    checkpoint = open_checkpoint(tmp_path)
    write_owner(checkpoint, socket.gethostname(), dead_process())
    with open_checkpoint(tmp_path, resume=True) as again:
        assert again.entries("run") == []


def changed(**values):
    """Return the identity with changed values; a__b is key b of value a, and `None` removes it."""
    identity = json.loads(json.dumps(IDENTITY))
    for name, value in values.items():
        *before, last = name.split("__")
        inner = identity
        for key in before:
            inner = inner[key]
        inner[last] = value
        if value is None:
            del inner[last]
    return identity


@pytest.mark.parametrize(
    ("identity", "message"),
    [
        (
            changed(corpus__inputs=[IDENTITY["corpus"]["inputs"][0], {"name": "b.txt", "size_bytes": 6}]),
            "the corpus changed: corpus.inputs.1.size_bytes was 5, is 6; undo the change",
        ),
        (changed(settings__lowercase=0), "the settings changed: settings.lowercase was false, is 0; undo"),
        (changed(settings__order=None), "the settings changed: settings.order was 5, is absent; undo"),
        (changed(settings__unit="word"), 'the settings changed: settings.unit was absent, is "word"; undo'),
        (
            changed(corpus__inputs=[]),
            "the corpus changed: corpus.inputs.0.name was",
        ),
        (
            changed(corpus__inputs=[{"name": "c", "size_bytes": 1}, {"name": "d", "size_bytes": 5}], settings=1),
            'the corpus and the settings changed: corpus.inputs.0.name was "a.txt", is "c"; '
            'corpus.inputs.0.size_bytes was 12, is 1; corpus.inputs.1.name was "b.txt", is "d" and 3 more; undo',
        ),
    ],
)
def test_resume_refuses_a_changed_identity_and_names_the_change(tmp_path, unfinished, identity, message):
    with pytest.raises(InputError) as refused:
        open_checkpoint(tmp_path, resume=True, identity=identity)
    assert f"{tmp_path}/out.checkpoint cannot be resumed: {message}" in str(refused.value)
    assert "\n" not in str(refused.value)
    open_checkpoint(tmp_path, resume=True).keep()  # the refusal left the checkpoint unchanged


def test_an_identity_is_compared_as_json(tmp_path, unfinished):
    inputs = tuple({"size_bytes": np.int64(i["size_bytes"]), "name": i["name"]} for i in IDENTITY["corpus"]["inputs"])
    open_checkpoint(tmp_path, resume=True, identity=changed(corpus__inputs=[]) | {"corpus": {"inputs": inputs}}).keep()


def test_entries_never_share_an_item(tmp_path):
    checkpoint = open_checkpoint(tmp_path)
    for items in ([1, 2], [2, 3, 4], [5], [4, 5], [6]):
        save(checkpoint, items)
    save(checkpoint, [1], "other")
    assert [entry.items for entry in checkpoint.entries("run")] in (
        [(2, 3, 4), (5,), (6,)],
        [(2, 3, 4), (6,), (5,)],
    )
    assert [entry.items for entry in checkpoint.entries("other")] == [(1,)]


@given(st.lists(st.sets(st.integers(0, 9), max_size=5), max_size=8))
@settings(max_examples=25)
def test_chosen_entries_are_disjoint_and_complete(tmp_path_factory, many):
    folder = tmp_path_factory.mktemp("run")
    with open_checkpoint(folder) as checkpoint:
        for items in many:
            save(checkpoint, sorted(items))
        chosen = [entry.items for entry in checkpoint.entries("run")]
        covered = {item for items in chosen for item in items}
        assert sum(map(len, chosen)) == len(covered)
        assert all(items & covered or not items for items in many)
        assert len(chosen[0]) == max(map(len, many)) if many else not chosen
        assert sum(not items for items in chosen) == sum(not items for items in many)
        checkpoint.discard()


def test_a_smaller_entry_replaces_a_damaged_one(tmp_path):
    checkpoint = open_checkpoint(tmp_path)
    data, header, whole = save(checkpoint, [1, 2, 3]), save(checkpoint, [7, 8]), save(checkpoint, [2])
    for path, old, new in ((data, b"\3", b"\2"), (header, b"[7, 8]", b"[7, 9]")):
        with open(path, "r+b") as file:
            content = file.read()
            at = content.rindex(old)
            file.seek(at)
            file.write(new)
    with pytest.warns(UserWarning, match=r"run-\w+\.safetensors is damaged: .*computed again") as warned:
        entries = checkpoint.entries("run")
    assert [entry.path for entry in entries] == [whole]
    assert len(warned) == 2 and {w.filename for w in warned} == {__file__}
    assert [str(path) for path in checkpoint.entries_folder.iterdir()] == [whole]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_the_newest_generation_of_an_item_wins(order, tmp_path):
    checkpoint = open_checkpoint(tmp_path)
    paths = {g: save(checkpoint, [4], generation=g, durable=False) for g in order}
    [entry] = checkpoint.entries("run")
    assert (entry.path, entry.generation) == (paths[2], 2)
    assert all(os.path.exists(path) for path in paths.values())  # a crash may still damage the newest entry


def test_a_damaged_newest_generation_falls_back_to_the_one_before(tmp_path):
    checkpoint = open_checkpoint(tmp_path)
    paths = [save(checkpoint, [4], generation=g, durable=False) for g in range(3)]
    damage(paths[2])
    with pytest.warns(UserWarning, match="is damaged: .*computed again"):
        assert [(entry.path, entry.generation) for entry in checkpoint.entries("run")] == [(paths[1], 1)]
    assert [os.path.exists(path) for path in paths] == [True, True, False]


def test_a_durable_entry_deletes_the_older_ones_that_it_covers(tmp_path):
    checkpoint = open_checkpoint(tmp_path)
    kept = [
        save(checkpoint, [1, 3], generation=1),  # item 3 has no newer entry
        save(checkpoint, [1], generation=2),  # equally new
        save(checkpoint, [2], generation=3),  # newer
        save(checkpoint, [1], "other"),
    ]
    older = [save(checkpoint, items, generation=g, durable=False) for items, g in (([1], 0), ([2], 1), ([1, 2], 1))]
    assert all(map(os.path.exists, older))
    kept.append(save(checkpoint, [1, 2], generation=2))
    assert sorted(map(str, checkpoint.entries_folder.iterdir())) == sorted(kept)


def test_newer_entries_come_before_larger_ones(tmp_path):
    checkpoint = open_checkpoint(tmp_path)
    for generation, items in ((1, [1, 2, 3]), (2, [3]), (0, [5, 6])):
        save(checkpoint, items, generation=generation, durable=False)
    assert [entry.items for entry in checkpoint.entries("run")] == [(3,), (5, 6)]


def test_the_newest_generation_of_all_items(tmp_path):
    checkpoint = open_checkpoint(tmp_path)
    save(checkpoint, [1], generation=3, keep_older=True)
    paths = [save(checkpoint, [item], generation=3, keep_older=True) for item in (2, 3)]
    unfinished = save(checkpoint, [2], generation=4, keep_older=True)
    assert [e.items for e in checkpoint.newest_generation("run", [1, 2, 3])] != []
    assert {e.generation for e in checkpoint.newest_generation("run", [1, 2, 3])} == {3}
    assert [e.path for e in checkpoint.newest_generation("run", [2])] == [unfinished]
    assert checkpoint.newest_generation("run", [1, 2, 3, 4]) == []
    damage(paths[0])
    with pytest.warns(UserWarning, match="is damaged: .*computed again"):
        assert checkpoint.newest_generation("run", [1, 2, 3]) == []


def test_older_generations_are_deleted_together(tmp_path):
    checkpoint = open_checkpoint(tmp_path)
    for generation in (1, 2):
        for item in (1, 2):
            save(checkpoint, [item], generation=generation, keep_older=True)
    assert len(list(checkpoint.entries_folder.iterdir())) == 4
    delete_older(str(checkpoint.entries_folder), "run", 2)
    assert {entry.generation for entry in checkpoint.entries("run")} == {2}
    assert len(list(checkpoint.entries_folder.iterdir())) == 2


def test_an_entry_without_a_generation_is_of_generation_0(tmp_path):
    checkpoint = open_checkpoint(tmp_path)
    old = checkpoint.entries_folder / "run-0123456789abcdef.safetensors"
    save_arrays(old, ARRAYS, {"kind": "run", "items": [4]})
    assert [(entry.path, entry.generation) for entry in checkpoint.entries("run")] == [(str(old), 0)]
    new = save(checkpoint, [4], generation=1)
    assert [entry.path for entry in checkpoint.entries("run")] == [new] and not old.exists()


def test_a_negative_generation_is_refused(tmp_path):
    with pytest.raises(ValueError, match="generation is -1 but must be 0 or more"):
        save_entry(str(tmp_path), "run", [1], ARRAYS, generation=-1)


def test_damage_of_an_entry_is_described(tmp_path):
    path = save_entry(str(tmp_path), "run", [1], ARRAYS)
    assert damage_of(path) is None
    damage(path)
    assert "run-" in damage_of(path) and "is damaged: array 'keys' has CRC-32" in damage_of(path)
    open(path, "w").close()
    assert "no safetensors header" in damage_of(path)


@pytest.mark.parametrize("when", ["found", "verified"])
def test_an_entry_that_cannot_be_read_now_is_kept(when, tmp_path, monkeypatch):
    checkpoint = open_checkpoint(tmp_path)
    path = save(checkpoint, [1])
    load = entries_module.load_arrays

    def fail(path, verify=True):
        return load(os.path.dirname(path) if verify == (when == "verified") else path, verify)

    monkeypatch.setattr(entries_module, "load_arrays", fail)
    with pytest.raises(InputError, match="cannot read"):
        checkpoint.entries("run")
    assert os.path.exists(path)


@given(st.lists(st.tuples(st.sets(st.integers(0, 9), max_size=4), st.booleans()), max_size=8))
@settings(max_examples=25)
def test_a_verify_function_decides_which_entries_are_whole(tmp_path_factory, many):
    """The result equals verifying one by one; each entry is verified at most once, disjoint ones together."""
    folder = tmp_path_factory.mktemp("run")
    with open_checkpoint(folder) as checkpoint:
        items_of = {save(checkpoint, sorted(items)): items for items, _ in many}
        damaged = {path for path, (_, is_damaged) in zip(items_of, many, strict=True) if is_damaged}
        in_order = sorted(items_of, key=lambda path: (-len(items_of[path]), path))

        def disjoint(paths):
            taken, covered = [], set()
            for path in paths:
                if not covered & items_of[path]:
                    taken.append(path)
                    covered |= items_of[path]
            return taken

        expected = disjoint(path for path in in_order if path not in damaged)
        asked = []

        def verify(paths):
            asked.append(paths)
            return ["it is damaged" if path in damaged else None for path in paths]

        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            found = [entry.path for entry in checkpoint.entries("run", verify)]
        assert found == expected
        all_asked = [path for paths in asked for path in paths]
        assert len(set(all_asked)) == len(all_asked) and all(asked)
        assert asked[:1] == [disjoint(in_order)] * bool(many)
        assert len(asked) <= 1 or damaged
        assert {str(w.message) for w in warned} <= {"it is damaged (its items are computed again)"}
        deleted = {path for path in items_of if not os.path.exists(path)}
        assert deleted == damaged & set(all_asked) and len(warned) == len(deleted)
        checkpoint.discard()


def test_partial_files_are_no_entries_and_are_removed_on_resume(tmp_path, unfinished):
    half = unfinished.entries_folder / ".run-0123456789abcdef.safetensors.01234567.tmp"
    half.write_text("half")
    (unfinished.folder / ".owner.json.01234567.tmp").write_text("half")
    with open_checkpoint(tmp_path, resume=True) as checkpoint:
        assert names(checkpoint.entries_folder) == [os.path.basename(checkpoint.entries("run")[0].path)]
        half.write_text("half")
        assert len(checkpoint.entries("run")) == 1
        assert names(checkpoint.folder) == [checkpoint.entries_folder.name, "identity.json", "owner.json"]


@pytest.mark.parametrize("kind", ["", "a-b", "../a"])
def test_invalid_kinds_are_refused(tmp_path, kind):
    with pytest.raises(ValueError, match="letters, digits and _"):
        save_entry(str(tmp_path), kind, [], {})


def test_entries_in_another_folder(tmp_path, monkeypatch):
    (tmp_path / "fast").mkdir()
    monkeypatch.chdir(tmp_path)
    with open_checkpoint(tmp_path, entries_folder="fast") as checkpoint:
        save(checkpoint, [1])
        assert names(checkpoint.folder) == ["identity.json", "owner.json"]
        assert checkpoint.entries_folder.parent == tmp_path / "fast"
    monkeypatch.chdir("/")
    with open_checkpoint(tmp_path, resume=True, entries_folder=str(tmp_path / "other")) as again:
        assert [entry.items for entry in again.entries("run")] == [(1,)]
    with open_checkpoint(tmp_path, restart=True, entries_folder=str(tmp_path / "new")) as restarted:
        assert names(tmp_path / "fast") == []
        save(restarted, [1])
        restarted.discard()
    assert names(tmp_path) == ["fast", "new"] and names(tmp_path / "new") == []


def test_missing_entries_cannot_be_resumed(tmp_path):
    with open_checkpoint(tmp_path, entries_folder=str(tmp_path / "fast")) as checkpoint:
        save(checkpoint, [1])
    (tmp_path / "fast").rename(tmp_path / "gone")
    with pytest.raises(InputError, match=r"fast/entries-.* is missing; start again with --overwrite"):
        open_checkpoint(tmp_path, resume=True)
    open_checkpoint(tmp_path).discard()


def test_a_checkpoint_moves_with_its_output(tmp_path, unfinished):
    (tmp_path / "out.checkpoint").rename(tmp_path / "other.checkpoint")
    with Checkpoint.open(tmp_path / "other", IDENTITY, True, False) as checkpoint:
        assert [entry.items for entry in checkpoint.entries("run")] == [(1, 2)]


@pytest.mark.parametrize("flags", [{}, {"resume": True}, {"restart": True}])
def test_a_second_run_is_refused(tmp_path, flags):
    with open_checkpoint(tmp_path) as checkpoint:
        save(checkpoint, [1])
        process = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
        try:
            for pid in (os.getpid(), process.pid):
                if pid != os.getpid():
                    write_owner(checkpoint, socket.gethostname(), pid)
                with pytest.raises(InputError, match=rf"process {pid} on {socket.gethostname()} works on .*; wait for"):
                    open_checkpoint(tmp_path, **flags)
        finally:
            process.communicate(b"\n")
        assert len(checkpoint.entries("run")) == 1


@pytest.mark.parametrize("pid", ["dead", "own"])
def test_an_ended_owner_is_ignored(tmp_path, unfinished, pid):
    """Also if this process has the same number, as in a restarted container."""
    token = unfinished._owner["token"]
    write_owner(unfinished, socket.gethostname(), dead_process() if pid == "dead" else os.getpid(), token)
    open_checkpoint(tmp_path, resume=True).keep()
    assert len(unfinished.entries("run")) == 1


def test_an_owner_on_another_host_counts_as_running_unless_overridden(tmp_path, unfinished):
    write_owner(unfinished, "elsewhere", 1)
    with pytest.raises(InputError, match=r"process 1 on elsewhere works on .*, or if it has ended, add --resume or"):
        open_checkpoint(tmp_path)
    open_checkpoint(tmp_path, resume=True).keep()
    write_owner(unfinished, "elsewhere", 1)
    open_checkpoint(tmp_path, restart=True).discard()
    assert names(tmp_path) == []


@pytest.mark.parametrize("end", ["keep", "discard"])
def test_a_run_that_lost_its_checkpoint_does_not_change_it(tmp_path, end):
    taken = open_checkpoint(tmp_path)
    save(taken, [1])
    write_owner(taken, "elsewhere", 1)
    getattr(taken, end)()
    assert (taken.folder / "owner.json").exists()
    assert len(taken.entries("run")) == 1


def test_a_run_that_another_overtakes_is_refused(tmp_path, monkeypatch):
    """Both find no checkpoint; the other creates it first."""
    rename, other = os.rename, []

    def overtaken(old, new):
        monkeypatch.setattr(os, "rename", rename)
        other.append(open_checkpoint(tmp_path))
        rename(old, new)

    monkeypatch.setattr(os, "rename", overtaken)
    with pytest.raises(InputError, match=r"cannot make checkpoint .*not empty"):
        open_checkpoint(tmp_path, entries_folder=str(tmp_path / "fast"))
    assert names(tmp_path) == ["fast", "out.checkpoint"] and names(tmp_path / "fast") == []
    assert other[0].entries_folder.is_dir()
    other[0].discard()


def test_killed_runs_leave_a_whole_checkpoint(tmp_path):
    code = (
        "import os, sys\n"
        "import numpy as np\n"
        "from mgpu_ngram.core.storage.checkpoint import Checkpoint\n"
        "from mgpu_ngram.core.storage.checkpoint_entries import save_entry\n"
        "checkpoint = Checkpoint.open(sys.argv[1], {'corpus': 1}, False, False)\n"
        "save_entry(str(checkpoint.entries_folder), 'run', [3], {'a': np.zeros(2)})\n"
        "os.kill(os.getpid(), 9)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    run = [sys.executable, "-c", code, str(tmp_path / "out")]
    assert subprocess.run(run, env=environment, check=False).returncode == -9
    with open_checkpoint(tmp_path, resume=True, identity={"corpus": 1}) as checkpoint:
        assert [entry.items for entry in checkpoint.entries("run")] == [(3,)]


def test_making_and_clearing_an_output_spares_checkpoints(tmp_path, unfinished):
    dead, live = dead_process(), os.getpid()
    write_owner(unfinished, socket.gethostname(), dead)
    half_made = [f"out.checkpoint.partial-{_host()}-{pid}-01234567" for pid in (dead, live)]
    for name in half_made:
        (tmp_path / name).mkdir()
    with Output.create(tmp_path / "out"):
        assert {"out.checkpoint", *half_made} < set(names(tmp_path))
    assert len(unfinished.entries("run")) == 1
    open_checkpoint(tmp_path, restart=True).discard()  # clears the partial outputs of an ended run
    assert names(tmp_path) == half_made[1:]


def test_a_link_to_the_output_is_followed(tmp_path, unfinished):
    (tmp_path / "link").symlink_to("out")
    Checkpoint.open(tmp_path / "link", IDENTITY, True, False).discard()
    assert names(tmp_path) == ["link"]


@pytest.mark.parametrize("identity", [None, "not JSON", "[]", '{"format": "another tool"}'])
@pytest.mark.parametrize("flags", [{}, {"resume": True}, {"restart": True}])
def test_a_foreign_folder_is_never_touched(tmp_path, identity, flags):
    (tmp_path / "out.checkpoint").mkdir()
    (tmp_path / "out.checkpoint" / "thesis.tex").write_text("years of work")
    if identity is not None:
        (tmp_path / "out.checkpoint" / "identity.json").write_text(identity)
    with pytest.raises(InputError, match=r"is not a checkpoint of mgpu_ngram"):
        open_checkpoint(tmp_path, **flags)
    assert (tmp_path / "out.checkpoint" / "thesis.tex").read_text() == "years of work"


def test_only_folders_of_entries_are_removed(tmp_path, unfinished):
    (tmp_path / "mine").mkdir()
    state = json.loads((unfinished.folder / "identity.json").read_text())
    (unfinished.folder / "identity.json").write_text(json.dumps({**state, "entries": str(tmp_path / "mine")}))
    open_checkpoint(tmp_path, restart=True).discard()
    assert names(tmp_path) == ["mine"]


def test_a_newer_format_is_refused(tmp_path, unfinished, monkeypatch):
    monkeypatch.setattr(checkpoint_module, "FORMAT_VERSION", 0)
    with pytest.raises(InputError, match=r"format version 1 but this mgpu_ngram reads up to 0; upgrade"):
        open_checkpoint(tmp_path, restart=True)


def test_an_unwritable_folder_is_bad_input(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"cannot make checkpoint .*; give another output path"):
        Checkpoint.open(tmp_path / "file" / "out", IDENTITY, False, False)
    with pytest.raises(
        InputError, match=r"cannot make checkpoint .*/file/fast/entries-\w+: Not a directory; give another spill_dir"
    ):
        open_checkpoint(tmp_path, entries_folder=str(tmp_path / "file" / "fast"))
    with pytest.raises(InputError, match=r"cannot make checkpoint .*; give another output path"):
        Checkpoint.open(tmp_path / "file" / "out", IDENTITY, False, False, str(tmp_path / "good"))
    assert names(tmp_path) == ["file"]


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ({"a": 1}, {"a": 1}, ""),
        ({"a": (1, 2)}, {"a": [1, 2]}, ""),
        ({"a": 1, "b": {"c": 3}}, {"a": 2, "b": {"c": 4}}, "the a and the b changed: a was 1, is 2; b.c was 3, is 4"),
        ({"a": []}, {"a": [5]}, "the a changed: a.0 was absent, is 5"),
        ({"a": [5]}, {"a": []}, "the a changed: a.0 was 5, is absent"),
        ({"a": None}, {"a": {"b": 1}}, "the a changed: a.b was absent, is 1"),
        ({"a": None}, {"a": 1}, "the a changed: a was null, is 1"),
        ({"a": 1}, {}, "the a changed: a was 1, is absent"),
    ],
)
def test_changes_by_hand(old, new, told):
    assert what_changed(old, new) == told
