"""Calls of KenLM's Python module or of the drop-in, timed in this process: drop_in_process.py MODULE MODEL TEXT

MODULE is kenlm or mgpu_ngram.kenlm; TEXT has a sentence per line. Prints a line of JSON: seconds, counts and a sum of
scores. Imports nothing large itself, so that times and memory are those of the module. All seconds but those of two
threads are CPU time on one core.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

REPEATS = 5
LOOKED_UP_WORDS = 200_000  # words that are looked up one by one
JOINED = 10  # sentences in a line of the long ones


def main(module: str, path: str, text: str) -> None:
    cores: set[int] = getattr(os, "sched_getaffinity", lambda _: set())(0)
    if cores:
        os.sched_setaffinity(0, {max(cores)})
    began = time.process_time()
    kenlm = importlib.import_module(module)
    found: dict[str, Any] = {"import": [time.process_time() - began]}
    config = kenlm.Config()
    config.show_progress, config.arpa_complain = False, kenlm.ARPALoadComplain.NONE
    began = time.process_time()
    model = kenlm.Model(path, config)
    found["load"] = [time.process_time() - began]
    with open(text, encoding="utf-8") as file:
        lines = file.read().splitlines()
    words = [word for line in lines for word in line.split()][:LOOKED_UP_WORDS]

    def walk(score_word: Callable[..., Any]) -> None:
        state, after = kenlm.State(), kenlm.State()
        model.BeginSentenceWrite(state)
        for word in words:
            score_word(state, word, after)
            state, after = after, state

    def score_fully() -> None:
        for line in lines:
            for _ in model.full_scores(line):
                pass

    calls: dict[str, Callable[[], Any]] = {
        "score": lambda: [model.score(line) for line in lines],
        "full_scores": score_fully,
        "BaseScore": lambda: walk(model.BaseScore),
        "BaseFullScore": lambda: walk(model.BaseFullScore),
        "in": lambda: [word in model for word in words],
    }
    for name, call in calls.items():
        found[name] = [seconds(call, time.process_time) for _ in range(REPEATS)]
    with open("/proc/self/statm") as file:
        found["resident_bytes"] = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    if cores:
        os.sched_setaffinity(0, cores)
    joined = [" ".join(lines[i : i + JOINED]) for i in range(0, len(lines), JOINED)]
    for name, some in ("sentences", lines), ("long lines", joined):
        for threads in 1, 2:
            found[f"{threads} threads, {name}"] = [in_threads(model, some, threads) for _ in range(REPEATS)]
    found |= {"lines": len(lines), "words": len(words), "sum": sum(map(model.score, lines))}
    print(json.dumps(found))


def seconds(call: Callable[[], Any], clock: Callable[[], float]) -> float:
    began = clock()
    call()
    return clock() - began


def in_threads(model: Any, lines: list[str], threads: int) -> float:
    """Return the wall time in which each thread scores all lines."""

    def score() -> None:
        for line in lines:
            model.score(line)

    pool = [threading.Thread(target=score) for _ in range(threads)]
    began = time.perf_counter()
    for thread in pool:
        thread.start()
    for thread in pool:
        thread.join()
    return time.perf_counter() - began


if __name__ == "__main__":
    main(*sys.argv[1:4])
