"""mgpu_ngram: n-gram counts and language models on GPUs, clusters and laptops."""

from mgpu_ngram.api import Model, count, score
from mgpu_ngram.core.counts import Counts, read_counts
from mgpu_ngram.core.errors import InputError, RunError
from mgpu_ngram.core.lines import Lines
from mgpu_ngram.core.version import VERSION

__all__ = ["Counts", "InputError", "Lines", "Model", "RunError", "count", "read_counts", "score"]
__version__ = VERSION
