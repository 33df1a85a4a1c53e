"""A container's memory limit counts, not the memory of its host."""

from mgpu_ngram.core import memory_config as memory


def test_the_limit_of_a_container(tmp_path, monkeypatch):
    available = 10**9
    monkeypatch.setattr(memory, "_available_bytes", lambda: available)
    monkeypatch.setattr(memory, "CGROUP", tmp_path)
    assert memory.free_host_bytes() == available, "no limit is set"
    (tmp_path / "memory.current").write_text("700\n")
    for limit, free in (("1000\n", 300), ("500\n", 0), ("max\n", available), (f"{1 << 62}\n", available)):
        (tmp_path / "memory.max").write_text(limit)
        assert memory.free_host_bytes() == free
