"""Calls with tensors on streams of PyTorch's, in CUDA graphs and in one pool of memory with CuPy."""

import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import mgpu_ngram as ng
from mgpu_ngram.engine.distribution import next_word, row_maker
from mgpu_ngram.engine.memory.torch_pool import block_allocator
from mgpu_ngram.engine.states import state_model, token_states
from mgpu_ngram.kernels.dispatch import on_gpu, to_host

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
ng_torch = pytest.importorskip("mgpu_ngram.torch")

B, V = 3000, 5
CYCLES = 20_000_000  # some 10 ms: much more than a call takes
TOKENS = ["a", "b", "nothing"]


@pytest.fixture
def model(arpa):
    return ng.Model.load(arpa, "gpu")


@pytest.fixture
def plain(arpa):
    return ng.Model.load(arpa, "cpu")


def states_and_words(seed):
    rng = np.random.default_rng(seed)
    return rng.integers(-1, 8, B).astype(np.int32), rng.integers(0, V, B)


def late(array, wrong=0):
    """Return a tensor that has other values until the stream has done much other work."""
    made = torch.full(array.shape, wrong, dtype=torch.from_numpy(array).dtype, device="cuda")
    values = torch.from_numpy(array).cuda()
    torch.cuda._sleep(CYCLES)
    return made.copy_(values)


def equal(found, wanted):
    return all(torch.equal(a.cpu(), torch.as_tensor(b)) for a, b in zip(found, wanted, strict=True))


def calls(model, lm):
    """Return functions of states and words, tensors or arrays, whose results are tuples."""
    return {
        "step": model.step,
        "advance": lambda states, words: model.advance(states, scale="ln"),
        "final": lambda states, words: (model.final(states),),
        "tokens": lambda states, words: lm.advance(torch.as_tensor(states)),
        "rows of ids": lambda states, words: (model.distribution(words[:, None], scale="log10"),),
        "samples": lambda states, words: (model.sample(words[:, None], top_k=2),),
        "scores of ids": lambda states, words: (model.score_ids(words, np.arange(0, B + 1, 3)),),
    }


@pytest.mark.gpu
def test_calls_work_on_the_streams_of_their_threads(model, plain):
    """Inputs appear late on each stream, and arrays to fill lose their first values late."""
    on_gpu, on_cpu = (calls(m, ng_torch.NGramLM(m, TOKENS)) for m in (model, plain))

    def work(seed):
        states, words = states_and_words(seed)
        wrong = []
        with torch.cuda.stream(torch.cuda.Stream()):
            for name in [*on_gpu] * 2:
                found = on_gpu[name](late(states, -1), late(words))
                if not equal(found, on_cpu[name](states, words)):
                    wrong.append(name)
            out = late(np.full(B, 7, np.float32)), late(np.full(B, 7, np.int32))
            model.step(torch.from_numpy(states).cuda(), torch.from_numpy(words).cuda(), out=out)
            if not equal(out, plain.step(states, words)):
                wrong.append("out")
            begun = late(np.full(B, 7, np.int32))
            if not equal([model.start(B, out=begun)], [plain.start(B)]):
                wrong.append("start")
            rows = late(np.full((1, 1, V), 7, np.float32))
            if not equal([model.distribution("a", "max", out=rows)], [plain.distribution("a", "max")]):
                wrong.append("distribution")
        return wrong

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(work, range(2))) == [[], []]


@pytest.mark.gpu
def test_a_stream_may_be_given(model, plain):
    """The arrays get their values late on that stream, for which others do not wait."""
    import cupy

    stream = cupy.cuda.Stream(non_blocking=True)
    states, words = states_and_words(5)
    values = cupy.asarray(states), cupy.asarray(words)
    given = cupy.full(B, -1, np.int32), cupy.zeros(B, values[1].dtype)
    cupy.cuda.Device().synchronize()
    for address in stream, stream.ptr:
        with stream:
            given[0].fill(-1)
            given[1].fill(0)
            with torch.cuda.stream(torch.cuda.ExternalStream(stream.ptr)):
                torch.cuda._sleep(CYCLES)
            given[0][...], given[1][...] = values
        found = model.step(*given, stream=address)
        rows, ends = model.advance(given[0], stream=address), model.final(given[0], stream=address)
        stream.synchronize()
        made, wanted = (*found, *rows, ends), (*plain.step(states, words), *plain.advance(states), plain.final(states))
        assert all(np.array_equal(to_host(a), b) for a, b in zip(made, wanted, strict=True))
    with pytest.raises(ng.InputError, match="stream is given beside a tensor; use `with torch.cuda.stream"):
        model.final(torch.from_numpy(states).cuda(), stream=stream)
    with pytest.raises(ng.InputError, match="stream is 'x' but must be a stream, or the address of one"):
        model.final(given[0], stream="x")


def slowly(make):
    """Return `make` whose arrays get their values late."""
    import cupy

    def hold(value):
        if isinstance(value, tuple):
            return type(value)(*map(hold, value)) if hasattr(value, "_fields") else tuple(map(hold, value))
        if on_gpu(value):
            values = value.copy()
            value.fill(0)
            with torch.cuda.stream(torch.cuda.ExternalStream(cupy.cuda.get_current_stream().ptr)):
                torch.cuda._sleep(CYCLES)
            value[...] = values
        return value

    return lambda *args, **options: hold(make(*args, **options))


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("module", "function", "call"),
    [
        (state_model, "make_states", "step"),
        (row_maker, "scale_values", "advance"),
        (token_states, "StateTable", "tokens"),
        (next_word, "to_device_fast", "rows"),
    ],
    ids=["states", "scales", "tokens", "model"],
)
def test_tables_made_on_one_stream_serve_another(model, plain, monkeypatch, module, function, call):
    import cupy

    states, words = states_and_words(3)
    inputs = torch.from_numpy(states).cuda(), torch.from_numpy(words).cuda()
    rows = torch.zeros(1, 3, V, device="cuda")
    torch.cuda.synchronize()
    monkeypatch.setattr(module, function, slowly(getattr(module, function)))
    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    lm = None
    with torch.cuda.stream(first), cupy.cuda.Stream(non_blocking=True):
        if call == "tokens":
            lm = ng_torch.NGramLM(model, TOKENS)
        elif call == "rows":
            assert model._next_word_model
        else:
            calls(model, lm)[call](*inputs)
    with torch.cuda.stream(second):
        found = [model.distribution("a", out=rows)] if call == "rows" else calls(model, lm)[call](*inputs)
        found = [tensor.cpu() for tensor in found]
    monkeypatch.undo()
    of_cpu = calls(plain, ng_torch.NGramLM(plain, TOKENS))
    assert equal(found, [plain.distribution("a")] if call == "rows" else of_cpu[call](states, words))


@pytest.mark.gpu
@pytest.mark.parametrize("call", ["step", "advance", "final", "tokens"])
def test_a_graph_of_pytorch_repeats_a_call(model, plain, call):
    """Also after other scales were asked for, and after its memory would have been given to others."""
    on_gpu, on_cpu = (calls(m, ng_torch.NGramLM(m, TOKENS)) for m in (model, plain))
    inputs = [torch.from_numpy(array).cuda() for array in states_and_words(1)]
    on_gpu[call](*inputs)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = on_gpu[call](*inputs)
    model.advance(inputs[0], scale="prob")
    for seed in range(2, 5):
        states, words = states_and_words(seed)
        for tensor, array in zip(inputs, (states, words), strict=True):
            tensor.copy_(torch.from_numpy(array))
        others = [model.advance(inputs[0], scale="prob") for _ in range(3)]
        graph.replay()
        assert equal(made, on_cpu[call](states, words))
        assert all(equal(other, plain.advance(states, scale="prob")) for other in others)


@pytest.mark.gpu
def test_a_first_call_cannot_be_captured(model):
    states = torch.zeros(2, dtype=torch.int32, device="cuda")
    model.advance(states)
    message = "values in the scale ln are made at first use, which a CUDA graph cannot capture; call"
    with pytest.raises(ng.InputError, match=message), torch.cuda.graph(torch.cuda.CUDAGraph()):
        model.advance(states, scale="ln")


@pytest.mark.gpu
def test_results_are_memory_of_pytorch(model):
    states = torch.zeros(1 << 20, dtype=torch.int32, device="cuda")
    words = torch.zeros_like(states)
    model.step(states, words)
    before = torch.cuda.memory_allocated()
    log10, after = model.step(states, words)
    assert torch.cuda.memory_allocated() - before >= 8 << 20
    log10.record_stream(torch.cuda.Stream())
    del log10, after
    assert torch.cuda.memory_allocated() == before


@pytest.mark.gpu
def test_a_graph_repeats_a_loss():
    logits, log_probs = torch.randn(6, 48, device="cuda", requires_grad=True), torch.rand(6, 3, device="cuda").log()
    target = torch.arange(6, device="cuda")

    def gradient():
        return torch.autograd.grad(ng_torch.mixture_loss(logits, log_probs, target, 40).sum(), logits)[0]

    stream = torch.cuda.Stream()  # as PyTorch asks: gradients are first made on a side stream
    with torch.cuda.stream(stream):
        gradient()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = gradient()
    for _ in range(2):
        with torch.no_grad():
            logits.copy_(torch.randn_like(logits))
        graph.replay()
        assert torch.equal(made, gradient())


@pytest.fixture
def own_allocator():
    """Give CuPy its allocator back after the test."""
    import cupy

    yield cupy
    cupy.cuda.set_allocator(cupy.get_default_memory_pool().malloc)
    block_allocator.cache_clear()  # which tells that CuPy takes memory of PyTorch's


@pytest.mark.gpu
def test_cupy_takes_its_memory_from_pytorch(own_allocator, model, plain):
    cupy = own_allocator
    pool = cupy.get_default_memory_pool()
    pool.free_all_blocks()
    cached = pool.free_bytes()
    cupy.zeros(1 << 20)
    for _ in range(2):  # the second call changes nothing
        ng.use_torch_allocator()
    assert pool.free_bytes() <= cached
    torch.cuda.empty_cache()
    allocated, used = torch.cuda.memory_allocated(), pool.used_bytes()
    array = cupy.arange(1 << 24)
    assert torch.cuda.memory_allocated() - allocated >= 128 << 20 and pool.used_bytes() <= used
    assert int(array.sum()) == (1 << 23) * ((1 << 24) - 1)
    del array
    assert torch.cuda.memory_allocated() == allocated
    tensor = torch.empty(120 << 20, dtype=torch.uint8, device="cuda")  # of what CuPy had
    assert torch.cuda.memory_reserved() - torch.cuda.memory_allocated() < 64 << 20
    del tensor
    states, words = states_and_words(1)
    with cupy.cuda.Stream(non_blocking=True):
        found = model.step(cupy.asarray(states), cupy.asarray(words))
        assert all(np.array_equal(to_host(a), b) for a, b in zip(found, plain.step(states, words), strict=True))


def test_a_build_of_pytorch_without_cuda_has_no_memory_to_share():
    if torch.backends.cuda.is_built():
        pytest.skip("PyTorch has CUDA here")
    with pytest.raises(ng.InputError, match="was built without CUDA, so it has no GPU memory to share; leave the call"):
        ng.use_torch_allocator()


def test_without_pytorch_the_allocator_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ng.InputError, match="use_torch_allocator needs PyTorch, which is not installed"):
        ng.use_torch_allocator()
