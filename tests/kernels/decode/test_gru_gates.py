"""Gates beside a value worked by hand and the equation in float64."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mgpu_ngram.kernels.decode.activations import singles, stored
from mgpu_ngram.kernels.decode.gru_gates import gru_gates
from mgpu_ngram.kernels.dispatch import to_host

LOG_3 = np.float32(np.log(3))


def test_a_state_by_hand(to_device):
    """Reset gate 3/4, update gate 1/4, proposal tanh(1 + 3/4 * 2) = tanh(2.5)."""
    inputs, states = to_device(np.array([[LOG_3, 0, 1]])), to_device(np.array([[0, -LOG_3, 2]], np.float32))
    inputs = inputs.astype(np.float32)
    found = to_host(gru_gates(inputs, states, to_device(np.array([[-1]], np.float32))))
    assert found == pytest.approx(0.75 * np.tanh(2.5) - 0.25, abs=1e-6)


def plain(inputs_R3H, states_R3H, h_RH):
    H = h_RH.shape[1]
    x, s, h = (a.astype(np.float64) for a in (inputs_R3H, states_R3H, h_RH))
    r, u = (1 / (1 + np.exp(-(x + s)[:, k * H : k * H + H])) for k in (0, 1))
    return (1 - u) * np.tanh(x[:, 2 * H :] + r * s[:, 2 * H :]) + u * h


@given(st.integers(0, 2**32 - 1), st.integers(0, 9), st.integers(1, 70), st.sampled_from(["all", "one", "table"]))
def test_states_of_the_equation(seed, R, H, kind):
    rng = np.random.default_rng(seed)
    N = {"all": R, "one": 1, "table": 3}[kind]
    inputs, states, h = (rng.normal(size=s).astype(np.float32) * 3 for s in ((N, 3 * H), (R, 3 * H), (R, H)))
    row = rng.integers(0, 3, R) if kind == "table" else None
    live = rng.random(R) < 0.5
    found = gru_gates(inputs, states, h, row, live)
    each = inputs[row] if row is not None else np.broadcast_to(inputs, (R, 3 * H))
    np.testing.assert_allclose(found[live], plain(each, states, h)[live], rtol=0, atol=4e-6)
    np.testing.assert_array_equal(found[~live], h[~live])
    for r in range(R):  # alone, a row has the same bits
        alone = gru_gates(each[r : r + 1], states[r : r + 1], h[r : r + 1], live_R=live[r : r + 1])
        np.testing.assert_array_equal(alone[0], found[r])


@pytest.mark.parametrize(("dtype", "step"), [(np.float16, 2**-11), (np.uint16, 2**-8)])
def test_half_precision_is_rounded_once(dtype, step, to_device):
    rng = np.random.default_rng(1)
    arrays = [stored(rng.normal(size=s).astype(np.float32), np.dtype(dtype)) for s in ((4, 9), (4, 9), (4, 3))]
    found = singles(to_host(gru_gates(*map(to_device, arrays))))
    np.testing.assert_allclose(found, plain(*map(singles, arrays)), rtol=step + 1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.uint16])
def test_a_result_in_a_given_array(dtype, to_device):
    rng = np.random.default_rng(1)
    x, s, h = (
        to_device(stored(rng.normal(size=n).astype(np.float32), np.dtype(dtype))) for n in ((4, 9), (4, 9), (4, 3))
    )
    out = h * 0
    assert gru_gates(x, s, h, out_RH=out) is out
    np.testing.assert_array_equal(to_host(out), to_host(gru_gates(x, s, h)))


def test_shapes_are_checked():
    x, h = np.zeros((2, 6), np.float32), np.zeros((2, 2), np.float32)
    with pytest.raises(ValueError, match=r"states_RG has shape \(2, 5\) but .* \(2, 6\)"):
        gru_gates(x, x[:, :5], h)
    with pytest.raises(ValueError, match=r"inputs_NG has shape \(3, 6\) but .* \(2, 6\)"):
        gru_gates(np.zeros((3, 6), np.float32), x, h)
    with pytest.raises(ValueError, match=r"live_R has shape \(3,\)"):
        gru_gates(x, x, h, live_R=np.ones(3, bool))
    with pytest.raises(ValueError, match=r"out_RH has shape \(1, 2\)"):
        gru_gates(x, x, h, out_RH=h[:1])
    with pytest.raises(TypeError, match="expected float16 but got float32"):
        gru_gates(x, x, h.astype(np.float16))
