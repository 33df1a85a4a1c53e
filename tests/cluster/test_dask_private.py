"""One file alone uses Dask's private names, so that a new release breaks one file only."""

import ast
from pathlib import Path

import pytest

import mgpu_ngram.cluster

CLUSTER = Path(mgpu_ngram.cluster.__file__).parent
OURS = {"self", "cls", "_here", "_tasks", "other"}  # names of other objects than Dask's
# attributes without an underscore that Dask does not document
UNDOCUMENTED = {
    "OFFLOAD_THRESHOLD", "batched_stream", "client_comms", "connection_args", "identity", "interval",
    "scheduler_comm", "set_restrictions", "stream_comms", "stream_handlers",
}  # fmt: skip


def private_names(source):
    """Private names of other packages that a file uses."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in ("dask", "distributed"):
            names = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
            found += [name for name in names if name.startswith("_")]
        elif isinstance(node, ast.Attribute):
            is_ours = isinstance(node.value, ast.Name) and node.value.id in OURS
            is_private = node.attr.startswith("_") and not node.attr.startswith("__") and not is_ours
            if is_private or node.attr in UNDOCUMENTED:
                found.append(node.attr)
    return found


@pytest.mark.parametrize("page", sorted(CLUSTER.glob("*.py")), ids=lambda page: page.stem)
def test_only_one_file_uses_private_names(page):
    found = private_names(page.read_text())
    assert bool(found) == (page.stem == "dask_private"), found


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("from dask._expr import LLGExpr", ["_expr"]),
        ("from distributed.utils import _offload_executor", ["_offload_executor"]),
        ("client._graph_to_futures()", ["_graph_to_futures"]),
        ("worker.stream_handlers['remove-worker']", ["stream_handlers"]),
        ("self._graph = client.submit(f)", []),
    ],
)
def test_private_names_are_found(source, found):
    assert private_names(source) == found
