"""A page about filtered documents: one HTML file without scripts, which loads nothing from a network."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence

from mgpu_ngram.core.documents.buckets import LAST, NO_BUCKET, shown_cutoff
from mgpu_ngram.core.documents.text_column import shown
from mgpu_ngram.engine.filter.stats import BINS_PER_DECADE, BucketStats, FilterStats

WIDTH, HEIGHT, MARGIN = 760, 220, 24  # pixels of the histogram
COLOURS = ("#2f7ed8", "#e0962e", "#3c9d5a", "#8d5bb5", "#c2504f", "#5b7083")
STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.45 system-ui, sans-serif; max-width: 64rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; } th, td { padding: .2rem .8rem; text-align: right; }
th:first-child, td:first-child { text-align: left; } th { border-bottom: 1px solid #8888; }
svg { width: 100%; height: auto; } svg text { font-size: 11px; fill: currentColor; }
li { margin: .5rem 0; overflow-wrap: anywhere; } b { font-variant-numeric: tabular-nums; }
"""


def filter_page(
    stats: FilterStats,
    buckets: Sequence[str],
    cutoffs: Mapping[str, Sequence[float]],
    title: str = "Filter",
    by: str = "perplexity",
) -> str:
    """Return the page as HTML: sizes of buckets, a histogram of perplexities, and samples of each bucket.

    buckets  names of the buckets below each cut-off, in the order of the cut-offs
    cutoffs  perplexities by language; the key "" stands for all languages
    by       "difference" if cut-offs are cross-entropy differences
    """
    ordered = [name for name in (*buckets, LAST, NO_BUCKET) if name in stats.buckets]
    head = html.escape(shown(title))
    parts = [
        "<!doctype html>\n<html lang=en>\n<head>\n<meta charset=utf-8>\n",
        "<meta http-equiv=Content-Security-Policy content=\"default-src 'none'; style-src 'unsafe-inline'\">\n",
        f"<title>{head}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>{head}</h1>\n",
        f"<p>{stats.documents:,} documents, {stats.kept:,} kept; {stats.rejects:,} records could not be read.</p>\n",
        _sizes(stats, ordered),
        _cutoffs(buckets, cutoffs, by),
        "<h2>Perplexities</h2>\n",
        _histogram({name: stats.buckets[name] for name in ordered}),
        *(_samples(name, stats.buckets[name]) for name in ordered),
        "</body>\n</html>\n",
    ]
    return "".join(parts)


def _sizes(stats: FilterStats, ordered: Sequence[str]) -> str:
    rows = []
    for name in ordered:
        bucket = stats.buckets[name]
        share = bucket.documents / stats.documents
        perplexity = f"{10 ** (-bucket.log10 / bucket.words):,.1f}" if bucket.words else "-"
        numbers = f"{bucket.documents:,}", f"{share:.1%}", f"{bucket.kept:,}", f"{bucket.words:,}", perplexity
        rows.append("".join(f"<td>{cell}</td>" for cell in (html.escape(shown(name)), *numbers)))
    return _table(("bucket", "documents", "share", "kept", "words", "perplexity of all words"), rows)


def _cutoffs(buckets: Sequence[str], cutoffs: Mapping[str, Sequence[float]], by: str) -> str:
    rows = [
        "".join(
            f"<td>{cell}</td>" for cell in (html.escape(shown(name or "all")), *(shown_cutoff(v, by) for v in values))
        )
        for name, values in cutoffs.items()
    ]
    return f"<h2>Cut-offs by {by}</h2>\n" + _table(("language", *buckets), rows) if rows else ""


def _table(columns: Sequence[str], rows: Sequence[str]) -> str:
    head = "".join(f"<th scope=col>{html.escape(shown(name))}</th>" for name in columns)
    body = "".join(f"<tr>{row}</tr>\n" for row in rows)
    return f"<table>\n<tr>{head}</tr>\n{body}</table>\n"


def _histogram(buckets: Mapping[str, BucketStats]) -> str:
    """Return an SVG picture: documents by perplexity on a logarithmic scale, the buckets on top of one another."""
    counts = {name: {int(i): n for i, n in bucket.histogram.items()} for name, bucket in buckets.items()}
    bins = [i for found in counts.values() for i in found]
    if not bins:
        return "<p>No document has a perplexity.</p>\n"
    first, last = (
        min(bins) // BINS_PER_DECADE * BINS_PER_DECADE,
        -(-(max(bins) + 1) // BINS_PER_DECADE) * BINS_PER_DECADE,
    )
    most = max(sum(found.get(i, 0) for found in counts.values()) for i in range(first, last))
    step, room = WIDTH / (last - first), HEIGHT - 2 * MARGIN
    shapes, keys = [], []
    for k, (name, found) in enumerate(counts.items()):
        colour = COLOURS[k % len(COLOURS)]
        keys.append(
            f'<rect x="{8 + 110 * k}" y="2" width="10" height="10" fill="{colour}"/>'
            f'<text x="{22 + 110 * k}" y="11">{html.escape(shown(name))}</text>'
        )
        for i, n in sorted(found.items()):
            below = sum(counts[other].get(i, 0) for other in list(counts)[:k])
            height, top = room * n / most, HEIGHT - MARGIN - room * (below + n) / most
            low, high = (10 ** (edge / BINS_PER_DECADE) for edge in (i, i + 1))
            note = html.escape(f"{shown(name)}, {low:,.0f} to {high:,.0f}: {n:,}")
            shapes.append(
                f'<rect x="{(i - first) * step:.1f}" y="{top:.1f}" width="{max(step - 1, 1):.1f}" '
                f'height="{height:.1f}" fill="{colour}"><title>{note}</title></rect>'
            )
    ticks = "".join(
        f'<text x="{(i - first) * step:.1f}" y="{HEIGHT - 8}">{_power(i // BINS_PER_DECADE)}</text>'
        for i in range(first, last, BINS_PER_DECADE)
    )
    label = "Histogram of the perplexities of documents, by bucket"
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">'
        f"{''.join(keys)}{''.join(shapes)}{ticks}</svg>\n"
    )


def _power(n: int) -> str:
    return f"{10**n:,}" if n < 7 else f"1e{n}"


def _samples(name: str, bucket: BucketStats) -> str:
    """Return samples of a bucket in order of perplexity."""
    ordered = sorted(bucket.samples, key=lambda sample: (sample[1] is None, sample[1] or 0.0))
    items = "".join(
        f"<li><b>{'-' if perplexity is None else f'{perplexity:,.1f}'}</b> {html.escape(_line(text))}</li>\n"
        for _, perplexity, text in ordered
    )
    return f"<h2>Samples of {html.escape(shown(name))}</h2>\n<ul>\n{items}</ul>\n"


def _line(text: str) -> str:
    return shown(" ".join(text.split()))
