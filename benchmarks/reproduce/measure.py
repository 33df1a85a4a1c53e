"""`mgpu-ngram bench paper NAME`: measure the tables and figures of a paper by parts of the benches, and judge them."""

from __future__ import annotations

import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from mgpu_ngram.benchmarks.harness.bench_modules import open_bench
from mgpu_ngram.benchmarks.harness.options import BenchOptions
from mgpu_ngram.benchmarks.harness.rows import read_rows, write_rows
from mgpu_ngram.benchmarks.reproduce.page import draw_bars, pictures_of, with_device, write_page
from mgpu_ngram.benchmarks.reproduce.paper import Item, Paper, rows_of


def reproduce(paper: Paper, options: BenchOptions) -> Path:
    """Measure tables and figures of a paper, and write its rows, pictures and page; return the path of the page.

    only  names of tables and figures; the rows and pictures of others stay as they are

    Files are written after each table or figure, so a run may be ended early and taken up with `only`.
    """
    names = [name for item in paper.items for name in item.names]
    chosen = list(dict.fromkeys(paper.item(name).name for name in options.parts(names)))
    folder = Path(options.results) / paper.name
    for k, name in enumerate(chosen, 1):
        item = paper.item(name)
        said = f"{paper.name} {', '.join(item.names)}: {item.title}, {k} of {len(chosen)}"
        print(f"bench: {said}", file=sys.stderr, flush=True)
        if item.parts:
            _measure(paper, item, options, folder)
        folder.mkdir(parents=True, exist_ok=True)
        page = write_page(paper, folder)
    return page


def _measure(paper: Paper, item: Item, options: BenchOptions, folder: Path) -> None:
    """Run the parts of the bench; put their rows in place of the item's rows of this device, and its picture."""
    with tempfile.TemporaryDirectory(prefix="mgpu-ngram-bench-", dir=options.folder) as place:
        open_bench(paper.bench).bench(replace(options, results=place, only=",".join(item.parts)))
        rows = read_rows(Path(place) / f"{paper.bench}.csv")
        device = rows[0].device
        folder.mkdir(parents=True, exist_ok=True)  # only now: wrong options leave no folder
        path = folder / f"{item.name}.csv"
        others = [row for row in rows_of(folder, item) if row.device != device]
        path.unlink(missing_ok=True)
        write_rows([*others, *rows], path)
        for name, stem in pictures_of(item).items():
            drawn = Path(place) / with_device(stem, device)
            if drawn.is_file():
                shutil.copy(drawn, folder / with_device(name, device))
        if not item.pictures:
            draw_bars(item, rows, folder / with_device(item.name, device))
