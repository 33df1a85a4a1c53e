"""Texts in one array of bytes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mgpu_ngram.core.documents.text_column import TextColumn, are_utf8, head_of

texts = st.lists(st.text(st.characters(exclude_categories=[])), max_size=8)


@given(texts, st.data())
def test_a_column_is_a_list(made, data):
    column = TextColumn.of(made)
    assert list(column) == made and len(column) == len(made)
    order = data.draw(st.lists(st.integers(0, len(made) - 1), max_size=9)) if made else []
    assert list(column.take(np.array(order, np.int64))) == [made[d] for d in order]
    assert [head_of(column, d, 3) for d in range(len(made))] == [text[:3] for text in made]
    assert column[1:3] == made[1:3]


def test_what_is_odd():
    column = TextColumn.of(["a", "\ud800", "é"])
    assert column.odd == {1: "\ud800"} and column.data.tobytes() == "aé".encode()
    with pytest.raises(IndexError):
        column[3]


def test_utf8_of_texts():
    data = np.frombuffer("aé".encode(), np.uint8)
    assert are_utf8(data, np.array([0, 1, 3])) and not are_utf8(data, np.array([0, 2, 3]))
    assert not are_utf8(data[:2], np.array([0, 2])) and are_utf8(data[:0], np.array([0, 0]))
