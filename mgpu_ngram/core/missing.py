"""Values that stand for a missing text: None, NaN, and those of pandas."""

from __future__ import annotations

from typing import Any

import numpy as np

MISSING_WAY_OUT = "leave missing texts out, or replace them by empty ones, as dropna() and fillna('') of pandas do"


def is_missing(value: Any) -> bool:
    """Return whether a value is None, NaN, or pandas' NA or NaT. pandas is not imported."""
    if isinstance(value, (float, np.floating)):
        return bool(value != value)
    return value is None or type(value).__name__ in ("NAType", "NaTType")
