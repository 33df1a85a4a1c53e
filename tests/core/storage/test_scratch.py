"""Temporary folders of killed processes are removed."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from mgpu_ngram.core.storage.scratch import is_running, scratch_folder
from tests.support.slowness import wait_until


def test_folders_of_dead_processes_are_removed_and_others_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    gone, mine, foreign = f"mgpu-ngram-{dead.pid}-ab12", f"mgpu-ngram-{os.getpid()}-cd34", "mgpu-ngram-notes-1"
    for name in (gone, mine, foreign):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("x")
    new = Path(scratch_folder())
    assert new.parent == tmp_path and new.name.startswith(f"mgpu-ngram-{os.getpid()}-")
    assert {p.name for p in tmp_path.iterdir()} == {mine, foreign, new.name}
    assert is_running(os.getpid()) and not is_running(dead.pid)


def test_a_zombie_process_counts_as_ended():
    ended = subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE)
    ended.stdout.read()  # until it has ended
    assert wait_until(lambda: not is_running(ended.pid))
    os.kill(ended.pid, 0)  # the system still lists its number
    ended.communicate()
