"""mgpu_ngram: n-gram counts and language models on GPUs, clusters and laptops."""

from mgpu_ngram.api import count
from mgpu_ngram.core.counts import Counts, read_counts
from mgpu_ngram.core.errors import InputError, RunError
from mgpu_ngram.core.lines import Lines
from mgpu_ngram.core.version import VERSION

__all__ = ["Counts", "InputError", "Lines", "RunError", "count", "read_counts"]
__version__ = VERSION
