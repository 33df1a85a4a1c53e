"""Compile the CPU kernels of `score`, `distribution` and examples/generate.py, by running them with a tiny model.

    python examples/compile_kernels.py

Numba compiles one function at a time in a process, so `make quickstart` runs this beside the jobs that come before.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import generate
import numpy as np

from mgpu_ngram.cli import main as mgpu_ngram
from mgpu_ngram.core.models.model_file import BackoffModel, save_model
from mgpu_ngram.core.ngrams.trie import Ngrams
from mgpu_ngram.core.ngrams.words import Words
from mgpu_ngram.engine.trie.build import build_trie

WORDS = ["<unk>", "<s>", "</s>", "a", "b", "c"]
NGRAMS = ([[i] for i in range(len(WORDS))], [[1, 3], [3, 4], [4, 2]], [[1, 3, 4]])  # ids of words, by order


def main() -> None:
    """Make a model of three words, and use it in all three ways."""
    levels = [
        Ngrams(np.array(ids, np.uint32), np.full(len(ids), -0.5, np.float32), np.zeros(len(ids), np.float32))
        for ids in NGRAMS
    ]
    levels[-1] = Ngrams(levels[-1].ids, levels[-1].prob)
    model = BackoffModel.of(build_trie(levels), Words.of(WORDS))
    with tempfile.TemporaryDirectory() as folder:
        path, text = str(Path(folder, "model.safetensors")), str(Path(folder, "text.txt"))
        save_model(path, model)
        Path(text).write_text("a b\n")
        mgpu_ngram(["score", path, text, "-v", "summary"])
        mgpu_ngram(["distribution", path, text, "-o", str(Path(folder, "rows")), "--top-k", "2", "--format", "npy"])
        generate.main(path)


if __name__ == "__main__":
    main()
