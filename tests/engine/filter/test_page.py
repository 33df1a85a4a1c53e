"""The report of a filter: what it shows, and that parts of a corpus add up to it in any order."""

import random
import re

import numpy as np

from mgpu_ngram.engine.filter.page import filter_page
from mgpu_ngram.engine.filter.stats import SAMPLES, BucketStats, FilterStats, perplexity_histogram, sample_ranks


def test_bins_by_hand():
    """20 bins a decade: 10 to 11.22 is bin 20; perplexities below 1 do not exist but for rounding."""
    assert perplexity_histogram(np.array([10.0, 11.2, 11.3, 1.0, 0.9, 1e6])) == {"20": 2, "21": 1, "0": 2, "120": 1}
    assert perplexity_histogram(np.empty(0)) == {}


def test_ranks_are_splitmix64():
    """The first outputs of SplitMix64 with seed 0 are published with the generator."""
    assert sample_ranks(0, 0, 1).tolist() == [0xE220A8397B1DCDAF]
    assert sample_ranks(3, 1 << 20, 3).tolist() == [sample_ranks(3, (1 << 20) + i, 1)[0] for i in range(3)]


def rank(document):
    return int(sample_ranks(0, document, 1)[0])


def part(documents):
    """Return the stats of documents (number, perplexity)."""
    bucket = BucketStats(
        len(documents), 1, 2, -3.0, perplexity_histogram(np.array([p for _, p in documents])),
        [(rank(i), p, f"text {i}") for i, p in documents],
    )  # fmt: skip
    return FilterStats(len(documents), 1, buckets={"all": bucket})


def test_parts_add_up_in_any_order():
    rng = random.Random(0)
    documents = [(i, rng.uniform(1, 100)) for i in range(90)]
    found = []
    for _ in range(3):
        rng.shuffle(documents)
        total = FilterStats()
        for i in range(0, 90, 9):
            total.add(part(documents[i : i + 9]))
        found.append(total)
    assert found[0] == found[1] == found[2] and found[0].documents == 90 and found[0].buckets["all"].words == 20
    wanted = sorted((rank(i), p, f"text {i}") for i, p in documents)[:SAMPLES]
    assert found[0].buckets["all"].samples == wanted
    assert sum(found[0].buckets["all"].histogram.values()) == 90


def test_a_page():
    """Two bins, 3 documents high and 1: the lower bar is a third. Text cannot end its element."""
    head = BucketStats(4, 4, 10, -20.0, {"40": 3, "41": 1}, [(1, 100.0, "</li><script>x\n y"), (2, None, "")])
    stats = FilterStats(5, 4, 1, buckets={"all": BucketStats(1, 0), "<b>": head})
    page = filter_page(stats, ["<b>"], {"en": (123.4,)}, "a & b")
    assert "<h1>a &amp; b</h1>" in page and "&lt;/li&gt;&lt;script&gt;x y" in page
    assert "<script" not in page and "<b>head" not in page
    assert "<td>&lt;b&gt;</td><td>4</td><td>80.0%</td><td>4</td><td>10</td><td>100.0</td>" in page
    assert "<td>en</td><td>123.4</td>" in page and "Samples of all" in page
    heights = [float(h) for h in re.findall(r'height="([\d.]+)" fill="[^"]+"><title>', page)]
    assert len(heights) == 2 and heights[0] == max(heights) and abs(heights[1] - heights[0] / 3) < 0.1
    assert "100 to 112: 3</title>" in page
    assert "No document has a perplexity" in filter_page(FilterStats(), [], {})
