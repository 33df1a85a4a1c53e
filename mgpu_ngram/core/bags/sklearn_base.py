"""The base class of estimators: from scikit-learn if it is installed, else a small class with the same methods.

scikit-learn is imported with this module, so only modules of estimators import it.
"""

from __future__ import annotations

import inspect
from typing import Any

from mgpu_ngram.core.errors import InputError

try:
    from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
    from sklearn.exceptions import NotFittedError
    from sklearn.utils.validation import validate_data
except ImportError:

    class NotFittedError(ValueError, AttributeError):  # type: ignore[no-redef]  # in place of scikit-learn
        """The estimator has no model yet."""

    class BaseEstimator:  # type: ignore[no-redef]  # in place of scikit-learn
        """Settings by name."""

        def get_params(self, deep: bool = True) -> dict[str, Any]:
            """Return the settings by name."""
            names = list(inspect.signature(type(self).__init__).parameters)[1:]
            return {name: getattr(self, name) for name in sorted(names)}

        def set_params(self, **params: Any) -> Any:
            """Change settings and return self. Raises InputError for an unknown name."""
            known = self.get_params()
            for name, value in params.items():
                if name not in known:
                    raise InputError(f"{type(self).__name__} has no setting {name!r}; known: {', '.join(known)}")
                setattr(self, name, value)
            return self

        def __repr__(self) -> str:
            defaults = inspect.signature(type(self).__init__).parameters
            changed = [f"{n}={v!r}" for n, v in self.get_params().items() if repr(v) != repr(defaults[n].default)]
            return f"{type(self).__name__}({', '.join(changed)})"

    class TransformerMixin:  # type: ignore[no-redef]  # in place of scikit-learn
        """Nothing: set_output needs scikit-learn."""

    class ClassNamePrefixFeaturesOutMixin:  # type: ignore[no-redef]  # in place of scikit-learn
        """Names of output columns."""

        _n_features_out: int

        def get_feature_names_out(self, input_features: Any = None) -> Any:
            """Return the class's name in lower case with a number for each output column, (K,) object."""
            import numpy as np

            prefix = type(self).__name__.lower()
            return np.array([f"{prefix}{i}" for i in range(self._n_features_out)], object)

    def validate_data(estimator: Any, X: Any, *, reset: bool, skip_check_array: bool) -> Any:
        """Set the number of columns of `estimator`, or compare it."""
        columns = int(X.shape[1])
        if reset:
            estimator.n_features_in_ = columns
        elif columns != estimator.n_features_in_:
            raise InputError(
                f"X has {columns} features, but {type(estimator).__name__} is expecting "
                f"{estimator.n_features_in_} features as input"
            )
        return X


__all__ = [
    "BaseEstimator",
    "ClassNamePrefixFeaturesOutMixin",
    "NotFittedError",
    "TransformerMixin",
    "check_columns",
]


def check_columns(estimator: Any, X: Any, reset: bool) -> None:
    """Store the number and the names of the columns of a matrix X, or compare them with the stored ones.

    reset  store them as n_features_in_ and, for a table whose columns have names, feature_names_in_

    Raises ValueError for other columns, and for a matrix without rows or columns.
    """
    rows, columns = X.shape
    for number, what, least in ((rows, "sample(s)", int(reset)), (columns, "feature(s)", 1)):
        if isinstance(number, (int, float)) and number < least:  # the rows of a Dask table are not known
            raise InputError(
                f"Found array with {number} {what} (shape=({rows}, {columns})) while a minimum of 1 is required by "
                f"{type(estimator).__name__}"
            )
    validate_data(estimator, X, reset=reset, skip_check_array=True)
