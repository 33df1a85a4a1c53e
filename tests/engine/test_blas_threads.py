"""The limit of BLAS threads: nested blocks and errors leave the number as it was."""

import numpy as np
import pytest
from threadpoolctl import ThreadpoolController, threadpool_limits

from mgpu_ngram.engine.blas_threads import one_blas_thread


def blas_threads():
    """Return the numbers of threads of all BLAS libraries."""
    np.ones((2, 2)) @ np.ones((2, 2))
    return [library["num_threads"] for library in ThreadpoolController().select(user_api="blas").info()]


@pytest.fixture(autouse=True)
def two_threads():
    if not blas_threads():
        pytest.skip("NumPy has a BLAS without threads here")
    with threadpool_limits(2, user_api="blas"):
        yield


def test_nested_blocks_and_errors():
    assert max(blas_threads()) == 2
    with one_blas_thread():
        with one_blas_thread():
            assert max(blas_threads()) == 1
        assert max(blas_threads()) == 1
        with pytest.raises(ZeroDivisionError), one_blas_thread():
            raise ZeroDivisionError
        assert max(blas_threads()) == 1
    assert max(blas_threads()) == 2
