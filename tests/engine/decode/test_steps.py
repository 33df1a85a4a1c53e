"""Cells and steps: beside the plain program of the equations, and beside plain loops for what it lacks."""

import numpy as np
import pytest

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.nmt.files import load_nmt_model
from mgpu_ngram.engine.decode.batch import Batching, decode
from mgpu_ngram.engine.decode.nmt_cells import run
from mgpu_ngram.engine.decode.nmt_steps import NmtSteps
from mgpu_ngram.engine.decode.nmt_weights import ready
from mgpu_ngram.engine.decode.search_options import SearchOptions
from mgpu_ngram.engine.decode.sentence_encoder import SentenceEncoder
from mgpu_ngram.engine.decode.state_trees import join_rows, rows_of_tree

SENTENCES = [np.array(ids) for ids in ([2, 3, 0], [4, 5, 6, 7, 8, 2, 3, 4, 0], [5, 0], [0], [3, 3, 3, 3, 0])]


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def log_probs(scores):
    """Return the logarithms of the probabilities of a step's words."""
    x = scores.logits_RV.astype(float) + scores.bias_V
    return x - np.log(np.exp(x).sum(axis=1, keepdims=True))


def walk(model, sentences, words, reorder=None):
    """Return the scores and attentions of forced words, (steps, rows, ...)."""
    steps = NmtSteps(model)
    state, found = steps.start(None, sentences, range(len(sentences))), []
    before = np.full(len(sentences), model.start)
    for word in words:
        state, scores = steps.step(state, before)
        found.append((log_probs(scores), scores.attention_RT))
        before = np.full(len(sentences), word)
    return found


@pytest.mark.parametrize("kind", [{}, {"norm": "marian"}, {"norm": "nematus"}, {"cell": "mlstm"}, {"tied": "target"}])
def test_steps_are_those_of_the_plain_program(oracle, random_tensors, save_model, kind):
    if kind.get("cell"):  # the plain program has an LSTM before a GRU
        tensors = random_tensors(**kind)
        second = random_tensors(seed=1)
        tensors |= {n: a for n, a in second.items() if n.endswith("_nl") or n in ("decoder_Wc", "decoder_Wcx")}
    else:
        tensors = random_tensors(**kind)
    path = save_model(tensors)
    words = [3, 6, 2, 5]
    found = walk(load_nmt_model(path), SENTENCES, [*words, 0])
    plain = oracle.Model(path)
    for b, sentence in enumerate(SENTENCES):
        state = plain.encode(sentence)
        for t, word in enumerate([*words, 0]):
            hidden, memory, attention, log_probs = plain.step(state)
            np.testing.assert_allclose(found[t][0][b], log_probs[0], rtol=1e-5, atol=1e-5)
            np.testing.assert_allclose(found[t][1][b, : len(sentence)], attention[0], rtol=0, atol=1e-5)
            assert not found[t][1][b, len(sentence) :].any()
            state = hidden, memory, plain.Edec[[word]]


def transition(t, h, prefix, end, inside, norm):
    """A GRU without an input, as the equations state it, with Nematus' norm if any."""
    U, Ux, b, bx = (t[f"{prefix}{name}{end}"] for name in ("U", "Ux", "b", "bx"))

    def normed(x, name):
        if not norm:
            return x
        deviation = np.sqrt(((x - x.mean()) ** 2).mean() + 1e-5)
        return (x - x.mean()) / deviation * t[f"{prefix}{name}{end}_lns"] + t[f"{prefix}{name}{end}_lnb"]

    H = len(bx)
    gates = normed(h @ U + b, "U") if inside else normed(h @ U, "U") + b
    state = normed(h @ Ux + bx, "Ux") if inside else normed(h @ Ux, "Ux")
    r, u = sigmoid(gates[:H]), sigmoid(gates[H:])
    proposal = np.tanh(r * state if inside else bx + r * state)
    return (1 - u) * proposal + u * h


@pytest.mark.parametrize("norm", ["", "nematus"])
def test_transitions(oracle, random_tensors, save_model, norm):
    """The plain program with its cells followed by transitions in plain loops."""
    tensors = random_tensors(transitions=2, norm=norm)
    path = save_model(tensors)
    found = walk(load_nmt_model(path), SENTENCES, [3, 5])
    plain = oracle.Model(path)
    cell = plain.gru

    def deeper(prefix, x, h, nl="", g=""):
        new = cell(prefix, x, h, nl, g)
        if prefix == "decoder_" and not nl:
            return new
        for i in (1, 2):
            new = np.stack([transition(tensors, row, prefix, f"{nl}_drt_{i}", bool(nl), norm) for row in new])
        return new

    plain.gru = deeper
    for b, sentence in enumerate(SENTENCES):
        state = plain.encode(sentence)
        for t, word in enumerate([3, 5]):
            hidden, memory, _, log_probs = plain.step(state)
            np.testing.assert_allclose(found[t][0][b], log_probs[0], rtol=1e-5, atol=1e-5)
            state = hidden, memory, plain.Edec[[word]]


@pytest.mark.parametrize("cell", ["lstm", "mlstm"])
def test_an_lstm_by_hand(random_model, cell):
    """The first state of the forward encoder, in plain NumPy, gates f, i, o and proposal."""
    model = random_model(cell=cell)
    (layer,) = model.forward
    x, h, c = (np.random.default_rng(i).normal(size=(1, n)).astype(np.float32) for i, n in ((1, 5), (2, 4), (3, 4)))
    m = h
    if cell == "mlstm":
        m = (h @ layer.mix_state.weight_XY + layer.mix_state.bias_Y) * (
            x @ layer.mix_input.weight_XY + layer.mix_input.bias_Y
        )
    sums = x @ layer.input.weight_XY + layer.input.bias_Y + m @ layer.state.weight_XY
    f, i, o = (sigmoid(sums[:, k * 4 : k * 4 + 4]) for k in range(3))
    memory = f * c + i * np.tanh(sums[:, 12:])
    new_h, new_c = run(ready(model).forward, x, h, c)
    np.testing.assert_allclose(new_c, memory, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(new_h, o * np.tanh(memory), rtol=1e-5, atol=1e-6)


def test_factors_are_joined_embeddings(random_tensors, save_model):
    """A model with a factor equals one whose embeddings are the joined ones."""
    tensors = random_tensors(factors=(2,))
    model = load_nmt_model(save_model(tensors, "a"))
    assert [e.shape for e in model.source_embeddings] == [(9, 3), (4, 2)]
    sentences = [np.array([[3, 1], [5, 2], [0, 0]]), np.array([[8, 3], [0, 0]])]
    pairs = np.array([[0, 0], [3, 1], [5, 2], [8, 3]])
    joined = np.concatenate([tensors["Wemb"][pairs[:, 0]], tensors["Wemb1"][pairs[:, 1]]], axis=1)
    plain = {n: a for n, a in tensors.items() if n != "Wemb1"} | {"Wemb": joined}
    expected = walk(load_nmt_model(save_model(plain, "b")), [np.array([1, 2, 0]), np.array([3, 0])], [2, 3])
    for (a, _), (b, _) in zip(walk(model, sentences, [2, 3]), expected, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("kind", [{}, {"norm": "marian"}, {"norm": "nematus", "transitions": 1}, {"cell": "mlstm"}])
def test_a_batch_gives_each_sentence_its_own_scores(random_model, kind):
    model = random_model(**kind)
    together = walk(model, SENTENCES, [2, 3, 4])
    for b, sentence in enumerate(SENTENCES):
        for (scores, _), (alone, _) in zip(together, walk(model, [sentence], [2, 3, 4]), strict=True):
            np.testing.assert_array_equal(scores[b], alone[0])


@pytest.mark.parametrize("kind", [{}, {"norm": "nematus", "transitions": 1}, {"cell": "mlstm"}])
def test_tables_of_products_change_no_bit(random_model, kind):
    model = random_model(**kind)
    tables, none = ready(model), ready(model, table_bytes=0)
    assert none.word_inputs is None and not none.source_inputs
    assert (tables.word_inputs is None) == (tables.source_inputs == ()) == ("cell" in kind)
    for (a, _), (b, _) in zip(walk(tables, SENTENCES, [2, 3]), walk(none, SENTENCES, [2, 3]), strict=True):
        np.testing.assert_array_equal(a, b)


def test_sentences_enter_and_leave_the_pool(random_model):
    model = random_model()
    steps = NmtSteps(model)
    state = steps.start(None, SENTENCES[:2], [0, 1])
    state, _ = steps.step(state, np.array([-1, -1]))
    state = steps.start(rows_of_tree(state, np.array([1, 1])), SENTENCES[2:3], [1, 0])  # the first sentence leaves
    assert state["slot"].tolist() == [1, 1, 0]
    _, scores = steps.step(state, np.array([3, 3, -1]))
    expected = walk(model, SENTENCES[1:2], [3, 0])[1][0][0]
    np.testing.assert_allclose(log_probs(scores)[:2], [expected, expected], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(log_probs(scores)[2], walk(model, SENTENCES[2:3], [0])[0][0][0], rtol=1e-5, atol=1e-5)


def test_sentences_keep_their_slots_while_the_pool_changes(random_model):
    """More slots, longer sentences, far shorter ones, and none that goes on; rows are those of each sentence alone."""
    model = random_model()
    steps, rng = NmtSteps(model), np.random.default_rng(3)
    state, searched, rooms = None, {}, []
    for kept, new in [
        ((), {0: 3, 1: 4}),
        ((0, 1), {7: 4}),
        ((1, 7), {0: 40, 2: 1}),
        ((2, 7), {1: 2, 0: 3}),
        ((), {0: 1, 1: 2}),
    ]:
        rows = [list(searched).index(slot) for slot in kept]
        sources = [np.append(rng.integers(2, 9, n), 0) for n in new.values()]
        searched = {slot: searched[slot] for slot in kept} | dict(zip(new, sources, strict=True))
        state = steps.start(rows_of_tree(state, np.array(rows)) if kept else None, sources, list(searched))
        assert state["slot"].tolist() == list(searched)
        rooms.append(steps._pool.context_STC.shape[:2])
        for slot, sentence, weights_T in zip(
            searched, searched.values(), steps.step(state, np.full(len(searched), -1))[1].attention_RT, strict=True
        ):
            alone = NmtSteps(model)
            alone_state = alone.start(None, [sentence], [0])
            alone_state["hidden"] = state["hidden"][list(searched).index(slot)][None]
            expected = alone.step(alone_state, np.array([-1]))[1].attention_RT[0]
            np.testing.assert_array_equal(weights_T[: len(sentence)], expected)
            assert not weights_T[len(sentence) :].any()
    assert rooms == [(2, 5), (8, 5), (8, 41), (8, 5), (2, 3)]


def test_ids_outside_the_embeddings_are_refused(random_model):
    with pytest.raises(InputError, match="has id 9 but the embeddings of .* have 9 rows"):
        NmtSteps(random_model()).start(None, [np.array([9, 0])], [0])


def test_states_are_any_tree():
    state = {"a": np.arange(3), "b": (np.zeros((3, 2)), [np.arange(3) * 2, None])}
    taken = rows_of_tree(state, np.array([2, 0, 2]))
    assert taken["a"].tolist() == [2, 0, 2] and taken["b"][1][0].tolist() == [4, 0, 4] and taken["b"][1][1] is None
    assert join_rows(None, state) is state and join_rows(state, taken)["a"].tolist() == [0, 1, 2, 2, 0, 2]


@pytest.mark.parametrize("kind", [{}, {"norm": "marian"}])
def test_results_have_the_same_bits_in_any_batch(random_model, kind, placed):
    model, options = placed(random_model(**kind)), SearchOptions(beam_size=3, n_best=3)

    def found(sentences, *batching):
        return [[(h.words, h.cost) for h in best] for best in decode([model], sentences, options, Batching(*batching))]

    sentences = SENTENCES * 5
    expected = found(sentences, 1)
    for batching in ((64,), (7, 0, 0, "drain"), (4, 0, 0, "naive"), (3, 0, 5)):
        assert found(sentences, *batching) == expected
    assert found(sentences[::-1], 8)[::-1] == expected


def test_only_sentences_that_were_begun_are_taken(random_model):
    encoder = SentenceEncoder(ready(random_model()), in_graphs=False)
    first, second = [np.array([2, 3, 0])], [np.array([4, 5, 0])]
    expected = [encoder.take(sources).hidden_BH for sources in (first, second)]
    encoder.begin(first)
    np.testing.assert_array_equal(encoder.take(second).hidden_BH, expected[1])
    assert not np.array_equal(*expected)


def test_sentences_are_encoded_once_and_taken_some_at_a_time(random_model, monkeypatch):
    encoder, encoded = SentenceEncoder(ready(random_model()), in_graphs=False), []
    expected = [encoder.take([sentence]) for sentence in SENTENCES]
    arrays = encoder._arrays
    monkeypatch.setattr(encoder, "_arrays", lambda sources: (encoded.append(len(sources)), arrays(sources))[1])
    encoder.begin(SENTENCES)
    found = [encoder.take(SENTENCES[first:end]) for first, end in ((0, 2), (2, 3), (3, 5))]
    assert encoded == [5]
    assert [part.sentences.context_STC.shape[:2] for part in found] == [(2, 9), (1, 2), (2, 5)]
    b = 0
    for part in found:
        for i, length in enumerate(part.sentences.length_S):
            assert length == len(SENTENCES[b])
            np.testing.assert_array_equal(part.hidden_BH[i], expected[b].hidden_BH[0])
            for array, alone in zip(part.sentences[:2], expected[b].sentences[:2], strict=True):
                np.testing.assert_array_equal(array[i, :length], alone[0])
            b += 1


@pytest.mark.gpu
def test_graphs_encode_the_same_bits(random_model):
    """Sizes come again, so that graphs are made, used and forgotten; they are rounded up."""
    import cupy

    model = ready(random_model().map_arrays(cupy.asarray))
    plain, in_graphs = SentenceEncoder(model, in_graphs=False), SentenceEncoder(model, in_graphs=True)
    rng = np.random.default_rng(7)
    for size, longest in [(5, 7), (5, 7), (5, 7), (33, 60), (5, 7), (33, 59), (34, 60), (1, 20), (5, 7)]:
        sources = [np.append(rng.integers(2, 9, n), 0) for n in (longest, *rng.integers(1, longest, size - 1))]
        in_graphs.begin(sources)
        found = in_graphs.take(sources)
        expected = plain.take(sources)
        np.testing.assert_array_equal(found.hidden_BH.get(), expected.hidden_BH.get())
        np.testing.assert_array_equal(found.sentences.length_S.get(), [len(source) for source in sources])
        for array, other in zip(found.sentences[:2], expected.sentences[:2], strict=True):
            assert array.shape == other.shape
            for b, source in enumerate(sources):
                np.testing.assert_array_equal(array[b, : len(source)].get(), other[b, : len(source)].get())
        in_graphs.release()
        plain.release()
