"""Rates of 2 CPU cores, from which a run with device auto decides whether the work is worth a GPU.

All rates are rounded down from commands with warm caches. The comment of a rate gives what was measured. If it names no
input, the text had 1 M words (4.9 MB) and the model 1 M to 3 M n-grams.
"""

from __future__ import annotations

import math
import os

COUNT_BYTES = 8e6  # of text a second, orders 1 to 5, to Parquet: 9.2 MB/s
ESTIMATE_BYTES = 4e6  # of text a second, orders 1 to 5, to a model file: 4.4 MB/s; ARPA files are written at 3 MB/s
SCORE_BYTES = 20e6  # of text a second: 50 MB/s on the trie; from 16 MB of text on, an edge table is built first
RESCORE_BYTES = 30e6  # of n-best lists a second and model: 80 MB/s with 307,000 n-grams, less with large models
FILTER_BYTES = 30e6  # of JSON lines a CPU second: 48 MB by words, 24 MB by pieces
ARPA_BYTES = 90e6  # of an ARPA file a second, to build and index a trie: 28 MB take 0.29 s, on a GPU almost no time
KEY_PAIRS = 4e8  # pairs of words a second that may be 2-grams of a KenLM probing model: 4.2 billion take 4.8 s
CONVERT_BYTES = 70e6  # of an ARPA file a second, to read it and build a trie: 28 MB take 0.39 s
HISTORIES = 20_000  # a second, to find their most probable words: 17,000 take 0.33 s with 5 orders of 35,000 words
DECODE_PRODUCTS = 1e10  # words x beam x parameters a second: 2.1e10 with 2 models of 155,000 parameters, beam 5
TOKEN_BYTES = 6  # of text for each token, about
ROW_BYTES = 200e6  # of rows a second, to compute and write them


def opening_seconds(model: str, scores_only: bool = False) -> float:
    """Return how much longer 2 cores take than a GPU to open a model; inf for a model that does not exist yet.

    scores_only  whether the model only scores text, for which a probing model is used without conversion

    0 for a model file of any size: the file is mapped, and the CPU compares the checksums for a GPU, too.
    """
    from mgpu_ngram.core.models.model_head import read_head

    if not os.path.isfile(model):
        return math.inf
    head = read_head(model)
    if head.is_model_file or (scores_only and head.is_probing):
        return 0.0
    pairs = head.kenlm.counts[0] ** 2 if head.kenlm and head.is_probing else 0
    return head.size_bytes / ARPA_BYTES + pairs / KEY_PAIRS
