"""The code of the docs runs as written, links lead somewhere, and the reference pages match the code.

The ```console and ```python blocks of a page run in order, in a folder with the files that the pages name. A ```text
block after a ```python block is its output. A block that cannot run here has a comment before it,
<!-- not run: the reason -->, and the test report shows the reason.
"""

import argparse
import contextlib
import doctest
import gzip
import importlib.util
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import zlib
from dataclasses import dataclass
from pathlib import Path

import pytest
import zstandard

import mgpu_ngram as ng
from mgpu_ngram import cli
from mgpu_ngram.commands import commands as verbs
from tests.support.slowness import scaled

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(
    r"(?:<!-- not run: ([^\n]*?) -->\n+)?^```(console|python|text)\n(.*?)^```$", re.DOTALL | re.MULTILINE
)
MODELS = ("model.arpa", "model.safetensors")
TEXT_CRC = 3662129887  # CRC-32 of the text that gives the outputs on the pages


@dataclass
class Block:
    """A block of code: its language, its text, its line, and the reason if it is not run."""

    language: str
    code: str
    line: int
    reason: str | None


def blocks(text):
    """Return the blocks of a page, in order."""
    return [Block(match[2], match[3], text.count("\n", 0, match.start(3)), match[1]) for match in BLOCK.finditer(text)]


def runnable():
    """Return (page, its blocks) of pages with code."""
    found = [(path, blocks(path.read_text("utf-8"))) for path in PAGES]
    return [
        pytest.param(path, page, id=path.relative_to(ROOT).as_posix())
        for path, page in found
        if any(block.language != "text" and not block.reason for block in page)
    ]


def commands(code):
    """Return (command, expected output) of each `$ ` line of a console block; a backslash continues a line."""
    found = []
    for line in code.splitlines():
        if line.startswith("$ "):
            found.append([line[2:], []])
        elif found and not found[-1][1] and found[-1][0].endswith("\\"):
            found[-1][0] += "\n" + line.removeprefix("> ")
        else:
            found[-1][1].append(line)
    return [(command, "\n".join(output)) for command, output in found]


def arguments(command):
    """Return the arguments of a command that is mgpu-ngram and needs no shell, else None."""
    if not command.startswith("mgpu-ngram ") or set(command.partition(" #")[0]) & set("|<>&;$*?`\n"):
        return None
    return shlex.split(command, comments=True)[1:]


def shows(expected, output):
    """Return whether the output holds the expected lines; `...` matches anything, and further lines may follow."""
    pattern = r".*".join(re.escape(part.strip("\n")) for part in re.split(r"^\.\.\.$", expected, flags=re.MULTILINE))
    return re.match(pattern, output, re.DOTALL) is not None


@pytest.fixture(scope="module")
def taken_for_granted(tmp_path_factory):
    """Return (a folder with the files that the pages name; whether its text gives the outputs on the pages)."""
    from pydoc_data.topics import topics

    folder = tmp_path_factory.mktemp("docs")
    lines = "\n".join(topics.values()).split("\n")
    for name in ("runs", "books", "crawl"):
        (folder / name).mkdir()
    train, heldout = ("\n".join(part) + "\n" for part in (lines[:-600], lines[-600:]))
    for name in ("train.txt", "runs/python_docs.txt"):
        (folder / name).write_text(train, "utf-8")
    for name in ("heldout.txt", "runs/python_docs_heldout.txt"):
        (folder / name).write_text(heldout, "utf-8")
    (folder / "books" / "one.txt.gz").write_bytes(gzip.compress(train.encode()))
    (folder / "crawl" / "one.txt.zst").write_bytes(zstandard.compress(heldout[:4000].encode()))
    for name in ("configs", "examples"):
        shutil.copytree(ROOT / name, folder / name)
    (folder / "runs" / "cmudict").mkdir()  # of a training with PyTorch
    shutil.copy(ROOT / "examples" / "g2p" / "words.phonemes", folder / "runs" / "cmudict" / "train.phonemes")
    for name in MODELS:
        assert cli.main(["estimate", str(folder / "train.txt"), "-o", str(folder / name), "--workers", "0"]) == 0
    return folder, zlib.crc32("\n".join([*lines, ""]).encode()) == TEXT_CRC


@pytest.mark.slow
@pytest.mark.timeout(900)  # a page has many commands
@pytest.mark.parametrize(("path", "found"), runnable())
def test_blocks_run(path, found, taken_for_granted, tmp_path, monkeypatch, mgpu_ngram):
    """A shell runs console blocks, except commands of this program alone: these run here, which is 0.4 s faster."""
    granted, same_text = taken_for_granted
    shutil.copytree(granted, tmp_path, dirs_exist_ok=True)
    console = "".join(block.code for block in found if block.language == "console" and not block.reason)
    for made in (name for name in MODELS if f"-o {name}" in console):
        (tmp_path / made).unlink()
    monkeypatch.chdir(tmp_path)
    environment = {**os.environ, "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])}
    names = {"__name__": "__main__"}
    printed = ""
    for block in found:
        where = f"{path.name}:{block.line}"
        if block.reason:
            printed = None
        elif block.language == "python":
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(compile(block.code, where, "exec"), names)
            printed = out.getvalue()
        elif block.language == "console":
            for command, expected in commands(block.code):
                if (words := arguments(command)) is not None:
                    status, out, err = mgpu_ngram(*words)
                else:
                    bash = ["bash", "-euo", "pipefail", "-c", command]
                    done = subprocess.run(bash, env=environment, capture_output=True, text=True, timeout=scaled(600))
                    status, out, err = done.returncode, done.stdout, done.stderr
                assert status == 0, f"{where}: {command}\n{out}{err}"
                assert not same_text or shows(expected, out), f"{where}: {command} prints\n{out}"
            printed = None
        elif printed is not None:  # the output of a python block
            assert not same_text or shows(block.code, printed), f"{where}: printed\n{printed}"
            printed = None


@pytest.mark.parametrize(
    "block",
    [
        pytest.param(block, id=f"{path.name}:{block.line}")
        for path in PAGES
        for block in blocks(path.read_text("utf-8"))
        if block.reason
    ],
)
def test_blocks_not_run(block):
    pytest.skip(block.reason)


def test_blocks_by_hand():
    text = (
        "# T\n\n```console\n$ a \\\n> b\nout\n$ c\n```\n<!-- not run: no GPU -->\n```python\nx\n```\n```text\n1\n```\n"
    )
    first, second, third = blocks(text)
    assert commands(first.code) == [("a \\\nb", "out"), ("c", "")] and (first.line, first.reason) == (3, None)
    assert (second.language, second.code, second.reason) == ("python", "x\n", "no GPU")
    assert (third.language, third.code) == ("text", "1\n")
    assert arguments("mgpu-ngram plan 'a b' c=1  # as it is | here") == ["plan", "a b", "c=1"]
    assert all(arguments(c) is None for c in ("mgpu-ngram info a | head", "mgpu-ngram count *.txt", "python a.py"))
    assert shows("a\n...\nc", "a\nb\nc\nd\n") and shows("", "x") and shows("a", "a\n")
    assert not shows("a\n...\nc", "a\nb\n") and not shows("b", "a\nb\n")


def import_from_docs(name):
    """Import a module of the folder docs."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def reference():
    """Import the module docs/generate_reference.py."""
    return import_from_docs("generate_reference")


def test_links_lead_somewhere():
    assert import_from_docs("check_links").broken_links(ROOT) == []


def test_broken_links_by_hand(tmp_path):
    links = import_from_docs("check_links")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "p.md").write_text("# Two `words`, A-b\n## Same\n## Same\n[up](../a.md#top) [x](nothing.py)\n")
    (tmp_path / "a.md").write_text(
        "# Top\n[a](b/p.md#two-words-a-b) [b](b/p.md#same-1) [c](#top) ![d](b) [e](https://x.y/z)\n"
        "[f](b/p.md#same-2) [g](#bottom) `[h](h)` <!-- [i](i) -->\n```text\n[j](j)\n```\n[k](reference/k.md)\n"
    )
    broken = [("a.md", "b/p.md#same-2"), ("a.md", "#bottom"), ("a.md", "reference/k.md"), ("b/p.md", "nothing.py")]
    assert links.broken_links(tmp_path) == broken


def test_reference_pages_are_complete(reference, tmp_path):
    reference.write(tmp_path)
    commands_page, yaml_page, python_page = (
        (tmp_path / f"{name}.md").read_text("utf-8") for name in ("cli", "yaml", "python")
    )
    for verb in verbs():
        assert f"\n## {verb}\n" in commands_page
    assert "| `--text-column NAME` |" in commands_page and "| `-o, --output OUT` |" in commands_page
    for stage, settings in reference.sections().items():
        for key in settings.__dataclass_fields__:
            assert f"| `{key}` |" in yaml_page, f"{stage}: {key}"
    assert not re.search(r"\|  \|$", commands_page + yaml_page, re.MULTILINE), (
        "every argument and key has a description"
    )
    assert "| `order` | integer | `5` |" in yaml_page
    assert "| `corpus` | list of text | required |" in yaml_page
    assert "| `chunk_bytes` | size | `auto` |" in yaml_page
    assert "| `alpha` | number or list of number | `auto` |" in yaml_page
    for name in (
        "mgpu_ngram.Model",
        "mgpu_ngram.BeamSearch",
        "mgpu_ngram.Translator",
        "mgpu_ngram.Translated",
        "mgpu_ngram.LDA",
        "mgpu_ngram.count",
        "mgpu_ngram.compact.densify",
        "mgpu_ngram.kenlm.State",
    ):
        assert f":: {name}\n" in python_page
    assert "kenlm._" not in python_page


@pytest.mark.parametrize("name", [name for name in ng.__all__ if ">>>" in (getattr(ng, name).__doc__ or "")])
@pytest.mark.slow
def test_examples_of_docstrings(name, monkeypatch):
    monkeypatch.chdir(ROOT)
    (example,) = doctest.DocTestFinder(recurse=False).find(getattr(ng, name), name)
    assert not doctest.DocTestRunner().run(example).failed


def test_comments_of_fields_by_hand(reference, tmp_path, monkeypatch):
    (tmp_path / "settings_by_hand.py").write_text(
        "from dataclasses import dataclass\n\n\n@dataclass\nclass C:\n    a: int  # first\n    # and more\n"
        "    b: str = '#'\n    c: int = (\n        1\n    )  # third, <s>\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    from settings_by_hand import C

    assert reference.field_comments(C) == {"a": "first and more", "b": "", "c": "third, <s>"}


def test_flags_by_hand(reference):
    parser = argparse.ArgumentParser()
    actions = [
        parser.add_argument("text", nargs="+", metavar="TEXT"),
        parser.add_argument("-o", "--output"),
        parser.add_argument("--kind", choices=["a", "b"]),
        parser.add_argument("--fast", action="store_true"),
    ]
    assert [reference._flags(a) for a in actions] == ["`TEXT`", "`-o, --output OUTPUT`", "`--kind a|b`", "`--fast`"]
