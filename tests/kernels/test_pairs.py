"""All kernel pairs, found by their files: the CPU twin runs on example inputs, and CUDA gives the same result."""

import ast
import copy
import importlib
import inspect
import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import mgpu_ngram.kernels
from mgpu_ngram.kernels.count.intern import WordTable
from mgpu_ngram.kernels.dispatch import array_module, on_gpu, pick, to_host
from tests.support.slow_cases import only_fast, slow_cases

FOLDER = Path(mgpu_ngram.kernels.__file__).parent
SIZES = (0, 1, 2, 7, 255, 4097)
GPU_SIZES = (*SIZES, 10_000, 300_001)
# arguments that a contract allows to be written
WRITES = {
    ("advance_beams", "beams"),
    ("radix_sort", "columns"),
    ("intern", "table"),
    ("write_rows", "out_HNV"),
    ("advance_states", "rows_HV"),
    ("advance_states", "next_HV"),
    ("place_ngrams", "nodes"),
    ("find_and_write_rows", "out_HNV"),
    ("count_topics", "documents"),
    ("count_word_topics", "counts_VZ"),
    ("first_topics", "documents"),
    ("sample_topics", "documents"),
    ("sample_topics", "new_VZ"),
}
# pairs that refuse arrays with gaps
CONTIGUOUS = {
    "common.radix_sort",
    "decode.advance_beams",
    "lda.count_topics",
    "lda.count_word_topics",
    "lda.first_topics",
    "lda.fold_in",
    "lda.plugin_likelihood",
    "lda.sample_topics",
}


def is_pair(path):
    return any(
        isinstance(node, ast.FunctionDef) and node.name == path.stem for node in ast.parse(path.read_text()).body
    )


PAIRS = sorted(f"{path.parent.name}.{path.stem}" for path in FOLDER.glob("*/*.py") if is_pair(path))
DEAR = ["ctc.search_beams"]  # takes 17 s of CPU time to compile
every_pair = pytest.mark.parametrize("pair", [*(p for p in PAIRS if p not in DEAR), *slow_cases(*DEAR)])


def load(pair):
    """Return (module, public function) of a pair."""
    module = importlib.import_module(f"mgpu_ngram.kernels.{pair}")
    return module, getattr(module, pair.split(".")[1])


def inputs_of(pair, size):
    return load(pair)[0].example(np.random.default_rng(size), size)


def is_group(value):
    """Whether this is a group of arguments, a NamedTuple."""
    return hasattr(value, "_fields")


def grouped(fn, value):
    """A group with fn of each of its fields."""
    return type(value)(**{name: fn(field) for name, field in value._asdict().items()})


def to_gpu(value):
    """Return arrays copied to the GPU; a word table is empty there."""
    import cupy

    if isinstance(value, WordTable):
        assert len(value) == 0
        return WordTable(cupy.empty(0))
    if is_group(value):
        return grouped(to_gpu, value)
    if isinstance(value, tuple):  # a table: ends of segments stay in host memory
        return (*(to_gpu(v) for v in value[:2]), *value[2:])
    if isinstance(value, list):
        return [to_gpu(v) for v in value]
    return cupy.asarray(value) if isinstance(value, np.ndarray) else value


def host(value):
    """Return a result in host memory in a form that compares: arrays with dtype and shape."""
    if isinstance(value, WordTable):
        return host(value.hash_V)
    if is_group(value):
        return [host(v) for v in value]
    if isinstance(value, (list, tuple)):
        return [host(v) for v in value]
    if isinstance(value, np.ndarray) or on_gpu(value):
        array = to_host(value)
        return array.dtype.name, array.shape, array.tobytes()
    return value


def outcome(pair, inputs):
    """Return a pair's results, with the arrays that it changes."""
    result = load(pair)[1](**inputs)
    if pair == "count.hash_count":  # neither its order nor the position of an n-gram is defined
        positions_G, counts_G = (to_host(a) for a in result)
        assert positions_G.dtype == counts_G.dtype == np.int64
        tokens, order = to_host(inputs["tokens_T"]).tolist(), inputs["order"]
        return sorted((tokens[p : p + order], c) for p, c in zip(positions_G.tolist(), counts_G.tolist(), strict=True))
    if pair == "count.select_windows":  # rows of a shard are in any order
        columns, starts_S1 = map(to_host, result)
        assert columns.dtype == np.uint64 and starts_S1.dtype == np.int64
        spans = pairwise(starts_S1.tolist())
        return starts_S1.tolist(), [sorted(columns[:, first:last].T.tolist()) for first, last in spans]
    name = pair.split(".")[1]
    return host(result), [host(v) for k, v in inputs.items() if (name, k) in WRITES and k != "columns"]


def array_names(inputs):
    """Names of arrays, also those in groups, once each."""
    names = []
    for name, v in inputs.items():
        names += array_names(v._asdict()) if is_group(v) else [name] * isinstance(v, (np.ndarray, WordTable))
    return list(dict.fromkeys(names))


def with_moved(inputs, name, move):
    """Inputs whose arrays of that name, also those in groups, are moved."""
    changed = {}
    for n, v in inputs.items():
        if is_group(v):
            changed[n] = type(v)(**with_moved(v._asdict(), name, move))
        else:
            changed[n] = move(v) if n == name else v
    return changed


# pairs whose arguments are one array, or groups that say themselves which arrays belong together
ALONE = {
    "common.bag_words",
    "common.count_ids",
    "common.count_true",
    "common.find_tokens",
    "common.radix_sort",
    "count.count_prefixes",
    "count.hash_count",
    "count.histogram_global",
    "count.histogram_private",
    "count.merge_tables",
    "count.ngram_keys",
    "count.pack_deltas",
    "count.reorder_words",
    "decode.tf32_parts",
    "distribution.scale_values",
    "estimate.count_counts",
    "estimate.log10_values",
    "lda.topic_totals",
    "mixture.mixture_top",
}
with_arrays = pytest.mark.parametrize("pair", [pair for pair in PAIRS if pair not in ALONE])


@pytest.mark.parametrize("pair", sorted(ALONE))
def test_which_pairs_take_one_array(pair):
    assert len(array_names(inputs_of(pair, 50))) <= 1


def test_all_pairs_are_found():
    stages = {pair.split(".")[0] for pair in PAIRS}
    assert "count" in stages
    known = "hash_words intern gather_words ngram_keys count_prefixes merge_tables"
    assert {"common.find_tokens", "common.radix_sort", *(f"count.{name}" for name in known.split())} <= set(PAIRS)
    sources = {f"{p.parent.name}.{p.stem}" for p in FOLDER.glob("*/*.cu")}
    assert sources <= set(PAIRS), "a .cu without its pair"


@every_pair
def test_pair_has_its_parts(pair):
    module, function = load(pair)
    stage, name = pair.split(".")
    text = inspect.getsource(module)
    assert list(inspect.signature(module.example).parameters)[:1] == ["rng"]
    assert "size" in inspect.signature(module.example).parameters
    assert "Return" in (function.__doc__ or ""), "the docstring is the contract"
    assert module.__doc__ and callable(module._cpu) and callable(module._cuda)
    composed = re.findall(r"^from \.(\w+) import \1$", text, re.MULTILINE)
    if not (FOLDER / stage / f"{name}.cu").exists():
        assert "kernel(" not in text and composed, f"{name} has no {name}.cu and is not made of other pairs"


@every_pair
def test_twins_take_the_same_arguments(pair):
    module = load(pair)[0]
    cpu, cuda = (getattr(twin, "py_func", twin) for twin in (module._cpu, module._cuda))  # the function, if compiled
    assert list(inspect.signature(cpu).parameters) == list(inspect.signature(cuda).parameters)


@every_pair
def test_example_is_a_pure_function_of_its_generator(pair):
    assert host(list(inputs_of(pair, 100).values())) == host(list(inputs_of(pair, 100).values()))
    assert host(list(inputs_of(pair, 100).values())) != host(list(inputs_of(pair, 1000).values()))


@every_pair
@pytest.mark.parametrize("size", SIZES)
def test_cpu_twin_runs_and_leaves_its_inputs_alone(pair, size):
    inputs = inputs_of(pair, size)
    before, again = copy.deepcopy(inputs), copy.deepcopy(inputs)
    first = outcome(pair, inputs)
    for name, value in inputs.items():
        if (pair.split(".")[1], name) not in WRITES:
            assert host(value) == host(before[name]), f"{name} was written to"
    assert outcome(pair, again) == first


@pytest.mark.gpu
@every_pair
@pytest.mark.parametrize("size", GPU_SIZES)
def test_cuda_equals_cpu(pair, size):
    inputs = inputs_of(pair, size)
    on_device = {name: to_gpu(copy.deepcopy(value)) for name, value in inputs.items()}
    expected = outcome(pair, inputs)
    assert outcome(pair, on_device) == expected


def inner(value):
    """Return the same arrays as parts of larger ones: the rows of adjacent columns are not adjacent."""
    if is_group(value):
        return grouped(inner, value)
    if isinstance(value, (list, tuple)):
        return type(value)(inner(v) for v in value)
    if getattr(value, "ndim", 0) < 2:
        return value
    larger = array_module(value).ones((*value.shape[:-1], value.shape[-1] + 3), value.dtype)
    larger[..., 1:-2] = value
    return larger[..., 1:-2]


# Each other layout is compiled anew.
@pytest.mark.parametrize("pair", only_fast(PAIRS, *CONTIGUOUS, *(p for p in PAIRS if p.startswith("count."))))
@pytest.mark.parametrize("size", (7, 255, 4098))
def test_parts_of_larger_arrays(pair, size, device):
    """The result equals that of the arrays alone, or the arrays are refused."""
    inputs = inputs_of(pair, size)
    expected = outcome(pair, copy.deepcopy(inputs))
    if device == "gpu":
        inputs = {name: to_gpu(value) for name, value in inputs.items()}
    parts = {name: inner(value) for name, value in inputs.items()}
    try:
        found = outcome(pair, parts)
    except ValueError as error:
        assert pair in CONTIGUOUS and "not C-contiguous" in str(error)
    else:
        assert found == expected


@pytest.mark.gpu
@every_pair
def test_cuda_returns_gpu_arrays(pair):
    def places(value):
        if isinstance(value, (list, tuple)):
            return [place for v in value for place in places(v)]
        return [on_gpu(value)] if hasattr(value, "dtype") else []

    result = load(pair)[1](**{name: to_gpu(value) for name, value in inputs_of(pair, 255).items()})
    if pair in ("count.cut_shards", "count.merge_tables", "count.select_windows"):
        result = result[:-1]  # ends of segments are in host memory
    assert all(places(result))


class Elsewhere:
    """Imitates a GPU array: enough for a kernel to refuse it."""

    def __init__(self, array):
        self.dtype, self.shape, self.__cuda_array_interface__ = array.dtype, array.shape, {}

    def __len__(self):
        return self.shape[0]


def elsewhere(value):
    if isinstance(value, WordTable):
        table = copy.copy(value)
        table.keys_C = Elsewhere(value.keys_C)
        return table
    return Elsewhere(value)


@with_arrays
def test_mixed_places_are_refused(pair):
    inputs = inputs_of(pair, 50)
    for moved in array_names(inputs):
        with pytest.raises(TypeError) as error:
            load(pair)[1](**with_moved(inputs, moved, elsewhere))
        for name in array_names(inputs):
            assert f"{name} on the {'GPU' if name == moved else 'host'}" in str(error.value)


@pytest.mark.gpu
@with_arrays
def test_mixed_places_are_refused_on_a_gpu(pair):
    inputs = inputs_of(pair, 50)
    for moved in array_names(inputs):
        with pytest.raises(TypeError) as error:
            load(pair)[1](**with_moved(inputs, moved, to_gpu))
        for name in array_names(inputs):
            assert f"{name} on the {'GPU' if name == moved else 'host'}" in str(error.value)


def test_merge_of_mixed_tables_is_refused():
    (keys, counts, ends_S), *_ = inputs_of("count.merge_tables", 50)["tables"]
    merge_tables = load("count.merge_tables")[1]
    with pytest.raises(TypeError, match=r"keys_0 on the host.* keys_1 on the GPU"):
        merge_tables([(keys, counts, ends_S), (Elsewhere(keys), counts, ends_S)])
    with pytest.raises(TypeError, match=r"counts_0 on the host.* counts_1 on the GPU"):
        merge_tables([(keys, counts, ends_S), (keys, Elsewhere(counts), ends_S)])


def test_pick_follows_the_data():
    here, there = np.zeros(1), Elsewhere(np.zeros(1))
    assert pick("cpu", "cuda", a=here, b=None) == "cpu"
    assert pick("cpu", "cuda", a=there, b=None, c=there) == "cuda"
    assert not on_gpu(here) and on_gpu(there) and not on_gpu(3)
    with pytest.raises(TypeError, match=r"a on the host, c on the GPU; move them together first"):
        pick("cpu", "cuda", a=here, b=None, c=there)
