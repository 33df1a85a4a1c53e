"""One file alone uses Numba's private names; each exists and does what we rely on, and is not needed."""

import ast
import re
import sys
from collections import defaultdict
from pathlib import Path

import numba
import pytest
from numba.core import event
from numba.core.runtime import rtsys

import mgpu_ngram
from mgpu_ngram.kernels import numba_private

PACKAGE = Path(mgpu_ngram.__file__).parent
PAGES = sorted((*PACKAGE.rglob("*.py"), *(PACKAGE / "kernels").resolve().rglob("*.py")))
NAMED = re.compile(r"\bnumba\b|\bmake_array\b")
PRIVATE = re.compile(r"numba\.(.*\.)?(config|core|cpython|np|_\w+)\b|.*\.make_array$")


def private_names(source):
    """Private names of Numba that a file uses."""
    names = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute):
            names.append(ast.unparse(node))
    return [name for name in names if PRIVATE.match(name)]


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("from numba.core.runtime import rtsys", ["numba.core.runtime.rtsys"]),
        ("import numba.np.arraymath", ["numba.np.arraymath"]),
        ("from numba import config", ["numba.config"]),
        ("from numba import _dispatcher", ["numba._dispatcher"]),
        ("vars(numba.config)", ["numba.config"]),
        ("context.make_array(signature.args[0])", ["context.make_array"]),
        ("from numba import njit, types", []),
        ("from numba.extending import intrinsic", []),
    ],
)
def test_private_names_are_found(source, found):
    assert private_names(source) == found


def test_only_one_file_uses_private_names():
    sources = {page: source for page in PAGES if NAMED.search(source := page.read_text())}
    found = {page: names for page, source in sources.items() if (names := private_names(source))}
    assert [page.name for page in found] == ["numba_private.py"], found


def add_1(x):
    return x + 1


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder of machine code, and another that the user has set."""
    monkeypatch.setitem(numba_private._settings, "CACHE_DIR", str(tmp_path / "theirs"))
    return tmp_path / "ours"


def compiled_files(folder):
    return [path.suffix for path in sorted(folder.rglob("*.nb?"))]


def test_the_folder_of_the_environment_is_known(folder):
    assert numba_private.configured_folder() == numba.config.CACHE_DIR == str(folder.parent / "theirs")


def test_machine_code_is_kept_in_the_folder_and_loaded_from_it(folder):
    assert numba_private.cached_njit(add_1, folder, {})(2) == 3
    assert compiled_files(folder) == [".nbc", ".nbi"]
    again = numba_private.cached_njit(add_1, folder, {})
    assert again(2) == 3 and again.stats.cache_hits == {(numba.int64,): 1}
    assert numba.config.CACHE_DIR == str(folder.parent / "theirs")
    assert not (folder.parent / "theirs").exists()


def test_a_load_from_the_folder_refreshes_nothing(folder, monkeypatch):
    first = numba_private.cached_njit(add_1, folder, {})
    context, refreshed = first.targetctx, []
    monkeypatch.setattr(type(context), "refresh", lambda self: refreshed.append(self))
    first.compile((numba.int64,))
    assert refreshed == [context]  # before it compiled
    numba_private.cached_njit(add_1, folder, {}).compile((numba.int64,))
    assert refreshed == [context]


def test_machine_code_of_other_types_is_not_loaded(folder, monkeypatch):
    first = numba_private.cached_njit(add_1, folder, {})
    assert first(2.5) == 3.5
    again = numba_private.cached_njit(add_1, folder, {})
    kept = again._cache._index_key
    monkeypatch.setattr(again._cache, "_index_key", lambda signature, codegen: kept((numba.float64,), codegen))
    assert again(2) == 3 and again.stats.cache_hits == {}


@pytest.mark.parametrize("missing", ["_cache", "folder"])
def test_without_the_cache_functions_are_compiled_in_each_process(missing, folder, monkeypatch):
    if missing == "_cache":
        monkeypatch.setattr(numba_private.numba, "njit", lambda cache=False, **options: lambda fn: fn)
    else:
        monkeypatch.setattr(numba_private, "_settings", {})
    dispatcher = numba_private.cached_njit(add_1, folder, {})
    assert dispatcher(2) == 3 and compiled_files(folder.parent) == []


def test_without_the_runtime_machine_code_is_loaded_all_the_same(folder, monkeypatch):
    assert numba_private.cached_njit(add_1, folder, {})(2) == 3
    monkeypatch.delattr("numba.core.runtime._nrt_python")
    monkeypatch.setitem(sys.modules, "numba.core.runtime._nrt_python", None)
    numba_private._name_runtime.cache_clear()
    again = numba_private.cached_njit(add_1, folder, {})
    assert again(2) == 3 and again.stats.cache_hits == {(numba.int64,): 1}


def test_names_of_the_runtime_are_those_of_numba(monkeypatch):
    """What Numba tells LLVM when it compiles first."""
    told = []
    monkeypatch.setattr("llvmlite.binding.add_symbol", lambda name, address: told.append((name, address)))
    numba_private._name_runtime.__wrapped__()
    ours, told[:] = told[:], []
    monkeypatch.setattr(rtsys, "_init", False)
    monkeypatch.setattr("numba.core.runtime.nrtdynmod.compile_nrt_functions", lambda context: None)
    monkeypatch.setattr(rtsys, "_library", rtsys.__dict__.get("_library"), raising=False)
    rtsys.initialize(None)
    assert ours == told and len(ours) > 10


def test_compilations_are_told(folder, monkeypatch):
    monkeypatch.setattr(event, "_registered", defaultdict(list))
    told = []
    numba_private.on_compilation(told.append, lambda: None)
    numba.njit(add_1)(2)
    assert told == [add_1]


def test_a_step_ends_a_compilation(monkeypatch):
    """The function is compiled at its next call."""
    monkeypatch.setattr(event, "_registered", defaultdict(list))
    left = [5]

    def step():
        left[0] -= 1
        if left == [0]:
            raise KeyboardInterrupt

    numba_private.on_compilation(lambda fn: None, step)
    compiled = numba.njit(add_1)
    with pytest.raises(KeyboardInterrupt):
        compiled(2)
    assert not compiled.signatures and compiled(2) == 3 and left[0] < -5


def test_without_events_nothing_is_told(monkeypatch):
    monkeypatch.delattr("numba.core.event")
    monkeypatch.setitem(sys.modules, "numba.core.event", None)
    numba_private.on_compilation(lambda fn: pytest.fail("told"), lambda: pytest.fail("told"))
