"""The topics of documents: values by plain Python, awkward documents, and the same for any division into blocks."""

from dataclasses import replace

import numpy as np
import pytest

from mgpu_ngram.core.bags.text_options import TextOptions
from mgpu_ngram.core.bags.topic_model import Priors, TopicModel, identify_topic_model, save_topic_model
from mgpu_ngram.core.errors import InputError, RunError
from mgpu_ngram.engine.bags.bags_of import bags_of
from mgpu_ngram.engine.bags.open_bags import open_texts
from mgpu_ngram.engine.lda.fold_in import fixed_of
from mgpu_ngram.engine.lda.sweep import word_topics
from mgpu_ngram.engine.topics import infer as infer_topics
from mgpu_ngram.engine.topics.distances import distances_from, topic_distances
from mgpu_ngram.engine.topics.infer import (
    Grouping,
    InferOptions,
    infer_bags,
    infer_chunk,
    text_options_of,
    topic_replica_of,
)
from mgpu_ngram.engine.topics.rows import TopicRows
from mgpu_ngram.kernels.lda.fold_in import LANES, fixed_topics
from tests.support.topic_rows import rows_of_dense


@pytest.fixture
def options(planted, tmp_path):
    path = planted.save_planted(tmp_path / "model.safetensors")

    def make(text=None, **how):
        return InferOptions(path, identify_topic_model(path), text or TextOptions(), **how)

    return make


def chunk_of(path):
    [chunk] = open_texts([str(path)]).chunks(1 << 40)
    return chunk


def test_topics_by_hand(planted, options, tmp_path):
    lines = ["apple pear apple oak and zebra", "", "zebra yak", "Cat cat DOG", "and elm"]
    (tmp_path / "docs.txt").write_text("\n".join(lines) + "\n")
    found = infer_chunk(chunk_of(tmp_path / "docs.txt"), options(dense=True, examples=2, snippets=True))
    assert found.tokens_D.tolist() == [5, 0, 0, 3, 2] and found.unknown_D.tolist() == [1, 0, 2, 0, 0]
    for line, shares in zip(lines, found.shares_DZ.tolist(), strict=True):
        assert shares == pytest.approx(planted.fold_in_by_hand(line.lower().split(), planted.planted_model()), abs=2e-4)
    assert found.shares_DZ[1].tolist() == found.shares_DZ[2].tolist() == pytest.approx([1 / 3] * 3)
    assert found.documents_Z.tolist() == [1, 1, 1], "documents without a known word belong to no topic"
    assert found.examples.documents_Zn[:, 0].tolist() == [0, 4, 3]
    assert found.snippets[0] == lines[0] and 1 not in found.snippets and 2 not in found.snippets


def test_rows_keep_the_shares_from_the_threshold_on(options, tmp_path):
    (tmp_path / "docs.txt").write_text("apple apple apple oak\n\ncat cat oak oak\n")
    chunk = chunk_of(tmp_path / "docs.txt")
    dense = infer_chunk(chunk, options(dense=True)).shares_DZ
    found = infer_chunk(chunk, options(threshold=0.25))
    assert found.starts_D1.tolist() == [0, 2, 5, 7]
    assert found.topics_N.tolist() == [0, 1, 0, 1, 2, 1, 2], "the largest first, equal ones by topic"
    rows = np.repeat([0, 1, 2], np.diff(found.starts_D1))
    assert found.shares_N.tolist() == dense[rows, found.topics_N].tolist(), "rows are not scaled"
    assert infer_chunk(chunk, options(threshold=0)).starts_D1.tolist() == [0, 3, 6, 9]
    third = float(dense[1, 0])
    assert infer_chunk(chunk, options(threshold=third)).starts_D1.tolist()[:3] == [0, 1, 4], "a share that is equal"
    above = float(np.nextafter(dense[1, 0], np.float32(1)))
    assert infer_chunk(chunk, options(threshold=above)).starts_D1.tolist()[:3] == [0, 1, 1]


@pytest.mark.parametrize("cells", [3, 30])
def test_blocks_change_nothing(cells, planted, options, tmp_path, monkeypatch):
    path = planted.write_parquet(tmp_path / "docs.parquet", planted.documents(60))
    how = options(examples=2, snippets=True, grouping=Grouping("kind"))
    whole = infer_chunk(chunk_of(path), how)
    monkeypatch.setitem(infer_topics.SHARES_AT_ONCE, "cpu", cells)
    monkeypatch.setattr(infer_topics, "BLOCK_BYTES", 200)
    found = infer_chunk(chunk_of(path), how)
    for name in ("tokens_D", "unknown_D", "starts_D1", "topics_N", "shares_N", "documents_Z"):
        assert np.array_equal(getattr(whole, name), getattr(found, name)), name
    assert all(np.array_equal(a, b) for a, b in zip(whole.examples, found.examples, strict=True))
    assert whole.snippets == found.snippets
    for name, (number, sums_Z) in whole.groups.items():
        assert found.groups[name][0] == number == 20 and found.groups[name][1] == pytest.approx(sums_Z)


def test_groups_by_hand(options, tmp_path):
    (tmp_path / "docs.jsonl").write_text(
        '{"text": "apple plum", "c": 1}\n\n{"text": "oak", "c": null}\n{"text": "", "c": 1}\n{"text": "cat", "c": 1}\n'
    )
    how = options(dense=True, grouping=Grouping("c"))
    found = infer_chunk(chunk_of(tmp_path / "docs.jsonl"), how)
    assert set(found.groups) == {"1", ""} and found.groups["1"][0] == 3
    assert found.groups["1"][1] == pytest.approx(found.shares_DZ[0] + found.shares_DZ[3], rel=1e-6)
    assert found.groups[""][1] == pytest.approx(found.shares_DZ[1], rel=1e-6)


def test_lists_of_tokens_patterns_and_stop_words(options, tmp_path):
    (tmp_path / "lists.jsonl").write_text('{"text": ["apple", "oak"]}\n{"text": []}\n')
    found = infer_chunk(chunk_of(tmp_path / "lists.jsonl"), options(examples=1, snippets=True))
    assert found.tokens_D.tolist() == [2, 0] and found.snippets == {0: "apple oak"}
    (tmp_path / "docs.txt").write_text("apple-and-zebra\n")
    text = TextOptions(token_pattern=r"[a-z]+", stop_words=["and", "zebra"])
    found = infer_chunk(chunk_of(tmp_path / "docs.txt"), options(text, examples=1, snippets=True))
    assert (found.tokens_D.tolist(), found.unknown_D.tolist()) == ([1], [0]), "stop words are not unknown"
    assert found.snippets == {0: "apple-and-zebra"}


def test_text_options_of_settings(tmp_path):
    assert text_options_of({}) == TextOptions()
    made = text_options_of({"lowercase": False, "token_pattern": "x+", "stop_words": "english", "min_df": 5})
    assert made == TextOptions(False, "x+", "english")
    with pytest.warns(UserWarning, match="the stop words of the model cannot be read"):
        assert text_options_of({"stop_words": str(tmp_path / "gone")}) == TextOptions()


@pytest.mark.parametrize("seeds", [{}, {12: [0.5, 0.01, 2], 4: [0.3, 9, 0.01], 5: [0.01, 0.01, 0.01]}], ids=len)
def test_probabilities_of_words_are_those_of_the_training(seeds, planted):
    priors = Priors(np.array([0.1, 0.7, 3]), 0.01, {word: np.array(own, np.float32) for word, own in seeds.items()})
    model = replace(planted.planted_model(), priors=priors)
    pairs = zip(fixed_of(model), fixed_topics(word_topics(model.counts_VZ(), model.priors)), strict=True)
    assert all(np.array_equal(a, b) and a.dtype == b.dtype for a, b in pairs)


def test_no_documents(options):
    bags = bags_of(np.zeros((0, 13), np.int64)).read()
    found = infer_bags(bags, np.zeros(0, np.int64), options(dense=True))
    assert found.documents == 0 and found.shares_DZ.shape == (0, 3) and found.starts_D1.tolist() == [0]


def test_another_model_under_the_same_path(planted, options, tmp_path, monkeypatch):
    how = options()
    monkeypatch.setattr(infer_topics, "_replicas", {})
    planted.save_planted(tmp_path / "other.safetensors", alpha_Z=(1, 2, 3))
    (tmp_path / "other.safetensors").rename(how.model)
    with pytest.raises(RunError, match="use the same file on all workers"):
        topic_replica_of(how)


def test_a_model_without_words_reads_no_text(planted, tmp_path):
    path = planted.save_planted(tmp_path / "ids.safetensors", words=False)
    (tmp_path / "docs.txt").write_text("apple\n")
    how = InferOptions(path, identify_topic_model(path), TextOptions())
    with pytest.raises(InputError, match="has no words; give matrices with 13 columns"):
        infer_chunk(chunk_of(tmp_path / "docs.txt"), how)


def test_rows_of_a_model_with_seed_words(tmp_path):
    counts_VZ = np.array([[3, 0], [0, 5], [2, 2]], np.uint32)
    seeds = {1: np.array([0.5, 0.1], np.float32), 0: np.array([0.01, 2.0], np.float32)}
    model = TopicModel.of_counts(counts_VZ, Priors(np.ones(2), 0.01, seeds))
    save_topic_model(tmp_path / "m.safetensors", model)
    rows = TopicRows.of_model(model)
    expected = model.pseudocounts_ZV()
    for z in range(2):
        assert rows.probabilities(z) == pytest.approx(expected[z] / expected[z].sum())
    fixed = fixed_of(model)
    phi_Z = fixed.floor_Z.copy()
    row, size = fixed.rows_V2[1].tolist()
    entries_E = fixed.entries_N[LANES * row : LANES * row + size]
    phi_Z[entries_E & 0xFFFF] += entries_E.view(np.float32)
    assert phi_Z == pytest.approx((expected / expected.sum(1, keepdims=True))[:, 1], rel=2**-8)
    plain = TopicRows.of_model(TopicModel.of_counts(counts_VZ, Priors(np.ones(2), 0.01)))
    assert plain.counts_N.tolist() == rows_of_dense(counts_VZ, 0.01).counts_N.tolist()


def test_distances_from_one_topic():
    rng = np.random.default_rng(0)
    rows = rows_of_dense(rng.poisson(0.7, (50, 5)).astype(np.uint32), 0.1)
    whole = topic_distances(rows)
    for z in range(5):
        assert distances_from(rows, z) == pytest.approx(whole[z], abs=1e-12)
