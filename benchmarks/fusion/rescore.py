"""n-best lists with the scores of an n-gram model: from a text file to a text file."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from mgpu_ngram.benchmarks.decode.generated_model import SEED
from mgpu_ngram.benchmarks.harness.suite import Suite, WrongResult
from mgpu_ngram.benchmarks.inputs.fusion_text import NUM_SPECIALS, GeneratedText
from mgpu_ngram.benchmarks.inputs.plain_beam_search import PlainNgrams
from mgpu_ngram.cluster.local import LocalExecutor
from mgpu_ngram.core.models.model_file import BackoffModel, save_model
from mgpu_ngram.core.ngrams.words import Words
from mgpu_ngram.engine.trie.build import edges_of
from mgpu_ngram.jobs.context import RunContext
from mgpu_ngram.jobs.rescore.config import RescoreConfig
from mgpu_ngram.jobs.rescore.run import RescoreResult, run

LISTS = {"gpu": (1_000, 1_000), "cpu": (100, 1_000)}  # lists, and hypotheses of each list
WORDS = 25
ORDER, VOCABULARY = 5, 100_000
WEIGHTS = {"F0": 1.0, "lm": 0.2}
TARGET_SECONDS = 2.0  # seconds for all lists, on one H200
ROUNDS = 3
CHECKED = 3  # hypotheses of the first list that plain Python scores, too
TOLERANCE = 1e-4


def rescore(suite: Suite, folder: Path) -> None:
    """Rows: a whole run, and each of its stages."""
    lists, size = LISTS[suite.device]
    suite.say(f"rescore {lists:,} lists of {size:,} hypotheses")
    language = GeneratedText(suite, VOCABULARY)
    model, text, out = folder / "lm", folder / "nbest.txt", folder / "rescored.txt"
    made, words = language.model(ORDER), language.words
    save_model(model, BackoffModel.of(made.trie, words, edges_of(made.trie)))
    plain = PlainNgrams(language.levels(ORDER), np.arange(len(words)), 1)
    suite.release()
    write_lists(text, words, lists, size)
    config = RescoreConfig([str(text)], [str(model)], weights=WEIGHTS)
    executor = LocalExecutor(suite.device)
    results: list[RescoreResult] = []
    try:
        context = RunContext(executor, out, single_file=True, overwrite=True)
        run(config, context)
        check(out, text, size, words, plain)
        results += (run(config, context) for _ in range(ROUNDS))
    finally:
        executor.close()
    count = lists * size
    sizes = f"lists={lists} hypotheses={count} words={WORDS * count} bytes={text.stat().st_size}"
    target = count / TARGET_SECONDS if suite.device == "gpu" else None
    notes = "text to text, in the page cache; the model is loaded"
    wall = [result.wall_seconds for result in results]
    suite.add("fusion/rescore", sizes, wall, items=count, unit="hypotheses/s", target=target, notes=notes)
    for stage in results[0].seconds:
        seconds = [result.seconds[stage] for result in results]
        notes = f"summed over {results[0].workers} workers"
        suite.add(f"fusion/rescore, {stage}", sizes, seconds, items=count, unit="hypotheses/s", notes=notes)


def write_lists(path: Path, words: Words, lists: int, size: int) -> None:
    """Write n-best lists. The hypotheses of a list differ from each other in a word."""
    rng = np.random.default_rng(SEED)
    known = list(words)[NUM_SPECIALS:]
    with open(path, "w") as file:
        for i in range(lists):
            base = [known[w] for w in rng.integers(0, len(known), WORDS)]
            others, features = rng.integers(0, len(known), size), -50 * rng.random(size)
            for j, (other, feature) in enumerate(zip(others.tolist(), features.tolist(), strict=True)):
                at = j % WORDS
                text = " ".join([*base[:at], known[other], *base[at + 1 :]])
                file.write(f"{i} ||| {text} ||| F0= {feature:.3f} ||| {feature / 10:.4f}\n")


def check(path: Path, source: Path, size: int, words: Words, plain: PlainNgrams) -> None:
    """Raise WrongResult unless the first list is sorted, whole, and has the scores and totals of plain Python."""
    with open(source) as file:
        given = sorted(file.readline().split(" ||| ")[1] for _ in range(size))
    with open(path) as file:
        lines = [file.readline().split(" ||| ") for _ in range(size)]
    totals = [float(line[3]) for line in lines]
    if sorted(line[1] for line in lines) != given or totals != sorted(totals, reverse=True):
        raise WrongResult("the first list has other texts, or is not sorted; not timed")
    for _, text, features, total in lines[:CHECKED]:
        _, feature, _, score = features.split()
        ids = [*map(words.id, text.split()), 2]
        expected = sum(float(plain.row(ids[:n])[word]) for n, word in enumerate(ids))
        wanted = WEIGHTS["F0"] * float(feature) + WEIGHTS["lm"] * expected
        if not np.allclose([float(score), float(total)], [expected, wanted], rtol=TOLERANCE, atol=0):
            raise WrongResult(f"{text!r} has the score {score} but plain Python finds {expected}; not timed")
