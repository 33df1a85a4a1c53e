"""The options of text, and the English stop words."""

import pickle

import numpy as np
import pytest

from mgpu_ngram.core.bags.english_stop_words import ENGLISH
from mgpu_ngram.core.bags.text_options import TextOptions
from mgpu_ngram.core.errors import InputError


def test_defaults():
    options = TextOptions()
    assert options.has_default_pattern and options.stop_words == frozenset()
    assert pickle.loads(pickle.dumps(options)) == options
    assert not TextOptions(token_pattern=r"\S+").has_default_pattern


def test_numbers_of_numpy():
    options = TextOptions(min_df=np.int32(2), max_df=np.float32(0.5), max_features=np.int64(3))
    assert options == TextOptions(min_df=2, max_df=0.5, max_features=3) and type(options.min_df) is int


def test_stop_words(tmp_path):
    (tmp_path / "stop.txt").write_text("the\n\n of \n")
    assert TextOptions(stop_words=str(tmp_path / "stop.txt")).stop_words == {"the", "of"}
    assert TextOptions(stop_words=["a", "a"]).stop_words == {"a"} == TextOptions(stop_words=frozenset("a")).stop_words
    assert TextOptions(stop_words="english").stop_words is ENGLISH
    assert len(ENGLISH) == 318 and {"the", "amoungst"} < ENGLISH and "computer" not in ENGLISH


def test_stop_words_are_those_of_scikit_learn():
    text = pytest.importorskip("sklearn.feature_extraction.text")
    assert text.ENGLISH_STOP_WORDS == ENGLISH


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"min_df": 0}, "min_df is 0 but must be a whole number from 1 on, or a share"),
        ({"min_df": None}, "min_df is None"),
        ({"min_df": 1.5}, "min_df is 1.5"),
        ({"max_df": -0.1}, "max_df is -0.1"),
        ({"max_df": True}, "max_df is True"),
        ({"max_df": float("nan")}, "max_df is nan"),
        ({"max_features": 0}, "max_features is 0 but must be"),
        ({"max_features": 2.0}, "max_features is 2.0"),
        ({"token_pattern": "("}, "token_pattern '\\(' is not a regular expression"),
        ({"token_pattern": "(a)(b)"}, "has 2 groups; use"),
        ({"token_pattern": None}, "token_pattern None is not a regular"),
        ({"stop_words": 3}, "stop_words is 3 but must be 'english'"),
        ({"stop_words": ["a", 3]}, "stop_words is .* but must be"),
        ({"stop_words": "klingon"}, "stop_words is 'klingon', but the only list here is english, and no file has"),
        ({"stop_words": "klingon.txt"}, "'klingon.txt' does not exist"),
    ],
)
def test_refusals(changes, said):
    with pytest.raises(InputError, match=said) as error:
        TextOptions(**changes)
    assert "\n" not in str(error.value)
