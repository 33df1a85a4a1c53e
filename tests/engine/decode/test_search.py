"""The search beside all sequences of a tiny vocabulary, its options one by one, and batches of every kind."""

import collections
import contextlib
import gc
import itertools
import math

import numpy as np
import pytest

from mgpu_ngram.benchmarks.decode.batches import Scheduled, ScheduledSentence
from mgpu_ngram.core.errors import InputError, RunError
from mgpu_ngram.engine.decode import batch as decode_batch
from mgpu_ngram.engine.decode import beam_search, sentence_encoder
from mgpu_ngram.engine.decode.batch import Batching, Forced, decode, search_all
from mgpu_ngram.engine.decode.beam_search import LAG
from mgpu_ngram.engine.decode.best_words import Hypotheses, Sampling, best_of_rows, best_of_sentences
from mgpu_ngram.engine.decode.ensemble import Ensemble, WeightedModel
from mgpu_ngram.engine.decode.ngram_rows import NgramRows
from mgpu_ngram.engine.decode.nmt_steps import NmtSteps
from mgpu_ngram.engine.decode.nmt_weights import ready
from mgpu_ngram.engine.decode.output import hard_alignment
from mgpu_ngram.engine.decode.search_options import Hypothesis, Request, SearchOptions
from mgpu_ngram.engine.decode.step_function import StepScores
from mgpu_ngram.engine.decode.word_scores import NgramScores, WordScores
from mgpu_ngram.engine.distribution.next_word import NextWordModel
from mgpu_ngram.engine.memory.async_copies import HostCopies
from mgpu_ngram.engine.memory.cuda_graphs import StepGraphs
from mgpu_ngram.engine.trie.open_model import open_model
from mgpu_ngram.kernels.decode.advance_beams import Live, advance_beams
from mgpu_ngram.kernels.dispatch import to_host
from tests.support.slow_cases import first_fast


class TableSteps:
    """Scores that depend on the source's first id and on all words before; EOS 0, <unk> 1."""

    eos, unk, start_word = 0, 1, -1

    def __init__(self, vocab_size=4, seed=0, tied=False):
        self.vocab_size, self.seed, self.tied = vocab_size, seed, tied

    def start(self, state, sources, slots):
        new = {"hash": np.array([int(s[0]) + 1 for s in sources]), "deep": [np.zeros((len(sources), 2))]}
        if state is None:
            return new
        return {
            "hash": np.concatenate([state["hash"], new["hash"]]),
            "deep": [np.concatenate([state["deep"][0], new["deep"][0]])],
        }

    def step(self, state, words):
        hashes = state["hash"] * 31 + words + 2
        rows = np.stack([self.row(h) for h in hashes])
        return {"hash": hashes, "deep": state["deep"]}, StepScores(rows)

    def row(self, h):
        logits = np.random.default_rng([self.seed, int(h) % 2**62]).normal(size=self.vocab_size)
        if self.tied:
            logits = np.zeros(self.vocab_size)
        return (logits - np.log(np.exp(logits).sum())).astype(np.float32)  # logarithms of probabilities


def log_probs(scores):
    """Return the logarithms of the probabilities of a step's words."""
    x = scores.logits_RV.astype(float) + (0 if scores.bias_V is None else scores.bias_V)
    return x - np.log(np.exp(x).sum(axis=1, keepdims=True))


def all_sequences(model, source, options):
    """Return {words: cost} of all finished sequences, by enumeration."""
    most = options.max_length_multiple * len(source)
    longest, steps = (min(n, options.max_steps or n) for n in (int(most), math.ceil(most)))
    words = [v for v in range(model.vocab_size) if v != model.unk or options.allow_unk]
    found = {}
    for length in range(1, steps + 1):
        for body in itertools.product([v for v in words if v], repeat=length - 1):
            for last in words:
                if last and length != longest:
                    continue
                cost, state, before = np.float32(0), model.start(None, [source], [0]), -1
                for word in (*body, last):
                    state, scores = model.step(state, np.array([before]))
                    cost, before = cost + scores.logits_RV[0, word], word
                found[(*body, last)] = float(cost)
    return found


@pytest.mark.parametrize(
    "options",
    [
        SearchOptions(64, 64),
        SearchOptions(64, 7, length_penalty=1.0),
        SearchOptions(64, 5, length_penalty=0.6, word_penalty=0.3),
        SearchOptions(64, 64, max_length_multiple=1.5, word_penalty=-1.0),
        SearchOptions(64, 64, allow_unk=True, max_length_multiple=1.2),
        SearchOptions(64, 64, max_steps=3),
        SearchOptions(64, 64, max_length_multiple=1.7, max_steps=3),
    ],
)
def test_a_wide_beam_finds_the_best_of_all_sequences(options):
    """There are at most 40 sequences."""
    model, sources = TableSteps(), [np.array([5, 0]), np.array([3, 0])]
    found = decode([model], sources, options)
    for source, results in zip(sources, found, strict=True):
        every = all_sequences(model, source, options)
        scores = {
            words: (cost - options.word_penalty * len(words)) / len(words) ** options.length_penalty
            for words, cost in every.items()
        }
        expected = sorted(scores, key=lambda words: -scores[words])[: options.n_best]
        assert [result.words for result in results] == expected
        for result in results:
            assert (result.score, result.cost) == pytest.approx((scores[result.words], every[result.words]), abs=1e-5)
            assert math.fsum(result.word_scores) == pytest.approx(result.cost, abs=1e-6)


def plain_search(model, source, k, multiple=2.0):
    """Beam search of one sentence in plain Python: places shrink as hypotheses end."""
    longest = int(multiple * len(source))
    live, finished, size, j = [(np.float32(0), (), model.start(None, [source], [0]))], [], k, 0
    while live and j < multiple * len(source):
        candidates = []
        for row, (cost, words, state) in enumerate(live):
            state, scores = model.step(state, np.array([words[-1] if words else -1]))
            for v in range(model.vocab_size):
                if v != 1:
                    candidates.append(
                        (-(cost + scores.logits_RV[0, v]), row * model.vocab_size + v, (*words, v), state)
                    )
        live = []
        for cost, _, words, state in sorted(candidates, key=lambda c: c[:2])[:size]:
            if words[-1] == 0 or j + 1 == longest:
                finished.append((float(-cost), words))
            if words[-1] != 0 and j < longest:
                live.append((-cost, words, state))
            else:
                size -= 1
        j += 1
    return sorted(finished, key=lambda f: -f[0])


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("k", [1, 2, 3, 7])
@pytest.mark.parametrize("multiple", [2.0, 0.7])
def test_each_sentence_is_searched_as_if_alone(tied, k, multiple):
    """Ties, when all words are equal, go to the lowest row and word."""
    model = TableSteps(6, seed=k, tied=tied)
    sources = [np.array([b + 2] * (1 + b % 4) + [0]) for b in range(13)]
    found = decode([model], sources, SearchOptions(k, k, max_length_multiple=multiple), Batching(5))
    for source, results in zip(sources, found, strict=True):
        expected = plain_search(model, source, k, multiple)[:k]
        assert [result.words for result in results] == [words for _, words in expected]
        assert [result.cost for result in results] == pytest.approx([cost for cost, _ in expected], abs=1e-5)


def test_whole_rows_in_order():
    """Best first; equal scores by rising index; 0 and -0 are equal; -inf last."""
    scores = np.array([[1, 3, 3, -0.0, 0.0, -np.inf], [2, 2, 2, 2, 2, 9]], np.float32)
    values, words = best_of_rows(scores, 5)
    assert words.tolist() == [[1, 2, 0, 3, 4], [5, 0, 1, 2, 3]] and values[0, 0] == 3
    assert best_of_rows(scores, 1)[1].tolist() == [[1], [5]]
    assert best_of_rows(scores, 99)[1].shape == (2, 6)
    rng = np.random.default_rng(0)
    for V, k in ((7, 3), (101, 64), (5, 5)):
        scores = rng.integers(0, 4, (9, V)).astype(np.float32)
        expected = np.lexsort((np.broadcast_to(np.arange(V), scores.shape), -scores))[:, :k]
        assert np.array_equal(best_of_rows(scores, k)[1], expected)


def best(scores, sizes, starts, forced=None, unk=-1):
    """Return the (row, word) of the best hypotheses, in order, and their costs; rows have costs -1 and -2."""
    live = Live(np.arange(len(sizes)), np.array(starts), np.array(sizes, np.int32), np.zeros(2, np.int16))
    forbidden = None if unk < 0 else np.array([unk], np.int32)
    forced = None if forced is None else np.array(forced, np.int32)
    hypotheses = Hypotheses(live, np.array([-1, -2], np.float32), forced, forbidden)
    rows, words, costs = (a.ravel() for a in best_of_sentences(scores, hypotheses, max(sizes)))
    kept = (words >= 0) | np.isnan(costs)
    return list(zip(rows[kept].tolist(), words[kept].tolist(), strict=True)), costs[kept]


def test_the_best_words_of_sentences():
    """Rows of costs -1 and -2 and of probabilities in 16ths: 1, 4, 4, 7 and 2, 2, 4, 8."""
    logits = np.log([[1, 4, 4, 7], [2, 2, 4, 8]]).astype(np.float32)
    p = np.log(np.array([1, 2, 4, 7, 8]) / 16)
    words, costs = best(WordScores(logits[None]), [4], [0, 2])
    assert words == [(0, 3), (0, 1), (0, 2), (1, 3)]
    np.testing.assert_allclose(costs, [p[3] - 1, p[2] - 1, p[2] - 1, p[4] - 2], rtol=1e-6)
    assert best(WordScores(logits[None]), [1, 3], [0, 1, 2], unk=3)[0] == [(0, 1), (1, 2), (1, 0), (1, 1)]
    words, costs = best(WordScores(logits[None]), [64, 2], [0, 1, 2], [0, -1], unk=0)  # a forced word may be <unk>
    assert words == [(0, 0), (1, 3), (1, 2)]
    np.testing.assert_allclose(costs, [p[0] - 1, p[4] - 2, p[2] - 2], rtol=1e-6)
    ngrams = NgramScores(lambda: np.array([[0, 0, 9, 0], [0, 0, 0, 0]], np.float32))
    words, costs = best(WordScores(logits[None], (0.5,), ngrams=ngrams, ngram_weight=2), [1, 1], [0, 1, 2])
    assert words == [(0, 2), (1, 3)]
    np.testing.assert_allclose(costs, [p[2] / 2 + 17, p[4] / 2 - 2], rtol=1e-6)
    logits[1, 0] = np.nan
    words, costs = best(WordScores(logits[None]), [2, 2], [0, 1, 2])
    assert words == [(0, 3), (0, 1), (-1, -1), (-1, -1)] and np.isnan(costs).tolist() == [False, False, True, True]


def test_forced_words_have_the_scores_that_the_search_gives_them():
    """Of two models in float16 and bfloat16 with biases, and n-gram rows."""
    rng = np.random.default_rng(0)
    logits_MRV, bias_MV = rng.standard_normal((2, 2, 99), np.float32), rng.standard_normal((2, 99), np.float32)
    ngram_RV = -rng.random((2, 99), np.float32)
    more = (0.7, 0.3), bias_MV, NgramScores(lambda: ngram_RV), 0.4
    for logits in (logits_MRV.astype(np.float16), (logits_MRV.view(np.uint32) >> 16).astype(np.uint16)):
        scores = WordScores(logits, *more)
        free, costs = best(scores, [1, 1], [0, 1, 2])
        words = [word for _, word in free]
        forced, forced_costs = best(scores, [1, 1], [0, 1, 2], words)
        assert forced == free
        np.testing.assert_allclose(forced_costs, costs, rtol=1e-6)
        parts_MC = scores.parts(np.arange(2), np.array(words))
        np.testing.assert_allclose(np.array([-1, -2]) + [0.7, 0.3, 0.4] @ parts_MC, costs, rtol=1e-6)
        assert scores.mix().argmax(axis=1).tolist() == words


@pytest.mark.parametrize("kind", ["naive", "drain", "refill"])
@pytest.mark.parametrize("sentences", first_fast([3, 1, 50]))
def test_batches_do_not_change_results(random_model, kind, sentences):
    rng = np.random.default_rng(3)
    sources = [np.append(rng.integers(2, 9, n % 11), 0) for n in range(40)]
    options = SearchOptions(4, 3, 1.0, alignments=True)
    model = random_model(scale=2.0)
    expected = [decode([model], [source], options)[0] for source in sources]
    for batching in (Batching(sentences, kind=kind), Batching(sentences, words=20, pool=7, kind=kind)):
        found = decode([model], sources, options, batching)
        assert [[r.words for r in results] for results in found] == [[r.words for r in results] for results in expected]
        for results, alone in zip(found, expected, strict=True):
            for a, b in zip(results, alone, strict=True):
                assert a.score == pytest.approx(b.score, abs=1e-5)
                assert a.alignment_LT.shape == b.alignment_LT.shape
                np.testing.assert_allclose(a.alignment_LT, b.alignment_LT, rtol=0, atol=1e-5)
    assert found[0] == [] and len(sources[0]) == 1  # an empty line has no result


def test_the_number_of_sentences_that_are_searched_at_once():
    """By hand: as many as have 20 source words together, at least one."""
    assert [Batching(5, words=20).most(length) for length in (1, 4, 5, 7, 20, 21)] == [5, 5, 4, 2, 1, 1]
    assert Batching(5).most(1000) == 5


def test_the_longest_sentences_enter_first():
    """Of each pool; so few positions are padded."""
    model, entered = TableSteps(), []
    model.prepare = lambda sources: entered.extend(len(source) for source in sources)
    sources = [np.array([2] * n + [0]) for n in (3, 1, 5, 2, 4, 6, 1)]
    decode([model], sources, batching=Batching(2, pool=4))
    assert entered == [6, 4, 3, 2, 7, 5, 2]


@pytest.mark.parametrize("words", [0, 40])
def test_sentences_enter_before_a_batch_has_drained(random_model, words):
    """Also where the number of words, not of sentences, is the limit; and each is encoded once."""
    rng = np.random.default_rng(8)
    sources = [
        ScheduledSentence(np.append(rng.integers(2, 9, n), 0), rng.integers(2, 20)) for n in rng.integers(1, 9, 60)
    ]
    counts = {}
    for kind in ("drain", "refill"):
        steps, rows, encoded = NmtSteps(random_model()), [], []
        step, begin = steps.step, steps._encoder.begin
        steps.step = lambda state, words, step=step, rows=rows: (rows.append(len(words)), step(state, words))[1]
        steps._encoder.begin = lambda some, begin=begin, encoded=encoded: (encoded.extend(some), begin(some))[1]
        options, batching = (
            SearchOptions(2, max_length_multiple=20.0),
            Batching(64 if words else 8, words=words, kind=kind),
        )
        found = decode([Scheduled(steps)], sources, options, batching)
        assert [len(best[0].words) for best in found] == [sentence.words for sentence in sources]
        assert sorted(map(id, encoded)) == sorted(id(sentence.ids) for sentence in sources)
        counts[kind] = len(rows)
    assert counts["refill"] < 0.8 * counts["drain"]


@pytest.mark.parametrize("kind", ["drain", "refill"])
def test_a_host_that_learns_late_finds_the_same(random_model, kind, monkeypatch):
    """As on a GPU: hypotheses that have ended are computed for nothing, and sentences enter behind them."""
    rng = np.random.default_rng(4)
    sources = [np.append(rng.integers(2, 9, n % 7), 0) for n in range(30)]
    options = SearchOptions(4, 3, 1.0, alignments=True, breakdown=True)
    expected = decode([random_model()], sources, options, Batching(5, kind=kind))
    monkeypatch.setitem(LAG, "cpu", 1)
    found = decode([random_model()], sources, options, Batching(5, kind=kind))
    assert [[h[:2] for h in of] for of in found] == [[h[:2] for h in of] for of in expected]
    for one, other in zip(itertools.chain(*found), itertools.chain(*expected), strict=True):
        assert one.parts == pytest.approx(other.parts, abs=1e-5)
        np.testing.assert_allclose(one.alignment_LT, other.alignment_LT, atol=1e-5)


class StepsInPlace:
    """Stands for CUDA graphs on the CPU; counts steps by their numbers of rows."""

    def __init__(self, counts):
        self._counts = counts

    def run(self, rows, step):
        self._counts[rows] += 1
        try:
            return step(rows)
        except MemoryError:  # a step that does not fit is captured again
            return step(rows)

    def clear(self):
        pass

    def close(self):
        pass


class CheckedSteps(NmtSteps):
    """Steps whose rows, also those that no sentence has any more, must have sentences of the pool."""

    def step(self, state, words_R):
        assert 0 <= state["slot"].min() and state["slot"].max() < len(self._pool.length_S)
        return super().step(state, words_R)


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("kind", ["naive", "drain", "refill"])
def test_steps_in_place_find_the_same(random_model, kind, lag, monkeypatch):
    """Graphs work in arrays that do not move, and compute a few rows more."""
    rng = np.random.default_rng(5)
    lengths = [*rng.integers(10, 20, 60), *[2] * 11]  # the pool shrinks after long sentences
    sources = [np.append(rng.integers(2, 9, n), 0) for n in lengths]
    options, batching = SearchOptions(3, 2, 1.0), Batching(60, kind=kind)
    expected = decode([random_model()], sources, options, batching)
    monkeypatch.setitem(LAG, "cpu", lag)
    counts = collections.Counter()
    monkeypatch.setattr(beam_search, "StepGraphs", lambda: StepsInPlace(counts))
    monkeypatch.setattr(decode_batch, "capture_stream", contextlib.nullcontext)
    failures = iter([False] * 5 + [True])

    def checked_advance(chosen, live, *others):
        assert (np.diff(live.starts_S1) >= 0).all()  # also of slots without a sentence
        if next(failures, False):
            raise MemoryError
        return advance_beams(chosen, live, *others)

    monkeypatch.setattr(beam_search, "advance_beams", checked_advance)
    steps = CheckedSteps(random_model())
    steps.version = 0
    assert decode([steps], sources, options, batching) == expected
    assert max(counts) == 180 and sum(counts.values()) > 30


@pytest.mark.gpu
def test_copies_to_the_host_have_the_values_of_their_beginning():
    import cupy

    arrays = [cupy.arange(3, dtype=np.int8), cupy.zeros((0, 2)), None, cupy.ones((2, 5), np.float32)[:, 1:3]]
    copies = HostCopies(arrays)
    for array in arrays[:2] + arrays[3:]:
        array.fill(7)
    found = copies.wait()
    assert found[0].tolist() == [0, 1, 2] and found[1].shape == (0, 2) and found[2] is None
    assert found[3].tolist() == [[1, 1], [1, 1]] and found[3].dtype == np.float32


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["naive", "drain", "refill"])
@pytest.mark.parametrize("with_more", [False, True])
def test_graphs_find_the_same_bits(random_model, arpa, with_more, kind, monkeypatch):
    """Of a model alone, and of an ensemble with an n-gram model."""
    import cupy

    rng = np.random.default_rng(6)
    sources = [np.append(rng.integers(2, 9, rng.integers(5, 40)), 0) for _ in range(400)]
    models, lm = [ready(random_model(seed=s).map_arrays(cupy.asarray)) for s in range(1 + with_more)], None
    if with_more:
        tokens = [TOKENS[i % len(TOKENS)] if i < len(TOKENS) else f"none{i}" for i in range(models[0].vocab_size)]
        lm = WeightedModel(NgramRows(NextWordModel(open_model(str(arpa)), "gpu"), tokens, models[0].eos), 0.2)
    launched = []
    run = StepGraphs.run
    monkeypatch.setattr(
        StepGraphs, "run", lambda self, rows, step: (launched.append(rows in self._seen), run(self, rows, step))[1]
    )

    def found(version):
        steps = [NmtSteps(model) for model in models]
        for each in steps:
            each.version = version
        return decode(steps, sources, SearchOptions(3, 2, 1.0), Batching(64, kind=kind), lm=lm)

    assert found(0) == found(None)
    assert sum(launched) > 20


@pytest.mark.gpu
def test_decoding_frees_the_memory_of_its_graphs(random_model, monkeypatch):
    import cupy

    pools = []

    class Watched(StepGraphs):
        def __init__(self):
            super().__init__()
            pools.append(self._pool)

    monkeypatch.setattr(beam_search, "StepGraphs", Watched)
    monkeypatch.setattr(sentence_encoder, "StepGraphs", Watched)
    sources = [np.append(np.arange(n) % 7 + 2, 0) for n in range(5, 40)] * 20
    decode([random_model().map_arrays(cupy.asarray)], sources, SearchOptions(3), Batching(64))
    assert len(pools) == 2 and [pool.total_bytes() for pool in pools] == [0, 0]


def test_of_equal_weights_the_first_word_is_aligned():
    """The last row is that of the end of the sentence."""
    found = Hypothesis((3, 4, 0), 0.0, 0.0, (0.0,) * 3, np.array([[0.2, 0.4, 0.4], [1 / 3] * 3, [0, 0, 1.0]]))
    assert hard_alignment(found, 0) == "0-1 1-0"


def test_results_have_an_attention_row_for_each_word(random_model):
    source = np.array([2, 3, 4, 0])
    ((result,),) = decode([random_model()], [source], SearchOptions(3, alignments=True))
    assert result.alignment_LT.shape == (len(result.words), 4)
    np.testing.assert_allclose(result.alignment_LT.sum(axis=1), 1, rtol=1e-5)
    assert decode([random_model()], [source], SearchOptions(3))[0][0].alignment_LT is None


@pytest.mark.parametrize("enabled", [True, False])
def test_the_garbage_collector_is_left_as_it_was(random_model, enabled):
    before = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        decode([random_model()], [np.array([2, 3, 0])])
        assert gc.isenabled() == enabled
        with pytest.raises(InputError, match="give the vocabulary of this model"):
            decode([random_model()], [np.array([99, 0])])
        assert gc.isenabled() == enabled
    finally:
        (gc.enable if before else gc.disable)()


@pytest.mark.parametrize("at_once", [1, 2, 100])
def test_results_are_read_a_few_at_a_time(random_model, at_once, monkeypatch):
    sources = [np.array([2 + i % 5, 3, 0]) for i in range(11)]
    expected = [decode([random_model()], [source])[0] for source in sources]
    monkeypatch.setattr(beam_search, "READ_AT_ONCE", at_once)
    assert decode([random_model()], sources) == expected


def test_limits_are_those_of_each_sentence(random_model):
    """Sentences of one length: with a prefix beyond their greatest length, without one, and with a given result."""
    source, options = np.array([2, 3, 4, 0]), SearchOptions(max_length_multiple=0.5)
    requests = {
        0: Request(0, 4, (3, 4, 5, 6, 2)),
        1: Request(1, 4),
        2: Request(2, 4, (3, 4, 5, 6, 0), whole=True),
        3: Request(3, 4, (3, 4, 5, 6, 5)),
    }
    for first in requests:
        model = Ensemble([NmtSteps(random_model())], [1.0])
        found = search_all(model, {first: requests[first]} | requests, [source] * 4, options, Batching())
        for i, request in requests.items():
            words = found[i][0].words
            assert words[: len(request.prefix)] == request.prefix
            assert len(words) <= request.limits(options)[0]
            assert len(words) == 5 if request.whole else len(words) in (1, 2, 6)


def test_forced_prefixes(random_model):
    model, sources = random_model(), [np.array([2, 3, 0]), np.array([4, 5, 6, 0]), np.array([7, 0])]
    prefixes = [[3, 1], [], [2, 2, 2, 2, 2, 2]]  # <unk> may be forced; a prefix may be longer than the greatest length
    found = decode([model], sources, SearchOptions(4, 4), forced=Forced(prefixes))
    for results, prefix in zip(found, prefixes, strict=True):
        assert results and all(list(r.words[: len(prefix)]) == prefix for r in results)
    free = decode([model], sources, SearchOptions(4, 4))
    assert [r.words for r in found[1]] == [r.words for r in free[1]]


@pytest.mark.parametrize("sentences", [1, 2])
def test_a_place_forgets_the_prefix_of_the_sentence_before(random_model, sentences):
    model, source = random_model(), np.array([2, 3, 4, 0])
    prefixes = [[3, 4, 5], [], [6], [2, 2], []]
    found = decode([model], [source] * 5, SearchOptions(2), Batching(sentences), forced=Forced(prefixes))
    for (result,), prefix in zip(found, prefixes, strict=True):
        ((alone,),) = decode([model], [source], SearchOptions(2), forced=Forced([prefix]))
        assert result.words == alone.words


def test_a_naive_batch_keeps_all_rows_until_it_ends():
    """Others compute fewer rows as hypotheses end."""
    rows = {}
    for kind in ("naive", "drain"):
        model = TableSteps(6)
        step, calls = model.step, []
        model.step = lambda state, words, step=step, calls=calls: (calls.append(len(words)), step(state, words))[1]
        decode([model], [np.array([b + 2, 2, 3, 0]) for b in range(5)], SearchOptions(4), Batching(5, kind=kind))
        rows[kind] = calls
    assert rows["naive"] == [5, *[20] * (len(rows["naive"]) - 1)] and len(rows["naive"]) == len(rows["drain"])
    assert sorted(rows["drain"][1:], reverse=True) == rows["drain"][1:] and rows["drain"][-1] < 20


def test_targets_are_scored(random_model):
    """The sum of the logarithms of the words' probabilities, the end of the sentence included."""
    model, sources, targets = random_model(), [np.array([2, 3, 0]), np.array([4, 0])], [[3, 1, 6], []]
    found = decode(
        [model], sources, SearchOptions(5, length_penalty=1.0, alignments=True), forced=Forced(targets=targets)
    )
    for source, target, (result,) in zip(sources, targets, found, strict=True):
        steps = NmtSteps(model)
        state, before, costs = steps.start(None, [source], [0]), -1, []
        for word in (*target, 0):
            state, scores = steps.step(state, np.array([before]))
            costs.append(log_probs(scores)[0, word])
            before = word
        assert result.words == (*target, 0) and result.word_scores == pytest.approx(costs, abs=1e-5)
        assert result.score == pytest.approx(sum(costs) / len(costs), abs=1e-5)
        assert result.alignment_LT.shape == (len(target) + 1, len(source))


def test_threads_choose_the_same_words(arpa, monkeypatch):
    """Each row of an ensemble with an n-gram model by another thread."""
    rows = NgramRows(NextWordModel(open_model(str(arpa)), "cpu"), TOKENS, 0)
    sources, options = [np.array([b + 2, 3, 0]) for b in range(5)], SearchOptions(3, 3, breakdown=True)

    def search(threads):
        models = [TableSteps(5), TableSteps(5, seed=1)]
        return decode(Ensemble(models, [0.6, 0.3], WeightedModel(rows, 0.2), threads), sources, options)

    expected = search(1)
    monkeypatch.setattr("mgpu_ngram.engine.decode.word_scores.MIN_PIECE_LOGITS", 1)
    assert search(4) == expected


class GpuSteps(TableSteps):
    """The same scores on a GPU, with a bias and attention weights."""

    xp = np

    def start(self, state, sources, slots):
        new = {"hash": self.xp.asarray(np.array([int(s[0]) + 1 for s in sources]))}
        return new if state is None else {"hash": self.xp.concatenate([state["hash"], new["hash"]])}

    def step(self, state, words):
        hashes = state["hash"] * 31 + words + 2
        rows = self.xp.asarray(np.stack([self.row(h) for h in to_host(hashes)]).astype(np.float16))
        attention_RT = self.xp.stack([hashes % 7, hashes % 11], axis=1).astype(np.float32)
        return {"hash": hashes}, StepScores(
            rows, attention_RT, self.xp.linspace(0, 1, self.vocab_size).astype(np.float32)
        )


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("options", "forced"),
    [
        (SearchOptions(4, 4, alignments=True), None),
        (
            SearchOptions(7, 2, 1.0, breakdown=True, early_stopping="bound"),
            Forced([[2, 3] if b % 2 else [] for b in range(9)]),
        ),
        (SearchOptions(3, 3, sampling=Sampling(top_k=4, top_p=0.9, seed=2)), None),
    ],
)
@pytest.mark.parametrize("kind", ["drain", "refill"])
def test_a_gpu_finds_the_same_bits(arpa, options, forced, kind):
    """An ensemble with an n-gram model, from logits that are the same on both devices."""
    import cupy

    sources, found = [np.array([b + 2] * (1 + b % 4) + [0]) for b in range(9)], []
    for xp, device in ((np, "cpu"), (cupy, "gpu")):
        models = [GpuSteps(5), GpuSteps(5, seed=1)]
        for model in models:
            model.xp = xp
        rows = NgramRows(NextWordModel(open_model(str(arpa)), device), TOKENS, 0)
        results = decode(models, sources, options, Batching(4, kind=kind), [0.6, 0.3], WeightedModel(rows, 0.2), forced)
        found.append([[r._replace(alignment_LT=np.array(r.alignment_LT).tolist()) for r in best] for best in results])
    assert found[0] == found[1]


def test_wrong_forced_words_are_refused():
    model, sources = TableSteps(), [np.array([2, 0])]
    for forced in (Forced([[4]]), Forced([[0]]), Forced([[2], [2]]), Forced([[2]], [[2]]), Forced(targets=[[0, 2]])):
        with pytest.raises(InputError) as error:
            decode([model], sources, forced=forced)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("penalty", [0.0, 1.0])
@pytest.mark.parametrize("word_penalty", [0.0, 0.4, -0.4])
def test_the_bound_stops_early_with_the_same_best_results(penalty, word_penalty):
    sources = [np.array([b + 2, 2, 3, 0]) for b in range(20)]
    counts = {}
    for rule in ("amun", "bound"):
        model = TableSteps(6)
        step, calls = model.step, []
        model.step = lambda state, words, step=step, calls=calls: (calls.append(len(words)), step(state, words))[1]
        options = SearchOptions(6, 2, penalty, word_penalty, early_stopping=rule)
        counts[rule] = [[r.words for r in results] for results in decode([model], sources, options)], sum(calls)
    assert counts["bound"][0] == counts["amun"][0]
    assert counts["bound"][1] < counts["amun"][1]


def test_the_first_finished_hypothesis_stops():
    found = decode([TableSteps(6)], [np.array([2, 2, 2, 0])] * 3, SearchOptions(4, 4, early_stopping="first"))
    assert all(len({len(r.words) for r in results}) == 1 for results in found)


def test_samples_do_not_depend_on_the_batch():
    sources = [np.array([b + 2, 2, 0]) for b in range(17)]
    options = SearchOptions(3, 3, sampling=Sampling(seed=5))
    expected = decode([TableSteps(8)], sources, options, Batching(1))
    for kind in ("naive", "drain", "refill"):
        assert decode([TableSteps(8)], sources, options, Batching(4, kind=kind)) == expected
    other = decode([TableSteps(8)], sources, SearchOptions(3, 3, sampling=Sampling(seed=6)))
    assert other != expected
    assert all(r.words.count(1) == 0 for results in expected for r in results)


def test_equal_sentences_have_other_samples():
    options = SearchOptions(8, 8, sampling=Sampling(seed=5))
    found = decode([TableSteps(8)], [np.array([2] * 6 + [0])] * 40, options, first=1000)
    assert len({tuple(r.words for r in results) for results in found}) == 40


def test_samples_begin_with_a_forced_prefix():
    sources, options = [np.array([b + 2, 2, 0]) for b in range(3)], SearchOptions(5, 5, sampling=Sampling(seed=5))
    prefixes = [[2, 3], [], [1, 4, 4]]
    found = decode([TableSteps(8)], sources, options, forced=Forced(prefixes))
    for results, prefix in zip(found, prefixes, strict=True):
        assert len(results) == 5 and all(list(r.words[: len(prefix)]) == prefix for r in results)
    assert found[1] == decode([TableSteps(8)], sources, options)[1]


def test_samples_have_the_distribution_of_the_model():
    """First words of 2,000 samples, beside their probabilities without <unk>; then of the best 2, of half the mass."""
    model, source = TableSteps(6), np.array([4, 0])
    _, scores = model.step(model.start(None, [source], [0]), np.array([-1]))
    p = np.exp(scores.logits_RV[0].astype(float))
    p[1] = 0
    order = np.argsort(-p)

    def share(sampling):
        options = SearchOptions(2000, 2000, max_steps=1, sampling=sampling)
        words = [r.words[0] for r in decode([model], [source], options)[0]]
        return np.bincount(words, minlength=6) / 2000

    np.testing.assert_allclose(share(Sampling()), p / p.sum(), atol=0.04)
    best = np.where(np.isin(np.arange(6), order[:2]), p, 0)
    np.testing.assert_allclose(share(Sampling(top_k=2)), best / best.sum(), atol=0.04)
    inside = np.cumsum(p[order] / p.sum()) - p[order] / p.sum() < 0.5
    half = np.where(np.isin(np.arange(6), order[inside]), p, 0)
    np.testing.assert_allclose(share(Sampling(top_p=0.5)), half / half.sum(), atol=0.04)
    sharp = p**5 / (p**5).sum()
    np.testing.assert_allclose(share(Sampling(temperature=0.2)), sharp, atol=0.04)
    assert share(Sampling(top_k=1)).max() == 1


class FixedSteps(TableSteps):
    """The same probabilities at each step."""

    def __init__(self, probabilities):
        super().__init__(len(probabilities))
        self._row = np.log(np.array(probabilities, np.float32))

    def row(self, h):
        return self._row


class BiasedSteps(FixedSteps):
    """The probabilities are in the bias."""

    def step(self, state, words):
        new, scores = super().step(state, words)
        return new, StepScores(np.zeros_like(scores.logits_RV), None, scores.logits_RV[0])


class FixedRows:
    """An n-gram model with the same logarithms after each history."""

    def __init__(self, row_V):
        self._row_V = row_V

    def start(self, rows):
        return np.zeros((rows, 1))

    def step(self, state, words_R):
        return state, NgramScores(lambda: np.tile(self._row_V, (len(words_R), 1)))


@pytest.mark.parametrize("top_k", [64, 65, 0])
def test_samples_have_the_distribution_of_an_ngram_model(top_k):
    """100 equal words, of which the n-gram model prefers two; more than 64 are found by sorting."""
    row_V = np.full(100, -40, np.float32)
    row_V[[5, 70]] = np.log(0.25), np.log(0.75)
    options = SearchOptions(1000, 1000, max_steps=1, sampling=Sampling(top_k, seed=3))
    lm = WeightedModel(FixedRows(row_V), 0.5)  # a weight of 1/2 takes square roots: 0.5 and 0.866
    (found,) = decode([FixedSteps([0.01] * 100)], [np.array([2, 0])], options, lm=lm)
    counts = np.bincount([result.words[0] for result in found], minlength=100)
    assert counts[5] + counts[70] == 1000 and counts[70] == pytest.approx(634, abs=60)


@pytest.mark.parametrize("kind", [FixedSteps, BiasedSteps])
def test_samples_of_few_words_and_of_sorted_rows_agree(kind):
    """A model of 100 words, of which 40 have a probability; up to 64 words are not found by sorting."""
    p = np.random.default_rng(2).permutation(np.append(np.random.default_rng(1).random(40), np.zeros(60)))
    with np.errstate(divide="ignore"):
        model = kind(p / p.sum())
    samples = [Sampling(k, 0.9, seed=4) for k in (40, 64, 65, 0)]
    found = [decode([model], [np.array([2, 3, 0])], SearchOptions(30, 30, sampling=s))[0] for s in samples]
    words = [[r.words for r in results] for results in found]
    assert words[0] == words[1] == words[2] == words[3] and len(set(words[0])) > 20
    assert all(p[word] > 0 for result in words[0] for word in result)


@pytest.mark.parametrize("n_best", [1, 2])
def test_of_equal_results_the_first_one_is_kept(n_best):
    """Words 2 and 3 are equal, and the step after them ends both."""
    model, options = FixedSteps([0.5, 0.1, 0.2, 0.2]), SearchOptions(3, n_best, word_penalty=-2.0, max_steps=2)
    (results,) = decode([model], [np.array([2, 0])], options)
    assert [result.words for result in results] == [(2, 0), (3, 0)][:n_best]


def test_the_winner_of_an_ensemble_is_known():
    """Word 2 wins in one model, word 3 in the other; their weighted product decides."""
    models = [FixedSteps([0.2, 0.1, 0.5, 0.2]), FixedSteps([0.1, 0.1, 0.2, 0.6])]
    source, options = np.array([2, 0]), SearchOptions(max_steps=1, breakdown=True)
    for weights, winner in (((1.0, 1.0), 3), ((1.0, 0.5), 2), ((0.9, 0.1), 2), ((0.1, 0.9), 3)):
        ((result,),) = decode(models, [source], options, weights=weights)
        parts = [float(model.row(0)[winner]) for model in models]
        assert result.words == (winner,)
        assert result.parts == pytest.approx(parts)
        assert result.cost == pytest.approx(sum(w * part for w, part in zip(weights, parts, strict=True)))
    ((result,),) = decode(models, [source], options)  # weights are 1
    assert result.words == (3,)


@pytest.mark.parametrize("starts", [(-1, 4), (4, -1), (4, 3), (4, 4)])
def test_each_member_of_an_ensemble_begins_with_its_own_word(starts):
    """The first words of models are words like others when they come again."""
    models, source, forced = [TableSteps(5), TableSteps(5, seed=1)], np.array([2, 0]), Forced(targets=[[2, 4, 3]])
    models[0].start_word, models[1].start_word = starts
    alone = [decode([model], [source], forced=forced)[0][0].cost for model in models]
    ((result,),) = decode(models, [source], SearchOptions(breakdown=True), forced=forced)
    assert result.parts == pytest.approx(alone, abs=1e-5)


def test_members_of_an_ensemble_must_fit():
    with pytest.raises(InputError, match="model 1 has 5 target words"):
        Ensemble([TableSteps(4), TableSteps(5)], [1, 1])
    with pytest.raises(InputError, match="2 models but 1 weights"):
        Ensemble([TableSteps(4), TableSteps(4)], [1])
    for weight in (-0.5, math.nan):
        with pytest.raises(InputError, match=f"weight of a model is {weight}"):
            Ensemble([TableSteps(4)], [weight])
    half = TableSteps(4)
    half.row = lambda h: TableSteps.row(half, h).astype(np.float16)
    with pytest.raises(InputError, match="logits of float16 and float32"):
        decode([half, TableSteps(4)], [np.array([2, 0])])


TOKENS = ("</s>", "<unk>", "b", "a", "zz")


def backoff(history, word):
    """Return ln p of the trigram model of the fixture `arpa`, as ARPA files define it."""
    grams = {
        ("<unk>",): (-2, 0), ("<s>",): (0, -0.5), ("</s>",): (-1, 0), ("a",): (-0.75, -0.25), ("b",): (-1.25, -0.125),
        ("<s>", "a"): (-0.5, -0.0625), ("a", "b"): (-0.375, -0.03125), ("b", "</s>"): (-0.625, 0),
        ("a", "</s>"): (-0.875, 0), ("<s>", "a", "b"): (-0.25, 0),
    }  # fmt: skip
    history = history[-2:]
    if (*history, word) in grams:
        return grams[(*history, word)][0] * math.log(10)
    if not history:
        return -2 * math.log(10)
    return grams.get(history, (0, 0))[1] * math.log(10) + backoff(history[1:], word)


@pytest.mark.parametrize("words", [(), (3, 2), (2, 3, 2), (4, 3, 2, 3), (1, 2, 2)])
def test_rows_of_an_ngram_model(arpa, words):
    """After each word of a sentence, beside the definition; the other row stays at the beginning."""
    rows = NgramRows(NextWordModel(open_model(str(arpa)), "cpu"), TOKENS, 0)
    names = [word if word in ("</s>", "a", "b") else "<unk>" for word in TOKENS]
    state, before = rows.start(2), ["<s>"]
    for word in (-1, *words):
        state, found = rows.step(state, np.array([word, -1]))
        before += [names[word]] * (word >= 0)
        assert found.children is not None
        for row, history in zip(found.rows_RV, (before, ["<s>"]), strict=True):
            np.testing.assert_allclose(row, [backoff(tuple(history), name) for name in names], rtol=1e-5)


def test_words_that_an_ngram_model_lacks_are_its_unk(tmp_path):
    """Also after a word with which <unk> is a bigram, and when a token occurs twice; in the order of the tokens."""
    path = tmp_path / "model.arpa"
    unigrams = ["-2\t<unk>\t0", "0\t<s>\t-1", "-1\t</s>", "-0.5\ta\t-0.25", "-0.75\tb\t0"]
    bigrams = ["-0.125\ta <unk>", "-0.375\ta a", "-0.625\t<s> b"]
    sections = [
        "\\data\\",
        "ngram 1=5",
        "ngram 2=3",
        "",
        "\\1-grams:",
        *unigrams,
        "",
        "\\2-grams:",
        *bigrams,
        "",
        "\\end\\",
        "",
    ]
    path.write_text("\n".join(sections))
    rows = NgramRows(NextWordModel(open_model(str(path)), "cpu"), ("yy", "</s>", "b", "zz", "a", "a"), 1)
    state, found = rows.step(rows.start(1), np.array([-1]))
    (row,) = found.rows_RV
    assert found.children is None
    log10 = math.log(10)
    np.testing.assert_allclose(row / log10, [-3, -2, -0.625, -3, -1.5, -1.5], rtol=1e-6)
    state, found = rows.step(state, np.array([5]))
    (row,) = found.rows_RV
    np.testing.assert_allclose(row / log10, [-0.125, -1.25, -1, -0.125, -0.375, -0.375], rtol=1e-6)
    (row,) = rows.step(state, np.array([3]))[1].rows_RV  # after <unk>
    np.testing.assert_allclose(row / log10, [-2, -1, -0.75, -2, -0.5, -0.5], rtol=1e-6)


def test_an_ngram_model_takes_part(arpa):
    """All sequences, scored by both models and enumerated."""
    rows, model = NgramRows(NextWordModel(open_model(str(arpa)), "cpu"), TOKENS, 0), TableSteps(5)
    source, options = np.array([4, 0]), SearchOptions(64, 10, max_length_multiple=1.5, breakdown=True)  # 40 sequences
    found = decode([model], [source], options, weights=[0.5], lm=WeightedModel(rows, 0.7))[0]
    names = [word if word in ("</s>", "a", "b") else "<unk>" for word in TOKENS]
    scores = {}
    for words, cost in all_sequences(model, source, options).items():
        lm = sum(backoff(("<s>", *(names[w] for w in words[:i])), names[word]) for i, word in enumerate(words))
        scores[words] = 0.5 * cost + 0.7 * lm, cost, lm
    expected = sorted(scores, key=lambda words: -scores[words][0])[:10]
    assert [r.words for r in found] == expected
    for result in found:
        assert (result.cost, *result.parts) == pytest.approx(scores[result.words], rel=1e-5)


def test_an_ngram_model_begins_at_its_own_mark(arpa):
    """Also where the translation model reads a word of its own before the first."""
    rows, model = NgramRows(NextWordModel(open_model(str(arpa)), "cpu"), TOKENS, 0), TableSteps(5)
    model.start_word, options, forced = 3, SearchOptions(breakdown=True), Forced(targets=[[2, 4]])
    ((result,),) = decode([model], [np.array([4, 0])], options, lm=WeightedModel(rows, 0.7), forced=forced)
    names = ("<s>", "b", "<unk>", "</s>")
    assert result.parts[1] == pytest.approx(sum(backoff(names[:i], names[i]) for i in (1, 2, 3)), rel=1e-5)


def test_nan_names_the_sentence():
    class Broken(TableSteps):
        def row(self, h):
            return np.full(4, np.nan, np.float32)

    with pytest.raises(RunError, match="logits of sentence 0 are NaN, "):
        decode([Broken()], [np.array([2, 0])])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SearchOptions(0), "beam size is 0 but must be 1 to 64"),
        (lambda: SearchOptions(65), "beam size is 65"),
        (lambda: SearchOptions(4097, sampling=Sampling()), "number of samples is 4097"),
        (lambda: SearchOptions(2, 3), "n_best is 3"),
        (lambda: SearchOptions(max_length_multiple=0), "max_length_multiple is 0"),
        (lambda: SearchOptions(max_steps=-1), "max_steps is -1"),
        (lambda: SearchOptions(early_stopping="never"), "early_stopping is 'never'"),
        (lambda: Sampling(top_k=-1), "top_k is -1"),
        (lambda: Sampling(top_p=0), "top_p is 0"),
        (lambda: Sampling(temperature=0), "temperature is 0"),
        (lambda: Sampling(temperature=math.inf), "temperature is inf"),
        (lambda: Sampling(seed=1 << 64), "seed is 18446744073709551616 but must be 0 to 18446744073709551615"),
        (lambda: SearchOptions(length_penalty=400.0), "length_penalty is 400.0 but must be -10 to 10"),
        (lambda: SearchOptions(length_penalty=math.nan), "length_penalty is nan"),
        (lambda: SearchOptions(word_penalty=math.inf), "word_penalty is inf but must be a finite number"),
        (lambda: Batching(0), "has 0 sentences"),
        (lambda: Batching(words=-1), "words is -1 and pool is 0"),
        (lambda: Batching(kind="all"), "batching is 'all'"),
    ],
)
def test_wrong_options_are_one_line(make, message):
    with pytest.raises(InputError, match=message) as error:
        make()
    assert "\n" not in str(error.value)


def enlarged(tensors, copies):
    """Return a model of `copies` times the state that gives the same scores: the copies do not touch each other."""
    H = tensors["decoder_U"].shape[0]
    of_state = ("_U", "_Ux", "_U_nl", "_Ux_nl")

    def widen(array, gates):
        """Repeat each gate's columns."""
        parts = np.split(array, gates, axis=-1)
        return np.concatenate([np.concatenate([part] * copies, axis=-1) for part in parts], axis=-1)

    def diagonal(array, gates):
        blocks = []
        for part in np.split(array, gates, axis=-1):
            block = np.zeros((part.shape[0] * copies, part.shape[1] * copies), np.float32)
            for i in range(copies):
                block[i * H : (i + 1) * H, i * H : (i + 1) * H] = part
            blocks.append(block)
        return np.concatenate(blocks, axis=-1)

    def first(array, sides=1):
        """Let only the first copy of each side be read."""
        parts = []
        for part in np.split(array, sides):
            parts += [part, np.zeros(((copies - 1) * H, part.shape[1]), np.float32)]
        return np.concatenate(parts)

    found = dict(tensors)
    for name, array in tensors.items():
        gates = 2 if array.shape[-1] == 2 * H and array.ndim else 1
        if name.endswith(of_state):
            found[name] = diagonal(array, gates)
        elif name in ("decoder_Wc", "decoder_Wcx", "ff_state_W"):
            found[name] = first(widen(array, gates), 2)
        elif name in ("ff_logit_ctx_W", "decoder_Wc_att"):
            found[name] = first(array, 2)
        elif name in ("ff_logit_lstm_W", "decoder_W_comb_att"):
            found[name] = first(array)
        elif name == "ff_state_b" or name.split("coder_")[-1].removeprefix("r_") in (
            "W",
            "Wx",
            "b",
            "bx",
            "b_nl",
            "bx_nl",
        ):
            found[name] = widen(array, gates)
    return found


def check_enlarged(tensors, save_model, sources, copies):
    from mgpu_ngram.core.nmt.files import load_nmt_model

    small, large = (load_nmt_model(save_model(t, n)) for n, t in (("a", tensors), ("b", enlarged(tensors, copies))))
    assert large.decoder[0].state.weight_XY.shape[0] == copies * small.decoder[0].state.weight_XY.shape[0]
    options = SearchOptions(5, 5, 1.0)
    for a, b in zip(*(decode([model], sources, options) for model in (small, large)), strict=True):
        assert [r.words for r in a] == [r.words for r in b]
        assert [r.score for r in a] == pytest.approx([r.score for r in b], abs=1e-5)


def test_independent_copies_of_the_state_change_nothing(random_tensors, save_model):
    rng = np.random.default_rng(1)
    check_enlarged(random_tensors(), save_model, [np.append(rng.integers(2, 9, 1 + n % 6), 0) for n in range(20)], 3)


def test_a_trained_model_of_many_copies(shared_data, save_model):
    """16 copies of 64 states are 1,024."""
    from mgpu_ngram.core.nmt.vocabulary import load_nmt_vocabulary

    folder = shared_data / "nmt" / "cmudict-g2p"
    tensors = dict(np.load(folder / "model.gru.npz"))
    source = load_nmt_vocabulary(str(folder / "vocab.src.json"))
    lines = (folder / "test.src").read_text().splitlines()[:12]
    check_enlarged(tensors, save_model, [source.encode(line, 28) for line in lines], 16)


def test_a_hypothesis_is_a_plain_value():
    assert Hypothesis((0,), -1.0, -1.0, (-1.0,)).parts == ()
