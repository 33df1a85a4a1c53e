"""Statistics of a filter: numbers of documents and words, a histogram, and samples of each bucket."""

from __future__ import annotations

import heapq
import math
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from mgpu_ngram.kernels.compile_cpu import njit

SAMPLES = 20  # documents of each bucket that a report shows
SAMPLE_CHARACTERS = 600
BINS_PER_DECADE = 20  # bins of the histogram for each factor of 10 of the perplexity


@dataclass
class BucketStats:
    """Statistics of the documents of a bucket.

    histogram  documents by floor(BINS_PER_DECADE * log10(perplexity))
    samples    (rank, perplexity, beginning of the text) of the SAMPLES documents of lowest rank
    """

    documents: int = 0
    kept: int = 0
    words: int = 0
    log10: float = 0.0
    histogram: dict[str, int] = field(default_factory=dict)
    samples: list[tuple[int, float | None, str]] = field(default_factory=list)

    def add(self, other: BucketStats) -> None:
        """Add the documents of another part."""
        self.documents += other.documents
        self.kept += other.kept
        self.words += other.words
        self.log10 += other.log10
        for name, count in other.histogram.items():
            self.histogram[name] = self.histogram.get(name, 0) + count
        self.samples = heapq.nsmallest(SAMPLES, [*map(tuple, self.samples), *map(tuple, other.samples)])  # type: ignore[list-item]  # tuples of JSON


@dataclass
class FilterStats:
    """Statistics of documents. Their files have `size_bytes` bytes, the files of the rejects `rejects_bytes`.

    languages  number of documents with a string in the field of the language
    """

    documents: int = 0
    kept: int = 0
    rejects: int = 0
    words: int = 0
    oovs: int = 0
    languages: int = 0
    size_bytes: int = 0
    rejects_bytes: int = 0
    buckets: dict[str, BucketStats] = field(default_factory=dict)

    @classmethod
    def of(cls, values: dict[str, Any]) -> FilterStats:
        """Return the statistics from the JSON of their `asdict`."""
        buckets = {name: BucketStats(**bucket) for name, bucket in values["buckets"].items()}
        return cls(**values | {"buckets": buckets})

    def add(self, other: FilterStats) -> None:
        """Add the documents of another part."""
        for name, value in vars(other).items():
            if name != "buckets":
                setattr(self, name, getattr(self, name) + value)
        for name, bucket in other.buckets.items():
            self.buckets.setdefault(name, BucketStats()).add(bucket)

    def summary(self) -> dict[str, Any]:
        """Return the totals by name, without histograms and samples."""
        buckets = {
            name: {part: value for part, value in asdict(bucket).items() if part in ("documents", "kept", "words")}
            for name, bucket in self.buckets.items()
        }
        return asdict(self) | {"buckets": buckets}


def perplexity_histogram(perplexities: np.ndarray) -> dict[str, int]:
    """Return the number of perplexities in each bin; the keys are strings, as JSON has them."""
    bins, counts = np.unique(_bins(perplexities), return_counts=True)
    return dict(zip(map(str, bins.tolist()), counts.tolist(), strict=True))


@njit(nogil=True, cache=True)
def _bins(perplexities):
    found = np.empty(len(perplexities), np.int64)
    for i in range(len(found)):
        found[i] = math.floor(BINS_PER_DECADE * math.log10(max(perplexities[i], 1.0)))
    return found


def sample_ranks(shard: int, first: int, documents: int) -> np.ndarray:
    """Return pseudorandom ranks (SplitMix64), uint64, the same in every run; the documents of lowest rank are samples.

    first  the number of the first document in its shard
    """
    x = np.arange(documents, dtype=np.uint64) + np.uint64((shard << 40) + first)
    x += np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    return x ^ (x >> np.uint64(31))
