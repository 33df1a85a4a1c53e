"""The CUDA sources of benches: they compile, and contain each kernel that their module asks for."""

import ast
import re
from importlib import import_module
from pathlib import Path

import pytest

from mgpu_ngram import benchmarks
from mgpu_ngram.benchmarks.harness.cuda_source import with_common

FOLDER = Path(benchmarks.__file__).parent
ASKED = re.compile(r'\bcompiled\(SOURCE, "(\w+)"\)')
MODULES = [path for path in sorted(FOLDER.rglob("*.py")) if re.search(r"^SOURCE = ", path.read_text(), re.MULTILINE)]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_a_source_compiles_and_has_its_kernels(path, compile_cuda):
    text = path.read_text()
    source = import_module(".".join(("mgpu_ngram.benchmarks", *path.relative_to(FOLDER).with_suffix("").parts))).SOURCE
    assert compile_cuda(with_common(source))[0]
    assert all(f"void {name}(" in source for name in ASKED.findall(text))


def test_modules_that_compile_kernels_have_a_source_of_their_own():
    for path in FOLDER.rglob("*.py"):
        names = {node.id for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Name)}
        assert "SOURCE" not in names or path in MODULES, path
    assert len(MODULES) >= 4
