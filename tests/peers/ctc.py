"""Compare the search over CTC's outputs with pyctcdecode's on random frames: all results, scores and times of words.

python ctc.py FIRST LAST   cases of these seeds, such as 0 400

Labels have no lone "▁" and no "▁⁇▁", at which rules differ (docs/ctc.md). The search does not need PyTorch.
"""

import logging
import random
import sys
import tempfile
from pathlib import Path

import numpy as np
from pyctcdecode import Alphabet, BeamSearchDecoderCTC, LanguageModel
from pyctcdecode.language_model import HotwordScorer

import mgpu_ngram as ng
from mgpu_ngram import cli, kenlm
from mgpu_ngram.engine.states.ctc_search import CTCOptions, CTCSearch
from mgpu_ngram.engine.states.ctc_tokens import read_labels

TOLERANCE = 1e-8
LETTERS = "abcde"


def random_word(rng):
    return "".join(rng.choice(LETTERS) for _ in range(rng.randint(1, 9)))


def random_model(seed, folder):
    """Return (an ARPA file, its model, words) of a random text."""
    rng = random.Random(seed)
    words = [random_word(rng) for _ in range(30)]
    lines = [
        " ".join(rng.choice(words) if rng.random() < 0.7 else random_word(rng) for _ in range(rng.randint(1, 8)))
        for _ in range(300)
    ]
    (folder / "text").write_text("\n".join(lines) + "\n")
    arpa = str(folder / f"{seed}.arpa")
    command = ["estimate", str(folder / "text"), "-o", arpa, "--order", str(2 + seed), "--device", "cpu"]
    assert cli.main([*command, "--discount-fallback"]) == 0
    return arpa, ng.Model.load(arpa, "cpu"), words


def random_labels(rng):
    if rng.random() < 0.6:
        return rng.sample([*LETTERS, *rng.choice([(" ", ""), ("|", "<pad>"), ("_", " ")])], 7)
    marks = ("▁", "")
    return [*sorted({rng.choice(marks) + random_word(rng)[:3] for _ in range(25)}), "▁x", ""]


def compare(seed, models):
    """Return whether all results of a case are equal; equal scores may rank otherwise."""
    rng, draws = random.Random(seed), np.random.default_rng(seed)
    arpa, model, words = models[seed % len(models)]
    labels = random_labels(rng)
    logits = draws.normal(0, rng.choice([0.5, 2, 4]), (rng.randint(0, 40), len(labels)))
    log_probs = (logits - np.log(np.exp(logits).sum(1, keepdims=True))).astype(np.float32)
    given = [word for word in model.vocabulary if word not in ("<unk>", "</s>")]
    known = rng.choice([given, given, rng.sample(words, 10), []])
    alpha, beta, unknown = rng.choice([0.5, 1.0, 0.0]), rng.choice([1.5, -0.5]), rng.choice([-10.0, -2.0])
    boundary, scored = rng.random() < 0.7, rng.random() < 0.7
    width, prune, least = rng.choice([1, 5, 30, 100]), rng.choice([-10.0, -40.0]), rng.choice([-5.0, -3.0, -40.0])
    pruned, hot, weight = rng.random() < 0.4, rng.choice([[], rng.sample(words, 3), ["ab abc", "e"]]), 10.0

    scorer = LanguageModel(kenlm.Model(arpa), known, alpha, beta, unknown, boundary) if scored else None
    decoder = BeamSearchDecoderCTC(Alphabet.build_alphabet(labels), scorer)
    rows = log_probs.astype(np.float64).clip(np.log(1e-15), 0)
    hot_scorer = HotwordScorer.build_scorer(hot, weight=weight)
    expected = decoder._decode_logits(rows, width, prune, least, pruned, hot_scorer)

    states = model._state_model
    history = max(1, model.order - 1 if scored else 0) if pruned else 0
    rules = CTCOptions(width, width, alpha, beta, unknown, prune, least, history, scored)
    search = CTCSearch(
        read_labels(labels), states if scored else None, model.vocabulary if scored else None, set(known), "cpu"
    )
    start = np.array([states.begin if scored and boundary else -1], np.int32)
    lengths = np.array([len(rows)], np.int32)
    [found] = search.search(log_probs[None], lengths, start, hot, weight, rules, boundary, 1)

    def sorted_results(results):
        return sorted(results, key=lambda result: (round(result[2], 6), result[0]))

    ours = sorted_results((h.text, [(w, (a, b)) for w, a, b in h.words], h.score, h.logit_score) for h in found)
    theirs = sorted_results((text, frames, score, logit) for text, _, frames, logit, score in expected)
    return len(ours) == len(theirs) and all(
        a[:2] == b[:2] and np.allclose(a[2:], b[2:], atol=TOLERANCE, rtol=0) for a, b in zip(ours, theirs, strict=True)
    )


def main(first, last):
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as place:
        models = [random_model(seed, Path(place)) for seed in range(4)]
        differ = [seed for seed in range(first, last) if not compare(seed, models)]
    print(f"{last - first - len(differ)} of {last - first} cases equal; not equal: {differ}")
    sys.exit(bool(differ))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
