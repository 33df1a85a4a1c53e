"""Write the reference pages from the code: verbs from argparse, YAML keys from the config classes, Python names.

python docs/generate_reference.py [FOLDER]        (default: docs/reference)
"""

from __future__ import annotations

import argparse
import ast
import inspect
import re
import sys
import textwrap
import typing
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any

import mgpu_ngram
from mgpu_ngram import cli, kenlm
from mgpu_ngram.commands import commands
from mgpu_ngram.core.memory_config import MemoryConfig
from mgpu_ngram.stages import run_file
from mgpu_ngram.stages.registry import STAGES

NOTE = "<!-- Written by docs/generate_reference.py; edit the code that it reads. -->\n\n"


def write(folder: Path) -> None:
    """Write index.md, cli.md, yaml.md and python.md into the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in {"cli": cli_page(), "yaml": yaml_page(), "python": python_page()}.items():
        (folder / f"{name}.md").write_text(NOTE + text, "utf-8")


# The command line


def verbs() -> dict[str, argparse.ArgumentParser]:
    """Every command's parser by its name, without aliases."""
    return {name: cli._parser(name)[1][name] for name in commands()}


def cli_page() -> str:
    """Markdown of every verb: usage, description, arguments."""
    parts = [
        "# Command line\n\nResults go to standard output; progress and errors go to standard error. "
        "Exit status: 0 done, 1 the run failed, 2 bad input, 130 interrupted.\n\n"
    ]
    for name, parser in verbs().items():
        first, *more = parser.format_usage().removeprefix("usage: ").rstrip().split("\n")
        usage = "\n".join([first, *(f"    {line.strip()}" for line in more)])
        parts.append(f"## {name}\n\n{_cell(commands()[name][1])}\n\n```text\n{usage}\n```\n\n")
        rows = [
            (_flags(action), (action.help or "") % {**vars(action), "prog": parser.prog})
            for action in parser._actions
            if action.help != argparse.SUPPRESS and not isinstance(action, argparse._HelpAction)
        ]
        parts.append(_table(("argument", "meaning"), rows))
        if parser.epilog:
            parts.append(f"```text\n{parser.epilog.rstrip()}\n```\n\n")
    return "".join(parts)


def _flags(action: argparse.Action) -> str:
    if not action.option_strings:
        value = action.metavar if isinstance(action.metavar, str) else action.dest
        return f"`{value}`"
    flags = ", ".join(action.option_strings)
    if action.nargs == 0:
        return f"`{flags}`"
    value = action.metavar or ("|".join(map(str, action.choices)) if action.choices else action.dest.upper())
    return f"`{flags} {' '.join(value) if isinstance(value, tuple) else value}`"


# YAML


def sections() -> dict[str, type]:
    """The config class behind each section of a YAML file."""
    stages = {name: stage.config for name, stage in STAGES.items()}
    return {"file": run_file._Document, "cluster": run_file.ClusterConfig, "memory": MemoryConfig, **stages}


def yaml_page() -> str:
    """Markdown of every YAML key: type, default, meaning."""
    parts = [
        "# YAML keys\n\nA YAML file holds `output`, `jobs` and four optional keys. Each entry of `jobs` has one key, "
        "the stage; the keys of the stage stand below it. A size is a number of bytes or text such as `64 MiB`. A list "
        "of one may be written without brackets. Unknown keys are errors.\n\n"
    ]
    for name, cls in sections().items():
        title = {"file": "The file", "cluster": "`cluster`", "memory": "`memory`"}.get(name, f"Stage `{name}`")
        comments = field_comments(cls)
        hints = typing.get_type_hints(cls, include_extras=True)
        rows = [
            (f"`{f.name}`", type_text(hints[f.name]), _default(f, comments[f.name]), comments[f.name])
            for f in fields(cls)
        ]
        parts.append(f"## {title}\n\n{_table(('key', 'type', 'default', 'meaning'), rows)}")
    return "".join(parts)


def field_comments(cls: type) -> dict[str, str]:
    """The comment beside each field of a dataclass, continued by comment lines below it; "" where none stands."""
    comments = {}
    for base in reversed(cls.__mro__):
        if is_dataclass(base):
            comments |= _own_comments(base)
    return comments


def _own_comments(cls: type) -> dict[str, str]:
    source = textwrap.dedent(inspect.getsource(cls))
    lines = source.split("\n")
    [body] = [node.body for node in ast.parse(source).body if isinstance(node, ast.ClassDef)]
    comments = {}
    for node in body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            end = node.end_lineno or node.lineno
            beside = lines[end - 1][node.end_col_offset or 0 :].strip()
            words = [beside.lstrip("# ")] if beside.startswith("#") else []
            for line in lines[end:]:
                if not words or not line.strip().startswith("#"):
                    break
                words.append(line.strip().lstrip("# "))
            comments[node.target.id] = " ".join(words)
    return comments


def type_text(hint: Any) -> str:
    """A type as a reader of YAML knows it: `integer`, `list of text`, `a`, `b` or `c`."""
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is typing.Annotated:
        return "size"
    if typing.get_origin(hint) is typing.Literal:
        return " or ".join(f"`{value}`" for value in arguments)
    if type(None) in arguments:
        return " or ".join(type_text(a) for a in arguments if a is not type(None))
    if typing.get_origin(hint) is list or hint is list:
        return f"list of {type_text(arguments[0])}" if arguments else "list"
    names = {int: "integer", float: "number", str: "text", bool: "`true` or `false`", dict: "mapping", Any: "any"}
    return names.get(typing.get_origin(hint) or hint, "mapping")


def _default(field: Any, comment: str) -> str:
    if field.default is not MISSING:
        value = field.default
    elif field.default_factory is not MISSING:
        value = field.default_factory()
    else:
        return "required"
    if value is None:
        return "`auto`" if "auto" in comment else "none"
    if value == [] or value == {}:
        return "empty"
    return f"`{str(value).lower() if isinstance(value, bool) else f'{value:g}' if isinstance(value, float) else value}`"


# Python


def python_page() -> str:
    """Markdown that lets Sphinx's autodoc show every public name."""
    parts = ["# Python\n\n```python\nimport mgpu_ngram as ng\n```\n\n## `mgpu_ngram`\n\n"]
    parts += [_directive(f"mgpu_ngram.{name}", value) for name, value in public(mgpu_ngram)]
    parts.append("## `mgpu_ngram.compact`\n\n")
    parts += [_directive(f"mgpu_ngram.compact.{name}", value) for name, value in public(mgpu_ngram.compact)]
    parts.append("## `mgpu_ngram.kenlm`\n\nThe drop-in for KenLM's Python module: see [From KenLM](../kenlm.md).\n\n")
    parts += [_directive(f"mgpu_ngram.kenlm.{name}", value) for name, value in public(kenlm)]
    return "".join(parts)


def public(module: Any) -> Iterator[tuple[str, Any]]:
    """(name, value) of the classes and functions that a module offers."""
    names = getattr(module, "__all__", None) or [
        name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__
    ]
    for name in names:
        value = getattr(module, name)
        if not name.startswith("_") and callable(value):
            yield name, value


def _directive(path: str, value: Any) -> str:
    if not inspect.isclass(value):
        return f"```{{eval-rst}}\n.. autofunction:: {path}\n```\n\n"
    inherited = "\n   :inherited-members:" if value in (mgpu_ngram.Model, kenlm.Model) else ""
    return f"```{{eval-rst}}\n.. autoclass:: {path}\n   :members:{inherited}\n```\n\n"


# Markdown


def _table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [heads, ("---",) * len(heads), *(tuple(_cell(cell) for cell in row) for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines) + "\n"


def _cell(text: str) -> str:
    return _plain(" ".join(text.split())).replace("|", "\\|")


def _plain(text: str) -> str:
    """Text whose <...> Markdown does not take for HTML; `code` stays as it is."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(p if p.startswith("`") else re.sub(r"([<*_\[\]])", r"\\\1", p) for p in parts)


if __name__ == "__main__":
    write(Path(sys.argv[1] if sys.argv[1:] else Path(__file__).parent / "reference"))
