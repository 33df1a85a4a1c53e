"""Print the error rates of results: of tokens, and of whole lines.

python examples/error_rate.py RESULTS REFERENCES

Both files have tokens between spaces. The error rate of tokens is the number of edits over the number of tokens of the
references: word error rate if tokens are words, phoneme error rate if they are phonemes.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path


def edits(found: Sequence[object], wanted: Sequence[object]) -> int:
    """Return the least number of tokens to insert, delete or replace (Levenshtein distance)."""
    row = list(range(len(wanted) + 1))
    for i, a in enumerate(found, 1):
        before, row[0] = row[0], i
        for j, b in enumerate(wanted, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (a != b))
    return row[-1]


def main(results: str, references: str) -> None:
    """Compare the files line by line."""
    found, wanted = ([line.split() for line in Path(p).read_text("utf-8").splitlines()] for p in (results, references))
    if len(found) != len(wanted):
        sys.exit(f"there are {len(found):,} results but {len(wanted):,} references; give one for each")
    wrong = [edits(a, b) for a, b in zip(found, wanted, strict=True)]
    tokens, lines = sum(map(len, wanted)), sum(map(bool, wrong))
    print(f"{sum(wrong):,} of {tokens:,} tokens, {sum(wrong) / tokens:.2%}; {lines:,} of {len(wrong):,} lines")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
