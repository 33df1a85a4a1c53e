"""Memory-mapped files without names, and their handles in another process."""

import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from mgpu_ngram.core.storage.shared_maps import file_place_of, map_file

READ = """
import sys
from mgpu_ngram.core.storage.shared_maps import FileHandle
print(FileHandle(*map(int, sys.argv[1:])).map().tolist())
"""


def mapped(path, content):
    path.write_bytes(content)
    return map_file(os.open(path, os.O_RDONLY))


def test_a_view_by_hand(tmp_path):
    whole = mapped(tmp_path / "file", bytes(range(24)))
    view = whole[8:24].view(np.uint64)[1:]
    status = os.stat(tmp_path / "file")
    handle, offset = file_place_of(view)
    assert (handle.pid, offset) == (os.getpid(), 16)
    assert (handle.device, handle.inode, handle.size_bytes) == (status.st_dev, status.st_ino, 24)
    assert not view.flags.writeable and whole.tolist() == list(range(24))
    assert file_place_of(whole.copy()) is None and file_place_of(np.frombuffer(b"abc", np.uint8)) is None


def test_the_last_view_closes_the_file(tmp_path):
    before = os.listdir("/dev/fd")
    view = mapped(tmp_path / "file", b"abc")[1:]
    os.unlink(tmp_path / "file")
    assert view.tobytes() == b"bc" and len(os.listdir("/dev/fd")) > len(before)
    del view
    assert os.listdir("/dev/fd") == before
    with pytest.raises(ValueError, match="empty"):
        mapped(tmp_path / "file", b"")
    assert os.listdir("/dev/fd") == before


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="needs /proc")
def test_another_process_maps_a_file_without_a_name(tmp_path):
    view = mapped(tmp_path / "file", b"abc")
    os.unlink(tmp_path / "file")
    handle, _ = file_place_of(view)
    numbers = [handle.pid, handle.descriptor, handle.device, handle.inode, handle.size_bytes]
    done = subprocess.run([sys.executable, "-c", READ, *map(str, numbers)], capture_output=True, text=True)
    assert done.stdout == "[97, 98, 99]\n", done.stderr


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="needs /proc")
def test_a_process_maps_a_file_once(tmp_path):
    views = [mapped(tmp_path / name, name.encode()) for name in ("one", "two")]
    before = os.listdir("/dev/fd")
    first, other = ([file_place_of(view)[0].map() for _ in range(50)] for view in views)
    assert {a.tobytes() for a in first} == {b"one"} and {a.tobytes() for a in other} == {b"two"}
    assert len(os.listdir("/dev/fd")) - len(before) == 2 * 2, "one descriptor, and one that Python's map has"
    assert len({a.ctypes.data for a in first}) == 1 and not first[1].flags.writeable
    assert file_place_of(first[1][1:])[1] == 1
    del first, other
    assert os.listdir("/dev/fd") == before
    assert file_place_of(views[0])[0].map().tobytes() == b"one"


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="needs /proc")
def test_a_descriptor_of_another_file_is_refused(tmp_path):
    view = mapped(tmp_path / "file", b"abc")
    handle, _ = file_place_of(view)
    for wrong in replace(handle, inode=handle.inode + 1), replace(handle, size_bytes=4), replace(handle, device=-1):
        with pytest.raises(OSError, match="is another file by now"):
            wrong.map()
    del view
    with pytest.raises(FileNotFoundError):
        handle.map()
