"""Which replicas of models are kept and which are dropped, with fake models and files of a few bytes."""

from collections import OrderedDict
from types import SimpleNamespace

import pytest

from mgpu_ngram.core.errors import RunError
from mgpu_ngram.engine.trie import replicas
from mgpu_ngram.engine.trie.replicas import BYTES_PER_FILE_BYTE, held_replica


class Models:
    """Fake models in files: counts loads, and fails as often as requested."""

    def __init__(self, folder):
        self.folder, self.loaded, self.failures, self.free = folder, [], [], 1 << 40
        for name in "abc":
            self.write(name, "1")

    def write(self, name, version):
        (self.folder / name).write_text(version * 10)

    def path(self, name):
        return str(self.folder / name)

    def head(self, path):
        return SimpleNamespace(path=path, identity=open(path).read()[0])

    def open(self, head, device, threads, verify):
        if self.failures:
            raise self.failures.pop()
        self.loaded.append(head.path[-1])
        return head.path[-1]

    def get(self, name, identity="1", kind="score", verify=False, device="cpu"):
        return held_replica(kind, lambda model: [kind, model], self.path(name), identity, device, 1, verify, "buy more")

    def held(self):
        return [(kind, path[-1]) for kind, path, _ in replicas._held]


@pytest.fixture
def models(tmp_path, monkeypatch):
    models = Models(tmp_path)
    monkeypatch.setattr(replicas, "_held", OrderedDict())
    monkeypatch.setattr(replicas, "read_head", models.head)
    monkeypatch.setattr(replicas, "open_model", models.open)
    monkeypatch.setattr(replicas, "free_bytes", lambda device: models.free)
    return models


def test_two_models_that_alternate_are_loaded_once_each(models):
    for _ in range(3):
        for name in "ab":
            assert models.get(name) == ["score", name]
    assert models.loaded == ["a", "b"]
    assert models.get("a") is models.get("a")
    assert models.get("a", kind="distribution") == ["distribution", "a"]  # another use of the same file
    assert models.get("a", device="gpu") is not models.get("a")
    assert models.loaded == ["a", "b", "a", "a"]


def test_the_least_recently_used_is_dropped_when_a_new_one_does_not_fit(models):
    models.get("a"), models.get("b"), models.get("a")
    models.free = 10 * BYTES_PER_FILE_BYTE
    models.get("c")
    assert models.held() == [("score", "b"), ("score", "a"), ("score", "c")]
    models.get("b")
    dropped = []
    real = OrderedDict.popitem

    class Watched(OrderedDict):
        def popitem(self, last=True):
            models.free += 5  # two are dropped
            dropped.append(real(self, last)[0][1][-1])

    replicas._held = Watched(replicas._held)
    models.free = 10 * BYTES_PER_FILE_BYTE - 10
    models.get("c", kind="other")
    assert dropped == ["a", "c"] and models.held() == [("score", "b"), ("other", "c")]


def test_out_of_memory_drops_one_replica_after_another(models):
    models.get("a"), models.get("b")
    models.failures = [MemoryError()]
    assert models.get("c") == ["score", "c"] and models.held() == [("score", "b"), ("score", "c")]
    models.failures = [MemoryError() for _ in range(3)]
    with pytest.raises(RunError, match="out of host memory while loading a model .*; buy more"):
        models.get("a")
    assert models.held() == [] and models.failures == []
    models.get("a")
    models.failures = [ZeroDivisionError()]
    with pytest.raises(ZeroDivisionError):
        models.get("b")
    assert models.held() == [("score", "a")]


def test_replicas_of_a_file_that_has_changed_are_dropped(models):
    first, kept = models.get("a"), models.get("b")
    models.get("a", kind="distribution")
    models.write("a", "2")
    assert models.get("a") is first  # a caller with the old identity gets the old replica
    assert models.get("a", "2") is not first and models.held() == [("score", "b"), ("score", "a")]
    assert models.get("b") is kept
    with pytest.raises(
        RunError, match=f"{models.path('a')} is 2 on this worker but was 1 at the start; run again with the same file"
    ):
        models.get("a")


def test_skipped_checksums_are_compared_on_request(models):
    unverified = models.get("a", verify=False)
    verified = models.get("a", verify=True)
    assert verified is not unverified and models.held() == [("score", "a")]
    assert models.get("a", verify=False) is verified and models.loaded == ["a", "a"]
