"""JSON without numbers that JSON lacks."""

import json
import math

import numpy as np
import pytest

from mgpu_ngram.core.json_text import to_json
from mgpu_ngram.core.storage.output import write_manifest


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, np.float32("nan"), np.float64("inf")])
def test_numbers_that_json_lacks_become_null(value):
    assert to_json({"a": [value, (1.5, value)]}) == '{"a": [null, [1.5, null]]}'


def test_other_values_are_as_of_json_dumps():
    value = {"b": [1, 2.5, True, None, "x"], "a": {"c": (1e300, -0.0)}}
    assert to_json(value, sort_keys=True, indent=2) == json.dumps(value, sort_keys=True, indent=2)
    assert to_json([np.int64(3), np.float32(0.5), np.arange(2)]) == "[3, 0.5, [0, 1]]"


def test_a_manifest_is_valid_json(tmp_path):
    write_manifest(tmp_path, {"metrics": {"perplexity": math.nan}, "words": np.int64(7)}, "x")
    found = json.loads((tmp_path / "manifest.json").read_text(), parse_constant=pytest.fail)
    assert found["metrics"] == {"perplexity": None} and found["words"] == 7
