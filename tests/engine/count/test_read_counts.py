"""Tables read back from the output of count."""

from collections import Counter

import numpy as np
import pytest

from mgpu_ngram.core.counts import parquet
from mgpu_ngram.core.counts.tables import Table
from mgpu_ngram.core.counts.vocabulary import Vocabulary
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.ngrams.words import Words
from mgpu_ngram.engine.count.read_counts import read_tables
from mgpu_ngram.kernels import check
from tests.support.parquet_parts import write_part

WORDS = [b"<unk>", b"<s>", b"</s>", b"the", b"caf\xc3\xa9", b"caf\xe9", b"w" * 40, *(b"w%d" % i for i in range(90))]


@pytest.fixture
def shards(tmp_path, monkeypatch, pack_keys):
    """Return a function that gives (paths, the tables written there) of an order, in row groups of 50."""
    for name in "GROUP_ROWS", "IDS_GROUP_ROWS":
        monkeypatch.setattr(parquet, name, 50)
    offsets_V = np.cumsum([0, *map(len, WORDS)])
    none_V = np.zeros(len(WORDS), np.int64)
    vocabulary = Vocabulary("word", offsets_V, np.frombuffer(b"".join(WORDS), np.uint8), none_V, none_V, none_V)
    bits = check.code_bits(len(WORDS))

    def write(order, sizes, as_text, columns="text"):
        rng = np.random.default_rng(order)
        tables = []
        words = [v for v in range(1, len(WORDS)) if not as_text or v != 5]
        for s, size in enumerate(sizes):
            found = Counter(map(tuple, rng.choice(words, (size, order)).tolist()))
            ngrams = sorted(found)
            keys = pack_keys([[v + 1 for v in g] for g in ngrams], order, bits)
            tables.append(Table(keys, np.array([found[g] for g in ngrams], np.int64), order, bits))
            write_part(tables[-1], vocabulary, tmp_path / f"{s}", as_text, columns)
        return [tmp_path / f"{s}" for s in range(len(sizes))], tables

    return write


@pytest.mark.parametrize(("as_text", "columns"), [(True, "text"), (False, "text"), (True, "ids")])
@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize(
    ("order", "sizes"), [(2, [0]), (2, [1]), (3, [130, 0, 49, 50, 51]), (5, [400, 7]), (10, [60, 60]), (19, [99])]
)
def test_written_tables_read_back(shards, order, sizes, threads, as_text, columns):
    paths, written = shards(order, sizes, as_text, columns)
    tables = read_tables(paths, order, Words.of(WORDS), threads, columns)
    assert [len(t) for t in tables] == [len(t) for t in written]
    for table, expected in zip(tables, written, strict=True):
        one = table.shard(0)
        assert (one.order, one.bits) == (expected.order, expected.bits) and table.ends_S.tolist() == [len(one)]
        assert one.keys.dtype == np.uint64 and np.array_equal(one.keys, expected.keys)
        assert one.counts.dtype == np.int64 and np.array_equal(one.counts, expected.counts)


@pytest.mark.parametrize("columns", ["text", "ids"])
def test_damage_is_named(shards, columns):
    paths, _ = shards(3, [130, 130], True, columns)

    def read(words=WORDS):
        read_tables(paths, 3, Words.of(words), 2, columns)

    with pytest.raises(InputError, match=f"^{paths[0]} is damaged: it has a word that its vocabulary lacks; count ag"):
        read(WORDS[:80])
    content = bytearray(paths[1].read_bytes())
    content[len(content) // 4] ^= 1
    paths[1].write_bytes(content)
    with pytest.raises(InputError, match=f"^{paths[1]} is damaged or cannot be read"):
        read()
    paths[1].unlink()
    with pytest.raises(InputError, match=f"^{paths[1]} is missing"):
        read()
