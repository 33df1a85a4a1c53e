"""The bars of a terminal."""

import io

from rich.console import Console

from mgpu_ngram.stages.report import _rich_bars


def test_80_columns_show_the_rate_with_its_unit():
    """100 M tokens in 10 s. One update tells no speed, so the time left is unknown."""
    bars, now, out = _rich_bars(), [0.0], io.StringIO()
    bars.get_time = lambda: now[0]
    task = bars.add_task("sweep", total=120, unit="perplexity 1,907.5", rate="tokens", amount=0)
    now[0] = 10.0
    bars.update(task, advance=20, amount=100_000_000)
    Console(file=out, width=80).print(bars.get_renderable())
    [line] = out.getvalue().splitlines()
    assert line.split()[2:] == ["20/120", "perplexity", "1,907.5", "10.0", "M", "tokens/s", "0:00:10", "-:--:--"], line
