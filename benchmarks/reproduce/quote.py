"""Figures and tables in Markdown that quote the rows of the benchmarks, so that they cannot drift from them.

A page quotes one figure of one row:

    <!-- row: score.csv; score/table3 edge table; T=9031848; NVIDIA H200; rate -->18.9 G n-gram queries/s<!-- end -->

The reference names the file, the whole `kernel`, parts of `sizes`, the beginning of `device`, and a field of FIELDS.
`rate:2` gives two digits instead of three. The parts of `sizes` are separated by spaces, may be none, and must leave
one row only. A page quotes all rows of a device as a table:

    <!-- table: score.csv; NVIDIA H200 -->
    <!-- end -->

and the tables and figures of papers, with what holds today on a device, as an index:

    <!-- papers: NVIDIA H200 -->
    <!-- end -->

`mgpu-ngram bench quote` writes what stands between the marks, and the pages of papers from their rows.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from mgpu_ngram.benchmarks import PAPER_RESULTS
from mgpu_ngram.benchmarks.harness.rows import DIGITS, FIELDS, Row, read_rows
from mgpu_ngram.benchmarks.reproduce.page import index
from mgpu_ngram.core.errors import InputError

MARK = re.compile(r"(<!-- (row|table|papers): ([^>]*?) -->)(.*?)(<!-- end -->)", re.DOTALL)
TABLE_HEAD = ["work", "sizes", "seconds", "rate", "of the ceiling", "speed-up", "target", "measured", "notes"]


def quoted(text: str, results: str | Path) -> str:
    """Return a page with every quote as the rows in the folder `results` have it.

    Raises InputError for a reference that names no row, several rows, or a field that the row lacks.
    """

    def write(mark: re.Match[str]) -> str:
        begin, kind, reference, _, end = mark.groups()
        names = [name.strip() for name in reference.split(";")]
        between = {"row": _figure, "table": _table, "papers": _papers}[kind](names, Path(results))
        return f"{begin}{between}{end}"

    return MARK.sub(write, text)


def papers_beside(results: str | Path) -> Path:
    """Return the folder of the papers' outputs, beside that of the benches' results."""
    return Path(results).parent / Path(PAPER_RESULTS).name


def update(path: str | Path, results: str | Path) -> bool:
    """Bring the quotes of a page up to date; return whether any of them differed."""
    text = Path(path).read_text()
    new = quoted(text, results)
    if new != text:
        Path(path).write_text(new)
    return new != text


def _figure(names: Sequence[str], results: Path) -> str:
    reference = "; ".join(names)
    if len(names) != 5:
        raise InputError(f"row {reference!r} has {len(names)} parts but needs 5: file; kernel; sizes; device; field")
    file, kernel, sizes, device, field = names
    name, _, digits = field.partition(":")
    if name not in FIELDS or not (digits or "1").isdecimal():
        raise InputError(f"row {reference!r} asks for {field!r} but rows have {', '.join(FIELDS)}, such as rate:2")
    rows = [r for r in _rows(results / file) if r.kernel == kernel and r.device.startswith(device)]
    rows = [row for row in rows if set(sizes.split()) <= set(row.sizes.split())]
    if len(rows) != 1:
        found = ", ".join(repr(row.sizes) for row in rows[:4]) or "none"
        raise InputError(f"row {reference!r} matches {len(rows)} rows ({found}) but must match 1; change its sizes")
    value = FIELDS[name](rows[0], int(digits or DIGITS))
    if value is None:
        raise InputError(f"row {reference!r} has no {name}; quote another field")
    return value


def _table(names: Sequence[str], results: Path) -> str:
    reference = "; ".join(names)
    if len(names) != 2:
        raise InputError(f"table {reference!r} has {len(names)} parts but needs 2: file; device")
    rows = [row for row in _rows(results / names[0]) if row.device.startswith(names[1])]
    if not rows:
        raise InputError(f"table {reference!r} has no rows; name a device of {results / names[0]}")
    lines = [TABLE_HEAD, ["---"] * len(TABLE_HEAD), *map(_table_line, rows)]
    return "\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _papers(names: Sequence[str], results: Path) -> str:
    [device] = names
    return f"\n{index(papers_beside(results), device)}\n"


def _table_line(row: Row) -> list[str]:
    values = {name: show(row, DIGITS) or "" for name, show in FIELDS.items()}
    spread = f" ({row.runs} runs)" if row.runs else ""
    share = f"{values['share']} {row.ceiling}" if values["share"] else ""
    speedup = f"{values['speedup']} x {row.baseline}" if values["speedup"] else ""
    measured = " ".join(filter(None, (row.date, row.commit)))
    cells = [
        row.kernel, row.sizes, values["seconds"] + spread, values["rate"], share, speedup, values["target"], measured,
        row.notes,
    ]  # fmt: skip
    return [cell.replace("|", "\\|").replace("*", "\\*").replace("<", "&lt;") for cell in cells]


def _rows(path: Path) -> list[Row]:
    if not path.is_file():
        raise InputError(f"{path}: no such file; name a CSV of {path.parent}")
    return read_rows(path)
