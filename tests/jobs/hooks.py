"""Loaded into the processes of a run by tests of faults: tasks die or wait, as the files of FOLDER specify.

FOLDER/shard_tokens  holds the words of a shard
FOLDER/TASK.slow     holds the seconds that TASK waits before it starts
FOLDER/TASK.before*  TASK kills its process before it starts, or that many seconds later as the file holds
FOLDER/TASK.after*   the same when it is done. The file is removed, and one process dies per file
FOLDER/TASK.chunk    holds the number of a chunk; TASK kills its process whenever it starts this chunk
FOLDER/TASK.deaths   counts these deaths, in bytes; after MAX_DEATHS the task fails instead
FOLDER.deaths        counts all deaths, in bytes

As a script it runs the command line: python hooks.py count text -o out
"""

import functools
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

from mgpu_ngram.core import shards
from mgpu_ngram.engine import assemble, count, decode_lines, infer_topics, score, tokenise, write
from mgpu_ngram.engine import distribution_tasks as distribute
from mgpu_ngram.engine import sorted_runs as runs
from mgpu_ngram.jobs.count import passes as count_passes
from mgpu_ngram.jobs.count import shuffle
from mgpu_ngram.jobs.decode import run as decode_job
from mgpu_ngram.jobs.distribution import passes as distribution_passes
from mgpu_ngram.jobs.estimate import assemble as estimate_model
from mgpu_ngram.jobs.estimate import passes as estimate_passes
from mgpu_ngram.jobs.estimate import run as estimate_job
from mgpu_ngram.jobs.score import run as score_job
from mgpu_ngram.jobs.topics import infer as topics_job
from mgpu_ngram.jobs.trie import run as trie_job

FOLDER = Path(os.environ["NGRAM_TEST_HOOKS"])
MAX_DEATHS = 6  # more than any correct run needs; an unlimited retry still ends
TASKS = {  # the modules where workers look tasks up, and the modules where the driver takes them from
    "tokenise": (tokenise, count_passes),
    "count_chunk": (count, count_passes),
    "bundle_runs": (runs, count_passes, shuffle),
    "take_shards": (runs, shuffle),
    "write_part": (write, count_passes),
    "save_vocabularies": (count_passes,),
    "save_runs": (count_passes,),
    "score_chunk": (score, score_job),
    "write_distributions": (distribute, distribution_passes),
    "save_done": (distribute, distribution_passes),
    "make_part": (estimate_passes,),
    "estimate_of": (estimate_passes,),
    "make_stretch": (estimate_model,),
    "link_stretch": (estimate_model,),
    "join": (estimate_model,),
    "save": (estimate_model, estimate_job),
    "build": (trie_job,),
    "infer_chunk": (infer_topics, topics_job),
    "decode_lines": (decode_lines, decode_job),
}


def die():
    with open(f"{FOLDER}.deaths", "ab") as file:
        file.write(b".")
    os.kill(os.getpid(), signal.SIGKILL)


dying = threading.Event()  # a moment later


def die_once(pattern):
    for bomb in FOLDER.glob(pattern):
        if dying.is_set():
            return
        with suppress(FileNotFoundError):  # another process removed the file first
            seconds = float(bomb.read_text() or 0)
            bomb.unlink()
            dying.set()
            threading.Timer(seconds, die).start() if seconds else die()


def die_of_chunk(task):
    with open(FOLDER / f"{task}.deaths", "ab") as file:
        if file.tell() == MAX_DEATHS:
            raise AssertionError(f"{task} of one chunk killed {MAX_DEATHS} workers and is run once more")
        file.write(b".")
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
            die_of_chunk(task)
        die_once(f"{task}.before*")
        result = fn(*args)
        die_once(f"{task}.after*")
        return result

    return wrapper


for task, modules in TASKS.items():
    [fn] = {getattr(module, task) for module in modules}
    wrapper = hooked(task, fn)
    for module in modules:
        setattr(module, task, wrapper)
assemble.SAMPLED = 4  # small models are cut, too
if tokens := read("shard_tokens"):
    shards.SHARD_TOKENS["word"] = int(tokens)

if __name__ == "__main__":
    from mgpu_ngram.cli import main

    sys.exit(main())
