"""The golden models and texts give the output of KenLM's query: every probability, match and perplexity."""

import itertools
import lzma
import math

import numpy as np
import pytest

import mgpu_ngram as ng
from mgpu_ngram.core.models.arpa import read_arpa
from mgpu_ngram.core.ngrams.trie import Ngrams
from mgpu_ngram.engine.trie.build import build_trie, index_of, values_of
from mgpu_ngram.kernels.dispatch import array_module, to_host
from mgpu_ngram.kernels.score.score_by_edges import score_by_edges
from mgpu_ngram.kernels.score.score_tokens import score_tokens
from mgpu_ngram.kernels.trie.edges import make_edges
from tests.support.slow_cases import only_fast

MODELS = {
    "small.o2": "small_heldout_inv small_heldout_oov edge_query",
    "small.o3": "small_heldout_inv small_heldout_oov edge_query",
    "small.o5": "small_heldout_inv small_heldout_oov edge_query",
    "small.o3.prune001": "small_heldout_inv small_heldout_oov edge_query",
    "small.o5.prune00112": "small_heldout_inv small_heldout_oov edge_query",
    "small.o3.iu0": "small_heldout_inv small_heldout_oov edge_query",
    "small.o3.limitvocab": "small_heldout_inv small_heldout_oov edge_query",
    "small.o3.vocabpad": "small_heldout_inv small_heldout_oov edge_query",
    "small_unk.o3.skip": "small_heldout_inv small_heldout_oov edge_query",
    "tiny.o3.fallback": "tiny_heldout",
    "tiny.o3.fallback_custom": "tiny_heldout",
    "tiny.o5.fallback": "tiny_heldout",
}


def contents(path):
    packed = path.with_name(path.name + ".xz")
    return lzma.decompress(packed.read_bytes()) if packed.exists() else path.read_bytes()


def golden(path):
    """Return ([(word, id, matched, log10)] of each line, summary by name), from query with all -v."""
    lines, summary = [], {}
    for line in contents(path).decode("utf-8", "surrogateescape").split("\n"):
        name, colon, value = line.partition(":\t")
        if colon and not value.startswith("\t") and "=" not in name:
            summary[name] = float(value)
        elif "Total:" in line:
            tokens = []
            for field in line.split("\t"):
                word, equals, rest = field.rpartition("=")
                if equals:
                    v, matched, log10 = rest.split(" ")
                    tokens.append((word, int(v), int(matched), float(log10)))
            lines.append(tokens)
    return lines, summary


SHORT = [
    "small.o2",
    "small.o5.prune00112",
    "small_unk.o3.skip",
    *(model for model in MODELS if model.startswith("tiny")),
]


@pytest.mark.parametrize("model", only_fast(MODELS, *SHORT))
def test_golden_queries(model, shared_data, to_device, tmp_path):
    folder = shared_data / "golden"
    (tmp_path / "model.arpa").write_bytes(contents(folder / "models" / f"{model}.arpa"))
    arpa = read_arpa(tmp_path / "model.arpa")
    levels = list(arpa.levels())
    trie = build_trie(
        [Ngrams(*(None if a is None else to_device(a) for a in vars(level).values())) for level in levels]
    )
    assert [b - a for a, b in itertools.pairwise(trie.starts)] == arpa.counts
    edges = make_edges(trie.word_G, trie.first_child_M, trie.prob_G, trie.backoff_M)
    for text, markers in itertools.product(MODELS[model].split(), (True, False)):
        lines, summary = golden(folder / "queries" / f"{model}__{text}{'' if markers else '__n'}.txt")
        codes, printed = [], []  # word + 1, and whether the token is printed
        for tokens in lines:
            ids = [v for _, v, _, _ in tokens]
            words = [arpa.words.id(word.encode("utf-8", "surrogateescape")) for word, _, _, _ in tokens]
            assert words == ids
            assert not markers or tokens[-1][0] == "</s>"
            codes += [v + 1 for v in ids[: -1 if markers else None]] + [0]
            printed += [True] * (len(ids) - markers) + [markers]
        begin, end = (arpa.words.id("<s>"), arpa.words.id("</s>")) if markers else (-1, -1)
        codes_T = to_device(np.array(codes, np.uint32))
        by_trie = score_tokens(index_of(trie), values_of(trie), trie.order, begin, end, codes_T)
        by_edges = score_by_edges(edges, trie.order, begin, end, codes_T)
        assert all(np.array_equal(to_host(a), to_host(b)) for a, b in zip(by_trie, by_edges, strict=True))
        prob, order = (to_host(a)[np.array(printed)] for a in by_trie)
        expected = list(itertools.chain(*lines))
        assert len(expected) == summary["Tokens"] == len(prob) > 20
        assert order.tolist() == [matched for _, _, matched, _ in expected]
        assert np.abs(prob - [log10 for *_, log10 in expected]).max() < 2e-6
        oov = np.array([v == 0 for _, v, _, _ in expected])
        assert oov.sum() == summary["OOVs"]
        total = prob.astype(np.float64)
        including, excluding = 10 ** -total.mean(), 10 ** -total[~oov].mean()
        assert math.isclose(including, summary["Perplexity including OOVs"], rel_tol=1e-5)
        assert math.isclose(excluding, summary["Perplexity excluding OOVs"], rel_tol=1e-5)


@pytest.mark.parametrize("model", only_fast(MODELS, *SHORT))
def test_steps_of_states(model, shared_data, device, tmp_path):
    """All lines of a text at once, word by word."""
    folder, path = shared_data / "golden", tmp_path / "model.arpa"
    path.write_bytes(contents(folder / "models" / f"{model}.arpa"))
    loaded, text = ng.Model.load(path, device), "tiny_heldout" if model.startswith("tiny") else "small_heldout_oov"
    for markers in (True, False):
        lines, _ = golden(folder / "queries" / f"{model}__{text}{'' if markers else '__n'}.txt")
        states = loaded.start(len(lines), bos=markers)
        for t in range(max(map(len, lines))):
            words = np.array([line[t][1] if t < len(line) else 0 for line in lines], np.int32)
            ends = to_host(loaded.final(states))
            found, states = loaded.step(states, array_module(states).asarray(words))
            for line, log10, end in zip(lines, to_host(found).tolist(), ends.tolist(), strict=True):
                assert t >= len(line) or abs(log10 - line[t][3]) < 2e-6
                assert not (markers and t + 1 == len(line)) or end == log10
