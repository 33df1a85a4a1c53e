"""pyctcdecode in processes of its own: python -m mgpu_ngram.benchmarks.fusion.ctc_peer FOLDER MODEL

FOLDER has log_probs.npy, (B, T, V), and settings.json. Prints a line of JSON: the texts, and the seconds of all.
"""

from __future__ import annotations

import json
import logging
import multiprocessing
import sys
import time
from pathlib import Path

import numpy as np

from mgpu_ngram import kenlm
from mgpu_ngram.engine.trie.open_model import open_model

WARM_FRAMES = 20


def main(folder: Path, path: str) -> None:
    sys.modules["kenlm"] = kenlm  # pyctcdecode finds no other
    logging.disable(logging.WARNING)
    from pyctcdecode import Alphabet, BeamSearchDecoderCTC, LanguageModel

    settings = json.loads((folder / "settings.json").read_text())
    model, words = kenlm.Model(path), open_model(path).words
    unigrams = [word for word in words if word not in ("<unk>", "<s>", "</s>")]
    scorer = LanguageModel(model, unigrams, alpha=settings["alpha"], beta=settings["beta"])
    decoder = BeamSearchDecoderCTC(Alphabet.build_alphabet(settings["labels"]), scorer)
    log_probs = list(np.load(folder / "log_probs.npy"))
    options = {"beam_width": settings["beam"], "beam_prune_logp": settings["prune"]}
    with multiprocessing.get_context("fork").Pool(settings["processes"]) as pool:
        decoder.decode_batch(pool, [rows[:WARM_FRAMES] for rows in log_probs], **options)
        start = time.perf_counter()
        texts = decoder.decode_batch(pool, log_probs, **options)
        seconds = time.perf_counter() - start
    print(json.dumps({"texts": texts, "seconds": seconds}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
