"""Records and files of documents that could not be read."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Damage:
    """The number of records and files that were left out; `first` says where the first one is, and its damage."""

    number: int = 0
    first: str = ""

    def add(self, reason: str) -> None:
        """Count one record or file."""
        self.merge(Damage(1, reason))

    def merge(self, other: Damage) -> None:
        """Add the damage of the documents that follow."""
        self.number, self.first = self.number + other.number, self.first or other.first

    @property
    def said(self) -> str:
        """Return the warning: the number, and the first one."""
        what = "record or file" if self.number == 1 else "records or files"
        return f"{self.number:,} {what} could not be read; the first: {self.first}"
