"""Output folders appear complete or not at all, and never replace foreign folders."""

import errno
import json
import os
import subprocess
import sys
import threading
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import mgpu_ngram.core.storage.output as output_module
from mgpu_ngram.core import interrupts
from mgpu_ngram.core.errors import InputError, RunError
from mgpu_ngram.core.storage.output import Output, Sink, _host, find_manifest, new_file, write_manifest
from tests.support.slowness import wait_until

FORMAT = "mgpu_ngram counts"


def fill(output, text="new"):
    (output.folder / "data").write_text(text)
    write_manifest(output.folder, {"unit": "word"}, FORMAT)


def names(folder):
    return sorted(entry.name for entry in folder.iterdir())


def test_commit_makes_the_final_name_and_leaves_nothing_else(tmp_path):
    with Output.create(tmp_path / "deep" / "out") as output:
        fill(output)
        (output.folder / ".part-00000.parquet.1234.tmp").write_text("of a dead worker")
        assert not output.path.exists()
        output.commit()
    assert names(tmp_path / "deep") == ["out"]
    assert names(tmp_path / "deep" / "out") == ["data", "manifest.json"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_exception_leaves_nothing(tmp_path, error):
    with pytest.raises(error), Output.create(tmp_path / "out") as output:
        fill(output)
        raise error
    assert names(tmp_path) == []


def test_nothing_is_committed_without_commit(tmp_path):
    with Output.create(tmp_path / "out") as output:
        fill(output)
    assert names(tmp_path) == []


def test_an_existing_path_is_refused_before_any_work(tmp_path):
    (tmp_path / "out").mkdir()
    with pytest.raises(InputError, match="exists; add --overwrite"):
        Output.create(tmp_path / "out")
    assert names(tmp_path) == ["out"]


@pytest.mark.parametrize("manifest", [None, "not JSON", "[]", '{"format": "another tool"}'])
def test_overwrite_never_takes_a_foreign_folder(tmp_path, manifest):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("years of work")
    if manifest is not None:
        (tmp_path / "out" / "manifest.json").write_text(manifest)
    with pytest.raises(InputError, match="is not an output of mgpu_ngram"):
        Output.create(tmp_path / "out", overwrite=True)
    assert (tmp_path / "out" / "thesis.tex").read_text() == "years of work"


def test_overwrite_never_takes_a_file(tmp_path):
    (tmp_path / "out").write_text("a file")
    with pytest.raises(InputError, match="is not an output of mgpu_ngram"):
        Output.create(tmp_path / "out", overwrite=True)


def old_output(tmp_path):
    with Output.create(tmp_path / "out") as output:
        fill(output, "old")
        output.commit()


def test_overwrite_swaps_only_at_commit(tmp_path):
    old_output(tmp_path)
    with Output.create(tmp_path / "out", overwrite=True) as output:
        fill(output)
        assert (tmp_path / "out" / "data").read_text() == "old"
        output.commit()
    assert (tmp_path / "out" / "data").read_text() == "new"
    assert names(tmp_path) == ["out"]


def test_a_failed_overwrite_keeps_the_old_output(tmp_path, monkeypatch):
    old_output(tmp_path)
    rename = os.rename

    def fail_second(source, target):
        if ".partial-" in str(source):
            raise OSError(errno.EIO, "the disk died")
        rename(source, target)

    monkeypatch.setattr(os, "rename", fail_second)
    with pytest.raises(RunError, match="the disk died"), Output.create(tmp_path / "out", overwrite=True) as output:
        fill(output)
        output.commit()
    assert (tmp_path / "out" / "data").read_text() == "old"
    assert names(tmp_path) == ["out"]


def test_a_path_that_appeared_during_the_run_is_kept(tmp_path):
    with pytest.raises(InputError, match="exists"), Output.create(tmp_path / "out") as output:
        fill(output)
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "mine").write_text("mine")
        output.commit()
    assert names(tmp_path / "out") == ["mine"]


def test_a_killed_run_leaves_no_final_name_and_the_next_run_cleans_up(tmp_path):
    code = (
        "import os, sys\n"
        "from mgpu_ngram.core.storage.output import Output\n"
        "output = Output.create(sys.argv[1])\n"
        "(output.folder / 'half').write_text('half')\n"
        "os.kill(os.getpid(), 9)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    assert (
        subprocess.run([sys.executable, "-c", code, str(tmp_path / "out")], env=environment, check=False).returncode
        == -9
    )
    (left,) = names(tmp_path)
    assert left.startswith("out.partial-")
    others = [f"out.partial-{_host()}-{os.getpid()}-00000000", "out.partial-otherhost-1-00000000", "out.partial-notes"]
    for name in others:  # a live run's folder, another host's, and a folder with a similar name
        (tmp_path / name).mkdir()
    with Output.create(tmp_path / "out") as output:
        fill(output)
        output.commit()
    assert names(tmp_path) == sorted(["out", *others])


def test_an_output_moved_aside_by_a_killed_run_is_restored(tmp_path):
    old_output(tmp_path)
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    (tmp_path / "out").rename(tmp_path / f"out.old-{_host()}-{process.pid}-00000000")
    with pytest.raises(InputError, match="exists"):
        Output.create(tmp_path / "out")
    assert (tmp_path / "out" / "data").read_text() == "old"


def test_a_link_is_followed(tmp_path):
    old_output(tmp_path)
    (tmp_path / "link").symlink_to("out")
    with Output.create(tmp_path / "link", overwrite=True) as output:
        fill(output)
        output.commit()
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "out" / "data").read_text() == "new"


def test_an_unwritable_folder_is_bad_input(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot make output folder"):
        Output.create(tmp_path / "file" / "out")

    def refuse(*args, **kwargs):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(output_module.Path, "mkdir", refuse)
    with pytest.raises(InputError, match="Permission denied; give another output path"):
        Output.create(tmp_path / "out")


@pytest.mark.parametrize("path", ["", "s3://bucket/out"])
def test_only_local_paths(path):
    with pytest.raises(InputError, match="local path"):
        Output.create(path)


def test_a_full_disk_is_one_line_and_leaves_no_file(tmp_path, full_disk):
    full_disk(room=10)
    message = r"cannot write .*/data after 8 bytes: No space left on device; free space"
    with pytest.raises(RunError, match=message), new_file(tmp_path / "data") as sink:
        sink.write(b"12345678")
        sink.write(b"12345678")
    assert names(tmp_path) == []


@pytest.mark.parametrize("most", [1, 7, None])
def test_parts_are_written_together(tmp_path, monkeypatch, most):
    """A call of the system takes 1,024 parts at most, and may write only `most` bytes."""
    parts = [bytes([i % 256]) * (i % 5) for i in range(1_500)]
    whole = b"".join(parts)
    if most:
        monkeypatch.setattr(output_module, "write_together", lambda file, parts: os.write(file, b"".join(parts)[:most]))
    with new_file(tmp_path / "data") as sink:
        sink.write(b"before")
        sink.write_with_crc(parts, zlib.crc32(whole))
        sink.write_with_crc([b"", b""], 0)
        sink.write(b"after")
    content = (tmp_path / "data").read_bytes()
    assert content == b"before" + whole + b"after"
    assert (sink.size_bytes, sink.crc32) == (len(content), zlib.crc32(content))


def test_a_disk_that_fills_within_a_call_leaves_no_file(tmp_path, monkeypatch):
    room = [10]

    def write_together(file, parts):
        data = b"".join(parts)[: room[0]]
        if not data:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        room[0] -= len(data)
        return os.write(file, data)

    monkeypatch.setattr(output_module, "write_together", write_together)
    with pytest.raises(RunError, match="No space left on device"), new_file(tmp_path / "data") as sink:
        sink.write_with_crc([b"123456", b"7890", b"1"], 0)
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    "write",
    [
        Sink.append,
        lambda sink, data: sink.write_at(sink.size_bytes, data),
        lambda sink, data: sink.write_with_crc([data], 0),
    ],
)
def test_the_disk_takes_a_durable_file_while_it_is_written(tmp_path, monkeypatch, write):
    synced = []
    monkeypatch.setattr(output_module, "SYNC_BYTES", 1000)
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_size))
    with new_file(tmp_path / "plain") as sink:
        write(sink, bytes(5000))
    assert synced == []
    with new_file(tmp_path / "durable", durable=True) as sink:
        write(sink, bytes(1500))
        wait_until(lambda: synced, pause=0.001)
        assert synced == [1500]  # before the block ends
        write(sink, bytes(100))
    assert synced == [1500, 1600]

    def fails(descriptor):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fails)
    with (
        pytest.raises(RunError, match="cannot write .*bad after 1,500 bytes: Input/output error"),
        new_file(tmp_path / "bad", durable=True) as sink,
    ):
        write(sink, bytes(1500))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["durable", "plain"]


@pytest.mark.parametrize(("folder", "why"), [("no", "No such file or directory"), ("file", "Not a directory")])
def test_a_file_needs_a_folder(tmp_path, folder, why):
    (tmp_path / "file").touch()
    message = rf"^cannot write .*/{folder}/data: {why}; give a path in a folder that exists$"
    with pytest.raises(RunError, match=message), new_file(tmp_path / folder / "data"):
        pass


def test_manifest_round_trip(tmp_path):
    write_manifest(tmp_path, {"unit": "word", "tokens": np.int64(7), "inputs": ["caf\u00e9", "\udcff"]}, FORMAT)
    assert find_manifest(tmp_path) == {
        "format": FORMAT,
        "format_version": 1,
        "unit": "word",
        "tokens": 7,
        "inputs": ["caf\u00e9", "\udcff"],
    }
    text = (tmp_path / "manifest.json").read_text()
    assert text.startswith('{\n  "format": ')
    assert list(json.loads(text)) == sorted(json.loads(text))


def test_files_of_an_interrupted_command(tmp_path, monkeypatch):
    """Threads finish no output; saved parts of the work remain, and the main thread may clean up."""
    event = threading.Event()
    event.set()
    monkeypatch.setattr(interrupts, "interrupted", event)

    def write(name, durable):
        with new_file(tmp_path / name, durable) as sink:
            sink.write(b"a")

    with ThreadPoolExecutor(1) as pool:
        with pytest.raises(KeyboardInterrupt):
            pool.submit(write, "output", False).result()
        pool.submit(write, "saved", True).result()
    write("of the main thread", False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["of the main thread", "saved"]
