"""The example of mixtures: its counts beside plain Python, and its jack-knife."""

import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).resolve().parents[1] / "examples" / "modlm"
NUM_WORDS, ORDER = 9, 3
BEGIN, END = 0, 1


@pytest.fixture
def example(monkeypatch):
    """Return the module of count distributions."""
    monkeypatch.syspath_prepend(FOLDER)
    import count_distributions

    return count_distributions


def sentences(number):
    rng = np.random.default_rng(number)
    return [rng.zipf(1.5, rng.integers(1, 9)) % (NUM_WORDS - 3) + 3 for _ in range(number)]


def counted(texts, n):
    marked = [(BEGIN, *map(int, text), END) for text in texts]
    return Counter(text[i : i + n] for text in marked for i in range(len(text) - n + 1))


def test_features_and_probabilities_are_those_of_plain_counts(example):
    texts = sentences(300)
    made = example.CountDistributions(texts, ORDER, NUM_WORDS)
    log_probs, features = made.of([np.array([3, 4, 3])])  # targets 3, 4, 3 and END
    assert log_probs.shape == (4, ORDER + 2) and features.shape == (4, 4 * ORDER)
    trigrams = {gram[2]: count for gram, count in counted(texts, 3).items() if gram[:2] == (3, 4)}
    of_counts = Counter(counted(texts, 3).values())
    discounts = [0, *example.discounts_of(np.array([of_counts[c] for c in range(1, 5)]))]
    total, mass = sum(trigrams.values()), sum(discounts[min(c, 3)] for c in trigrams.values())
    wanted = [0, *map(math.log, (total, len(trigrams), mass))]
    assert np.allclose(features[2, 8:], wanted, atol=1e-5)
    count = trigrams[END]  # after "3 4"
    end = made.of([np.array([3, 4])])[0][2, 2]
    assert math.isclose(end, math.log((count - discounts[min(count, 3)]) / (total - mass)), rel_tol=1e-5)
    assert features[0, 8:].tolist() == [1, 0, 0, 0] and log_probs[0, 2] == -math.inf  # one word before: no trigram


def test_each_distribution_sums_to_1(example):
    made = example.CountDistributions(sentences(300), ORDER, NUM_WORDS)
    rows = [made.of([np.array([3, 4, w][: 2 + (w != END)])])[0][2] for w in range(1, NUM_WORDS)]
    assert np.allclose(np.exp(np.array(rows, np.float64)).sum(0), 1, atol=1e-5)


@pytest.mark.parametrize(
    ("of_counts", "wanted"),
    [
        ((8, 4, 2, 1), (0.5, 1.25, 2.0)),  # y = 1/2
        ((8, 0, 2, 1), (0.5, 1, 1.5)),
        ((1, 1, 5, 1), (0.5, 1, 1.5)),  # 2 - 3 y t3 / t2 = -3
    ],
)
def test_discounts_by_hand(example, of_counts, wanted):
    assert example.discounts_of(np.array(of_counts)) == pytest.approx(wanted)


def test_a_sentence_has_the_counts_of_other_tenths(example):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    import train_modlm

    texts = sentences(25)
    data = train_modlm.jackknife(texts, 2, NUM_WORDS)
    start = sum(len(text) + 1 for text in texts[:13])
    others = [text for i, text in enumerate(texts) if i % 10 != 3]
    log_probs, features = example.CountDistributions(others, 2, NUM_WORDS).of([texts[13]])
    at = slice(start, start + len(texts[13]) + 1)
    assert torch.equal(data.targets_T[at], torch.tensor([*texts[13], END]))
    assert torch.equal(data.log_probs_TN[at], torch.from_numpy(log_probs))
    assert torch.equal(data.features_TF[at], torch.from_numpy(features))
    words, targets, *_ = data.steps(4, 5)[0]
    length = len(data.targets_T) // 4
    assert words.shape == (5, 4) and torch.equal(words[1:], targets[:-1])
    assert torch.equal(targets[:, 1], data.targets_T[length : length + 5])
