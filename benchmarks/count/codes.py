"""Codes on the device to sorted tables: the work of the engine after text has become numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mgpu_ngram.core.counts.tables import Table
from mgpu_ngram.engine.count.count_chunk import Codes, CountOptions, bins_to_table, count_streams
from mgpu_ngram.engine.count.lexicon import Lexicon
from mgpu_ngram.engine.count.strategy import OrderPlan
from mgpu_ngram.engine.memory.budget import Budget
from mgpu_ngram.kernels import check


def count_codes(
    stream: Codes, symbols: int, plans: Sequence[OrderPlan], budget: Budget, histograms: int = 1
) -> list[Table]:
    """Count a stream of `symbols` distinct codes: the sorted table of each planned order, in their order."""
    nothing = np.empty(0, np.uint64)
    lexicon = Lexicon("id", symbols, stream.owned, nothing, nothing.astype(np.int32), 1, np.zeros(symbols, np.uint16))
    options = CountOptions(budget, plans[-1].order, histograms=histograms)
    tables, bins = count_streams([stream], lexicon, plans, options)
    made = {table.order: table for table in tables}
    made |= {n: bins_to_table(counts, n, symbols, check.code_bits(symbols)) for n, counts in bins.items()}
    return [made[plan.order] for plan in plans]
