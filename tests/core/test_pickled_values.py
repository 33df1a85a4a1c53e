"""Values that workers send to each other, while another thread computes their cached properties."""

import pickle
from dataclasses import replace

import numpy as np
import pytest

from mgpu_ngram.core.bags.bags import Bags
from mgpu_ngram.core.counts.vocabulary import Vocabulary

NUMBERS = np.array([0, 1, 2])
VOCABULARY = Vocabulary("word", NUMBERS, np.frombuffer(b"ab", np.uint8), *[NUMBERS[1:]] * 3)
BAGS = Bags(NUMBERS, *[NUMBERS[1:].astype(np.uint32)] * 2, 3)


class Hooked:
    """A field that computes cached properties of its value when it is pickled."""

    def __init__(self, names):
        self.names = names

    def __reduce__(self):
        for name in self.names:
            getattr(self.value, name)
        return str, ("sent",)


@pytest.mark.parametrize(
    ("value", "field", "cached"), [(VOCABULARY, "unit", ["as_text", "texts"]), (BAGS, "num_words", ["tokens"])]
)
def test_cached_properties_may_be_computed_while_a_value_is_sent(value, field, cached):
    hook = Hooked(cached)
    hook.value = replace(value, **{field: hook})
    sent = pickle.loads(pickle.dumps(hook.value))
    assert getattr(sent, field) == "sent"
    assert set(cached) <= set(vars(hook.value)) and not set(cached) & set(vars(sent))
