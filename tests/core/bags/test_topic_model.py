"""Files of topic models that are damaged, or that another program wrote: one line of error, never a crash."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mgpu_ngram.core.bags import topic_model
from mgpu_ngram.core.bags.topic_model import (
    Priors,
    TopicModel,
    describe_topic_model,
    find_topic_model,
    load_topic_model,
    save_topic_model,
)
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.ngrams.words import Words
from mgpu_ngram.core.storage.safetensors import load_arrays, save_arrays

COUNTS_VZ = np.array([[0, 3, 0], [1, 0, 70_000], [0, 0, 0]], np.uint32)
WORDS = Words(np.array([0, 1, 3, 6]), np.frombuffer(b"abbccc", np.uint8))
PRIORS = Priors(np.array([0.1, 0.2, 0.3]), 0.05, {2: np.array([1, 2, 3], np.float32)})


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "m"
    save_topic_model(path, TopicModel.of_counts(COUNTS_VZ, PRIORS, words=WORDS, history=({"sweep": 1},)))
    return path


@pytest.mark.parametrize("cells", [1, 3, 7, 1 << 24])
def test_counts_in_parts(cells, monkeypatch):
    monkeypatch.setattr(topic_model, "COUNTS_AT_ONCE", cells)
    model = TopicModel.of_counts(COUNTS_VZ, PRIORS)
    parts = list(model.counts_by_words())
    assert [v for v, _ in parts] == list(range(0, 3, max(1, cells // 3)))
    assert np.concatenate([counts_vZ for _, counts_vZ in parts]).tolist() == COUNTS_VZ.tolist()
    assert model.counts_VZ(1, 2).tolist() == [[1, 0, 70_000]] and model.counts_VZ(3).shape == (0, 3)
    expected_ZV = [[0.05, 1.05, 1], [3.05, 0.05, 2], [0.05, 70_000.05, 3]]
    assert model.pseudocounts_ZV().tolist() == pytest.approx(np.array(expected_ZV))


def load(path):
    """Return the counts of a file, or None if it is refused in one line."""
    try:
        describe_topic_model(path)
        return load_topic_model(path).counts_VZ().tolist()
    except InputError as error:
        assert "\n" not in str(error)
        return None


@settings(max_examples=80)
@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=3), st.none() | st.integers(0, 10**6))
def test_a_damaged_file_is_read_or_refused_in_one_line(file, changes, size):
    content = bytearray(file.read_bytes())
    for at, byte in changes:
        content[at % len(content)] = byte
    damaged = file.with_name("damaged")
    damaged.write_bytes(content[: None if size is None else size % len(content)])
    assert load(damaged) in (None, COUNTS_VZ.tolist())


@pytest.mark.parametrize("value", [None, "x", -1, [1], {"a": 1}])
def test_wrong_metadata(file, value):
    arrays, metadata = load_arrays(file, verify=False)
    other = file.with_name("other")
    for name in metadata:
        save_arrays(other, arrays, metadata | {name: value})
        assert load(other) in (None, COUNTS_VZ.tolist())
        if name in ("format", "format_version", "beta"):
            assert load(other) is None
        save_arrays(other, arrays, {n: v for n, v in metadata.items() if n != name})
        assert load(other) is None


@pytest.mark.parametrize(
    ("name", "array", "said"),
    [
        ("word_offsets_V1", np.array([0, 3, 1, 6]), "its words do not follow each other"),
        ("word_offsets_V1", np.array([0, 1, 3, 7]), "its words do not follow each other"),
        ("word_bytes", np.zeros(5, np.uint8), "its words do not follow each other"),
        ("word_starts_V1", np.array([0, 2, 1, 3]), "its words' entries do not follow each other"),
        ("topics_N", np.array([0, 3, 1], np.uint16), "a topic is above 2"),
        ("counts_N", np.array([0, 3, 1], np.uint32), "a count is 0"),
        ("counts_N", np.array([1.0, 3, 1]), "its arrays are int64 1D, uint16 1D, float64 1D, float64 1D"),
        ("alpha_Z", np.array([1, np.nan, 1]), "a prior is not above 0"),
        ("alpha_Z", np.array([1e9, 1, 1]), "sum to more than 8,388,608"),
        ("seed_words_K", np.array([3]), "its seed word 3 is outside the vocabulary"),
        ("seed_words_K", np.array([1.0]), "its seed word 1.0 is outside the vocabulary"),
    ],
)
def test_wrong_arrays(file, name, array, said):
    arrays, metadata = load_arrays(file, verify=False)
    other = file.with_name("arrays")
    save_arrays(other, {**arrays, name: array}, metadata)
    with pytest.raises(InputError, match=said):
        load_topic_model(other)


def test_a_file_that_may_not_be_read(file, monkeypatch):
    def deny(path, *_):
        raise PermissionError(13, "Permission denied", str(path))

    assert find_topic_model(file) == str(file)
    monkeypatch.setattr("builtins.open", deny)
    with pytest.raises(InputError, match="cannot read '.*m': Permission denied; check the path and its permissions"):
        find_topic_model(file)
