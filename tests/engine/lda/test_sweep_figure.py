"""The picture of perplexity over sweeps."""

import sys

import pytest

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.engine.lda import sweep_figure
from mgpu_ngram.engine.lda.sweep_figure import draw_sweeps

HISTORY = [
    {"sweep": 10, "perplexity": 2000.0, "plugin": -7.6, "joint": -8.9, "tokens_per_second": 1e6},
    {"sweep": 20, "perplexity": 1500.0, "plugin": -7.3, "joint": None, "held_out_perplexity": 1800.0},
]


def size_of(png):
    """(width, height) of a PNG, from its first chunk."""
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    return int.from_bytes(png[16:20]), int.from_bytes(png[20:24])


def test_curves_by_hand():
    curves = sweep_figure._curves(HISTORY, sweep_figure.PANELS["perplexity"])
    assert curves == {"training": ([10, 20], [2000.0, 1500.0]), "held out": ([20], [1800.0])}
    curves = sweep_figure._curves(HISTORY, sweep_figure.PANELS["log-likelihood per token"])
    assert curves == {"plug-in": ([10, 20], [-7.6, -7.3]), "joint with topics": ([10], [-8.9])}


def test_a_panel_for_each_kind_of_metric(tmp_path):
    pytest.importorskip("matplotlib")
    draw_sweeps(HISTORY, tmp_path / "both.png", "KOS, 256 topics")
    draw_sweeps([{"sweep": 1, "plugin": -7.6}], tmp_path / "one.png")
    width, height = size_of((tmp_path / "both.png").read_bytes())
    one_width, one_height = size_of((tmp_path / "one.png").read_bytes())
    assert width > 1.8 * one_width > 900 and abs(height - one_height) < 60
    assert sorted(path.name for path in tmp_path.iterdir()) == ["both.png", "one.png"]


@pytest.mark.parametrize("history", [[], [{"sweep": 1}], [{"sweep": 1, "perplexity": None}]])
def test_no_metric(history, tmp_path):
    with pytest.raises(InputError, match="no metrics to draw; measure one of perplexity"):
        draw_sweeps(history, tmp_path / "a.png")
    assert not list(tmp_path.iterdir())


def test_without_matplotlib(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(InputError, match="needs Matplotlib"):
        draw_sweeps(HISTORY, tmp_path / "a.png")
