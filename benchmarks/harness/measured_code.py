"""Which files hold the code that rows measure: those of modules that a bench names, and of all that these import."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.util import resolve_name
from pathlib import Path

PACKAGE, NAME = Path(__file__).absolute().parents[2], __name__.partition(".")[0]
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
ANY_INCLUDE = re.compile(r'^ *#include "(.+)"', re.MULTILINE)


def files_of(modules: Sequence[str]) -> set[Path]:
    """Return the files of modules of the package, such as engine.trie.build, and of all modules of it that they import.

    Imports inside functions count; those for type checkers do not. A kernel has its .cu and the headers that this
    includes; a package has the C++ beside it. `__init__.py` counts only where a name is imported from it.
    """
    found: set[Path] = set()
    left = [f"{NAME}.{module}" for module in modules]
    while left:
        path = module_file(left.pop())
        if path and path not in found:
            found |= {path, *_beside(path)}
            left += _imports(path)
    return found


def code_of(path: str, text: str) -> str:
    """Return the code of a source file in a form without imports, comments, docstrings and layout."""
    if not path.endswith(".py"):
        return " ".join(COMMENT.sub(" ", text).split())
    tree = _WithoutImports().visit(ast.parse(text))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            del node.body[0]
    return ast.dump(tree)


class _WithoutImports(ast.NodeTransformer):
    """Leaves imports out: a module that moves to another folder is the same code."""

    def visit_Import(self, node: ast.Import) -> None:
        return None

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        return None


def module_file(name: str) -> Path | None:
    """Return the file of a module of the package, by its full name; of a name in a module the module's file."""
    root, *parts = name.split(".")
    if root != NAME or not parts:
        return None
    path = PACKAGE.joinpath(*parts)
    for candidate in (path.with_suffix(".py"), path / "__init__.py"):
        if candidate.is_file():
            return candidate
    return module_file(name.rpartition(".")[0])


@cache
def _imports(path: Path) -> list[str]:
    """Return the full names of what a module imports: modules, or names in modules."""
    package = ".".join((NAME, *path.relative_to(PACKAGE).parent.parts))
    names: list[str] = []
    for node in _that_run(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = resolve_name("." * node.level + (node.module or ""), package)
            names += (f"{module}.{alias.name}" for alias in node.names)
    return names


def _that_run(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield all nodes but those for type checkers."""
    for child in ast.iter_child_nodes(tree):
        if not (isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"):
            yield child
            yield from _that_run(child)


def _beside(path: Path) -> set[Path]:
    """Return the files of CUDA or C++ that belong to a module."""
    if path.name == "__init__.py":
        return {*path.parent.glob("*.cpp"), *path.parent.glob("*.h")}
    found, left = set(), [path.with_suffix(".cu")]
    while left:
        source = left.pop()
        if source.is_file() and source not in found:
            found.add(source)
            left += [PACKAGE / "kernels" / "include" / name for name in ANY_INCLUDE.findall(source.read_text())]
    return found
