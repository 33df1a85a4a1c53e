"""advance_beams: by hand, and against a search of each sentence alone in plain Python."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mgpu_ngram.kernels.decode.advance_beams import Beams, Ending, Live, advance_beams
from mgpu_ngram.kernels.decode.best_of_beams import Chosen
from mgpu_ngram.kernels.dispatch import to_host

EOS = 0


def make_beams(N, L, K, B, longest, most, sizes, to_device):
    arrays = (
        np.full((N, L, K), 9, np.int32), np.full((N, L, K), 9, np.int16), np.full((N, L, K), 9, np.float32),
        np.zeros(N, np.int32), np.array(longest, np.int32), np.array(most, np.int32), np.array(sizes, np.int32),
        np.full((N, B), -np.inf),
    )  # fmt: skip
    return Beams(*map(to_device, arrays))


def first_live(slots, sizes, to_device):
    S = len(slots)
    arrays = np.array(slots, np.int32), np.arange(S + 1), np.array(sizes, np.int32), np.zeros(S, np.int16)
    return Live(*map(to_device, arrays))


def step(lists, live, beams, ending, to_device):
    """Advance by lists of (row, word, score), one for each sentence. Return (sentences, rows, done, counts)."""
    K = beams.words_NLK.shape[2]
    S = len(live.slots_S)
    chosen = np.full((S, K), -1, np.int32), np.full((S, K), -1, np.int32), np.full((S, K), -np.inf, np.float32)
    for s, entries in enumerate(lists):
        for k, values in enumerate(entries):
            for array, value in zip(chosen, values, strict=True):
                array[s, k] = value
    live, rows, done_S, counts_4 = advance_beams(Chosen(*map(to_device, chosen)), live, beams, ending)
    return live, rows, [n for n in to_host(done_S).tolist() if n >= 0], to_host(counts_4).tolist()


def values(array):
    return to_host(array).tolist()


def test_by_hand(to_device):
    """Slot 2 keeps two of three hypotheses, slot 0 is done, slot 1 goes on with one; then slot 2 reaches its length."""
    beams = make_beams(3, 3, 3, 1, [1, 2, 2], [1, 3, 3], [2, 1, 3], to_device)
    ending = Ending(EOS, "amun", 0.5, to_device(np.array([0.0, 1.0, 2.0, 4.0])))
    live = first_live([2, 0, 1], [3, 2, 1], to_device)
    lists = [(0, 5, -1), (0, 0, -2), (0, 6, -3)], [(1, 7, -1), (1, 8, -1)], [(2, 4, -9)]
    live, rows, done, counts = step(lists, live, beams, ending, to_device)
    assert done == [0] and counts == [2, 3, 3, 1]
    assert values(live.slots_S) == [2, 1, -1] and values(live.starts_S1) == [0, 2, 3, 3]
    assert values(live.sizes_S) == [2, 1, 0] and values(beams.sizes_N) == [2, 1, 2]
    assert values(rows.parents_R) == [0, 0, 2] + [0] * 6 and values(rows.words_R) == [5, 6, 4] + [0] * 6
    assert values(rows.costs_R) == [-1, -3, -9] + [0] * 6 and values(live.places_R) == [0, 2, 0] + [0] * 6
    assert values(beams.words_NLK[:, 0]) == [[7, 8, -1], [4, -1, -1], [5, 0, 6]]
    # (-2 - 0.5 * 1) / 1; slot 0 has two finished ones of cost -1, of its greatest length; slot 1 has none
    assert values(beams.finished_NB) == [[-1.5], [-np.inf], [-2.5]]

    lists = [(1, 3, -3.5), (0, 0, -4)], [(2, 5, -10)], []
    live, rows, done, counts = step(lists, live, beams, ending, to_device)
    assert done == [] and counts == [2, 2, 2, 0]
    assert values(rows.parents_R)[:2] == [1, 2] and values(live.starts_S1) == [0, 1, 2, 2]
    assert values(beams.before_NLK[2, 1]) == [2, 0, 0] and values(beams.words_NLK[2, 1]) == [3, 0, -1]
    assert values(beams.finished_NB[2]) == [-2.25]  # (-3.5 - 0.5 * 2) / 2 and (-4 - 1) / 2: the best is kept
    live, rows, done, counts = step([[(0, 0, -5)], [(1, 5, -11)], []], live, beams, ending, to_device)
    assert done == [2, 1] and counts == [0, 0, 0, 2] and values(live.slots_S) == [-1] * 3


def test_nan_ends_a_sentence(to_device):
    beams = make_beams(2, 4, 2, 1, [4, 4], [4, 4], [2, 2], to_device)
    ending = Ending(EOS, "amun", 0.0, to_device(np.ones(5)))
    lists = [(-1, -1, np.nan), (-1, -1, np.nan)], [(1, 3, -1)]
    live, _, done, _ = step(lists, first_live([0, 1], [2, 2], to_device), beams, ending, to_device)
    assert done == [0] and values(live.slots_S) == [1, -1]
    assert np.isnan(to_host(beams.costs_NLK)[0, 0]).all() and values(beams.steps_N) == [1, 1]


@pytest.mark.parametrize(("rule", "done"), [("amun", []), ("first", [0]), ("bound", [0])])
def test_rules(rule, done, to_device):
    """The finished one, -1, cannot be reached by -4.5 / 4."""
    beams = make_beams(1, 4, 2, 1, [4], [4], [2], to_device)
    ending = Ending(EOS, rule, 0.0, to_device(np.arange(5.0)))
    assert step([[(0, 0, -1), (0, 3, -4.5)]], first_live([0], [2], to_device), beams, ending, to_device)[2] == done


def test_bound_by_a_word_penalty(to_device):
    """A penalty of -1 adds 1 for each word: the finished one has -1 + 1, the other one at most its cost + 4."""
    for cost, done in (-4.5, [0]), (-3.5, []):
        beams = make_beams(1, 4, 2, 1, [4], [4], [2], to_device)
        ending = Ending(EOS, "bound", -1.0, to_device(np.ones(5)))
        live = first_live([0], [2], to_device)
        assert step([[(0, 0, -1), (0, 3, cost)]], live, beams, ending, to_device)[2] == done


@pytest.mark.parametrize(
    ("finished", "penalty", "cost", "done"),
    [
        (-1, 0.0, -4.1, [0]), (-1, 0.0, -3.9, []),  # below 0, the greatest score is that of four words: -3.9 / 4
        (-0.5, -1.0, -3.1, [0]), (-0.5, -1.0, -2.9, []),  # above 0, that of two words: (-2.9 + 4) / 2, beside 0.5 / 1
    ],
)  # fmt: skip
def test_bound_by_the_length(finished, penalty, cost, done, to_device):
    """The score is divided by the number of words, of which the other one will have two to four."""
    beams = make_beams(1, 4, 2, 1, [4], [4], [2], to_device)
    ending = Ending(EOS, "bound", penalty, to_device(np.arange(5.0)))
    live = first_live([0], [2], to_device)
    assert step([[(0, 0, finished), (0, 3, cost)]], live, beams, ending, to_device)[2] == done


def test_wrong_arguments(to_device):
    beams = make_beams(1, 4, 2, 1, [4], [4], [2], to_device)
    live = first_live([0], [2], to_device)
    with pytest.raises(ValueError, match=r"5 entries"):
        step([[]], live, beams, Ending(EOS, "amun", 0.0, to_device(np.ones(4))), to_device)


class Alone:
    """A search of one sentence, by the rules of the facts: lists of hypotheses, each with its words and cost."""

    def __init__(self, size, longest, most):
        self.size, self.longest, self.most = size, longest, most
        self.live, self.finished, self.steps = [((), 0.0)], [], 0

    def advance(self, entries, ending):
        """Extend by (hypothesis, word, cost), best first. Return whether the sentence is done."""
        self.steps += 1
        live = []
        for h, word, cost in entries:
            words = (*self.live[h][0], word)
            if word == ending.eos or self.steps == self.longest:
                score = (cost - ending.word_penalty * self.steps) / ending.lengths_L1[self.steps]
                self.finished.append((score, words))
            if word != ending.eos and self.steps <= self.longest:
                live.append((words, cost))
            else:
                self.size -= 1
        self.live = live
        return not live or self.steps >= self.most or (ending.rule == "first" and bool(self.finished))


def followed_back(going, live, beams):
    """Return the words of all rows."""
    starts, places = values(live.starts_S1), values(live.places_R)
    found = []
    for s, n in enumerate(going):
        for k in places[starts[s] : starts[s + 1]]:
            words = []
            for step in range(int(beams.steps_N[n]) - 1, -1, -1):
                words.append(int(beams.words_NLK[n, step, k]))
                k = int(beams.before_NLK[n, step, k])
            found.append(tuple(words[::-1]))
    return found


@given(st.data(), st.integers(1, 9), st.integers(1, 8), st.sampled_from(["amun", "first"]))
def test_many_sentences_are_searched_as_each_alone(to_device, data, S, K, rule):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    L, N = 6, S + 2
    longest, most = rng.integers(1, L, N), np.zeros(N, int)
    most = np.minimum(L, longest + rng.integers(0, 2, N))
    sizes = rng.integers(1, K + 1, N)
    beams = make_beams(N, L, K, 2, longest, most, sizes, to_device)
    lengths_L1 = np.arange(L + 1) ** 0.5
    ending = Ending(EOS, rule, 0.25, lengths_L1)
    on_device = ending._replace(lengths_L1=to_device(lengths_L1))
    slots = rng.permutation(N)[:S].tolist()
    alone = {n: Alone(int(sizes[n]), int(longest[n]), int(most[n])) for n in slots}
    live = first_live(slots, sizes[slots], to_device)
    for _ in range(L):
        before = [n for n in values(live.slots_S) if n >= 0]
        starts = values(live.starts_S1)
        lists, done = [], []
        for s, n in enumerate(before):
            one = alone[n]
            count = int(rng.integers(0, one.size + 1))
            costs = -np.sort(rng.integers(0, 40, count) / 4)
            entries = [(int(rng.integers(len(one.live))), int(rng.integers(0, 3)), float(c)) for c in costs]
            lists.append([(starts[s] + h, word, cost) for h, word, cost in entries])
            if one.advance(entries, ending):
                done.append(n)
        live, rows, found, counts = step(lists + [[]] * (S - len(before)), live, beams, on_device, to_device)
        going = [n for n in before if n not in done]
        assert found == done and [n for n in values(live.slots_S) if n >= 0] == going
        costs = [cost for n in going for _, cost in alone[n].live]
        assert values(rows.costs_R)[: len(costs)] == costs
        words = [words for n in going for words, _ in alone[n].live]
        assert values(rows.words_R)[: len(words)] == [w[-1] for w in words]
        assert followed_back(going, live, beams) == words
        assert counts == [len(going), len(costs), sum(alone[n].size for n in going), len(done)]
        assert np.diff(values(live.starts_S1)).tolist()[: len(going)] == [len(alone[n].live) for n in going]
        for n in before:
            best = sorted((score for score, _ in alone[n].finished), reverse=True)[:2]
            assert values(beams.finished_NB[n])[: len(best)] == best
