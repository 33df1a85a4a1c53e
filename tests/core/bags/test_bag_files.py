"""Files of bags of words: they come back, as maps, and damage is found."""

import numpy as np
import pytest

from mgpu_ngram.core.bags.bag_files import load_bags, save_bags
from mgpu_ngram.core.bags.bags import Bags, make_bags
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.storage.safetensors import save_arrays

BAGS = make_bags([0, 2, 2, 3], [0, 3, 1], [1, 2, 70_000], 4)


@pytest.mark.parametrize("bags", [BAGS, BAGS.slice(1, 2), BAGS.slice(0, 0)])
def test_bags_come_back(tmp_path, bags):
    size = save_bags(tmp_path / "x", bags)
    assert load_bags(tmp_path / "x") == bags == load_bags(tmp_path / "x", verify=False)
    assert size == (tmp_path / "x").stat().st_size
    assert not load_bags(tmp_path / "x").words_P.flags.writeable


def test_other_content_is_refused(tmp_path):
    save_arrays(tmp_path / "x", {"a": np.zeros(1)}, {})
    with pytest.raises(InputError, match="x holds no bags of words; give"):
        load_bags(tmp_path / "x")
    save_bags(tmp_path / "x", Bags(np.array([0, 1]), np.array([9], np.uint32), np.array([1], np.uint32), 4))
    with pytest.raises(InputError, match="document 0 of .*x has the word id 9, but the ids of 4 words"):
        load_bags(tmp_path / "x")
    names = ("starts_D1", "words_P", "counts_P")
    save_arrays(tmp_path / "x", {n: np.zeros(1) for n in names}, {"format": "bags of words", "num_words": 1})
    with pytest.raises(InputError, match="holds arrays of float64, float64, float64, not"):
        load_bags(tmp_path / "x")
    save_bags(tmp_path / "x", BAGS)
    content = bytearray((tmp_path / "x").read_bytes())
    content[-1] ^= 1
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(InputError, match="x is damaged: array"):
        load_bags(tmp_path / "x")
