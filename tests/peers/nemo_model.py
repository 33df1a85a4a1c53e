"""Write an n-gram model of 1,024 tokens as NeMo's tests expect it, in the archive of their data.

python nemo_model.py ARCHIVE   where ARCHIVE, a .tar.gz, does not exist
"""

import sys
import tarfile
import tempfile
from pathlib import Path

import numpy as np

from mgpu_ngram import cli

V, OFFSET, UNSEEN = 1024, 100, 24  # the last tokens do not occur
NAME = "asr/kenlm_ngram_lm/parakeet-tdt_ctc-110m-libri-1024.kenlm.tmp.arpa"

rng = np.random.default_rng(1)
after = rng.integers(0, V - UNSEEN, (V, 20))  # of each token, so that longer n-grams repeat
with tempfile.TemporaryDirectory() as folder:
    text, model = Path(folder, "text"), Path(folder, "tokens.arpa")
    with text.open("w", encoding="utf-8", newline="\n") as file:
        for length in rng.integers(1, 30, 5_000):
            tokens = [int(rng.integers(V - UNSEEN))]
            for rank in rng.zipf(1.5, length).clip(max=20):
                tokens.append(int(after[tokens[-1], rank - 1]))
            print(*(chr(token + OFFSET) for token in tokens), file=file)
    if failed := cli.main(["estimate", str(text), "-o", str(model), "--order", "4", "--discount-fallback"]):
        sys.exit(failed)
    with tarfile.open(sys.argv[1], "x:gz") as archive:
        archive.add(model, NAME)
