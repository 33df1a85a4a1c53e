"""Whole comparisons: the same figures and table for any cut, and after worker deaths."""

import numpy as np
import pytest

from mgpu_ngram.jobs.compare.config import CompareConfig
from mgpu_ngram.jobs.compare.run import run
from mgpu_ngram.jobs.context import RunContext

pytestmark = pytest.mark.timeout(120)


@pytest.mark.slow
def test_on_a_cluster(cluster, arpa, here, hooks, hooks_folder, tmp_path):
    rng = np.random.default_rng(0)
    text, other = tmp_path / "text", tmp_path / "other.arpa"
    text.write_text("".join(" ".join(rng.choice(["a", "b", "x"], rng.integers(0, 9))) + "\n" for _ in range(2000)))
    other.write_text(arpa.read_text().replace("-0.25", "-0.5"))
    whole = CompareConfig([str(arpa), str(other)], [str(text)], shown=3)
    cut = CompareConfig([str(arpa), str(other)], [str(text)], shown=3, chunk_bytes=text.stat().st_size // 30)
    expected = run(whole, RunContext(here, tmp_path / "whole"))
    hooks(**{"compare_chunk.before1": "", "compare_chunk.after1": ""})
    found = run(cut, RunContext(cluster, tmp_path / "cut"))
    assert [p.name for p in hooks_folder.iterdir()] == ["shard_tokens"], "a worker died in every task"
    assert found.figures() == expected.figures() and len(expected.shown[0]) == 3
    for name in "manifest.json", "differences.png":
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    import pyarrow.parquet as pq

    tables = [pq.read_table(tmp_path / folder / "sentences.parquet") for folder in ("cut", "whole")]
    assert tables[0] == tables[1] and tables[0].num_rows == 2000
