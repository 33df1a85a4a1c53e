"""Verification finds inputs that changed after a run."""

import gzip
import json
import shutil
import zlib

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mgpu_ngram.cluster.local import LocalExecutor
from mgpu_ngram.core.counts.counts import read_manifest
from mgpu_ngram.core.inputs import verify
from mgpu_ngram.core.inputs.corpus import open_corpus
from mgpu_ngram.core.inputs.in_memory import Lines
from mgpu_ngram.core.inputs.verify import counts_checksum, verify_inputs
from mgpu_ngram.jobs.context import RunContext
from mgpu_ngram.jobs.count.run import CountConfig, run

TEXT = b"the cat\nthe dog\n"


def manifest_of(name, data, **more):
    return {"inputs": [{"name": name, "size_bytes": len(data), "crc32": f"{zlib.crc32(data):08x}"} | more]}


@pytest.mark.parametrize("strip_bytes", [1, 5, 16, 100])
def test_a_file_by_hand(strip_bytes, tmp_path, monkeypatch):
    monkeypatch.setattr(verify, "STRIP_BYTES", strip_bytes)
    (tmp_path / "a.txt").write_bytes(TEXT)
    assert zlib.crc32(TEXT) == 0x415C1B50
    manifest = manifest_of("a.txt", TEXT)
    assert verify_inputs(manifest, tmp_path) == [] == verify_inputs(manifest_of(str(tmp_path / "a.txt"), TEXT))
    (tmp_path / "a.txt").write_bytes(b"The cat\nthe dog\n")
    found = f"{zlib.crc32(b'The cat' + TEXT[7:]):08x}"
    expected = f"'a.txt' has CRC-32 {found} but had 415c1b50; restore it, or run again"
    assert verify_inputs(manifest, tmp_path) == [expected]
    (tmp_path / "a.txt").write_bytes(TEXT * 100)
    expected = "'a.txt' has 1,600 bytes but had 16; restore it, or run again"
    assert verify_inputs(manifest, tmp_path) == [expected]
    (tmp_path / "a.txt").unlink()
    [line] = verify_inputs(manifest, tmp_path)
    assert line.startswith("cannot read ") and "a.txt" in line and "\n" not in line


def test_inputs_that_cannot_be_compared():
    """Lines in memory; manifests of scores, which have sizes but no CRC; and manifests without inputs."""
    assert verify_inputs({"inputs": [{"name": "<lines in memory>", "size_bytes": 3, "crc32": "0"}]}) == []
    assert verify_inputs({}) == []


def test_a_manifest_without_checksums(tmp_path):
    (tmp_path / "a").write_bytes(TEXT)
    assert verify_inputs({"inputs": [{"name": "a", "size_bytes": 16}]}, tmp_path) == []
    assert len(verify_inputs({"inputs": [{"name": "a", "size_bytes": 15}]}, tmp_path)) == 1


def test_every_input_gets_a_line(tmp_path):
    (tmp_path / "b").write_bytes(b"")
    inputs = [{"name": n, "size_bytes": 0, "crc32": c} for n, c in [("a", "0"), ("b", "00000000"), ("b", "00000001")]]
    found = verify_inputs({"inputs": inputs}, tmp_path)
    assert [line.split()[0] for line in found] == ["cannot", "'b'"]


def test_inputs_of_a_run(tmp_path, monkeypatch):
    """Plain, compressed and Parquet files; the checksums are those in the manifest of the run."""
    monkeypatch.chdir(tmp_path)
    plain, packed, rows = tmp_path / "plain.txt", tmp_path / "packed.gz", tmp_path / "rows.parquet"
    plain.write_bytes(TEXT * 1000)
    packed.write_bytes(gzip.compress(TEXT * 10, mtime=0))
    pq.write_table(pa.table({"words": ["a b", "c"]}), rows)
    executor = LocalExecutor(workers=2)
    paths = ["plain.txt", str(packed), "rows.parquet"]
    run(CountConfig(paths, order=2, text_column="words", chunk_bytes=3000), RunContext(executor, "out"))
    run(CountConfig([], order=2), RunContext(executor, "memory"), open_corpus(Lines(["a b"])))
    executor.close()
    manifest = read_manifest("out")
    assert verify_inputs(manifest) == [] == verify_inputs(read_manifest("memory"))
    monkeypatch.chdir("/")
    assert verify_inputs(manifest, tmp_path) == [] and len(verify_inputs(manifest)) == 2  # relative names
    packed.write_bytes(gzip.compress(TEXT * 10, mtime=1))
    pq.write_table(pa.table({"words": ["a b", "d"]}), rows)
    assert {line.split()[0] for line in verify_inputs(manifest, tmp_path)} == {f"{str(packed)!r}", "'rows.parquet'"}


def test_files_of_any_kind_are_compared(tmp_path):
    """Bytes of a table or of a JSON array were counted: the comparison does not look at what they hold."""
    executor = LocalExecutor(workers=1)
    for name, content in {"a.csv": b"a,b\n1,2\n", "a.json": b'["a", "b"]'}.items():
        (tmp_path / name).write_bytes(content)
        run(CountConfig([str(tmp_path / name)], order=2, unit="byte"), RunContext(executor, tmp_path / f"of {name}"))
        assert verify_inputs(read_manifest(tmp_path / f"of {name}")) == []
    executor.close()


def test_counts_that_a_model_was_made_from(tmp_path):
    executor = LocalExecutor(workers=1)
    (tmp_path / "text").write_bytes(TEXT)
    run(CountConfig([str(tmp_path / "text")], order=2), RunContext(executor, tmp_path / "counts"))
    executor.close()
    manifest = read_manifest(tmp_path / "counts")
    size_bytes, crc32 = counts_checksum(manifest)
    assert size_bytes == sum(p.stat().st_size for p in (tmp_path / "counts").rglob("*.parquet"))
    made_of = {"inputs": [{"name": str(tmp_path / "counts"), "size_bytes": size_bytes, "crc32": crc32}]}
    assert verify_inputs(made_of) == []
    (tmp_path / "counts" / "manifest.json").write_text(json.dumps(manifest | {"tokens": 7}))
    assert len(verify_inputs(made_of)) == 1
    shutil.rmtree(tmp_path / "counts")
    assert len(verify_inputs(made_of)) == 1
