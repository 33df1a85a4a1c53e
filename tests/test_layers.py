"""Imports point in one direction; the test reads the sources and imports nothing."""

import ast
import functools
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import mgpu_ngram

PACKAGE = Path(mgpu_ngram.__file__).parent

# What each layer may import from the package: a layer, or one module of it. cli -> commands -> stages -> jobs
# -> engine -> kernels; a job knows only the executor's protocol, with its gangs, of the cluster.
ALLOWED = {
    "__init__": {"api", "compact", "torch", "torch_allocator", "core"},
    "__main__": {"entry"},
    "entry": {"cli", "core.errors"},
    "cli": {"commands", "engine.memory.out_of_memory", "core"},
    "commands": {"commands", "stages", "api", "jobs.context", "jobs.saver", "core", "cluster", "benchmarks"},
    "api": {"api", "stages.run_file", "jobs", "engine", "core", "cluster", "kernels.dispatch"},
    "stages": {"stages", "jobs", "engine", "core"},
    "datatrove": {"api.document_filter", "core.errors"},
    "torch": {"torch", "api.model", "engine", "core"},
    "torch_allocator": {"engine", "core"},
    "compact": {"engine", "core", "cluster.devices"},
    "kenlm": {"native", "engine", "core"},
    "native": {"kernels.cache_folders"},
    "jobs": {"jobs", "engine", "core", "kernels", "cluster.executor", "cluster.gang"},
    "engine": {"engine", "core", "kernels"},
    "cluster": {
        "cluster",
        "core.errors",
        "core.memory_config",
        "core.storage.scratch",
        "core.storage.shared_maps",
        "core.version",
        "kernels.cache_folders",
    },
    "core": {"core", "kernels", "native"},
    "kernels": {"kernels", "core.version"},
    "benchmarks": {
        "benchmarks",
        "stages",
        "api",
        "kenlm",
        "torch",
        "cli",
        "jobs",
        "engine",
        "core",
        "kernels",
        "cluster",
    },
}
# What each room of engine and core may import from other rooms of its layer. A room is a folder; modules beside the
# rooms of core, such as core.errors, are below all rooms.
ROOMS = {
    "core.storage": set(),
    "core.ngrams": set(),
    "core.inputs": {"storage"},
    "core.kenlm": {"ngrams", "storage"},
    "core.counts": {"inputs", "storage"},
    "core.nmt": {"inputs"},
    "core.bags": {"counts", "inputs", "ngrams", "storage"},
    "core.documents": {"counts", "inputs", "storage"},
    "core.models": {"bags", "inputs", "kenlm", "ngrams", "nmt", "storage"},
    "core.nbest": {"documents", "inputs", "models", "ngrams", "storage"},
    "engine.memory": set(),
    "engine.torch": {"memory"},
    "engine.trie": {"memory"},
    "engine.bags": {"memory"},
    "engine.count": {"memory"},
    "engine.estimate": {"count", "memory", "trie"},
    "engine.distribution": {"memory", "torch", "trie"},
    "engine.score": {"memory", "trie"},
    "engine.lda": {"bags", "memory"},
    "engine.topics": {"bags", "lda", "memory"},
    "engine.decode": {"distribution", "memory", "torch", "trie"},
    "engine.states": {"distribution", "memory", "score", "torch", "trie"},
    "engine.filter": {"memory", "score"},
    "engine.model_tools": {"memory", "score", "trie"},
    "engine.rescore": {"memory", "score", "trie"},
}
EXECUTORS = ("cluster.local", "cluster.dask")  # only these, besides the cluster itself, may import one:
BUILDERS = ("commands", "api", "benchmarks", "cluster")
DASK = ("dask", "distributed", "dask_cuda")
GPU_ONLY = ("cupy", "cupyx", "cupy_backends", "pynvml", "rmm")

parsed = functools.cache(ast.parse)  # several rules read all sources


def sources():
    """Yield (dotted name without the package, path) of every module."""
    for path in sorted(PACKAGE.glob("*.py")):
        yield path.stem, path
    for folder in sorted(p for p in PACKAGE.iterdir() if p.is_dir()):
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(PACKAGE).with_suffix("").parts
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def imports(tree, name, is_package=False):
    """Yield (imported dotted name, inside a function) of every import; `from x import y` gives x.y."""
    base = ["mgpu_ngram", *name.split(".")]

    def walk(node, inside):
        for child in ast.iter_child_nodes(node):
            deeper = inside or isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            if isinstance(child, ast.Import):
                yield from ((alias.name, inside) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                up = child.level - is_package
                start = base[: len(base) - up] if child.level else []
                module = ".".join([*start, *(child.module or "").split(".")]).strip(".")
                yield from ((f"{module}.{alias.name}", inside) for alias in child.names)
            else:
                yield from walk(child, deeper)

    return walk(tree, False)


def under(name, roots):
    """Return whether a dotted name is one of the roots or is below one."""
    return any(name == root or name.startswith(root + ".") for root in roots)


def room_of(name):
    """Return the room of a module of engine or core, such as core.storage; None for others."""
    return next((room for room in ROOMS if under(name, [room])), None)


def violations(text, name, is_package=False):
    """Return the forbidden imports of one source."""
    layer, room = name.split(".")[0], room_of(name)
    if layer not in ALLOWED:
        return [f"{name}: no layer of tests/test_layers.py; say there what it may import"]
    wrong = []
    for imported, inside in imports(parsed(text), name, is_package):
        if imported.split(".")[0] == "mgpu_ngram":
            inner = imported.partition(".")[2]
            if not under(inner, ALLOWED[layer]):
                wrong.append(f"{name} imports {imported}, which a module of {layer} may not")
            other = room_of(inner)
            is_beside = other and other != room and other.startswith(f"{layer}.")
            if is_beside and (room is None or other.removeprefix(f"{layer}.") not in ROOMS[room]):
                wrong.append(f"{name} imports {imported}, which is no lower room than {room or layer}")
            if under(inner, EXECUTORS) and layer not in BUILDERS:
                wrong.append(f"{name} builds an executor ({imported}); only {', '.join(BUILDERS)} do")
        elif imported.split(".")[0] in ("kernels", "benchmarks"):
            wrong.append(f"{name} imports {imported} as a top-level package; write mgpu_ngram.{imported}")
        elif under(imported, DASK) and layer != "cluster":
            wrong.append(f"{name} imports {imported}; only cluster/ knows Dask")
        elif under(imported, GPU_ONLY) and not inside:
            wrong.append(f"{name} imports {imported} at its top; import it inside functions")
    return wrong


def test_imports_point_one_way():
    found = [wrong for name, p in sources() for wrong in violations(p.read_text(), name, p.name == "__init__.py")]
    assert not found


def test_rooms_have_no_circles():
    """Each room is listed below the rooms that it imports, and every folder of engine and core is a room."""
    for place, (room, lower) in enumerate(ROOMS.items()):
        layer = room.partition(".")[0]
        assert {f"{layer}.{name}" for name in lower} <= set(list(ROOMS)[:place]), room
    folders = {f"{layer}.{p.name}" for layer in ("core", "engine") for p in (PACKAGE / layer).iterdir() if p.is_dir()}
    assert {folder for folder in folders if not folder.endswith("__pycache__")} == set(ROOMS)


def circles(texts):
    """Return groups of modules that import each other, directly or through others: [["a", "b"], ...].

    texts  {name: (source, whether it is a package)}

    All import statements count: at the top, in functions, and under TYPE_CHECKING. An import of a package does not
    count as an import of its modules, and names in strings do not count.
    """
    reached = {}
    for name, (text, is_package) in texts.items():
        inner = (imported.partition(".")[2] for imported, _ in imports(parsed(text), name, is_package))
        whole = (other if other in texts else other.rpartition(".")[0] for other in inner)
        reached[name] = {other for other in whole if other in texts and other != name}
    grew = True
    while grew:
        grew = False
        for name, others in reached.items():
            more = set().union(others, *(reached[other] for other in others))
            grew, reached[name] = grew or len(more) > len(others), more
    return sorted({tuple(sorted(b for b in reached[a] if a in reached[b])) for a in texts if a in reached[a]})


def test_no_modules_import_each_other():
    assert circles({name: (path.read_text(), path.name == "__init__.py") for name, path in sources()}) == []


def test_a_circle_is_found():
    start = "from mgpu_ngram.jobs"
    texts = {
        "jobs.a": f"{start} import b",
        "jobs.b": f"def f():\n    {start}.c import g",
        "jobs.d": f"{start} import a",
    }
    typed = "if TYPE_CHECKING:\n    from .a import A"
    for text, found in [("", []), (typed, [("jobs.a", "jobs.b", "jobs.c")]), ("from . import c", [])]:
        assert circles({name: (text, False) for name, text in {**texts, "jobs.c": text}.items()}) == found


def test_all_layers_are_found():
    found = {name.split(".")[0] for name, _ in sources()}
    assert set(ALLOWED) == found
    assert {"kernels.count.ngram_keys", "engine.count.count_chunk", "jobs.count", "cluster.dask"} <= {
        name for name, _ in sources()
    }


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("kernels.count.x", "from mgpu_ngram.core.counts.tables import Table", "may not"),
        ("kernels.count.x", "from ...core import tables", "may not"),
        ("kernels.x", "def f():\n    import mgpu_ngram.engine.count.count_chunk", "may not"),
        ("core.x", "from ..engine import count", "may not"),
        ("core.x", "from mgpu_ngram.cluster.executor import Executor", "may not"),
        ("engine.x", "from mgpu_ngram.jobs.count import run", "may not"),
        ("engine.x", "from mgpu_ngram.cluster import devices", "may not"),
        ("cluster.x", "from mgpu_ngram.core.inputs.corpus import Chunk", "may not"),
        ("cluster.x", "import mgpu_ngram.engine.count.count_chunk", "may not"),
        ("jobs.x", "from mgpu_ngram.cluster.local import LocalExecutor", "builds an executor"),
        ("jobs.x", "def f():\n    from mgpu_ngram.cluster import dask", "builds an executor"),
        ("jobs.x", "from mgpu_ngram.stages import run_file", "may not"),
        ("engine.trie.x", "from mgpu_ngram.engine.score.replica import Replica", "no lower room"),
        ("core.storage.x", "def f():\n    from ..inputs import files", "no lower room"),
        ("core.x", "from mgpu_ngram.core.storage import output", "no lower room"),
        ("stages.run_file", "from mgpu_ngram.cli import main", "may not"),
        ("stages.report", "from mgpu_ngram.api.functions import count", "may not"),
        ("api.x", "from mgpu_ngram import cli", "may not"),
        ("engine.x", "import mgpu_ngram", "may not"),
        ("jobs.x", "import dask.array", "only cluster/ knows Dask"),
        ("api.x", "def f():\n    from distributed import Client", "only cluster/ knows Dask"),
        ("engine.x", "import cupy", "inside functions"),
        ("kernels.count.x", "if True:\n    import cupyx.scipy", "inside functions"),
        ("cluster.x", "class A:\n    from pynvml import nvmlInit", "inside functions"),
        ("engine.x", "from kernels.count import ngram_keys", "top-level package"),
        ("surprise.x", "", "no layer"),
    ],
)
def test_a_forbidden_import_is_found(name, text, message):
    assert message in "; ".join(violations(text, name))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("kernels.count.x", "from ..dispatch import pick\nfrom .ngram_keys import ngram_keys\nimport numpy"),
        ("kernels.count.x", "def f():\n    import cupy"),
        ("engine.x", "from mgpu_ngram.kernels import check\nfrom ..core.tables import Table"),
        ("jobs.x", "from mgpu_ngram.cluster.executor import Executor"),
        ("cluster.x", "import dask\nfrom mgpu_ngram.core import errors"),
        ("api.x", "def f():\n    from mgpu_ngram.cluster.dask import DaskExecutor"),
        ("core.x", "import dashboard, cupylike"),
    ],
)
def test_an_allowed_import_passes(name, text):
    assert violations(text, name) == []


def test_relative_imports_of_a_package_start_at_itself():
    assert violations("from . import ngram_keys\nfrom .. import check", "kernels.count", True) == []
    assert "mgpu_ngram.core.x" in violations("from ...core import x", "kernels.count", True)[0]


def test_everything_imports_without_a_gpu():
    """In an interpreter that cannot import GPU libraries; those for PyTorch and datatrove if installed."""
    needed = {"datatrove": "datatrove", "torch": "torch", "engine.torch.operators": "torch"}
    absent = ("__", "benchmarks", *(name for name, package in needed.items() if not find_spec(package)))
    modules = [f"mgpu_ngram.{name}" for name, _ in sources() if not name.startswith(absent)]
    script = (
        "import importlib, sys\n"
        f"for name in {GPU_ONLY!r} + ('dask_cuda',): sys.modules[name] = None\n"
        f"for name in {modules!r}: importlib.import_module(name)\n"
        "print(len(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > len(modules) > 20


def test_the_engine_does_not_load_dask():
    modules = ("count_chunk", "tokenise", "merge_vocabularies")
    script = f"import sys, {', '.join(f'mgpu_ngram.engine.count.{module}' for module in modules)}\n"
    check = "print([m for m in ('dask', 'distributed') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script + check], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.parametrize("module", ["contract", "registry"])
def test_the_contract_of_stages_is_typed(module):
    """`Any` would hide a method with other types from a type checker."""
    assert not re.search(r"\bAny\b", (PACKAGE / "stages" / f"{module}.py").read_text())
