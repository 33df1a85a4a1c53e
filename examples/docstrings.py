"""Write the docstrings that every Python carries as documents, to train a topic model on.

python examples/docstrings.py [OUT]        (default: runs/docstrings.jsonl)

A document is a docstring of the standard library with 20 words or more, as a JSON line with its text and its package.
Every twentieth document goes to OUT with _new in its name.
"""

from __future__ import annotations

import json
import sys
import sysconfig
import warnings
from pathlib import Path

from python_docs import NOT_TEXT, docstrings  # beside this file

MIN_WORDS = 20
NEW = 20  # every twentieth document


def documents() -> list[dict[str, str]]:
    """Return all documents in a fixed order."""
    library = Path(sysconfig.get_path("stdlib"))
    found = []
    for path in sorted(library.rglob("*.py")):
        place = path.relative_to(library)
        if NOT_TEXT.isdisjoint(place.parts):
            try:
                texts = list(docstrings(path.read_text("utf-8")))
            except (SyntaxError, UnicodeDecodeError, OSError):
                continue  # a file of another Python, or an unreadable one
            package = place.parts[0].removesuffix(".py")
            found += [{"package": package, "text": text} for text in texts if len(text.split()) >= MIN_WORDS]
    return found


def main(out: str = "runs/docstrings.jsonl") -> None:
    """Write both files and print the number of documents."""
    warnings.simplefilter("ignore", SyntaxWarning)  # the library's own sources contain old escapes
    path = Path(out)
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_stem(f"{path.stem}_new")
    found = documents()
    with path.open("w", encoding="utf-8") as file, new.open("w", encoding="utf-8") as other:
        for i, document in enumerate(found):
            (other if (i + 1) % NEW == 0 else file).write(json.dumps(document) + "\n")
    print(f"{path}: {len(found) - len(found) // NEW:,} documents; {new}: {len(found) // NEW:,}", file=sys.stderr)


if __name__ == "__main__":
    main(*sys.argv[1:2])
