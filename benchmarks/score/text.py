"""From files to scores: text in the page cache to the scores of its sentences, and models to replicas."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from mgpu_ngram.benchmarks.harness.suite import Suite, WrongResult
from mgpu_ngram.benchmarks.harness.units import TOKENS_PER_SECOND
from mgpu_ngram.benchmarks.inputs.frequency_models import write_model, zipf_codes, zipf_words
from mgpu_ngram.benchmarks.inputs.scoring_subjects import TEXT_WORDS, Subject, queries
from mgpu_ngram.cluster.devices import cpu_cores
from mgpu_ngram.cluster.local import LocalExecutor
from mgpu_ngram.core.models.model_file import BackoffModel, save_model
from mgpu_ngram.core.ngrams.words import Words
from mgpu_ngram.engine.memory.copies import to_host_fast
from mgpu_ngram.engine.memory.stopwatch import Stopwatch
from mgpu_ngram.engine.score.replica import Replica
from mgpu_ngram.engine.trie.build import edges_of
from mgpu_ngram.engine.trie.open_model import open_model
from mgpu_ngram.jobs.context import RunContext
from mgpu_ngram.jobs.score.config import ScoreConfig
from mgpu_ngram.jobs.score.run import Printing, ScoreResult, open_inputs, score
from mgpu_ngram.kernels.compile_cpu import njit
from mgpu_ngram.kernels.dispatch import to_host

ROUNDS = 3
SPELLED_WORDS = 1 << 24  # at once
TARGET_TOKENS = 200e6  # a second of one H200, as all targets
TARGET_BYTES = {"model": 0.8e9 / 0.5, "ARPA": 820e6 / 4}


def text(suite: Suite, subject: Subject, folder: Path) -> None:
    """Rows: a whole scoring job but its output, and its stages."""
    suite.say("text to scores of sentences")
    path = folder / "text.txt"
    write_text(path, to_host(zipf_codes(TEXT_WORDS[suite.device], seed=1, xp=suite.xp)), zipf_words())
    model = host_model(subject)
    save_model(folder / "model", model)
    config = ScoreConfig(str(folder / "model"), [str(path)])
    executor = LocalExecutor(suite.device)
    try:
        found: list[np.ndarray] = []
        context, corpus = RunContext(executor, None), open_inputs(config)
        take = Printing(lambda chunk: found.append(chunk.sentences["prob_log10"]))
        score(config, context, corpus, printing=take)
        expected = to_host(Replica(model, suite.device).score_codes(subject.text_T).total_S)
        if not np.array_equal(np.concatenate(found), expected):
            raise WrongResult("sentences as text have other scores than as codes; not timed")
        suite.release()
        results = [score(config, context, corpus) for _ in range(ROUNDS)]
    finally:
        executor.close()
    _rows(suite, subject, results, path.stat().st_size)
    path.unlink()


def _rows(suite: Suite, subject: Subject, results: list[ScoreResult], size_bytes: int) -> None:
    """The whole, and each stage as the sum over workers."""
    first = results[0]
    sizes = f"{subject.model_sizes} tokens={first.totals.tokens} bytes={size_bytes}"
    whole: dict[str, Any] = {"items": first.totals.tokens, "unit": TOKENS_PER_SECOND}
    target = TARGET_TOKENS if suite.device == "gpu" else None
    seconds = [result.wall_seconds for result in results]
    suite.add("score/text to scores", sizes, seconds, target=target, notes="in the page cache; to the host", **whole)
    for stage in first.seconds:
        seconds = [result.seconds.get(stage, 0.0) for result in results]
        notes = f"summed over {first.workers} workers"
        suite.add(f"score/text to scores, {stage}", sizes, seconds, notes=notes, **whole)


def load(suite: Suite, subject: Subject, folder: Path) -> None:
    """Rows: files in the page cache to a replica that is ready to score, and the stages of it."""
    suite.say("files of the model to a replica")
    model, edges = host_model(subject), edges_of(subject.trie).map_arrays(to_host_fast)
    files = {
        "model": folder / "model",
        "model with edge table": folder / "edges",
        "ARPA": folder / "model.arpa",
    }
    save_model(files["model"], model)
    save_model(files["model with edge table"], BackoffModel.of(model.trie, model.words, edges))
    write_model(files["ARPA"], subject.training_T, subject.words, subject.trie.order)
    codes_T = queries(subject, suite.device)[0]
    expected_T = Replica(model, suite.device).score_codes(codes_T).prob_T
    for name, path in files.items():
        _load(suite, subject, name, path, True, codes_T, expected_T)
    _load(suite, subject, "model without verifying", files["model"], False, codes_T, expected_T)
    for path in files.values():
        path.unlink()


def _load(suite: Suite, subject: Subject, name: str, path: Path, verify: bool, codes_T: Any, expected_T: Any) -> None:
    stages: list[dict[str, float]] = []
    for _ in range(ROUNDS):
        suite.release()
        watch = Stopwatch(suite.device)
        model = open_model(path, suite.device, cpu_cores(), verify=verify, watch=watch)
        replica = Replica(model, suite.device)
        watch.lap("copy and index")
        stages.append(watch.seconds)
        if len(stages) == 1 and not bool((replica.score_codes(codes_T).prob_T == expected_T).all()):
            raise WrongResult(f"{name}: the model that was loaded gives other scores; not timed")
        del model, replica
    size_bytes = path.stat().st_size
    sizes = f"{subject.model_sizes} bytes={size_bytes}"
    whole: dict[str, Any] = {"items": size_bytes, "unit": "B/s"}
    target = TARGET_BYTES.get(name) if suite.device == "gpu" else None
    seconds = [sum(s.values()) for s in stages[1:]]  # the first compiles
    suite.add(f"score/load {name}", sizes, seconds, target=target, notes="to a replica with its edge table", **whole)
    for stage in stages[0]:
        suite.add(f"score/load {name}, {stage}", sizes, [s[stage] for s in stages[1:]], **whole)


def host_model(subject: Subject) -> BackoffModel:
    return BackoffModel.of(subject.trie.map_arrays(to_host_fast), subject.words)


def write_text(path: Path, codes_T: np.ndarray, words: Words) -> None:
    """Write the words of codes (word + 1), a line where there is a 0."""
    letters_C = np.diff(words.offsets_V, prepend=0)
    begins = True
    with open(path, "wb") as file:
        for at in range(0, len(codes_T), SPELLED_WORDS):
            part_T = codes_T[at : at + SPELLED_WORDS]
            text_B = np.empty(int(letters_C[part_T].sum()) + len(part_T), np.uint8)
            file.write(text_B[: _spell(part_T, words.offsets_V, words.data, begins, text_B)].data)
            begins = part_T[-1] == 0


@njit(nogil=True, cache=True)
def _spell(codes_T, offsets_V, data, begins, text_B):
    """Fill text_B; return its bytes."""
    at = 0
    for code in codes_T:
        if code == 0 or not begins:
            text_B[at] = 32 if code else 10
            at += 1
        begins = code == 0
        if code:
            for i in range(offsets_V[code - 1], offsets_V[code]):
                text_B[at] = data[i]
                at += 1
    return at
