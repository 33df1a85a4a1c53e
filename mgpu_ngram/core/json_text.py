"""JSON as other programs read it: numbers that JSON lacks become null."""

from __future__ import annotations

import json
import math
from typing import Any


def to_json(value: Any, **options: Any) -> str:
    """Return a value as JSON. NaN and infinity become null; NumPy scalars are numbers.

    options  of `json.dumps`
    """
    return json.dumps(_finite(value), allow_nan=False, **options)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if hasattr(value, "tolist"):
        return _finite(value.tolist())
    return None if isinstance(value, float) and not math.isfinite(value) else value
