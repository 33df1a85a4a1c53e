"""The page of a paper: its figures, ours, the original programs', pictures, and what holds today; and the index."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from pathlib import Path

from mgpu_ngram.benchmarks import PAPER_RESULTS, PAPERS
from mgpu_ngram.benchmarks.harness.rows import DIGITS, FIELDS, Row, rounded, with_unit
from mgpu_ngram.benchmarks.reproduce.paper import (
    IN_PART,
    UNKNOWN,
    Figure,
    Item,
    Paper,
    Verdict,
    by_device,
    open_paper,
    rows_of,
)

PAGE = "README.md"
CLAIMS = "claims.csv"
CLAIM_COLUMNS = ("names", "device", "claim", "verdict", "why", "commit", "date")
ORIGINAL = "original program"


def write_page(paper: Paper, folder: Path) -> Path:
    """Write the page of a paper, and its claims with verdicts as CLAIMS; return the path of the page."""
    verdicts = [
        (item, device, claim.text, claim.verdict(rows), rows)
        for item in paper.items
        for device, rows in by_device(rows_of(folder, item)).items()
        for claim in item.claims
    ]
    with open(folder / CLAIMS, "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(CLAIM_COLUMNS)
        for item, device, text, verdict, rows in verdicts:
            writer.writerow([" ".join(item.names), device, text, *verdict[:2], _commits(rows), _dates(rows)])
    page = folder / PAGE
    page.write_text("\n".join(_lines(paper, folder)) + "\n")
    return page


def refresh(folder: Path) -> list[Path]:
    """Write the pages of the papers that have rows in a folder; return the paths of those that differed."""
    changed = []
    for name in PAPERS:
        paper, page = open_paper(name), folder / name / PAGE
        if any((folder / name / f"{item.name}.csv").is_file() for item in paper.items):
            before = page.read_text() if page.is_file() else None
            if write_page(paper, folder / name).read_text() != before:
                changed.append(page)
    return changed


def _lines(paper: Paper, folder: Path) -> list[str]:
    lines = [f"# {paper.title}", "", f"{paper.source}. `mgpu-ngram bench paper {paper.name}` makes this page.", ""]
    lines += [paper.work, "", "Figures that are not of the paper are rows of the CSV files beside this page.", ""]
    for item in paper.items:
        lines += _section(paper, item, folder)
    if paper.programs:
        lines += ["## Original programs", "", *_table(["program", "figures here", "how it is built and found"])]
        rows = [row for item in paper.items for row in rows_of(folder, item) if row.rate is not None]
        for program in paper.programs:
            hosts = sorted({row.device for row in rows if any(mark in row.kernel for mark in program.marks)})
            lines.append(_line([program.name, ", ".join(hosts) or "not on the PATH", program.built]))
        lines.append("")
    lines += ["## What is not made", "", *_table(["table or figure", "reason"])]
    lines += [_line(pair) for pair in paper.not_made.items()]
    return lines


def _section(paper: Paper, item: Item, folder: Path) -> list[str]:
    lines = [f"## {', '.join(map(long_name, item.names))}: {item.title}", ""]
    if item.differs:
        lines += [item.differs, ""]
    if item.figures:
        lines += _table(["the paper", "figure", "hardware"])
        lines += [_line([figure.what, _value(figure), figure.hardware]) for figure in item.figures]
        lines.append("")
    found = by_device(rows_of(folder, item))
    for device, rows in found.items():
        lines += _measured(paper, item, device, rows, folder)
    if not found:
        lines += [f"Not measured yet: `{command(paper, item)}`", ""]
        lines += [f"- {claim.text}" for claim in item.claims] + [""]
    return lines


def _measured(paper: Paper, item: Item, device: str, rows: Sequence[Row], folder: Path) -> list[str]:
    """The figures of one device, the picture and the verdicts."""
    hosts = ", ".join(sorted({row.host for row in rows if row.host}))
    smaller = "" if "cores" not in device else " Sizes are smaller than on a GPU, and the kernels' CPU twins run."
    where = f"Measured on {hosts or device}, {_dates(rows)}, commit {_commits(rows)}: `{command(paper, item)}`"
    ran = ", ".join(f"`{line}`" for line in sorted({row.command for row in rows if row.command}))
    where += f", which ran {ran}." if ran else "."
    lines = [f"### {device}", "", where + smaller, ""]
    if item.parts:
        lines += _table(["here", "sizes", "figure", "seconds", "of the ceiling", "notes"])
        lines += [_row_line(paper, row) for row in shown(item, rows)]
        lines.append("")
    for name in [*pictures_of(item)] or [item.name]:
        picture = with_device(name, device)
        if (folder / picture).is_file():
            lines += [f"![{long_name(name)}]({picture})", ""]
    for claim in item.claims:
        verdict = claim.verdict(rows)
        text = claim.text.replace("*", r"\*")
        lines.append(f"- *{text}* **{verdict.result.capitalize()}:** {verdict.why}.")
    return [*lines, ""]


def shown(item: Item, rows: Sequence[Row]) -> list[Row]:
    """Return the rows of an item that its page shows, in order."""
    return sorted((row for row in rows if not item.shown or row.kernel.startswith(item.shown)), key=_natural)


def _natural(row: Row) -> tuple[str, list[tuple[int, str]]]:
    """Return a key by which numbers in sizes rise."""
    return row.kernel, [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", row.sizes)]


def _row_line(paper: Paper, row: Row) -> str:
    values = {name: show(row, DIGITS) or "" for name, show in FIELDS.items()}
    who = next((p.name for p in paper.programs if any(mark in row.kernel for mark in p.marks)), "")
    name = f"{row.kernel} ({ORIGINAL}: {who})" if who else row.kernel
    share = f"{values['share']} {row.ceiling}" if values["share"] else ""
    return _line([name, row.sizes, values["rate"], values["seconds"], share, row.notes])


def command(paper: Paper, item: Item) -> str:
    """Return the command that makes an item."""
    return f"mgpu-ngram bench paper {paper.name} --only {','.join(item.of or (item.name,))}"


def long_name(name: str) -> str:
    """Return "Table 3" of T3, "Figure 9" of F9, "Section 5.6" of 5.6, and other names with a capital letter."""
    kinds = {"T": "Table", "F": "Figure"}
    if re.fullmatch(r"[TF][\d.-]+", name):
        return f"{kinds[name[0]]} {name[1:]}"
    return f"Section {name}" if name[0].isdecimal() else name[0].upper() + name[1:]


def pictures_of(item: Item) -> dict[str, str]:
    """Return the bench's pictures by their names on the page: those of the item, then with numbers, such as F9-2."""
    more = [f"{item.name}-{k + 1}" for k in range(len(item.names), len(item.pictures))]
    return dict(zip([*item.names, *more], item.pictures, strict=False))


def with_device(stem: str, device: str) -> str:
    """Return the name of a picture, as `figures.save` makes it."""
    device = re.sub(r"\W+", "_", device)
    return f"{stem}_{device}.png"


def draw_bars(item: Item, rows: Sequence[Row], path: Path) -> None:
    """Draw the paper's figures and the rows that have their unit, as bars; nothing without rows."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    units = {figure.unit for figure in item.figures if isinstance(figure.value, float)}
    ours = [
        (f"{row.kernel}, {row.sizes}", row.rate) for row in shown(item, rows) if row.rate and row.rate_unit in units
    ]
    if not ours:
        return
    theirs = [(f"{f.what}, {f.hardware}, as published", f.value) for f in item.figures if isinstance(f.value, float)]
    bars = [*theirs, *ours]
    plt.figure(figsize=(8, 1 + 0.3 * len(bars)))
    plt.barh(range(len(bars)), [value for _, value in bars], color=["grey"] * len(theirs) + ["C0"] * len(ours))
    plt.yticks(range(len(bars)), [name for name, _ in bars], fontsize=7)
    for y, (_, value) in enumerate(bars):
        plt.text(value, y, f" {with_unit(value, '')}", va="center", fontsize=7)
    if max(value for _, value in bars) > 30 * min(value for _, value in bars):
        plt.xscale("log")
    plt.margins(x=0.2, y=0.01)
    plt.gca().invert_yaxis()
    plt.xlabel(", ".join(sorted(units)))
    plt.title(f"{', '.join(map(long_name, item.names))}: {item.title}, {rows[0].device}", fontsize=9)
    plt.savefig(path, dpi=120, bbox_inches="tight")
    plt.close()


def _value(figure: Figure) -> str:
    if isinstance(figure.value, str):
        return figure.value
    if figure.unit == "s":
        return f"{rounded(figure.value, 4)} s"
    return with_unit(figure.value, figure.unit, 4)


def _commits(rows: Sequence[Row]) -> str:
    return ", ".join(sorted({row.commit or "unknown" for row in rows}))


def _dates(rows: Sequence[Row]) -> str:
    return ", ".join(sorted({row.date or "on a day unknown" for row in rows}))


def _table(head: Sequence[str]) -> list[str]:
    return [_line(head), _line(["---"] * len(head))]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def index(folder: Path, device: str) -> str:
    """Return a table with a line for each item of all papers, and what holds on a device."""
    lines = _table(["paper", "table or figure", "command", "today"])
    for name in PAPERS:
        paper, here = open_paper(name), folder / name
        title = paper.title.partition(":")[0]
        for item in paper.items:
            rows = by_device(rows_of(here, item)).get(device, [])
            today = combined([claim.verdict(rows) for claim in item.claims]) if rows else "not measured yet"
            names = f"{', '.join(map(long_name, item.names))}: {item.title}"
            who = f"[{title}](../{PAPER_RESULTS}/{name}/{PAGE})" if rows else title
            lines.append(_line([who, names, f"`{command(paper, item)}`", today]))
    return "\n".join(lines)


def combined(verdicts: Sequence[Verdict]) -> str:
    """Return one result for several: that of all that were judged, or IN_PART where they differ."""
    results = {verdict.result for verdict in verdicts} - {UNKNOWN}
    if not results:
        return UNKNOWN
    return results.pop() if len(results) == 1 else IN_PART
