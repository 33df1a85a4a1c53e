"""Write the English text that every Python carries to a file, and a twentieth of it to a second file for tests.

    python examples/python_docs.py [OUT]        (default: runs/python_docs.txt)

Every twentieth text goes to OUT with _heldout in its name, to test models of the other texts.

The texts are the documentation topics of `pydoc_data`, then the docstrings of the standard library, read from
its sources without importing them: some megabytes, the same for the same Python.
"""

from __future__ import annotations

import ast
import sys
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics

NOT_TEXT = {"site-packages", "dist-packages", "test", "tests", "idle_test", "lib2to3", "__pycache__"}
HELD_OUT = 20  # every twentieth text


def docstrings(source: str) -> Iterator[str]:
    """Yield the docstrings of a module, its classes and functions, in the order of ast.walk."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""


def texts() -> Iterator[str]:
    """Yield all texts in a fixed order."""
    for name in sorted(topics):
        yield topics[name]
    library = Path(sysconfig.get_path("stdlib"))
    for path in sorted(library.rglob("*.py")):
        if NOT_TEXT.isdisjoint(path.relative_to(library).parts):
            try:
                yield from docstrings(path.read_text("utf-8"))
            except (SyntaxError, UnicodeDecodeError, OSError):
                continue  # a file of another Python, or an unreadable one


def main(out: str = "runs/python_docs.txt") -> None:
    """Write both files and print the size of the first."""
    warnings.simplefilter("ignore", SyntaxWarning)  # the library's own sources contain old escapes
    path = Path(out)
    path.parent.mkdir(parents=True, exist_ok=True)
    heldout = path.with_stem(f"{path.stem}_heldout")
    with (
        path.open("w", encoding="utf-8", newline="\n") as file,
        heldout.open("w", encoding="utf-8", newline="\n") as other,
    ):
        for i, text in enumerate(texts()):
            (other if (i + 1) % HELD_OUT == 0 else file).writelines(line + "\n" for line in text.splitlines())
    print(f"{path}: {path.stat().st_size:,} bytes", file=sys.stderr)


if __name__ == "__main__":
    main(*sys.argv[1:2])
