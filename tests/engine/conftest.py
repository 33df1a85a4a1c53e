"""Fixtures of the engine's tests: tables as dicts and back, and budgets."""

import numpy as np
import pytest

from mgpu_ngram.core.counts.tables import ShardedTable, Table
from mgpu_ngram.engine.count.sorted_runs import MERGE_COPIES
from mgpu_ngram.engine.memory.budget import Budget
from mgpu_ngram.kernels import check
from mgpu_ngram.kernels.dispatch import to_host

AMPLE_BYTES = 32 << 30


@pytest.fixture(scope="session")
def to_table(to_device, pack_keys):
    """Return a table of {tuple of codes: count}."""

    def convert(counter, order, bits):
        ngrams = sorted(counter)
        counts = np.array([counter[g] for g in ngrams], np.int64)
        return Table(to_device(pack_keys(ngrams, order, bits)), to_device(counts), order, bits)

    return convert


@pytest.fixture(scope="session")
def to_counter(unpack_keys):
    """Return {tuple of codes: count} of a table, which must be sorted and without duplicates."""

    def convert(table):
        assert table.keys.dtype == np.uint64 and table.counts.dtype == np.int64
        assert table.keys.shape == (check.num_columns(table.order, table.bits), len(table))
        ngrams = unpack_keys(to_host(table.keys), table.order, table.bits)
        assert ngrams == sorted(set(ngrams))
        return dict(zip(ngrams, to_host(table.counts).tolist(), strict=True))

    return convert


@pytest.fixture(scope="session")
def to_sharded(to_device, pack_keys):
    """Return a sharded table of one {tuple of codes: count} per shard."""

    def convert(shards, order, bits):
        rows = [(ngram, shard[ngram]) for shard in shards for ngram in sorted(shard)]
        keys = to_device(pack_keys([ngram for ngram, _ in rows], order, bits))
        counts = to_device(np.array([count for _, count in rows], np.int64))
        return ShardedTable(keys, counts, np.cumsum([len(shard) for shard in shards]), order, bits)

    return convert


@pytest.fixture(scope="session")
def to_counters(to_counter):
    """Return {tuple of codes: count} of each shard of a table."""

    def convert(table):
        assert isinstance(table.ends_S, np.ndarray) and table.ends_S.dtype == np.int64
        assert len(table) == (table.ends_S[-1] if len(table.ends_S) else 0)
        return [to_counter(table.shard(s)) for s in range(len(table.ends_S))]

    return convert


@pytest.fixture(scope="session")
def ample(device):
    """Return a budget that is never exhausted."""
    return Budget(device, AMPLE_BYTES, AMPLE_BYTES)


@pytest.fixture(scope="session")
def few_rows(device):
    """Return few_rows(rows, columns): a budget whose blocks hold `rows` rows of keys of `columns` columns."""

    def make(rows, columns):
        class FewRows(Budget):
            def block_bytes(self):
                return MERGE_COPIES[device] * rows * (8 * columns + 8)

        return FewRows(device, AMPLE_BYTES, AMPLE_BYTES)

    return make
