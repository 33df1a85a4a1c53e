"""`mgpu-ngram bench tools` runs completely, writes all rows, and times no wrong result."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from mgpu_ngram.benchmarks import tools, tools_models
from mgpu_ngram.benchmarks.harness.options import BenchOptions
from mgpu_ngram.benchmarks.harness.suite import Suite, WrongResult
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.engine.model_tools.mix import mix
from tests.support.short_benches import measure_once


@pytest.fixture(scope="module", autouse=True)
def small():
    """Run with few tokens and rounds: the tests need no precise times."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(tools.TUNE_TOKENS, "cpu", 100)
        patch.setitem(tools.QUERIES, "cpu", 100)
        measure_once(patch)
        yield


def test_every_part_has_rows(tmp_path, stored_rows):
    found = tools.bench(BenchOptions("cpu", tmp_path, tokens=5000))
    stored_rows(tmp_path, found)
    kernels = Counter(row["kernel"].removeprefix("tools/") for row in found if row["kernel"].startswith("tools/"))
    assert kernels == dict.fromkeys(
        [
            "sort of the keys", "mix", "mix log-linear", "nodes of a trie", "tune", "prune to a size",
            "prune by entropy", "prune by vocabulary", "open a probing file", "score by a probing file",
        ],
        1,
    )  # fmt: skip
    with pytest.raises(InputError, match="tokens is 10 but must be at least 2000"):
        tools.bench(BenchOptions("cpu", tmp_path, tokens=10))


def test_a_model_has_the_size_and_its_suffixes():
    trie = tools_models.sparse_model(20_000, 200, 0, np)
    assert trie.order == 3 and trie.filled_F is None and 0.95 * 20_000 < len(trie) <= 20_000
    last = trie.starts[2] + 5
    history = int(np.searchsorted(trie.first_child_M, last, "right")) - 1
    first = int(np.searchsorted(trie.first_child_M, history, "right")) - 1
    ngram = first, int(trie.word_G[history]), int(trie.word_G[last])
    assert tools_models.node_of(trie, ngram, np) == last
    assert tools_models.node_of(trie, ngram[1:], np) >= trie.starts[1]
    assert tools_models.node_of(trie, (*ngram, 5), np) == -1
    row = tools_models.row_of(trie, ngram[:2], np)
    assert row[ngram[2]] == pytest.approx(10 ** float(trie.prob_G[last])) and row.sum() == pytest.approx(1, abs=1e-6)


def test_wrong_results_are_not_timed(tmp_path):
    shared = tools.ToolsBench(Suite("cpu"), 3000, tmp_path)
    trie, words, overfull = mix(shared.models, tools.WEIGHTS)
    shared.check_mixture((trie, words, overfull))
    wrong = trie.prob_G.copy()
    wrong[trie.starts[1] :] += np.float32(0.001)
    with pytest.raises(WrongResult, match="sum to"):
        shared.check_mixture((replace(trie, prob_G=wrong), words, overfull))
    with pytest.raises(WrongResult, match="other probabilities"):
        shared.check_mixture((*mix(shared.models, [0.6, 0.4])[:2], 0))
    with pytest.raises(WrongResult, match="n-grams stayed"):
        shared.check_pruned((trie, 0, 0.0), len(trie) - 1)
