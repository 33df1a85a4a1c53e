"""Settings with which benches take little time: their tests need no precise times."""


def measure_once(patch):
    """Let a monkeypatch reduce the runs of each measurement to one and the ceilings to small arrays."""
    patch.setattr("mgpu_ngram.benchmarks.harness.timing.MAX_RUNS", 1)
    patch.setattr("mgpu_ngram.benchmarks.harness.suite.CEILING_BYTES", {"cpu": 1 << 16, "gpu": 1 << 24})
    patch.setattr("mgpu_ngram.benchmarks.harness.suite.SORTED_KEYS", {"cpu": 1 << 12, "gpu": 1 << 20})
