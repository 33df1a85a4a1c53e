"""A claim on an output: a file beside it that says which run writes it, so that a second run ends before any work.

.NAME.claim         the claim of a run on the output NAME: its host, process and start, and a random token
.NAME.claim-TOKEN   the claim of the run that took over from the run with this token, which had ended without
                    deleting its claim

So claims form a chain, and the last one holds the output. A claim is written under another name and then linked to the
next free name of the chain. A link fails if the name exists, also on network file systems; so of all runs that judge
the last claim as left behind, exactly one takes over. A run that ends deletes the chain, first claim first.

A run holds its claim while its process runs. A process of another host, which this host cannot see, shows that it runs:
a thread changes the time of its claim every BEAT_SECONDS.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.storage.output import clear_leftovers

BEAT_SECONDS = 3.0  # between changes of the time of a claim
WATCH_SECONDS = 30.0  # a run of another host whose claim does not change for so long has ended
POLL_SECONDS = 0.5  # between looks at the claim of another host
SAME_START_SECONDS = 2.0  # two readings of the start of one process differ by less, though the clock may be set


@contextlib.contextmanager
def claimed(outputs: Iterable[str | Path]) -> Iterator[None]:
    """Claim outputs while the block runs. Raises InputError if another run has claimed one of them.

    Takes over claims of runs that have ended, and removes their partial folders. Claims nothing that is no file and no
    folder, such as a pipe, and nothing where no file can be written or linked: there the outputs decide alone.
    """
    with contextlib.ExitStack() as stack:
        claims = list[Path]()
        for output in outputs:
            path = Path(os.path.realpath(output))
            if "://" in str(output) or (path.exists() and not path.is_file() and not path.is_dir()):
                continue
            claim = _claim(path)
            if claim is not None:
                stack.callback(_release, path, claim)
                claims.append(claim)
        ended = threading.Event()
        beat = threading.Thread(target=_beat, args=(claims, ended), name="mgpu-ngram-claim", daemon=True)
        beat.start()
        stack.callback(beat.join)
        stack.callback(ended.set)
        yield


def _claim(output: Path) -> Path | None:
    """Write the claim of this run; return its path, or None where that is impossible."""
    head = _head(output)
    token = secrets.token_hex(8)
    mine = head.with_name(f"{head.name}.{token}.tmp")
    try:
        head.parent.mkdir(parents=True, exist_ok=True)
        mine.write_text(json.dumps(_this_run(token)))
        while True:
            chain, free = _chain(head)
            if chain:
                _check_ended(output, *chain[-1])
            with contextlib.suppress(FileExistsError):
                os.link(mine, free)
                if any(holder["token"] == token for _, holder in _chain(head)[0]):
                    clear_leftovers(output, [(holder["host"], holder["pid"]) for _, holder in chain])
                    return free
                free.unlink()  # the chain was deleted meanwhile: the output is free
    except OSError:
        return None
    finally:
        with contextlib.suppress(OSError):
            mine.unlink()


def _head(output: Path) -> Path:
    return output.with_name(f".{output.name}.claim")


def _chain(head: Path) -> tuple[list[tuple[Path, dict[str, Any]]], Path]:
    """Return the claims from the first to the last one, each (path, contents), and the path of the next one."""
    chain, path = list[tuple[Path, dict[str, Any]]](), head
    while True:
        try:
            holder: dict[str, Any] = json.loads(path.read_bytes())
        except FileNotFoundError:
            return chain, path
        except ValueError:  # the host crashed before the data reached the disk
            damaged = f"damaged{len(chain)}"
            holder = {"host": "an unknown host", "pid": 0, "space": "", "started": 0.0, "since": 0.0, "token": damaged}
        chain.append((path, holder))
        path = head.with_name(f"{head.name}-{holder['token']}")


def _release(output: Path, claim: Path) -> None:
    """Delete the chain, first claim first: without it, the others do not count. Leaves it to a run that took over."""
    with contextlib.suppress(OSError):
        chain = [path for path, _ in _chain(_head(output))[0]]
        for path in chain if chain[-1:] == [claim] else ():
            path.unlink()


def _beat(claims: list[Path], ended: threading.Event) -> None:
    """Change the time of the claims until the run has ended."""
    while not ended.wait(BEAT_SECONDS):
        for claim in claims:
            with contextlib.suppress(OSError):
                os.utime(claim)


def _this_run(token: str) -> dict[str, Any]:
    import psutil

    return {
        "host": socket.gethostname(), "pid": os.getpid(), "space": _process_space(), "since": time.time(),
        "started": psutil.Process().create_time(), "token": token,
    }  # fmt: skip


def _process_space() -> str:
    """Return a name of all processes that this process can see: of a boot of a host, or of a container on it."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:  # not Linux
        return socket.gethostname()


def _check_ended(output: Path, claim: Path, holder: dict[str, Any]) -> None:
    """Raise InputError if the run that holds a claim has not ended."""
    since = datetime.fromtimestamp(holder["since"]).strftime("%Y-%m-%d %H:%M:%S")
    who = f"process {holder['pid']} on {holder['host']}, since {since}"
    if _runs_here(holder) if holder["space"] == _process_space() else _beats(claim, f"{output}: {who}"):
        raise InputError(f"another run writes {output}: {who}; wait for it or end it, or give another output path")


def _runs_here(holder: dict[str, Any]) -> bool:
    """Return whether the process of a claim of this host runs; a later process may have its number."""
    import psutil

    try:
        process = psutil.Process(holder["pid"])
        is_same = abs(process.create_time() - holder["started"]) < SAME_START_SECONDS
        return bool(is_same and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _beats(claim: Path, who: str) -> bool:
    """Return whether the time of a claim changes within WATCH_SECONDS; a deleted claim does not beat."""
    sys.stderr.write(f"mgpu-ngram: {who}, claimed it; waiting up to {WATCH_SECONDS:g} s for a sign that it runs\n")
    deadline, first = time.monotonic() + WATCH_SECONDS, _changed(claim)
    while first is not None and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
        if (now := _changed(claim)) != first:
            return now is not None
    return False


def _changed(claim: Path) -> int | None:
    """Return the time of a claim's last change. Opens the file: NFS asks the server only then."""
    try:
        with open(claim, "rb") as file:
            return os.fstat(file.fileno()).st_mtime_ns
    except FileNotFoundError:
        return None
