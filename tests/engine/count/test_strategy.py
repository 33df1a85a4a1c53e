"""The strategy that counts an order, and the stated reason."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mgpu_ngram.core.counts.shards import sort_bytes_per_token
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.engine.count.strategy import (
    MEMORY_SHARE,
    RATES_NS,
    STRATEGIES,
    TextFacts,
    choose,
    dense_bytes,
    hash_bytes_per_token,
)

GIB = 1 << 30


def plans(
    order=3, symbols=50, tokens=10**6, strategy="auto", histograms=1, device="cpu", memory_bytes=GIB, unit="word"
):
    return choose(order, TextFacts(unit, symbols, tokens), strategy, histograms, device, memory_bytes)


def test_bytes_by_hand():
    assert dense_bytes(2, 256) == 65536 * 4
    assert dense_bytes(1, 10, histograms=3) == 120
    # order 5 of 19 bits: keys of two columns, twice; tables of 1, 1, 1, 2, 2 columns plus counts; 2 bytes of slack
    assert sort_bytes_per_token(5, 19) == 2 * 2 * 8 + (1 + 1 + 1 + 2 + 2) * 8 + 5 * 8 + 2
    assert hash_bytes_per_token(3, 25) == 96 + 3 * 8 * 3


@pytest.mark.parametrize("strategy", [s for s in STRATEGIES if s != "auto"])
def test_a_requested_strategy_is_used(strategy):
    found = plans(strategy=strategy)
    assert [(p.order, p.strategy, p.reason) for p in found] == [(n, strategy, "asked for") for n in (1, 2, 3)]
    assert all(p.device_bytes > 0 for p in found)


def test_strategies_match_the_command_line():
    assert set(STRATEGIES) == {"auto", "global", "private", "sort", "hash"}


def test_memory_of_each_strategy():
    assert [p.device_bytes for p in plans(strategy="global")] == [4 * 50**n for n in (1, 2, 3)]
    assert [p.device_bytes for p in plans(strategy="private", histograms=7)] == [28 * 50**n for n in (1, 2, 3)]
    assert {p.device_bytes for p in plans(strategy="sort")} == {sort_bytes_per_token(3, 6) * 10**6}
    assert [p.device_bytes for p in plans(strategy="hash")] == [hash_bytes_per_token(n, 6) * 10**6 for n in (1, 2, 3)]


def test_dense_beyond_memory_is_refused_with_numbers_and_a_way_out():
    with pytest.raises(InputError) as error:
        plans(order=2, symbols=30_000, strategy="global")
    assert str(error.value) == (
        "strategy global at order 2 needs 3,600,000,000 bytes (30,000**2 bins of 4 bytes) but "
        f"{int(GIB * MEMORY_SHARE):,} are free on the cpu; use strategy sort, hash or auto"
    )
    with pytest.raises(InputError, match=r"strategy private at order 2 .*bytes, 9 histograms\).*free on the gpu"):
        plans(order=2, symbols=6_000, strategy="private", histograms=9, device="gpu")
    plans(order=2, symbols=6_000, strategy="private", histograms=1, device="gpu")


def test_dense_fits_up_to_the_last_byte():
    need = dense_bytes(2, 1000)
    assert int(5_000_000 * MEMORY_SHARE) == need
    plans(order=2, symbols=1000, strategy="global", memory_bytes=5_000_000)
    with pytest.raises(InputError):
        plans(order=2, symbols=1000, strategy="global", memory_bytes=4_999_990)


def test_auto_uses_the_cheaper_strategy_and_states_why():
    few, many = plans(order=2, symbols=100, tokens=10**8), plans(order=2, symbols=9_000, tokens=1000)
    assert few[1].strategy == "global" and "100**2 bins fit" in few[1].reason
    assert many[1].strategy == "sort" and "sorted once for all orders" in many[1].reason
    large = plans(order=2, symbols=10**6, tokens=10**9)
    assert large[1].strategy == "sort"
    assert f"1,000,000**2 bins do not fit in {int(GIB * MEMORY_SHARE):,} bytes" in large[1].reason
    assert plans(order=1)[0].reason == "counted while the vocabulary is built"


def test_auto_on_a_gpu_uses_private_histograms():
    found = plans(order=3, symbols=60, tokens=10**9, device="gpu", memory_bytes=100 * GIB, unit="byte")
    assert [p.strategy for p in found[1:]] == ["private", "private"]


def test_an_estimated_vocabulary_is_called_a_guess():
    found = choose(2, TextFacts("word", 100, 10**8, symbols_are_known=False), "auto", 1, "cpu", GIB)
    assert found[1].strategy == "sort" and "about 100**2 bins" in found[1].reason


WORLDS = st.fixed_dictionaries(
    {
        "order": st.integers(1, 8),
        "symbols": st.integers(1, 10**6),
        "tokens": st.integers(0, 10**11),
        "histograms": st.integers(1, 64),
        "device": st.sampled_from(sorted(RATES_NS)),
        "memory_bytes": st.integers(1, 200 * GIB),
        "unit": st.sampled_from(["word", "byte", "id"]),
    }
)


@given(WORLDS)
def test_auto_never_plans_a_histogram_beyond_the_budget(world):
    for plan in plans(strategy="auto", **world)[1:]:
        assert plan.strategy in ("sort", "global", "private")
        if plan.strategy != "sort":
            copies = world["histograms"] if plan.strategy == "private" else 1  # bytes that the engine will allocate
            need = 4 * world["symbols"] ** plan.order * copies
            assert plan.device_bytes == need <= world["memory_bytes"] * MEMORY_SHARE


@given(WORLDS, st.sampled_from(STRATEGIES))
def test_every_order_has_a_plan_or_the_run_is_refused(world, strategy):
    try:
        found = plans(strategy=strategy, **world)
    except InputError as error:
        assert strategy in ("global", "private") and f"strategy {strategy} at order" in str(error)
    else:
        assert [p.order for p in found] == list(range(1, world["order"] + 1))
