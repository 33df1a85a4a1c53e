"""Rules of style that a linter does not check, tested on the sources."""

import ast
import functools
from pathlib import Path

import mgpu_ngram

PACKAGE = Path(mgpu_ngram.__file__).parent
MAX_PARAMETERS = 8
MAX_POSITIONAL = 7  # of a constructor: beyond, a reader cannot tell which field each argument sets
# Functions that may have more parameters, with the reason.
MANY_OPTIONS = {
    "api.functions.count": "options of the Python interface",
    "api.beam_search.__init__": "options of the Python interface",
    "api.lda.__init__": "settings of the estimator",
    "api.next_words.iter_distributions": "options of the Python interface",
    "api.next_words.map_distributions": "options of the Python interface",
    "torch.ctc.__call__": "options of the Python interface",
    "api.translator.__init__": "options of the Python interface",
    "benchmarks.harness.suite.add": "the columns of a row",
}
parsed = functools.cache(ast.parse)  # several rules read all sources


def sources():
    """Yield (dotted name without the package, path) of every module."""
    for folder in (PACKAGE, *(p for p in sorted(PACKAGE.iterdir()) if p.is_dir())):
        for path in sorted(folder.glob("*.py") if folder is PACKAGE else folder.rglob("*.py")):
            yield ".".join(path.relative_to(PACKAGE).with_suffix("").parts), path


def with_many_parameters(source):
    """Return {name: number of parameters} of functions with too many, self and cls not counted."""
    found = {}
    for node in ast.walk(parsed(source)):
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        arguments = node.args.posonlyargs + node.args.args + node.args.kwonlyargs
        number = sum(argument.arg not in ("self", "cls") for argument in arguments)
        if number > MAX_PARAMETERS:
            found[node.name] = number
    return found


def test_functions_have_few_parameters():
    """Pass parameters that belong together as one value, a NamedTuple or a dataclass."""
    found = {f"{name}.{f}": n for name, path in sources() for f, n in with_many_parameters(path.read_text()).items()}
    assert not {function: number for function, number in found.items() if function not in MANY_OPTIONS}


def test_what_counts_as_many_parameters():
    eight, nine = (", ".join(f"p{i}" for i in range(n)) for n in (8, 9))
    assert with_many_parameters(f"def f({eight}): pass\nclass C:\n    def g(self, {eight}): pass") == {}
    assert with_many_parameters(f"@njit(cache=True)\ndef f({nine}): pass") == {"f": 9}
    assert with_many_parameters(f"def f({nine}): pass\nclass C:\n    def g(self, {eight}, *, k=1): pass") == {
        "f": 9,
        "g": 9,
    }


def positional_calls_of_constructors(source):
    """Return {"line: class": number} of calls of a class with too many positional arguments.

    A class is a callee whose name, after the last dot, a subscript and leading underscores, starts with a capital
    letter; also `cls` and `super().__init__`. A starred argument counts as one. Kernels and Numba functions have names
    in lower case: CUDA and Numba take positional arguments only.
    """
    found = {}
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.Call) and len(node.args) > MAX_POSITIONAL:
            callee = ast.unparse(node.func)
            name = callee.split("[")[0].rpartition(".")[2]
            if callee in ("cls", "super().__init__") or name.lstrip("_")[:1].isupper():
                found[f"{node.lineno}: {name}"] = len(node.args)
    return found


def test_constructors_take_keywords():
    found = {name: positional_calls_of_constructors(path.read_text()) for name, path in sources()}
    many = {name: calls for name, calls in found.items() if calls}
    assert not many, f"name the fields: pass keywords to these constructors: {many}"


def test_what_counts_as_a_positional_call_of_a_constructor():
    seven, eight = (", ".join(map(str, range(n))) for n in (7, 8))
    fine = f"Row({seven}, last=7)\nkernel({eight})\nrows.kernel({eight})\nkernel[1, 2]({eight})\nRow.make({eight})"
    assert positional_calls_of_constructors(fine) == {}
    found = positional_calls_of_constructors(f"rows.Row({eight})\n_Row({seven}, *more)\nRow[int]({eight})\n")
    assert found == {"1: Row": 8, "2: _Row": 8, "3: Row": 8}
    assert positional_calls_of_constructors(f"cls({seven})\nsuper().__init__({seven})\nsuper().run({eight})") == {}
    found = positional_calls_of_constructors(f"cls({eight})\nsuper().__init__({eight})")
    assert found == {"1: cls": 8, "2: __init__": 8}


def untyped_functions(source):
    """Return the names of functions without annotations that are not decorated with `njit`."""
    found = []
    for node in ast.walk(parsed(source)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            arguments = node.args.posonlyargs + node.args.args + node.args.kwonlyargs
            is_typed = node.returns or any(argument.annotation for argument in arguments)
            if not is_typed and not any(ast.unparse(d).startswith("njit(") for d in node.decorator_list):
                found.append(node.name)
    return found


def test_only_compiled_functions_have_no_types():
    allowed = {name: source for name, path in sources() if "\n# mypy: allow" in (source := path.read_text())}
    assert allowed
    assert not {name: found for name, source in allowed.items() if (found := untyped_functions(source))}


def test_what_counts_as_an_untyped_function():
    source = (
        "@njit(cache=True)\ndef f(a, b): pass\ndef g(a): pass\ndef h() -> None:\n    def k(): pass\nasync def m(): pass"
    )
    assert untyped_functions(source) == ["g", "m", "k"]
