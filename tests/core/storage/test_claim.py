"""Claims: one run of several holds an output, runs that have ended hold nothing, and nothing stays behind."""

import json
import os
import subprocess
import sys
import threading
import time
from contextlib import suppress
from types import SimpleNamespace

import pytest

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.storage import claim
from mgpu_ngram.core.storage.claim import claimed

# Claims each output that standard input names, says how that went, and holds it until the next line.
RUN = """
import sys
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.storage.claim import claimed
print("ready", flush=True)
for line in sys.stdin:
    try:
        with claimed([line.strip()]):
            print("holds", flush=True)
            sys.stdin.readline()
    except InputError as error:
        print(error, flush=True)
        sys.stdin.readline()
    print("ended", flush=True)
"""


def start():
    run = subprocess.Popen([sys.executable, "-c", RUN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert run.stdout.readline() == "ready\n"
    return run


def tell(runs, line):
    """Send a line to runs, all at once; return their answers."""
    for run in runs:
        run.stdin.write(f"{line}\n")
        run.stdin.flush()
    return [run.stdout.readline().strip() for run in runs]


@pytest.fixture
def holder(tmp_path):
    """A run that holds tmp_path/out."""
    run = start()
    assert tell([run], tmp_path / "out") == ["holds"]
    yield run
    run.kill()
    run.communicate()


@pytest.fixture
def killed(tmp_path, holder):
    """A run that was killed, and left its claim."""
    holder.kill()
    holder.wait()
    assert [path.name for path in tmp_path.iterdir()] == [".out.claim"]
    return holder


def leave_claim(output):
    """Claim an output as a run that is then killed."""
    path = claim._claim(output)
    forged = path.with_name(f"{path.name}.forged")
    forged.write_text(json.dumps(json.loads(path.read_text()) | {"pid": 2**30}))
    os.replace(forged, path)


def as_another_host(path, host="node7"):
    """Let a claim be of a host whose processes cannot be seen."""
    changed = json.loads(path.read_text()) | {"space": "another", "host": host}
    path.write_text(json.dumps(changed))


def test_the_refusal_names_the_run(tmp_path, holder):
    host = os.uname().nodename
    message = rf"^another run writes {tmp_path}/out: process {holder.pid} on {host}, since 20\d\d-.*; wait for it or"
    with pytest.raises(InputError, match=message), claimed([tmp_path / "free", tmp_path / "out"]):
        pass
    assert [path.name for path in tmp_path.iterdir()] == [".out.claim"]
    assert tell([holder], "end") == ["ended"] and list(tmp_path.iterdir()) == []


def test_the_same_process_claims_once(tmp_path):
    with claimed([tmp_path / "out"]):
        (tmp_path / "link").symlink_to(tmp_path / "out")
        with pytest.raises(InputError, match=f"process {os.getpid()} "), claimed([tmp_path / "link"]):
            pass
    with claimed([tmp_path / "out"]):
        pass


def test_a_killed_run_holds_nothing(tmp_path, killed):
    leave_claim(tmp_path / "out")  # the run after it was killed, too
    with claimed([tmp_path / "out"]):
        assert len(list(tmp_path.iterdir())) == 3
    assert list(tmp_path.iterdir()) == []


def test_a_number_of_another_process_holds_nothing(tmp_path, killed):
    path = tmp_path / ".out.claim"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"pid": os.getpid()}))
    with claimed([tmp_path / "out"]):
        pass


def test_one_of_eight_wins(tmp_path):
    runs = [start() for _ in range(8)]
    for number in range(20):
        output = tmp_path / f"out{number}"
        for _ in range(number % 3):  # so many killed runs before
            leave_claim(output)
        answers = tell(runs, output)
        assert answers.count("holds") == 1
        assert sum(answer.startswith(f"another run writes {output}") for answer in answers) == 7
        assert tell(runs, "end") == ["ended"] * 8
        assert list(tmp_path.iterdir()) == []
    for run in runs:
        run.communicate()


def test_runs_that_come_and_go_never_hold_an_output_together(tmp_path):
    holders, most, taken, lock = [], [0], [0], threading.Lock()

    def run():
        for number in range(40):
            with suppress(InputError), claimed([tmp_path / "out"]):
                with lock:
                    holders.append(number)
                    most[0], taken[0] = max(most[0], len(holders)), taken[0] + 1
                time.sleep(0.001)
                with lock:
                    holders.pop()
            if number % 4 == 0:
                with suppress(InputError):
                    leave_claim(tmp_path / "out")

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most[0] == 1 and taken[0] > 8


def test_another_host_shows_that_it_runs(tmp_path, holder, monkeypatch, capsys):
    as_another_host(tmp_path / ".out.claim")
    with pytest.raises(InputError, match=rf"process {holder.pid} on node7, since"), claimed([tmp_path / "out"]):
        pass
    assert f"process {holder.pid} on node7" in capsys.readouterr().err
    holder.kill()
    holder.wait()
    monkeypatch.setattr(claim, "WATCH_SECONDS", 0.5)
    for name in f"out.partial-node7-{holder.pid}-01234567", f"out.partial-node8-{holder.pid}-01234567":
        (tmp_path / name).mkdir()
    with claimed([tmp_path / "out"]):
        pass
    assert [path.name for path in tmp_path.iterdir()] == [f"out.partial-node8-{holder.pid}-01234567"]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has containers with their own process numbers")
def test_a_container_of_this_host_is_another_host(tmp_path, holder, monkeypatch):
    """There, the holder's process number means nothing: a claim that does not change is taken over."""
    real = os.stat

    def stat(path, **options):
        return SimpleNamespace(st_ino=1) if path == "/proc/self/ns/pid" else real(path, **options)

    monkeypatch.setattr(os, "stat", stat)
    monkeypatch.setattr(claim, "WATCH_SECONDS", 0.0)
    with claimed([tmp_path / "out"]):
        pass


def test_a_run_that_was_taken_for_dead_deletes_no_claim_of_others(tmp_path, monkeypatch):
    monkeypatch.setattr(claim, "WATCH_SECONDS", 0.0)
    with claimed([tmp_path / "out"]):
        as_another_host(tmp_path / ".out.claim")
        other = claimed([tmp_path / "out"])
        other.__enter__()
    assert len(list(tmp_path.iterdir())) == 2
    other.__exit__(None, None, None)
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_claim_is_watched(tmp_path, monkeypatch):
    monkeypatch.setattr(claim, "WATCH_SECONDS", 0.0)
    for name in (".out.claim", ".out.claim-damaged0"):
        (tmp_path / name).touch()
    with claimed([tmp_path / "out"]):
        pass
    assert list(tmp_path.iterdir()) == []


def test_where_nothing_can_be_claimed(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    with claimed(["/dev/null", "s3://bucket/out", tmp_path / "file" / "out"]):
        assert [path.name for path in tmp_path.iterdir()] == ["file"]

    def refuse(*_):
        raise PermissionError

    monkeypatch.setattr(os, "link", refuse)  # as file systems without links do
    with claimed([tmp_path / "out"]):
        assert [path.name for path in tmp_path.iterdir()] == ["file"]
