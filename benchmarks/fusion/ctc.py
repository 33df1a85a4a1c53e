"""Texts from the outputs of CTC: generated frames of characters and of pieces of words, beside pyctcdecode."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from mgpu_ngram import kenlm
from mgpu_ngram.api.model import Model
from mgpu_ngram.benchmarks.decode.peers import as_torch, has_torch
from mgpu_ngram.benchmarks.harness.rows import Row
from mgpu_ngram.benchmarks.harness.suite import Suite, WrongResult
from mgpu_ngram.benchmarks.inputs.fusion_text import GeneratedText
from mgpu_ngram.cluster.devices import cpu_cores
from mgpu_ngram.core.models.model_file import save_model
from mgpu_ngram.core.ngrams.words import Words
from mgpu_ngram.engine.trie.build import edges_of
from mgpu_ngram.kernels.dispatch import to_host

BATCH, FRAMES = {"gpu": 64, "cpu": 4}, {"gpu": 1_000, "cpu": 400}
VOCABULARY, ORDER = 20_000, 3
BEAM, ALPHA, BETA, UNKNOWN = 100, 0.5, 1.5, -10.0
PRUNE_LOGP = -10.0, -25.0  # pyctcdecode's default, and one that fills the beams
PIECES = 1_024  # labels, with the blank; characters have 32
LETTERS = "etaoinshrdlcumwfgypbvkjxqz'"
LABELS = 32
UNSURE = 0.4  # share of tokens that may be another one as well
NOISE = 0.002, 0.02, 0.1  # probability that is everywhere, in equally many frames
MIN_PROB = 1e-7
MAX_ERRORS = 0.3  # words
TOLERANCE = 1e-3  # tolerance of scores
MIN_EQUAL = 0.9  # share of texts that must be pyctcdecode's
TARGET = 20.0  # times pyctcdecode's rate on 16 cores
FRAMES_PER_SECOND = "frames/s"


@dataclass
class Sounds:
    """Utterances of a generated text.

    labels         the first one is the blank
    log_probs_BTV  (B, T, V) float32, in host memory
    texts          of the utterances
    """

    labels: list[str]
    log_probs_BTV: np.ndarray
    texts: list[str]


def ctc(suite: Suite, folder: Path) -> None:
    """Rows by kind of labels: pyctcdecode in one process for each core, if it is installed, then this engine."""
    if not has_torch():
        suite.say("PyTorch is not installed, so the search over CTC's outputs is not measured")
        return
    from mgpu_ngram.torch import CTCBeamSearch

    suite.say(f"a model of {VOCABULARY:,} words for CTC")
    language, rng = GeneratedText(suite, VOCABULARY), np.random.default_rng(1)
    words = spelled(rng, len(language.words) - 3)
    model = language.model(ORDER)
    model = type(model).of(model.trie, Words.of(["<unk>", "<s>", "</s>", *words]), edges_of(model.trie))
    path = folder / "words"
    save_model(path, model)
    codes = to_host(language.codes_T)
    suite.release()
    loaded, plain = Model(model, suite.device), kenlm.Model(str(path))
    B, T = BATCH[suite.device], FRAMES[suite.device]
    for labels in (characters(), pieces(words)):
        sounds = make_sounds(rng, labels, [words[code - 4] if code > 3 else "" for code in codes[: B * T]], B, T)
        search = CTCBeamSearch(labels, loaded, alpha=ALPHA, beta=BETA)
        log_probs = as_torch(suite.xp.asarray(sounds.log_probs_BTV))
        for prune in PRUNE_LOGP:
            sizes = f"batch={B} frames={T} V={len(labels)} beam={BEAM} prune={prune} words={VOCABULARY} order={ORDER}"
            suite.say(f"search over CTC's outputs, {sizes}")
            call = partial(search, log_probs, beam_width=BEAM, beam_prune_logp=prune, prune_history=True)
            found = call()
            check_texts(found, sounds, plain)
            peer = Peer(folder, path, prune).row(suite, sizes, sounds, [best.text for [best] in found])
            row = suite.run("fusion/ctc", sizes, call, items=B * T, unit=FRAMES_PER_SECOND)
            if peer and peer.rate and row.rate:
                row.baseline, row.speedup, row.target = peer.kernel, row.rate / peer.rate, TARGET * peer.rate


def spelled(rng: np.random.Generator, count: int) -> list[str]:
    """Return different words of letters, the shorter ones first, as frequent words are short."""
    law = 1 / (np.arange(len(LETTERS)) + 3)
    made: dict[str, None] = {}
    while len(made) < count:
        length = 1 + rng.poisson(1 + 6 * min(1.0, len(made) / 300))
        made["".join(rng.choice(list(LETTERS), length, p=law / law.sum()))] = None
    return list(made)


def characters() -> list[str]:
    """Return 32 labels: the blank, the space, letters, and digits, which no word has."""
    labels = ["", " ", *LETTERS]
    return labels + [str(i) for i in range(LABELS - len(labels))]


def pieces(words: list[str]) -> list[str]:
    """Return labels: the blank, all letters, and the most frequent parts of words, in the manner of SentencePiece."""
    singles = [mark + letter for letter in LETTERS for mark in ("", "▁")]
    parts = Counter(f"▁{word}"[i : i + n] for word in words for n in (2, 3, 4, 5) for i in range(len(word) + 2 - n))
    common = [part for part, _ in parts.most_common() if part not in singles and part.strip("▁")]
    return ["", *singles, *common][:PIECES]


def make_sounds(rng: np.random.Generator, labels: list[str], text: list[str], batch: int, frames: int) -> Sounds:
    """Return utterances of consecutive words of a text ("" between sentences): one or two frames a token, one to three
    blanks behind it. Some tokens sound like another one, and some probability is everywhere.
    """
    token_of, are_pieces = {label: v for v, label in enumerate(labels)}, "▁a" in labels
    V, longest, at, texts = len(labels), max(map(len, labels)), 0, []
    path_BT, other_BT = np.zeros((batch, frames), np.int64), np.zeros((batch, frames), np.int64)
    share_BT = np.zeros((batch, frames))
    for b in range(batch):
        spoken: list[str] = []
        filled = 0
        while True:
            word, at = text[at], at + 1
            if not word:
                continue
            string, tokens = ("▁" + word if are_pieces else " " * bool(spoken) + word), []
            while string:
                piece = next(string[:n] for n in range(longest, 0, -1) if string[:n] in token_of)
                tokens.append(token_of[piece])
                string = string[len(piece) :]
            spans = [(token, *rng.integers(1, (3, 4))) for token in tokens]
            if filled + sum(length + gap for _, length, gap in spans) > frames:
                break
            for token, length, gap in spans:
                path_BT[b, filled : filled + length] = token
                other_BT[b, filled : filled + length] = rng.integers(0, V)
                share_BT[b, filled : filled + length] = rng.uniform(0.05, 0.9) * (rng.random() < UNSURE)
                filled += length + gap
            spoken.append(word)
        texts.append(" ".join(spoken))
    probs = rng.dirichlet(np.full(V, 0.05), (batch, frames)) * rng.choice(NOISE, (batch, frames, 1)) + MIN_PROB
    for token_BT, share in ((other_BT, share_BT), (path_BT, 1 - share_BT)):
        np.put_along_axis(probs, token_BT[:, :, None], share[:, :, None] + MIN_PROB, 2)
    log_probs = np.log(probs / probs.sum(2, keepdims=True)).astype(np.float32)
    return Sounds(labels, log_probs, texts)


def check_texts(found: list[Any], sounds: Sounds, plain: kenlm.Model) -> None:
    """Raise WrongResult unless scores of words are KenLM's and most words are those that were spoken."""
    errors = words = 0
    for b, ([best], text) in enumerate(zip(found, sounds.texts, strict=True)):
        ends = (best.text, 0.0), (best.text + " <unk>", UNKNOWN)  # an empty last word is unknown
        expected = [
            best.logit_score + BETA * len(end.split()) + ALPHA * math.log(10) * (plain.score(end) + log10)
            for end, log10 in ends
        ]
        if (
            all(word in plain for word in best.text.split())
            and not np.isclose(best.score, expected, rtol=0, atol=TOLERANCE).any()
        ):
            raise WrongResult(f"utterance {b} has the score {best.score} but {expected[0]} by KenLM; not timed")
        errors += distance(best.text.split(), text.split())
        words += len(text.split())
    if errors > MAX_ERRORS * words:
        raise WrongResult(f"{errors} of {words} words are wrong, which is too many; not timed")


def distance(found: list[str], wanted: list[str]) -> int:
    """Return how many words must be put in, left out or changed.

    examples/error_rate.py has the same: examples run alone.
    """
    row = list(range(len(wanted) + 1))
    for i, word in enumerate(found, 1):
        before, row[0] = row[0], i
        for j, other in enumerate(wanted, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (word != other))
    return row[-1]


@dataclass
class Peer:
    """pyctcdecode with a model's file; `folder` is for the files that its processes read."""

    folder: Path
    model: Path
    prune: float

    def row(self, suite: Suite, sizes: str, sounds: Sounds, texts: list[str]) -> Row | None:
        """Return the row of the first utterances, one for each core; None if pyctcdecode is not installed."""
        if not find_spec("pyctcdecode"):
            suite.say("pyctcdecode is not installed, so its rate is left out; pip install pyctcdecode")
            return None
        cores = min(cpu_cores(), len(texts))
        np.save(self.folder / "log_probs.npy", sounds.log_probs_BTV[:cores])
        settings = {"labels": sounds.labels, "processes": cores, "beam": BEAM, "alpha": ALPHA, "beta": BETA}
        (self.folder / "settings.json").write_text(json.dumps({**settings, "prune": self.prune}))
        command = [sys.executable, "-m", "mgpu_ngram.benchmarks.fusion.ctc_peer", str(self.folder), str(self.model)]
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
        found = json.loads(done.stdout.splitlines()[-1])
        equal = sum(a == b for a, b in zip(texts, found["texts"], strict=False))
        if equal < MIN_EQUAL * cores:
            raise WrongResult(f"{equal} of {cores} texts are those of pyctcdecode; not timed")
        return suite.add(
            f"fusion/ctc pyctcdecode, {cores} processes", sizes.replace(f"batch={len(texts)}", f"batch={cores}"),
            [found["seconds"]], items=cores * sounds.log_probs_BTV.shape[1], unit=FRAMES_PER_SECOND,
            notes=f"with mgpu_ngram.kenlm; {equal} of {cores} texts equal",
        )  # fmt: skip
