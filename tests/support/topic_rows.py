"""Topic rows from a dense matrix."""

import numpy as np

from mgpu_ngram.engine.topics.rows import TopicRows


def rows_of_dense(counts_VZ, beta):
    """Return the rows of a dense (V, Z) matrix of counts. beta: one prior for all words, or (V,)."""
    topics_N, words_N = np.nonzero(counts_VZ.T)
    starts_Z1 = np.searchsorted(topics_N, np.arange(counts_VZ.shape[1] + 1))
    beta_V = np.broadcast_to(np.float64(beta), len(counts_VZ)).copy()
    return TopicRows(starts_Z1, words_N.astype(np.uint32), counts_VZ[words_N, topics_N], beta_V)
