"""The text of an ARPA file: its header, the positions of its lines, and messages about wrong lines."""

from __future__ import annotations

import mmap
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from mgpu_ngram.core.errors import SHOWN_CHARACTERS, InputError
from mgpu_ngram.core.inputs.byte_ranges import reader
from mgpu_ngram.core.inputs.decompress import decompressed
from mgpu_ngram.core.inputs.file_sources import file_source
from mgpu_ngram.core.inputs.sources import Source
from mgpu_ngram.core.models import arpa_lines as lines
from mgpu_ngram.core.storage.file_heads import COUNT_LINE, HEAD_BYTES, refuse_as_arpa
from mgpu_ngram.core.utf8 import BOM
from mgpu_ngram.kernels.compile_cpu import read_only

STRIP_BYTES = 1 << 20  # bytes of lines that a thread parses at once
HEADER_BYTES = 4096  # read of a line outside the n-grams; longer lines are wrong anyway
NEW_COPY = "copy it or write it again"


@dataclass(frozen=True)
class Section:
    """The lines of one order in S strips: strip s is starts[s] to starts[s + 1]; rows[s] n-grams come before it."""

    starts: list[int]
    rows: list[int]


class ArpaText:
    """The text of a file, with messages about its lines."""

    def __init__(self, name: str, data: np.ndarray):
        has_mark = data[: len(BOM)].tobytes() == BOM
        self.name, self.data = name, read_only(data[len(BOM) :] if has_mark else data)
        self.whole_bytes = lines.whole_lines(self.data)

    def read_counts(self) -> tuple[list[int], int]:
        """Return (number of n-grams of each order, start of the lines of order 1)."""
        line, at, after = self.filled_line(0, r"before \data\ ")
        while line.startswith(b"#"):
            line, at, after = self.filled_line(after, r"before \data\ ")
        if line != b"\\data\\":
            refuse_as_arpa(self.name, self.data[:HEAD_BYTES].tobytes())
            raise self.wrong(at, r"stands where \data\ is expected, so this is not an ARPA file; give an ARPA file")
        counts: list[int] = []
        while True:
            at = after
            line, after = self.line(at, "among the counts")
            if not line.strip():
                break
            match = COUNT_LINE.fullmatch(line)
            expected = f"ngram {len(counts) + 1}=COUNT"
            if not match or int(match[1]) != len(counts) + 1:
                raise self.wrong(at, f"stands where '{expected}' or an empty line is expected; {NEW_COPY}")
            counts.append(int(match[2]))
        if not counts:
            raise self.wrong(at, f"stands where 'ngram 1=COUNT' is expected; {NEW_COPY}")
        line, at, after = self.filled_line(after, "before the 1-grams")
        if line != b"\\1-grams:":
            raise self.wrong(at, rf"stands where \1-grams: is expected; {NEW_COPY}")
        return counts, after

    def line(self, at: int, where: str) -> tuple[bytes, int]:
        """Return (the line that starts at byte `at`, without its end; the start of the next line)."""
        if at == len(self.data):
            last = self.line_number(at - 1) if at else 0
            raise InputError(f"{self.name!r} ends {where.strip()}, with line {last}; it is truncated: {NEW_COPY}")
        end = lines.newline(self.data, at)
        return self.data[at : min(end, at + HEADER_BYTES)].tobytes().removesuffix(b"\r"), min(end + 1, len(self.data))

    def filled_line(self, at: int, where: str) -> tuple[bytes, int, int]:
        """Return (the first non-blank line from byte `at` on, its start, the start of the next line)."""
        while True:
            line, after = self.line(at, where)
            if line.strip():
                return line, at, after
            at = after

    def line_number(self, at: int) -> int:
        return 1 + int(lines.count_newlines(self.data, 0, at))

    def token(self, at: int) -> str:
        return _shown(next(iter(self.data[at : at + HEADER_BYTES].tobytes().split()), b""))

    def wrong(self, at: int, why: str) -> InputError:
        """Return the error for the line that contains byte `at`."""
        start = lines.line_start(self.data, at)
        line, _ = self.line(start, "")
        return InputError(f"{self.name!r}, line {self.line_number(start)}: '{_shown(line)}' {why}")

    def cut(self, start: int, pool: ThreadPoolExecutor, at_once: int) -> Section:
        """Return the lines from `start` to the next line that starts with a backslash."""

        def scan(start: int, stop: int) -> tuple[int, int]:
            found: tuple[int, int] = lines.scan_arpa(self.data, start, stop)
            return found

        section = Section([start], [0])
        while (start := section.starts[-1]) < self.whole_bytes:
            stops: list[int] = []
            while (stops[-1:] or [start])[0] < self.whole_bytes and len(stops) < at_once:
                least = min((stops[-1:] or [start])[0] + STRIP_BYTES, self.whole_bytes)
                stops.append(lines.newline(self.data, least - 1) + 1)
            for stop, (rows, header) in zip(stops, pool.map(scan, [start, *stops[:-1]], stops), strict=True):
                section.starts.append(stop if header < 0 else header)
                section.rows.append(section.rows[-1] + rows)
                if header >= 0:
                    return section
        return section


def _shown(text: bytes) -> str:
    """Return text for a message: shortened, without control characters."""
    shown = "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode()
        for c in text[: 4 * SHOWN_CHARACTERS].decode("utf-8", "backslashreplace")
    )
    return shown if len(shown) <= SHOWN_CHARACTERS else shown[: SHOWN_CHARACTERS - 3] + "..."


def open_text(path: str) -> ArpaText:
    """Return the text of a file: memory-mapped, or read into memory if it is compressed or remote."""
    if os.path.exists(path) and not os.path.isfile(path):
        raise InputError(f"{path!r} is not a regular file; give the path of an ARPA file or of a model file")
    source = file_source(path, path, "byte", 1, "text")
    if source.format == "parquet":
        raise InputError(f"{path!r} is a Parquet file; give an ARPA file")
    if source.format == "plain" and source.is_local and source.size_bytes:
        with open(path, "rb") as file:
            return ArpaText(path, np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8))
    return ArpaText(path, _read_text(source))


def _read_text(source: Source) -> np.ndarray:
    with reader(source) as read:
        if source.format == "plain":
            text = np.empty(source.size_bytes, np.uint8)
            read(0, text)
            return text
        text, used = np.empty(4 * source.size_bytes, np.uint8), 0
        for part in decompressed(source, read, None):
            if used + len(part) > len(text):
                text.resize(used + len(part) + used // 4, refcheck=False)  # moves pages, not bytes, if it is large
            text[used : used + len(part)] = part
            used += len(part)
        text.resize(used, refcheck=False)
        return text
