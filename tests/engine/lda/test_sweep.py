"""Topic models on one device: planted topics are found, metrics agree with their definitions in plain NumPy."""

import itertools
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.special import gammaln
from scipy.stats import chi2

from mgpu_ngram.core.bags import topic_model
from mgpu_ngram.core.bags.bags import join_bags, make_bags
from mgpu_ngram.core.bags.topic_model import Priors, TopicModel, load_topic_model, save_topic_model
from mgpu_ngram.core.ngrams.words import Words
from mgpu_ngram.core.storage.checkpoint_entries import read_entry
from mgpu_ngram.engine.lda import blocks as lda_blocks
from mgpu_ngram.engine.lda import documents as lda_documents
from mgpu_ngram.engine.lda import metrics as lda_metrics
from mgpu_ngram.engine.lda import rank as lda_rank
from mgpu_ngram.engine.lda import sweep as lda
from mgpu_ngram.engine.lda.blocks import Room, StreamedBlocks, make_blocks
from mgpu_ngram.engine.lda.coherence import coherence
from mgpu_ngram.engine.lda.documents import CorpusPart, make_block
from mgpu_ngram.engine.lda.hold_out import HeldOut, hold_out, keep_training
from mgpu_ngram.engine.lda.metrics import coherences, completion, joint, most_frequent_words, plugin
from mgpu_ngram.engine.lda.priors import _bin_values, _bins, _digamma, optimised
from mgpu_ngram.engine.lda.rank import Rank, Snapshot, save_snapshot
from mgpu_ngram.engine.lda.sweep import document_counts, make_sampler, numbers_of_counts, start_topics, sweep
from mgpu_ngram.kernels.dispatch import to_host
from mgpu_ngram.kernels.lda.plugin_likelihood import UNITS
from tests.support.slow_cases import first_fast

SHARED = Path(__file__).resolve().parents[3].parent / "shared"


class Alone:
    """A group of one device."""

    rank, size = 0, 1

    def all_reduce(self, array):
        return array

    def all_reduce_async(self, array, out):
        class Done:
            def hold_stream(self):
                return out

        out[...] = array
        return Done()


ALONE = Alone()


def bars(rng, documents=400, length=60, side=5):
    """Return (bags, topics (2 side, V)): each topic is a row or a column of a square of words (Griffiths, 2004)."""
    topics = np.zeros((2 * side, side * side))
    for i in range(side):
        topics[i, i * side : (i + 1) * side] = 1 / side
        topics[side + i, i::side] = 1 / side
    theta_DZ = rng.dirichlet(np.full(2 * side, 0.2), documents)
    counts_DV = np.array([rng.multinomial(length, theta_Z @ topics) for theta_Z in theta_DZ])
    return bags_of_dense(counts_DV), topics


def drawn(rng, documents=400, length=60, words=100):
    """Return (bags, topics (10, V)) drawn from the model: topics share words, and documents differ in length."""
    topics = rng.dirichlet(np.full(words, 0.1), 10)
    lengths_D, theta_DZ = rng.poisson(length, documents), rng.dirichlet(np.full(10, 0.2), documents)
    mixed = zip(lengths_D, theta_DZ @ topics, strict=True)
    return bags_of_dense(np.array([rng.multinomial(n, phi_V) for n, phi_V in mixed])), topics


def bags_of_dense(counts_DV):
    rows, words = np.nonzero(counts_DV)
    starts = np.searchsorted(rows, np.arange(len(counts_DV) + 1))
    return make_bags(starts, words, counts_DV[rows, words], counts_DV.shape[1])


def trained(bags, num_topics, sweeps, device="cpu", seed=1, threads=2, priors=None, **options):
    priors = priors or Priors(np.full(num_topics, 50 / num_topics), 0.01)
    sampler = make_sampler([CorpusPart.of(0, 0, bags)], bags.num_words, num_topics, device, threads)
    start_topics(sampler, ALONE, seed)
    for _ in range(sweeps):
        sweep(sampler, ALONE, priors, seed, **options)
    return sampler, priors


def tokens_of(sampler, bags):
    """Return (document, word, topic) of each token."""
    document_P = np.repeat(np.arange(bags.documents), np.diff(bags.starts_D1))
    topics = np.concatenate([topics for block in sampler.blocks.stored() for topics in block.topics().values()])
    return np.repeat(document_P, bags.counts_P), np.repeat(bags.words_P, bags.counts_P).astype(int), topics.astype(int)


@pytest.mark.parametrize("corpus", [bars, drawn])
def test_planted_topics_are_found(corpus, device):
    bags, planted = corpus(np.random.default_rng(2))
    sampler, _ = trained(bags, 10, 150, device, priors=Priors(np.full(10, 0.2), 0.01))
    found = to_host(sampler.counts_VZ).T / to_host(sampler.counts_VZ).sum(0)[:, None]
    cosines = found @ planted.T / np.linalg.norm(found, axis=1)[:, None] / np.linalg.norm(planted, axis=1)
    assert sorted(cosines.argmax(1)) == list(range(10)), "each planted topic is found once"
    assert cosines.max(1).min() > 0.97


@pytest.mark.parametrize("Z", [2, 7, 65_536])
def test_counts_are_those_of_the_topics_after_every_sweep(Z, device):
    bags, _ = bars(np.random.default_rng(2), 50, side=3)
    sampler, priors = trained(bags, Z, 0, device)
    for _ in range(3):
        changed = sweep(sampler, ALONE, priors, 1)
        _, words, topics = tokens_of(sampler, bags)
        expected = np.zeros((bags.num_words, Z), np.uint32)
        np.add.at(expected, (words, topics), 1)
        assert np.array_equal(to_host(sampler.counts_VZ), expected)
        assert 0 < changed <= bags.tokens


@pytest.mark.parametrize("threads", [1, 3])
def test_blocks_threads_and_devices_draw_the_same_topics(threads, device):
    bags, _ = bars(np.random.default_rng(3), 90)
    expected = tokens_of(trained(bags, 9, 4, threads=2)[0], bags)[2]
    cuts = [0, 20, 21, 90]
    parts = [CorpusPart.of(i, a, bags.slice(a, b)) for i, (a, b) in enumerate(zip(cuts, cuts[1:], strict=False))]
    sampler = make_sampler(parts, bags.num_words, 9, device, threads)
    start_topics(sampler, ALONE, 1)
    priors = Priors(np.full(9, 50 / 9), 0.01)
    for _ in range(2):
        sweep(sampler, ALONE, priors, 1)
    snapshot = {number: topics for block in sampler.blocks.stored() for number, topics in block.topics().items()}
    again = make_sampler(parts, bags.num_words, 9, device, threads)
    start_topics(again, ALONE, 1, snapshot)
    again.sweep = 2
    for _ in range(2):
        sweep(again, ALONE, priors, 1)
    assert tokens_of(again, bags)[2].tolist() == expected.tolist()


def test_all_64_bits_of_a_seed_count(device):
    bags, _ = bars(np.random.default_rng(3), 90)
    seeds = [1, 1 + 2**32, 1 + 2**63, 2**64 - 1]
    first = [tuple(tokens_of(trained(bags, 9, 0, device, seed=seed)[0], bags)[2]) for seed in seeds]
    swept = []
    for seed in seeds:
        sampler, priors = trained(bags, 9, 0, device)  # all from the same topics
        sweep(sampler, ALONE, priors, seed)
        swept.append(tuple(tokens_of(sampler, bags)[2]))
    held = [tuple(np.diff(keep_training(bags, 0, 0.5, seed).starts_D1)) for seed in seeds]
    halves = [tuple(hold_out(bags, 0, 0.999, seed).observed.counts_P) for seed in seeds]
    assert [len({*made}) for made in (first, swept, held, halves)] == [4, 4, 4, 4]


def naive_joint(document, word, topic, D, V, Z, alpha_Z, beta_VZ):
    """Return the joint log-likelihood by the chain of predictive probabilities, token by token."""
    n_dz, n_vz, total = np.zeros((D, Z)), np.zeros((V, Z)), 0.0
    for d, w, k in zip(document, word, topic, strict=True):
        total += math.log((n_dz[d, k] + alpha_Z[k]) / (n_dz[d].sum() + alpha_Z.sum()))
        total += math.log((n_vz[w, k] + beta_VZ[w, k]) / (n_vz[:, k].sum() + beta_VZ[:, k].sum()))
        n_dz[d, k] += 1
        n_vz[w, k] += 1
    return total


@pytest.mark.parametrize("seeded", [False, True])
def test_likelihoods_are_those_of_their_definitions(seeded, device):
    bags, _ = bars(np.random.default_rng(4), 30)
    Z, V = 5, bags.num_words
    seeds = {3: np.array([5, 0.1, 0.1, 0.1, 0.1], np.float32), 7: np.full(5, 0.5, np.float32)} if seeded else {}
    priors = Priors(np.array([0.1, 0.5, 1.0, 0.2, 0.3]), 0.05, seeds)
    sampler, _ = trained(bags, Z, 3, device, priors=priors)
    document, word, topic = tokens_of(sampler, bags)
    beta_VZ = np.full((V, Z), 0.05)
    for v, own_Z in seeds.items():
        beta_VZ[v] = own_Z
    expected = naive_joint(document, word, topic, bags.documents, V, Z, priors.alpha_Z, beta_VZ)
    assert joint(sampler, ALONE, priors) == pytest.approx(expected, rel=1e-6)

    n_dz, n_vz = np.zeros((bags.documents, Z)), np.zeros((V, Z))
    np.add.at(n_dz, (document, topic), 1)
    np.add.at(n_vz, (word, topic), 1)
    theta = (n_dz + priors.alpha_Z) / (n_dz.sum(1, keepdims=True) + priors.alpha_Z.sum())
    phi = (n_vz + beta_VZ) / (n_vz + beta_VZ).sum(0)
    expected = np.log((theta[document] * phi[word]).sum(1)).sum()
    assert plugin(sampler, ALONE, priors) == pytest.approx(expected, rel=1e-6)


@pytest.mark.skipif(not (SHARED / "oracles" / "lda_eval.py").exists(), reason="needs the shared oracles")
@pytest.mark.parametrize("seeded", [False, True])
def test_held_out_perplexity_is_that_of_the_oracle(seeded, device, monkeypatch):
    monkeypatch.syspath_prepend(SHARED / "oracles")
    import lda_eval

    bags, _ = bars(np.random.default_rng(5), 120)
    seeds = {v: np.linspace(0.1, 300, 10).astype(np.float32) for v in range(0, bags.num_words, 2)} if seeded else {}
    sampler, priors = trained(bags, 10, 30, device, priors=Priors(np.full(10, 5.0), 0.01, seeds))
    indptr, words, counts = bags.starts_D1, bags.words_P.astype(int), bags.counts_P.astype(int)
    halves = [
        make_bags(np.concatenate([[0], np.cumsum(half > 0)])[indptr], words[half > 0], half[half > 0], bags.num_words)
        for half in lda_eval.split_tokens(indptr, words, counts, 3)
    ]
    units, tokens = completion(sampler.counts_VZ, priors, HeldOut(*halves))
    beta_VZ = np.full((bags.num_words, 10), 0.01)
    for v, own_Z in seeds.items():
        beta_VZ[v] = own_Z
    phi = lda_eval.phi_from_counts(to_host(sampler.counts_VZ), beta_VZ)
    expected, number = lda_eval.doc_completion(indptr, words, counts, phi, priors.alpha_Z, seed=3)
    assert tokens == number
    assert math.exp(-units / UNITS / tokens) == pytest.approx(expected, rel=1e-5)


def test_held_out_documents_do_not_depend_on_the_cut():
    bags, _ = bars(np.random.default_rng(6), 200)
    whole, held = (half(bags, 1000, 0.25, 7) for half in (keep_training, hold_out))
    cut = [
        (keep_training(bags.slice(a, b), 1000 + a, 0.25, 7), hold_out(bags.slice(a, b), 1000 + a, 0.25, 7))
        for a, b in ((0, 70), (70, 200))
    ]
    assert [b for only, _ in cut for b in np.diff(only.starts_D1)] == np.diff(whole.starts_D1).tolist()
    assert sum(h.observed.tokens for _, h in cut) == held.observed.tokens
    assert held.observed.documents == held.target.documents == pytest.approx(50, abs=15)
    assert held.observed.tokens + held.target.tokens + whole.tokens == bags.tokens
    assert held.observed.tokens == pytest.approx(held.target.tokens, rel=0.1)
    held.observed.check()
    held.target.check()
    whole.check()


def test_a_token_is_observed_with_probability_one_half_whatever_the_share_held_out():
    """A document of one token: the number that holds it out must not be the number that makes it observed."""
    bags = bags_of_dense(np.ones((20_000, 1), int))
    held = hold_out(bags, 0, 0.1, 7)
    documents, observed = held.observed.documents, held.observed.tokens
    assert abs(documents - 2000) < 4 * 2000**0.5, "four standard deviations"
    assert abs(observed - documents / 2) < 4 * (documents / 4) ** 0.5
    assert held.target.tokens == documents - observed


def test_digamma_and_bins():
    # Abramowitz and Stegun, table 6.1, and -gamma - pi / 2 - 3 ln 2
    known = {1.0: -0.5772156649015329, 0.25: -4.227453533376265, 10.0: 2.251752589066721}
    for x, value in known.items():
        assert _digamma(np.array([x]))[0] == pytest.approx(value, abs=1e-12)
    counts = np.array([1, 2, 255, 256, 257, 258, 1000, 2**20, 2**20 + 2**13 - 1, 2**31])
    bins = _bins(counts)
    assert bins[:4].tolist() == [1, 2, 255, 256] and bins[4] == 256 and bins[5] == 257
    values = _bin_values(int(bins.max()) + 1)[bins]
    assert (abs(values - counts) <= counts / 256).all() and (values[:3] == counts[:3]).all()
    assert (np.diff(_bins(np.arange(1, 5000))) >= 0).all()


def test_priors_are_estimated_from_the_topics(device):
    """Topics of documents drawn from a known Dirichlet prior give that prior back."""
    rng = np.random.default_rng(8)
    alpha_Z = np.array([0.2, 1.0, 3.0])
    counts_DZ = np.array([rng.multinomial(200, theta_Z) for theta_Z in rng.dirichlet(alpha_Z, 3000)])
    bags = bags_of_dense(np.ones((3000, 200), int))
    sampler = make_sampler([CorpusPart.of(0, 0, bags)], 200, 3, device, 2)
    start_topics(sampler, ALONE, 1, {0: np.concatenate([np.repeat([0, 1, 2], counts_Z) for counts_Z in counts_DZ])})
    priors = Priors(np.ones(3), 0.1)
    for _ in range(5):
        priors = optimised(sampler, ALONE, priors)
    assert priors.alpha_Z == pytest.approx(alpha_Z, rel=0.1)


@pytest.mark.parametrize("seed_words", [[], [0, 7, 8, 20, 24]])
def test_beta_maximises_the_likelihood_of_words_without_priors_of_their_own(seed_words, device):
    """The maximum comes from SciPy, over ln Gamma of the counts (Minka, 2000, equation 53)."""
    bags, _ = bars(np.random.default_rng(14), 100)
    seeds = {word: np.linspace(0.1, 9, 4).astype(np.float32) for word in seed_words}
    sampler, priors = trained(bags, 4, 20, device, priors=Priors(np.full(4, 0.5), 0.3, seeds))
    counts_VZ = np.delete(to_host(sampler.counts_VZ).astype(float), seed_words, axis=0)
    V, totals_Z = len(counts_VZ), counts_VZ.sum(0)

    def loss(log_beta):
        beta = np.exp(log_beta)
        words = (gammaln(counts_VZ + beta) - gammaln(beta)).sum()
        return -(words + (gammaln(V * beta) - gammaln(totals_Z + V * beta)).sum())

    best = np.exp(minimize_scalar(loss, bounds=(-9, 3), method="bounded", options={"xatol": 1e-8}).x)
    for _ in range(20):
        priors = optimised(sampler, ALONE, priors)
    assert priors.beta == pytest.approx(best, rel=1e-3)
    assert [*priors.seeds] == seed_words and all(priors.seeds[word] is seeds[word] for word in seed_words)


def test_priors_of_equal_shares_have_a_limit(device):
    """All documents have the same shares, which the largest priors explain best; draws would overflow with them."""
    sampler, _ = trained(bags_of_dense(np.ones((50, 2), int)), 2, 0, device)
    start_topics(sampler, ALONE, 1, {0: np.tile([0, 1], 50)})
    assert optimised(sampler, ALONE, Priors(np.full(2, 4e6), 0.1)).alpha_Z.tolist() == [2**21, 2**21]


@pytest.mark.parametrize("room", [Room(), Room(1)], ids=["resident", "streamed"])
def test_blocks_without_tokens(room, device):
    """Documents may be empty, and all documents of a device or a block held out; a device may have no document."""
    bags, _ = bars(np.random.default_rng(11), 40)
    empty, nothing = (bags_of_dense(np.zeros((documents, bags.num_words), int)) for documents in (3, 0))
    priors = Priors(np.full(6, 0.5), 0.1)
    figures = []
    for parts in (
        [CorpusPart.of(0, 0, bags)],
        [CorpusPart.of(0, 0, bags), CorpusPart.of(1, 40, empty)],
        [CorpusPart.of(0, 0, empty)],
        [CorpusPart.of(0, 0, nothing)],
    ):
        sampler = make_sampler(parts, bags.num_words, 6, device, 2, room)
        start_topics(sampler, ALONE, 1)
        changed = sweep(sampler, ALONE, priors, 1)
        better = optimised(sampler, ALONE, priors)
        figures.append((changed, better.alpha_Z.tolist(), better.beta, joint(sampler, ALONE, priors)))
        assert (coherences(sampler, ALONE) is not None) and plugin(sampler, ALONE, priors) <= 0
    assert figures[0] == figures[1]
    assert figures[2] == figures[3] == (0, priors.alpha_Z.tolist(), 0.1, 0.0)


def test_counts_are_sorted_in_parts(device, to_device, monkeypatch):
    counts_VZ = np.random.default_rng(12).integers(0, 9, (50, 7)).astype(np.uint32)
    words = np.setdiff1d(np.arange(50), [0, 20, 21])
    monkeypatch.setattr(lda, "SORTED", 40)
    found = numbers_of_counts(to_device(counts_VZ), words)
    assert [a.tolist() for a in found] == [a.tolist() for a in np.unique(counts_VZ[words], return_counts=True)]
    assert [len(a) for a in numbers_of_counts(to_device(counts_VZ), words[:0])] == [0, 0]


def test_parts_of_documents_change_no_figure(device, monkeypatch):
    """Places of tokens and entries, held-out documents and tables of counts are computed part by part."""
    bags, _ = bars(np.random.default_rng(13), 60)
    sampler, priors = trained(bags, 6, 5, device)
    held = hold_out(bags, 0, 0.5, 1)

    def figures():
        [block] = sampler.blocks.stored()
        model = TopicModel.of_counts(sampler.counts_VZ, priors)
        return (
            tokens_of(sampler, bags)[2].tolist(),
            [c for _, _, count_E in document_counts(block, 6) for c in count_E.tolist()],
            joint(sampler, ALONE, priors),
            optimised(sampler, ALONE, priors).alpha_Z.tolist(),
            completion(sampler.counts_VZ, priors, held, 2),
            coherences(sampler, ALONE),
            model.counts_VZ().tolist(),
        )

    whole = figures()
    for places in (1, 100):
        monkeypatch.setattr(lda_documents, "PLACES_AT_ONCE", places)
        monkeypatch.setattr(lda_metrics, "BLOCK_WEIGHTS", {"cpu": 50, "gpu": 50})
        monkeypatch.setattr(topic_model, "COUNTS_AT_ONCE", 20)
        assert figures() == whole
        [block] = sampler.blocks.stored()
        topics = block.topics()
        block.set_topics({0: 5 - topics[0]})
        assert (5 - block.topics()[0]).tolist() == whole[0]
        block.set_topics(topics)
    assert whole[-1] == to_host(sampler.counts_VZ).tolist()


def test_the_paper_s_rule_gives_other_topics():
    bags, _ = bars(np.random.default_rng(9), 60)
    ours, theirs = (trained(bags, 6, 3, exclude_self=excluded)[0] for excluded in (True, False))
    assert (tokens_of(ours, bags)[2] != tokens_of(theirs, bags)[2]).any()


def test_a_model_file_keeps_everything(tmp_path):
    counts_VZ = np.array([[0, 3, 0], [1, 0, 70_000], [0, 0, 0]], np.uint32)
    seeds = {2: np.array([1, 2, 3], np.float32)}
    words = Words(np.array([0, 1, 3, 6]), np.frombuffer("aüccc".encode()[:6], np.uint8))
    model = TopicModel.of_counts(
        counts_VZ, Priors(np.array([0.1, 0.2, 0.3]), 0.05, seeds), words=words, sweeps=4, settings={"seed": 3},
        history=({"sweep": 4, "joint": -1.5},),
    )  # fmt: skip
    assert model.tokens == 70_004 and model.totals_Z().tolist() == [1, 3, 70_000]
    save_topic_model(tmp_path / "m", model)
    found = load_topic_model(tmp_path / "m")
    assert found.counts_VZ().tolist() == counts_VZ.tolist()
    assert found.priors.alpha_Z.tolist() == [0.1, 0.2, 0.3] and found.priors.seeds[2].tolist() == [1, 2, 3]
    assert (found.sweeps, found.settings, found.history) == (4, {"seed": 3}, ({"sweep": 4, "joint": -1.5},))
    assert list(found.words) == list(words)
    assert found.pseudocounts_ZV()[:, 2].tolist() == pytest.approx([1, 2, 3])
    assert found.pseudocounts_ZV()[1].tolist() == pytest.approx([3.05, 0.05, 2])


@pytest.mark.parametrize("room", [Room(), Room(1, None), Room(1, 1)], ids=["resident", "in host memory", "in files"])
def test_blocks_out_of_the_device_give_the_same_topics(room, device, tmp_path):
    bags, _ = bars(np.random.default_rng(3), 90)
    expected, priors = trained(bags, 9, 3)
    cuts = [0, 20, 40, 41, 70, 90]
    parts = [CorpusPart.of(i, a, bags.slice(a, b)) for i, (a, b) in enumerate(zip(cuts, cuts[1:], strict=False))]
    room = replace(room, folder=tmp_path)
    sampler = make_sampler(parts, bags.num_words, 9, device, 2, room)
    start_topics(sampler, ALONE, 1)
    for _ in range(3):
        sweep(sampler, ALONE, priors, 1)
    topics = [t for block in sampler.blocks.stored() for t in block.topics().values()]
    assert len(list(sampler.blocks.stored())) == (
        5 if room.host_bytes or (room.device_bytes and device == "gpu") else 1
    )
    assert np.concatenate(topics).tolist() == tokens_of(expected, bags)[2].tolist()
    assert (to_host(sampler.counts_VZ) == expected.counts_VZ).all()
    for figure in (joint, plugin):
        assert figure(sampler, ALONE, priors) == figure(expected, ALONE, priors)
    assert bool(list(tmp_path.iterdir())) == (room.host_bytes is not None)
    # A resumed run gives every block the topics of all parts.
    before, _ = trained(bags, 9, 2)
    ends = np.cumsum([part.tokens for part in parts])[:-1]
    snapshot = dict(enumerate(np.split(tokens_of(before, bags)[2].astype(np.uint16), ends)))
    again = make_sampler(parts, bags.num_words, 9, device, 2, replace(room, folder=tmp_path / "again"))
    start_topics(again, ALONE, 1, snapshot)
    again.sweep = 2
    sweep(again, ALONE, priors, 1)
    assert tokens_of(again, bags)[2].tolist() == tokens_of(expected, bags)[2].tolist()


def test_an_older_snapshot_stays_until_all_devices_have_written(tmp_path):
    bags, _ = bars(np.random.default_rng(3), 40)
    parts = [CorpusPart.of(i, 20 * i, bags.slice(20 * i, 20 * i + 20)) for i in range(2)]
    sampler = make_sampler(parts, bags.num_words, 4, "cpu", 1, Room(None, 1, tmp_path / "blocks"))
    start_topics(sampler, ALONE, 1)
    folder, seen = tmp_path / "entries", []
    folder.mkdir()

    class Barrier(Alone):
        def all_reduce(self, array):
            seen.append(sorted((e.generation, e.items) for e in map(read_entry, map(str, folder.iterdir()))))
            return array

    nothing = HeldOut(bags.slice(0, 0), bags.slice(0, 0))
    for sweeps in (3, 5):
        sampler.sweep = sweeps
        state = Snapshot(sweeps, Priors(np.ones(4), 0.1))
        save_snapshot(Rank(sampler, nothing, state), Barrier(), str(folder))
    new, old = [(5, (0,)), (5, (1,))], [(3, (0,)), (3, (1,))]
    assert seen == [old, old + new], "both are there when the devices wait for each other"
    assert sorted((e.generation, e.items) for e in map(read_entry, map(str, folder.iterdir()))) == new


def test_snapshots_are_written_every_so_many_seconds(monkeypatch):
    bags, _ = bars(np.random.default_rng(3), 9)
    sampler, nothing = trained(bags, 4, 0)[0], HeldOut(bags.slice(0, 0), bags.slice(0, 0))
    rank, saved = Rank(sampler, nothing, Snapshot(0, Priors(np.ones(4), 0.1)), snapshot_time=100.0), []
    monkeypatch.setattr(lda_rank, "save_snapshot", lambda *_: saved.append(lda_rank.time.monotonic()))
    for now in (104.9, 105.0, 105.1, 109.9, 110.5, 115.4, 116.0):
        monkeypatch.setattr(lda_rank, "time", SimpleNamespace(monotonic=lambda now=now: now))
        lda_rank._save_in_time(rank, ALONE, SimpleNamespace(snapshot_seconds=5.0, folder="entries"))
    assert saved == [105.0, 110.5, 116.0]


def test_blocks_are_cut_so_that_their_layout_fits():
    bags, _ = bars(np.random.default_rng(3), 90)
    parts = [CorpusPart.of(i, 10 * i, bags.slice(10 * i, 10 * i + 10)) for i in range(9)]
    size_bytes = sum(lda_blocks._device_bytes(part, 9) for part in parts)
    largest = max(part.pairs for part in parts)
    for limit, blocks in ((None, 1), (size_bytes + lda_blocks.LAYOUT_BYTES * largest, 9)):
        made = list(make_blocks(parts, 9, "cpu", 1, Room(None, limit)).stored())
        assert len(made) == blocks and [n for block in made for n in block.tokens] == list(range(9))
    for limit in range(size_bytes, lda_blocks.LAYOUT_BYTES * bags.pairs, 10_000):
        made = list(make_blocks(parts, 9, "cpu", 1, Room(None, limit)).stored())
        assert max(len(block.pairs.count_P) for block in made) <= max(largest, limit // lda_blocks.LAYOUT_BYTES)


def test_streamed_blocks_load_what_is_stored():
    """The order of copies is that of a GPU; on a CPU each copy ends at once."""
    bags, _ = bars(np.random.default_rng(3), 90)
    parts = [CorpusPart.of(i, 10 * i, bags.slice(10 * i, 10 * i + 10)) for i in range(9)]
    stored = [make_block([part], 9, "cpu", 1) for part in parts]
    streamed = StreamedBlocks(stored, 9, "cpu")
    seen = []
    for number, block in enumerate(streamed.loaded(changes=True)):
        assert block.first == 10 * number
        count = int(block.documents.lengths_D.sum())
        block.set_topics({number: np.full(count, number, np.uint16)})
        seen.append(count)
    assert sum(seen) == bags.tokens
    for number, block in enumerate(streamed.loaded()):
        assert set(block.topics()[number].tolist()) == {number}
        [(_, topic_E, count_E)] = document_counts(block, 9)
        assert set(topic_E.tolist()) == {number} and count_E.tolist() == block.documents.lengths_D.tolist()
        block.set_topics({number: np.zeros(seen[number], np.uint16)})  # a change that is not kept
    assert all(set(b.topics()[n].tolist()) == {n} for n, b in enumerate(streamed.stored()))


def test_the_first_streamed_block_is_copied_while_the_last_one_is_used(monkeypatch):
    bags, _ = bars(np.random.default_rng(3), 30)
    parts = [CorpusPart.of(i, 10 * i, bags.slice(10 * i, 10 * i + 10)) for i in range(3)]
    streamed, copies = StreamedBlocks([make_block([part], 9, "cpu", 1) for part in parts], 9, "cpu"), []
    copy_in = lda_blocks._Streams.copy_in

    def counted(*arguments):
        copies.append(arguments)
        return copy_in(*arguments)

    monkeypatch.setattr(lda_blocks._Streams, "copy_in", counted)

    def topics():
        return [set(block.topics()[n].tolist()) for n, block in enumerate(streamed.loaded())]

    for copied in (4, 3):
        copies.clear()
        assert topics() == [{0}] * 3 and len(copies) == copied
    for n, block in enumerate(streamed.stored()):
        block.set_topics({n: np.full(bags.slice(10 * n, 10 * n + 10).tokens, n + 1, np.uint16)})
    copies.clear()
    assert topics() == [{1}, {2}, {3}] and len(copies) == 4, "the copy was older than the topics"


def test_coherence_is_that_of_the_bags(device):
    """Documents without a word, as those held out are here, are not counted."""
    bags, _ = bars(np.random.default_rng(10), 60, 400)
    empty = bags_of_dense(np.zeros((30, bags.num_words), int))
    sampler, _ = trained(join_bags([bags, empty]), 6, 20, device)
    words_Zn = most_frequent_words(sampler.counts_VZ, 10)
    counts_VZ = to_host(sampler.counts_VZ)
    assert words_Zn.tolist() == np.argsort(-counts_VZ.astype(int), axis=0, kind="stable")[:10].T.tolist()
    expected = {name: values.mean() for name, values in coherence(bags, words_Zn).items()}
    assert coherences(sampler, ALONE) == pytest.approx(expected)


def chances(document, word, topics, i, alpha_Z, beta, V, exclude_self):
    """Return the probability of each topic for token i, given the topics of all tokens; by the formula, naively."""
    weights = []
    for k, alpha in enumerate(alpha_Z):
        others = [j for j in range(len(topics)) if topics[j] == k and not (exclude_self and j == i)]
        n_dk = sum(document[j] == document[i] for j in others)
        n_wk = sum(word[j] == word[i] for j in others)
        weights.append((n_dk + alpha) * (n_wk + beta) / (len(others) + V * beta))
    return np.array(weights) / sum(weights)


def p_value(found, expected, degrees_of_freedom):
    """Return the probability of a larger chi-square if `expected` holds."""
    assert expected.min() >= 5, "chi-square needs this"
    return chi2.sf(((found - expected) ** 2 / expected).sum(), degrees_of_freedom)


def states_of(topics_NT, Z):
    """Return the numbers of assignments of topics to T tokens, in the order of itertools.product."""
    return topics_NT @ Z ** np.arange(topics_NT.shape[1])[::-1]


@pytest.mark.parametrize(
    ("counts", "later"),
    [([[1]], [0]), ([[2]], [0, 1]), ([[1, 1], [1, 1]], [0, 1, 1, 0])],
    ids=["one token", "a word twice", "two words of two documents"],
)
def test_topics_follow_the_exact_posterior(counts, later, device):
    """Chi-square over all assignments of a tiny corpus. Its 20,000 copies share no document and no word.

    A word that does not occur has a large prior, so totals of topics tie no tokens together: neither copies, nor tokens
    of different words and documents. Each `later` token then depends on the others only, and they on it. So the others'
    topics before a sweep and the later ones' after it are those of sequential Gibbs sampling.
    """
    copies, alpha_Z, beta, large = 20_000, np.array([0.5, 0.8, 1.2]), 0.5, 1e9
    Z, (D, V), T = len(alpha_Z), np.shape(counts), np.sum(counts)
    one = bags_of_dense(np.array(counts))
    words_P = np.tile(one.words_P, copies) + np.repeat(V * np.arange(copies), one.pairs)
    starts_D1 = np.append(0, np.cumsum(np.tile(np.diff(one.starts_D1), copies)))
    bags = make_bags(starts_D1, words_P, np.tile(one.counts_P, copies), V * copies + 1)
    priors = Priors(alpha_Z, beta, {V * copies: np.full(Z, large, np.float32)})
    sampler, _ = trained(bags, Z, 20, device, priors=priors)
    before = tokens_of(sampler, bags)[2].reshape(copies, T)
    sweep(sampler, ALONE, priors, 1)
    after = tokens_of(sampler, bags)[2].reshape(copies, T)
    document, word = (np.repeat(a, one.counts_P) for a in (np.repeat(range(D), np.diff(one.starts_D1)), one.words_P))
    beta_VZ = np.append(np.full((V, Z), beta), np.full((1, Z), large), axis=0)
    exact = np.array([
        naive_joint(document, word, z, D, V + 1, Z, alpha_Z, beta_VZ) for z in itertools.product(range(Z), repeat=T)
    ])  # fmt: skip
    exact = np.exp(exact - exact.max())
    found = np.bincount(states_of(np.where(later, after, before), Z), minlength=len(exact))
    assert p_value(found, copies * exact / exact.sum(), len(exact) - 1) > 0.001


@pytest.mark.parametrize("exclude_self", first_fast([True, False]))
def test_a_chain_moves_with_the_probabilities_of_the_formula(exclude_self, device):
    """Chi-square over all moves between the assignments of three tokens, which share a document, a word, and totals.

    All tokens are drawn at once, each from the counts of the sweep before. With known probabilities of moves, the
    chi-square of a chain's moves has the usual distribution (Billingsley, 1961).
    """
    Z, alpha_Z, beta, sweeps = 2, [1.2, 2.0], 0.7, 4000
    bags = bags_of_dense(np.array([[1, 1], [1, 0]]))
    sampler, priors = trained(bags, Z, 1, device, threads=1, priors=Priors(np.array(alpha_Z), beta))
    document, word, topics = tokens_of(sampler, bags)
    chain = [topics]
    for _ in range(sweeps):
        sweep(sampler, ALONE, priors, 1, exclude_self)
        chain.append(tokens_of(sampler, bags)[2])
    states = list(itertools.product(range(Z), repeat=3))
    moves = np.array([
        [np.prod([p_Z[k] for p_Z, k in zip(given, new, strict=True)]) for new in states]
        for given in (
            [chances(document, word, z, i, alpha_Z, beta, bags.num_words, exclude_self) for i in range(3)]
            for z in states
        )
    ])  # fmt: skip
    numbers = states_of(np.array(chain), Z)
    found = np.zeros((8, 8))
    np.add.at(found, (numbers[:-1], numbers[1:]), 1)
    assert p_value(found, found.sum(1, keepdims=True) * moves, 8 * 7) > 0.001


@pytest.mark.parametrize(
    ("counts", "same"),
    [([[1, 0], [0, 1]], 1 / 3), ([[1, 1], [0, 0]], 3 / 5), ([[1, 0], [1, 0]], 3 / 5), ([[2, 0], [0, 0]], 9 / 11)],
    ids=["none shared", "one document", "one word", "one word of one document"],
)
def test_two_tokens_of_a_sweep_are_independent(counts, same, device):
    """Delayed counts: two tokens have one topic in half of the states; by the exact posterior, in a share of `same`.

    By hand, two topics, two words, all priors 1/2: the topic of the other token weighs a b / (1 + 1), the other topic
    1/2 * 1/2 / (0 + 1); a is 3/2 for a shared document, else 1/2, and b for a shared word. A sweep draws one token from
    the other's topic of the sweep before, so `same` of these pairs have one topic, each pair on its own.
    """
    bags = bags_of_dense(np.array(counts))
    sampler, priors = trained(bags, 2, 9, device, threads=1, priors=Priors(np.full(2, 0.5), 0.5))
    chain = [tokens_of(sampler, bags)[2]]
    for _ in range(2000):
        sweep(sampler, ALONE, priors, 1)
        chain.append(tokens_of(sampler, bags)[2])
    first, second = np.array(chain).T
    found = np.bincount(first[:-1] == second[1:], minlength=2)
    assert p_value(found, 2000 * np.array([1 - same, same]), 1) > 0.001
    assert np.mean(first == second) == pytest.approx(1 / 2, abs=0.05)
