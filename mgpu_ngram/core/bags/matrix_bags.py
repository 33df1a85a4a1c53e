"""Bags of words from matrices in Python: SciPy, CuPy, NumPy, pandas and Polars, without importing any of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from mgpu_ngram.core.bags.bags import Bags, join_bags, make_bags
from mgpu_ngram.core.bags.csr_npz import from_coo, from_csc
from mgpu_ngram.core.bags.word_list import make_words
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.ngrams.words import Words
from mgpu_ngram.kernels.dispatch import to_host

DENSE_ROWS_BYTES = 64 << 20  # bytes of a dense matrix that are searched for counts at once


def is_matrix(X: Any) -> bool:
    """Return whether X is an array of numbers, a sparse matrix or a table, not a column of documents."""
    if not hasattr(X, "shape"):
        return False
    return len(X.shape) != 1 or getattr(getattr(X, "dtype", None), "kind", "O") in "iufbc"


def bags_of_matrix(X: Any, name: str = "X") -> Bags:
    """Return the bags of words of a matrix of counts: a row for each document, a column for each word.

    X     a CSR, CSC, COO or other sparse matrix or array of SciPy or cupyx; a dense array of NumPy or CuPy; a DataFrame
          of pandas, dense or sparse, or of Polars
    name  name of the matrix, for messages

    Raises InputError for counts and shapes that `make_bags` refuses, and for other dtypes.
    """
    if isinstance(X, Bags):
        return X
    shape = getattr(X, "shape", ())
    if len(shape) != 2:
        raise InputError(
            f"{name} has shape {tuple(shape)}, but a matrix of counts is 2D: documents x words; "
            "Reshape your data, a single document with X.reshape(1, -1)"
        )
    rows, columns = (int(n) for n in shape)
    if hasattr(X, "tocsr"):
        return _of_sparse(X, (rows, columns), name)
    if hasattr(X, "iloc") and columns and all(hasattr(dtype, "fill_value") for dtype in X.dtypes):
        return _of_sparse_table(X, (rows, columns), name)
    dense = np.asarray(X.to_numpy() if hasattr(X, "to_numpy") else to_host(X))
    if dense.dtype == object:
        try:
            dense = dense.astype(np.float64)
        except (TypeError, ValueError) as error:
            only = f"the column itself, as table[{X.columns[0]!r}]" if hasattr(X, "columns") and columns == 1 else ""
            way_out = only or "numbers, or one column of texts, such as table['text'] or array[:, 0]"
            raise InputError(f"{name} is a matrix of objects, not of counts ({error}); give {way_out}") from None
    if dense.dtype.kind not in "iufb":
        unsupported = "Complex data not supported: " if dense.dtype.kind == "c" else ""
        raise InputError(f"{unsupported}{name} is a matrix of {dense.dtype}, not of counts; give whole numbers")
    step = max(1, DENSE_ROWS_BYTES // max(1, dense[:1].nbytes))
    return join_bags(_of_dense(dense[i : i + step], i, name) for i in range(0, max(rows, 1), step))


def column_words(X: Any) -> Words | None:
    """Return the names of a table's columns as words; None for other matrices and for names that are not str."""
    columns = list(getattr(X, "columns", []))
    return make_words(columns) if columns and all(isinstance(name, str) for name in columns) else None


def as_matrix(rows: Iterable[Any], name: str = "X") -> np.ndarray:
    """Return lists of numbers as a dense matrix.

    Raises InputError if their lengths differ or they hold other values.
    """
    try:
        return np.asarray(rows, np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} is not a matrix of counts: {error}; give rows with equally many numbers") from None


def _of_sparse(X: Any, shape: tuple[int, int], name: str) -> Bags:
    if X.format == "coo":
        return from_coo((to_host(X.row), to_host(X.col), to_host(X.data)), shape, name)
    if X.format not in ("csr", "csc"):
        X = X.tocsr()
    starts, indices, data = (to_host(array) for array in (X.indptr, X.indices, X.data))
    if len(starts) and 0 <= starts[-1] < len(indices):  # SciPy may keep unused room at the end
        indices, data = indices[: starts[-1]], data[: starts[-1]]
    if X.format == "csc":
        return from_csc((starts, indices, data), shape, name)
    return make_bags(starts, indices, data, shape[1], name)


def _of_sparse_table(X: Any, shape: tuple[int, int], name: str) -> Bags:
    """Return the bags of a pandas DataFrame whose columns are all sparse."""
    rows, columns, data = [], [], []
    for j in range(shape[1]):
        column = X.iloc[:, j].array
        if column.fill_value != 0:
            raise InputError(f"column {j} of {name} is filled with {column.fill_value}; fill sparse columns with 0")
        rows.append(column.sp_index.indices)
        columns.append(np.full(len(rows[-1]), j))
        data.append(column.sp_values)
    return from_coo((np.concatenate(rows), np.concatenate(columns), np.concatenate(data)), shape, name)


def _of_dense(dense: np.ndarray, first_row: int, name: str) -> Bags:
    rows_P, columns_P = np.nonzero(dense)
    starts_D1 = np.searchsorted(rows_P, np.arange(len(dense) + 1))
    return make_bags(starts_D1, columns_P, dense[rows_P, columns_P], dense.shape[1], name, first_row)
