"""Buckets of documents by perplexity: cut-offs from percentiles or from CCNet's table, and the documents to keep."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.lazy_import import LazyModule

if TYPE_CHECKING:
    import numpy as np
else:
    np = LazyModule("numpy")  # `--help` does not need it

LAST = "tail"  # bucket of the perplexities above all cut-offs
NO_BUCKET = "all"  # bucket of documents without a perplexity or without cut-offs, as CCNet names it


def parse_buckets(buckets: Sequence[str], percentiles: bool = True) -> dict[str, float]:
    """Return the upper end of each bucket from texts such as "head:30". Raises InputError unless the ends rise.

    percentiles  the ends are percentiles, 0 to 100; else any numbers
    """
    found: dict[str, float] = {}
    example, kind = ("head:30,middle:60", "PERCENTILE") if percentiles else ("head:340,middle:520", "LIMIT")
    for text in buckets:
        name, _, number = text.partition(":")
        try:
            end = float(number)
        except ValueError:
            end = math.nan
        if not name or name in found or not math.isfinite(end):
            raise InputError(
                f"the bucket {text!r} is not NAME:{kind} with a unique name; write buckets such as {example}"
            )
        if name in (LAST, NO_BUCKET):
            others = "above all other buckets" if name == LAST else "without a perplexity"
            raise InputError(f"the bucket {text!r} has the name of the documents {others}; give it another name")
        if percentiles and not 0 <= end <= 100:
            raise InputError(
                f"the bucket {text!r} ends at a percentile outside 0 to 100; correct it, or use fixed buckets"
            )
        if found and end <= max(found.values()):
            raise InputError(
                f"the bucket {text!r} must end above the previous bucket; give rising ends, such as {example}"
            )
        found[name] = end
    return found


@dataclass(frozen=True)
class Rules:
    """The rules that give each document a bucket and decide whether the document is kept.

    names     names of the buckets below each cut-off, in the order of the cut-offs; () for no buckets
    cutoffs   cut-offs by language; the key None stands for all languages
    language  field with the language of a document, if each language has cut-offs of its own; else ""
    by        the figure that is compared with the cut-offs: "perplexity" or "difference"
    least, most  perplexities that are kept, both included
    least_difference, most_difference  cross-entropy differences that are kept, both included
    only      buckets that are kept; () for all
    """

    names: tuple[str, ...] = ()
    cutoffs: Mapping[str | None, tuple[float, ...]] = field(default_factory=dict)
    language: str = ""
    by: Literal["perplexity", "difference"] = "perplexity"
    least: float | None = None
    most: float | None = None
    least_difference: float | None = None
    most_difference: float | None = None
    only: tuple[str, ...] = ()

    @property
    def buckets(self) -> tuple[str, ...]:
        """The names of all buckets."""
        return (*self.names, LAST, NO_BUCKET)

    def bucket_of(self, perplexity_D: np.ndarray, difference_D: np.ndarray, languages: Sequence[Any]) -> np.ndarray:
        """Return the number in `buckets` of each document's bucket, (D,) int64.

        The figure of an empty document is NaN.
        """
        figure_D = perplexity_D if self.by == "perplexity" else difference_D
        bucket_D = np.full(len(figure_D), len(self.names) + 1)
        members: dict[str | None, list[int]] = {}
        if self.language:
            for d, language in enumerate(languages):
                if isinstance(language, str):
                    members.setdefault(language, []).append(d)
        groups = members.items() if self.language else [(None, slice(None))]
        for key, some in groups:
            if cutoffs := self.cutoffs.get(key):
                bucket_D[some] = np.searchsorted(cutoffs, figure_D[some], "right")
        bucket_D[np.isnan(figure_D)] = len(self.names) + 1
        return bucket_D

    def keeps(self, perplexity_D: np.ndarray, difference_D: np.ndarray, bucket_D: np.ndarray) -> np.ndarray:
        """Return whether each document is kept, (D,) bool. A limit drops documents that lack the limited figure."""
        kept_D = _are_between(self.least, perplexity_D, self.most)
        kept_D &= _are_between(self.least_difference, difference_D, self.most_difference)
        if self.only:
            kept_D &= np.array([name in self.only for name in self.buckets])[bucket_D]
        return kept_D


def _are_between(least: float | None, figure_D: np.ndarray, most: float | None) -> np.ndarray:
    kept_D = np.ones(len(figure_D), bool)
    if least is not None:
        kept_D &= figure_D >= least
    if most is not None:
        kept_D &= figure_D <= most
    return kept_D


def shown_cutoff(value: float | None, by: str) -> str:
    """Return a cut-off for people: a perplexity with one decimal, a difference with four; "-" for an infinite one."""
    if value is None or math.isinf(value):
        return "-"
    return f"{value:,.1f}" if by == "perplexity" else f"{value:.4f}"


def read_cutoffs(path: str, percentiles: Sequence[float]) -> dict[str | None, tuple[float, ...]]:
    """Return the cut-offs of each language from a CSV file in the form of CCNet's cutoff.csv.

    The first column holds percentiles, each other column the perplexities of a language. Raises InputError for a file
    in another form, for a missing percentile, for a percentile or a language that occurs twice, and for falling
    cut-offs. A language that lacks a cut-off is left out.
    """
    try:
        rows = list(csv.reader(Path(path).read_text("utf-8-sig").splitlines()))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or "it is not CSV in UTF-8"
        raise InputError(
            f"{path}: cannot be read ({reason}); give a CSV file in the form of CCNet's cutoff.csv"
        ) from None
    try:
        table = {float(row[0]): [float(value) if value else math.nan for value in row[1:]] for row in rows[1:] if row}
        lines = [table[percentile] for percentile in percentiles]
        columns = {name: tuple(line[i] for line in lines) for i, name in enumerate(rows[0][1:])}
    except KeyError as error:
        raise InputError(f"{path}: percentile {error} has no row; choose buckets at percentiles of the table") from None
    except (ValueError, IndexError):
        raise InputError(
            f"{path}: is not a table of percentiles by language; give a CSV file in the form of CCNet's cutoff.csv"
        ) from None
    _check_once(path, "languages", [name for name in rows[0][1:] if name])
    _check_once(path, "percentiles", [f"{float(row[0]):g}" for row in rows[1:] if row])
    found: dict[str | None, tuple[float, ...]] = {}
    for name, values in columns.items():
        if any(map(math.isnan, values)):
            continue
        if list(values) != sorted(values):
            raise InputError(f"{path}: the cut-offs of {name!r} are {values} but must rise; correct the table")
        found[name] = values
    return found


def _check_once(path: str, kind: str, names: list[str]) -> None:
    """Raise InputError if a name occurs twice."""
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise InputError(f"{path}: {twice!r} stands twice among the {kind}; leave one of them out")


def percentile_cutoffs(figure_D: Any, percentiles: Sequence[float]) -> tuple[float, ...]:
    """Return the exact percentiles of figures, interpolated between neighbours; NaNs are ignored.

    figure_D  (D,) float64, on the host or on a GPU, which sorts them; the result has the same bits as NumPy's
    """
    from mgpu_ngram.kernels.dispatch import array_module, to_host  # imports NumPy

    known = figure_D[figure_D == figure_D]
    if not len(known):
        return ()
    place_P = np.asarray(percentiles, np.float64) / 100 * (len(known) - 1)
    low_P = np.floor(place_P).astype(np.int64)
    high_P = np.minimum(low_P + 1, len(known) - 1)
    if isinstance(known, np.ndarray):
        ordered: Any = np.partition(known, np.unique([low_P, high_P]))
    else:
        ordered = array_module(known).sort(known)
    low, high = (to_host(ordered[array_module(known).asarray(at)]) for at in (low_P, high_P))
    share_P = place_P - low_P
    with np.errstate(invalid="ignore"):
        below = low + (high - low) * share_P
        between = np.where(share_P >= 0.5, high - (high - low) * (1 - share_P), below)
    end = np.where(np.isinf(low) | (share_P == 0), low, high)  # no number lies between it and infinity
    return tuple(np.where(np.isfinite(low) & np.isfinite(high), between, end).tolist())
