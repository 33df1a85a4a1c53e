"""The count job on real GPUs: the same bytes as on a CPU, which test_count.py compares with plain Python."""

from pathlib import Path

import numpy as np
import pytest

from mgpu_ngram.cluster.dask import start_cluster
from mgpu_ngram.cluster.local import LocalExecutor
from mgpu_ngram.core.counts.counts import read_manifest
from mgpu_ngram.core.memory_config import MemoryConfig
from mgpu_ngram.core.typed_config import fill
from mgpu_ngram.engine.count import count_chunk
from mgpu_ngram.engine.memory.budget import used_bytes
from mgpu_ngram.jobs.context import RunContext
from mgpu_ngram.jobs.count import plan
from mgpu_ngram.jobs.count.run import CountConfig, run
from mgpu_ngram.kernels.common.find_tokens import random_text

CASES = {
    "words": {"order": 5},
    "marked": {"order": 3, "sentence_markers": True, "lowercase": True, "min_count": 2},
    "bytes": {"unit": "byte", "order": 6},
    "ids": {"unit": "id", "dtype": "uint16", "separator_id": 8224, "order": 4},
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    for i, size in enumerate([400_000, 0, 1, 100_000, 1_500_000]):
        (folder / f"{i}.txt").write_bytes(random_text(np.random.default_rng(i), size + size % 2).tobytes())
    return [str(p) for p in sorted(folder.iterdir()) if p.stat().st_size % 2 == 0]


def files_of(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(Path(folder).rglob("*")) if p.is_file()}


def outcome(executor, corpus, out, **options):
    return files_of(run(CountConfig(corpus, **options), RunContext(executor, out)).path)


@pytest.fixture(scope="module")
def on_cpu(corpus, tmp_path_factory):
    folder = tmp_path_factory.mktemp("cpu")
    return {name: outcome(LocalExecutor("cpu"), corpus, folder / name, **options) for name, options in CASES.items()}


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("strategy", ["auto", "sort", "hash"])
@pytest.mark.parametrize("chunk_bytes", [None, 70_001])
def test_gpu_and_cpu_write_the_same_bytes(case, strategy, chunk_bytes, corpus, on_cpu, tmp_path):
    options = CASES[case] | {"strategy": strategy, "chunk_bytes": chunk_bytes}
    assert outcome(LocalExecutor("gpu"), corpus, tmp_path / "out", **options) == on_cpu[case]


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("host_bytes", ["64 MiB", "4 GiB"])
def test_larger_than_the_device(case, host_bytes, corpus, on_cpu, tmp_path):
    """A budget of 256 MiB: small blocks pass through the ring; streams and runs go to host memory, then to files."""
    memory = fill(MemoryConfig, {"device_bytes": "256 MiB", "host_bytes": host_bytes}, "memory")
    out = tmp_path / "out"
    run(CountConfig(corpus, **CASES[case]), RunContext(LocalExecutor("gpu"), out, memory=memory or MemoryConfig()))
    assert files_of(out) == on_cpu[case]


@pytest.mark.gpu
@pytest.mark.parametrize("case", ["words", "marked", "ids"])
@pytest.mark.parametrize("host_bytes", ["64 MiB", "4 GiB"])
def test_counts_from_tokens(case, host_bytes, corpus, on_cpu, monkeypatch, tmp_path):
    monkeypatch.setattr(plan, "DISTINCT_SHARE", 1e9)
    memory = fill(MemoryConfig, {"device_bytes": "256 MiB", "host_bytes": host_bytes}, "memory")
    out = tmp_path / "out"
    result = run(CountConfig(corpus, **CASES[case]), RunContext(LocalExecutor("gpu"), out, memory=memory))
    assert files_of(out) == on_cpu[case]
    assert "one group of shards" in result.plans[-1].reason


@pytest.fixture(scope="module")
def many_words(tmp_path_factory):
    """A text of 6 million words, most of them rare, and its counts from a CPU."""
    folder = tmp_path_factory.mktemp("many")
    words = np.array([b"%07x " % i for i in range(2_000_000)])
    text = words[np.random.default_rng(0).integers(0, len(words), 6_000_000)].view(np.uint8)
    text[40 * 8 - 1 :: 40 * 8] = ord("\n")
    (folder / "text").write_bytes(text.tobytes())
    return str(folder / "text"), outcome(LocalExecutor("cpu"), [str(folder / "text")], folder / "cpu", order=2)


@pytest.mark.gpu
@pytest.mark.timeout(300)
@pytest.mark.parametrize("host_bytes", ["64 MiB", "8 GiB"])
def test_many_chunks_and_the_least_budget(host_bytes, many_words, tmp_path):
    """Twelve chunks or more, each vocabulary a tenth of the device: they are kept in host memory and in files."""
    text, expected = many_words
    memory = fill(MemoryConfig, {"device_bytes": "256 MiB", "host_bytes": host_bytes}, "memory")
    before_bytes = used_bytes("gpu")
    result = run(
        CountConfig([text], order=2),
        RunContext(LocalExecutor("gpu"), tmp_path / "out", memory=memory or MemoryConfig()),
    )
    assert files_of(result.path) == expected
    assert result.peak_device_bytes <= before_bytes + (256 << 20)


@pytest.mark.gpu
@pytest.mark.parametrize("strategy", ["global", "private"])
def test_dense_histograms_of_four_bytes(strategy, tmp_path):
    """16 GiB of bins if all 256 bytes occur."""
    data = np.random.default_rng(0).integers(0, 256, 100_000, np.uint8)
    (tmp_path / "data").write_bytes(data.tobytes())
    options = {"unit": "byte", "order": 4}
    dense = outcome(LocalExecutor("gpu"), [str(tmp_path / "data")], tmp_path / "a", strategy=strategy, **options)
    assert dense == outcome(LocalExecutor("cpu"), [str(tmp_path / "data")], tmp_path / "b", strategy="hash", **options)


@pytest.mark.gpu
def test_running_out_of_device_memory(corpus, on_cpu, tmp_path, monkeypatch):
    """Parts are halved until they fit; if the device is too small for any part, the host counts.

    The caller's arrays, more than the least budget, take nothing of it.
    """
    import cupy

    callers = cupy.empty(200 << 20, "u1")
    monkeypatch.setattr(count_chunk, "_part_tokens", lambda *_: 1 << 30)
    for megabytes in 96, 1:
        memory = MemoryConfig(256 << 20)
        object.__setattr__(memory, "device_bytes", megabytes << 20)
        config = CountConfig(corpus, chunk_bytes=1 << 30, **CASES["words"])
        out = run(
            config, RunContext(LocalExecutor("gpu"), tmp_path / f"{megabytes}", memory=memory or MemoryConfig())
        ).path
        assert files_of(out) == on_cpu["words"]
    del callers


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES)
def test_counting_on_the_host_where_the_gpu_is_full(case, corpus, on_cpu, tmp_path, monkeypatch):
    """Every chunk finds the GPU full."""
    import cupy

    counted = count_chunk.count_streams

    def full(streams, lexicon, plans, options):
        if options.budget.device == "gpu":
            raise cupy.cuda.memory.OutOfMemoryError(1, 1, 1)
        return counted(streams, lexicon, plans, options)

    monkeypatch.setattr(count_chunk, "count_streams", full)
    assert outcome(LocalExecutor("gpu"), corpus, tmp_path / "out", chunk_bytes=300_000, **CASES[case]) == on_cpu[case]


@pytest.mark.gpu
def test_a_dask_cuda_cluster(corpus, on_cpu, tmp_path):
    executor = start_cluster("gpu", 1)
    try:
        for case, options in CASES.items():
            assert outcome(executor, corpus, tmp_path / case, chunk_bytes=300_000, **options) == on_cpu[case]
    finally:
        executor.close()


@pytest.mark.multigpu
def test_several_gpus(several_gpus, corpus, on_cpu, tmp_path):
    assert several_gpus.workers > 1 and several_gpus.transport in ("ipc", "ucx")
    for case, options in CASES.items():
        assert outcome(several_gpus, corpus, tmp_path / case, chunk_bytes=300_000, **options) == on_cpu[case]
    large = tmp_path / "large.txt"  # enough words for two shards, so each GPU merges one
    large.write_bytes(Path(corpus[-1]).read_bytes() * 20)
    here = outcome(LocalExecutor("cpu"), [str(large)], tmp_path / "here")
    assert outcome(several_gpus, [str(large)], tmp_path / "there", chunk_bytes=4_000_000) == here
    assert read_manifest(tmp_path / "there")["num_shards"] > 1
