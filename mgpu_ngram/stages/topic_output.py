"""How topics are shown on a terminal: a table of all, one of them with its documents, and their shares in groups."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from mgpu_ngram.stages.report import console, many, print_table

if TYPE_CHECKING:
    from mgpu_ngram.engine.topics.doc_topics import GroupShares
    from mgpu_ngram.engine.topics.table import TopicSummary, TopicTable

LIST_FIELDS = {"probability": "words", "relevance": "relevant_words", "frex": "frex_words"}  # fields of a TopicSummary
SHARE_BARS = "▁▂▃▄▅▆▇█"
MANY_GROUPS = 6  # above, the shares of a topic are drawn, not written
DRAWN_GROUPS = 48  # the last ones are drawn
NAMED_TOPICS = 3  # topics to name for each group
EXAMPLE_CHARACTERS = 300  # characters of a document to show


def show_topics(
    table: TopicTable, lists: Sequence[str] = ("relevance",), limit: int | None = None, num_topics: int | None = None
) -> None:
    """Print a line for each topic and list of words, the largest topics first.

    lists       names of LIST_FIELDS
    limit       topics that are shown; None for all of the table
    num_topics  of the model; None for as many as the table has
    """
    rows = table.topics[:limit]
    measures = list(rows[0].coherence) if rows else []
    has_documents = any(row.documents is not None for row in rows)
    has_examples = any(row.examples for row in rows)
    has_nearest = any(row.nearest for row in rows)
    columns = ["topic", "share", *["documents"] * has_documents, *["such as"] * has_examples, *measures]
    columns += ["nearest"] * has_nearest
    columns += [*["by"] * (len(lists) > 1), "words"]
    lines = []
    for row in rows:
        for i, name in enumerate(lists):
            facts = [str(row.topic), f"{row.share:.2%}", *[f"{row.documents or 0:,}"] * has_documents]
            facts += [" ".join(str(document) for document, _ in row.examples)] * has_examples
            facts += [f"{row.coherence[measure]:.3f}" for measure in measures]
            facts += [" ".join(str(topic) for topic, _ in row.nearest)] * has_nearest
            cells = facts if i == 0 else [""] * len(facts)
            lines.append([*cells, *[name] * (len(lists) > 1), " ".join(getattr(row, LIST_FIELDS[name]))])
    _print(columns, lines)
    hidden = (num_topics or len(table.topics)) - len(rows)
    if hidden:
        print(f"{many(hidden, 'smaller topic')} not shown")


def show_topic(row: TopicSummary, text: Callable[[int], str] | None = None) -> None:
    """Print all facts about one topic.

    text  returns a document by number; None to print numbers alone
    """
    from mgpu_ngram.engine.topics.table import snippet

    documents = "" if row.documents is None else f", {many(row.documents, 'document')}"
    print(f"topic {row.topic}: {row.share:.2%} of tokens{documents}")
    for name, attribute in LIST_FIELDS.items():
        _print_wrapped(f"{name}: {' '.join(getattr(row, attribute))}")
    if row.coherence:
        print("coherence: " + ", ".join(f"{name} {value:.3f}" for name, value in row.coherence.items()))
    if row.nearest:
        print("nearest: " + ", ".join(f"{topic} ({distance:.3f})" for topic, distance in row.nearest))
    for document, share in row.examples:
        beginning = snippet(text(document), EXAMPLE_CHARACTERS) if text else ""
        _print_wrapped(f"document {document:,} ({share:.0%})" + (f": {beginning}" if beginning else ""))


def show_groups(shares: GroupShares, table: TopicTable, limit: int | None = None) -> None:
    """Print the shares of topics in groups: as numbers, or drawn when there are many groups."""
    drawn = len(shares.groups) > MANY_GROUPS
    names = [name or "(none)" for name in shares.groups]
    if drawn:
        last = f", the last {DRAWN_GROUPS} drawn" if len(names) > DRAWN_GROUPS else ""
        print(
            f"{many(len(names), 'group')}, {names[0]} to {names[-1]}{last}; the largest share of each topic is a full "
            "block"
        )
        names = names[-DRAWN_GROUPS:]
    lines = []
    for row in table.topics[:limit]:
        values = shares.shares_GZ[-len(names) :, row.topic].tolist()
        if drawn:
            top = max(values)
            steps = "".join(SHARE_BARS[round(value / (top or 1.0) * (len(SHARE_BARS) - 1))] for value in values)
            cells = [f"{top:.1%}", names[values.index(top)], steps]
        else:
            cells = [f"{value:.1%}" for value in values]
        lines.append([str(row.topic), *cells, " ".join(row.relevant_words or row.words or row.frex_words)])
    _print(["topic", *(["largest", "in", "over groups"] if drawn else names), "words"], lines)


def show_classes(shares: GroupShares, limit: int | None = None) -> None:
    """Print a line for each group, those with most documents first: its documents and its largest topics."""
    order = sorted(range(len(shares.groups)), key=lambda g: -shares.documents_G[g])
    lines = []
    for g in order[:limit]:
        shares_Z = shares.shares_GZ[g]
        largest = sorted(range(len(shares_Z)), key=lambda z: -shares_Z[z])[:NAMED_TOPICS]
        topics = "  ".join(f"{z} ({shares_Z[z]:.0%})" for z in largest if shares_Z[z] > 0)
        lines.append([f"{shares.documents_G[g]:,}", shares.groups[g] or "(none)", topics])
    _print(["documents", "group", "largest topics"], lines)
    if len(lines) < len(order):
        print(f"{many(len(order) - len(lines), 'smaller group')} not shown")


def _print(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table; words that do not fit are cut off."""
    from rich.table import Table

    made = Table(box=None, pad_edge=False, header_style="bold")
    for i, name in enumerate(columns):
        left = name in ("words", "by", "such as", "nearest", "in", "over groups", "group", "largest topics")
        width = 0 if name == "words" else max(len(name), *(len(row[i]) for row in rows), 0)
        made.add_column(name, justify="left" if left else "right", no_wrap=True, overflow="ellipsis", min_width=width)
    for row in rows:
        made.add_row(*row)
    print_table(made)


def _print_wrapped(line: str) -> None:
    print(textwrap.fill(line, console().width, subsequent_indent="  ", break_on_hyphens=False))
