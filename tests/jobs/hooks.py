"""Loaded into the processes of a run by tests of faults: here tasks die, or take their time, as files of FOLDER say.

FOLDER/shard_tokens  holds the words of a shard
FOLDER/TASK.slow     holds seconds: so long waits TASK before it starts
FOLDER/TASK.before*  TASK kills its process before it starts, or
FOLDER/TASK.after*   when it is done; the file goes, so one process dies of one file
FOLDER/TASK.chunk    holds the number of a chunk, at whose start TASK kills its process every time

As a script it runs the command line: python hooks.py count text -o out
"""

import functools
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

from mgpu_ngram.core import shards
from mgpu_ngram.engine import count, runs, tokenise, write
from mgpu_ngram.jobs import count as job

FOLDER = Path(os.environ["NGRAM_TEST_HOOKS"])
TASKS = {
    "tokenise": tokenise,
    "count_chunk": count,
    "bundle_runs": runs,
    "take_part": runs,
    "write_part": write,
    "save_vocabularies": job,
    "save_runs": job,
}


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def die_once(pattern):
    for bomb in FOLDER.glob(pattern):
        with suppress(FileNotFoundError):  # another process was first
            bomb.unlink()
            die()


def read(name):
    with suppress(FileNotFoundError):
        return float((FOLDER / name).read_text())


def hooked(task, fn):
    @functools.wraps(fn)
    def wrapper(*args):
        if seconds := read(f"{task}.slow"):
            time.sleep(seconds)
        if (chunk := read(f"{task}.chunk")) is not None and args[0].index == chunk:
            die()
        die_once(f"{task}.before*")
        result = fn(*args)
        die_once(f"{task}.after*")
        return result

    return wrapper


for task, module in TASKS.items():
    wrapper = hooked(task, getattr(module, task))
    setattr(module, task, wrapper)  # where workers look it up
    setattr(job, task, wrapper)  # where the driver takes it
if tokens := read("shard_tokens"):
    shards.SHARD_TOKENS["word"] = int(tokens)

if __name__ == "__main__":
    from mgpu_ngram.cli import main

    sys.exit(main())
