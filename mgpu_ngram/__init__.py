"""mgpu_ngram: n-gram counts and language models on GPUs, clusters and laptops."""

from mgpu_ngram import compact
from mgpu_ngram.api import count, open_distributions, score
from mgpu_ngram.core.counts import Counts, read_counts
from mgpu_ngram.core.errors import InputError, RunError
from mgpu_ngram.core.lines import Lines
from mgpu_ngram.core.version import VERSION
from mgpu_ngram.model import Model, estimate

__all__ = [
    "Counts",
    "InputError",
    "Lines",
    "Model",
    "RunError",
    "compact",
    "count",
    "estimate",
    "open_distributions",
    "read_counts",
    "score",
]
__version__ = VERSION
