"""The options of `mgpu-ngram bench`, the same value for every bench."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from mgpu_ngram.benchmarks import RESULTS
from mgpu_ngram.cluster.devices import visible_gpus
from mgpu_ngram.core.errors import InputError


@dataclass(frozen=True)
class BenchOptions:
    """What a bench measures, and where it writes. None leaves the choice to the bench, which goes by the device.

    device   "cpu" or "gpu"
    results  folder for the CSV file and the pictures
    text     file of real text, in place of a generated one
    size     bytes, such as "1 GiB": of text, of tables or of rows; each bench says which
    tokens   words of the generated text
    workers  numbers of workers, such as "1,2,4"
    only     parts to measure, by name or by number from 1; all when None
    folder   where texts and models are written; a temporary folder when None
    """

    device: str
    results: str | Path = RESULTS
    text: str | None = None
    size: str | int | None = None
    tokens: int | None = None
    workers: str | None = None
    only: str | None = None
    folder: str | Path | None = None

    def __post_init__(self) -> None:
        if self.folder is not None and not Path(self.folder).is_dir():
            raise InputError(f"{self.folder}: no such folder; make it, or leave it out")
        if Path(self.results).exists() and not Path(self.results).is_dir():
            raise InputError(f"{self.results}: results go to a folder, and this is a file; give a folder")
        if self.text is not None and not Path(self.text).is_file():
            raise InputError(f"{self.text}: no such file; give a text file, or leave it out")

    def num_tokens(self, default: dict[str, int], minimum: int) -> int:
        """Return the words of the generated text. Raises InputError for fewer than the minimum."""
        tokens = default[self.device] if self.tokens is None else self.tokens
        if tokens < minimum:
            raise InputError(f"tokens is {tokens} but must be at least {minimum}")
        return tokens

    def parts(self, known: Iterable[str]) -> list[str]:
        """Return the parts to measure. Raises InputError for a part that is not known."""
        names = list(known)
        asked = names if self.only is None else self.only.split(",")
        parts = [names[int(p) - 1] if p.isdecimal() and 1 <= int(p) <= len(names) else p for p in asked]
        for part in parts:
            if part not in names:
                raise InputError(f"part {part!r} is none of {', '.join(names)}, nor a number from 1 to {len(names)}")
        return parts

    def clusters(self) -> list[int]:
        """Return the numbers of workers in rising order. Speed-ups are over the first."""
        if self.workers is None:
            return [1, 2] if self.device == "cpu" else [G for G in (1, 2, 4) if G <= visible_gpus()]
        if not all(w.isdecimal() and int(w) for w in self.workers.split(",")):
            raise InputError(f"workers is {self.workers!r} but must be numbers of workers, such as 1,2,4")
        return sorted({int(w) for w in self.workers.split(",")})

    def command(self, bench: str) -> str:
        """Return the command that repeats a bench, without the folders: they differ from host to host."""
        text = None if self.text is None else Path(self.text).name
        flags = {"device": self.device, "text": text, "size": self.size, "tokens": self.tokens}
        flags |= {"workers": self.workers, "only": self.only}
        words = [word for flag, value in flags.items() if value is not None for word in (f"--{flag}", str(value))]
        return shlex.join(["mgpu-ngram", "bench", bench, *words])
