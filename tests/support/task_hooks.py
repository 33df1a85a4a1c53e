"""Loaded into the processes of a run by tests of faults: tasks die or wait, as the files of FOLDER specify.

FOLDER/shard_tokens  holds the words of a shard
FOLDER/TASK.slow     holds the seconds that TASK waits before it starts; then FOLDER/TASK.waits exists
FOLDER/TASK.before*  TASK kills its process before it starts, or that many seconds later as the file holds
FOLDER/TASK.after*   the same when it is done. The file is removed, and one process dies per file
FOLDER/TASK.chunk    holds the number of a chunk; TASK kills its process whenever it starts this chunk
FOLDER/TASK.deaths   counts these deaths, in bytes; after MAX_DEATHS the task fails instead
FOLDER.deaths        counts all deaths, in bytes

As a script it runs the command line: python task_hooks.py count text -o out
"""

import functools
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from importlib.machinery import PathFinder
from pathlib import Path

from mgpu_ngram.core.counts import shards

FOLDER = Path(os.environ["NGRAM_TEST_HOOKS"])
MAX_DEATHS = 6  # more than any correct run needs; an unlimited retry still ends
TASKS = {  # by the module that defines them
    "mgpu_ngram.engine.count.tokenise": ["tokenise"],
    "mgpu_ngram.engine.count.count_chunk": ["count_chunk"],
    "mgpu_ngram.engine.count.text_ids": ["text_ids", "bundle_ids", "select_keys", "take_keys"],
    "mgpu_ngram.engine.count.sorted_runs": ["bundle_runs", "take_shards"],
    "mgpu_ngram.engine.count.vocabulary_ranges": [
        "merge_sorted", "deal_range", "words_of_piece", "number_piece", "join_pieces",
    ],
    "mgpu_ngram.engine.count.write_counts": ["write_part", "write_windows"],
    "mgpu_ngram.jobs.count.passes": ["save_vocabularies", "save_runs"],
    "mgpu_ngram.jobs.count.window_files": ["save_files"],
    "mgpu_ngram.engine.score.score_chunk": ["score_chunk"],
    "mgpu_ngram.engine.count.earlier_counts": ["count_earlier"],
    "mgpu_ngram.engine.score.compare_models": ["compare_chunk"],
    "mgpu_ngram.engine.rescore.rescore_chunk": ["rescore_chunk"],
    "mgpu_ngram.engine.distribution.tasks": ["write_distributions", "save_done"],
    "mgpu_ngram.jobs.estimate.tasks": ["make_part", "adjust_parts", "estimate_whole", "estimate_one"],
    "mgpu_ngram.engine.estimate.stored_parts": ["save_parts"],
    "mgpu_ngram.jobs.estimate.assemble": ["make_stretch", "link_stretch", "join", "save"],
    "mgpu_ngram.jobs.convert.run": ["build"],
    "mgpu_ngram.jobs.prune.run": ["build"],
    "mgpu_ngram.jobs.mix.run": ["build"],
    "mgpu_ngram.jobs.prune.multiple": ["write_lines"],
    "mgpu_ngram.engine.topics.infer": ["infer_chunk"],
    "mgpu_ngram.engine.decode.lines": ["decode_lines"],
    "mgpu_ngram.engine.filter.shard": ["score_shard", "write_shard"],
    "mgpu_ngram.engine.filter.cutoffs": ["find_cutoffs"],
}  # fmt: skip
SETTINGS = {  # small models are cut, too, and small counts have many groups of shards
    "mgpu_ngram.engine.estimate.assemble": {"SAMPLED_NGRAMS": 4},
    "mgpu_ngram.jobs.count.window_groups": {"WINDOWS_SHARE": 0},
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
    def wrapper(*args, **named):
        if seconds := read(f"{task}.slow"):
            (FOLDER / f"{task}.waits").touch()
            time.sleep(seconds)
        if (chunk := read(f"{task}.chunk")) is not None and args[0].index == chunk:
            die_of_chunk(task)
        die_once(f"{task}.before*")
        result = fn(*args, **named)
        die_once(f"{task}.after*")
        return result

    return wrapper


class Finder:
    """Hooks a module when it is imported, so that a process does without the modules of other stages: 0.3 s."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name not in TASKS and name not in SETTINGS:
            return None
        spec = PathFinder.find_spec(name, path, target)
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            vars(module).update(SETTINGS.get(name, {}))
            for task in TASKS.get(name, ()):
                setattr(module, task, hooked(task, getattr(module, task)))

        spec.loader.exec_module = exec_module
        return spec


assert not {*TASKS, *SETTINGS} & sys.modules.keys(), "modules were imported before their hooks"
sys.meta_path.insert(0, Finder)
if tokens := read("shard_tokens"):
    shards.SHARD_TOKENS["word"] = int(tokens)

if __name__ == "__main__":
    from mgpu_ngram.cli import main

    sys.exit(main())
