"""Models of text with words that are heavier than a shard, and therefore split."""

import numpy as np
import pytest

from mgpu_ngram.cluster.local import LocalExecutor
from mgpu_ngram.engine.estimate import adjusted_counts, assemble, part_counts, part_values
from mgpu_ngram.engine.estimate import probabilities as engine
from mgpu_ngram.engine.estimate.part import EstimateOptions
from mgpu_ngram.engine.memory.budget import Budget
from mgpu_ngram.jobs.context import RunContext
from mgpu_ngram.jobs.estimate import assemble as estimate_model
from mgpu_ngram.jobs.estimate import run as estimate
from mgpu_ngram.jobs.estimate import tasks as estimate_tasks
from mgpu_ngram.jobs.estimate import text_parts
from mgpu_ngram.jobs.estimate.estimation import Estimation
from mgpu_ngram.jobs.estimate.run import EstimateConfig
from mgpu_ngram.jobs.progress import Progress
from mgpu_ngram.kernels.dispatch import on_gpu
from tests.support.slow_cases import first_fast


@pytest.fixture
def estimated(device, tmp_path, part_tokens, monkeypatch):
    """Return a function: (the bytes of a model, its statistics, the split words) of text in about that many shards."""
    split = []
    real = Estimation.__init__

    def note(self, *arguments, **named):
        real(self, *arguments, **named)
        split.append(self.split)

    monkeypatch.setattr(Estimation, "__init__", note)

    def run(text, shards, cluster=None, **options):
        (tmp_path / "text").write_bytes(text)
        marked = len(text.split()) + 2 * text.count(b"\n")
        part_tokens(-(-marked // shards))
        config = EstimateConfig([str(tmp_path / "text")], **{"discount_fallback": [], **options})
        executor = cluster or LocalExecutor(device, 1)
        try:
            result = estimate.run(config, RunContext(executor, tmp_path / "model", single_file=True, overwrite=True))
        finally:
            if cluster is None:
                executor.close()
        return (tmp_path / "model").read_bytes(), result.statistics, split[-1]

    return run


@pytest.mark.gpu
def test_a_gpu_that_fills_up(estimated, device, monkeypatch):
    """A part that does not fit is made in host memory: the same model."""
    text, options = random_text(400), {"order": 3, "prune": [0, 1]}
    expected = estimated(text, 3, **options)
    real, calls = estimate_tasks.part_of_tables, []

    def fails_on_a_gpu(*arguments):
        result = real(*arguments)
        calls.append(not any(map(on_gpu, result.arrays().values())))
        if not calls[-1]:
            raise MemoryError
        return result

    monkeypatch.setattr(estimate_tasks, "part_of_tables", fails_on_a_gpu)
    assert estimated(text, 3, **options) == expected
    if device == "gpu":
        assert any(calls) and not all(calls)


@pytest.mark.gpu
@pytest.mark.parametrize(("most", "on_host"), [(300, False), (0, True)])
def test_a_gpu_that_fills_up_while_stretches_are_made(most, on_host, estimated, device, monkeypatch):
    """Twice as many are made, again and again; if no more can be made, in host memory: the same model."""
    text, sizes = random_text(400), []
    expected = estimated(text, 3, order=3)
    monkeypatch.setattr(assemble, "SAMPLED_NGRAMS", 4)

    def fails_on_a_gpu(real):
        def made(unigrams, parts, *more):
            size = sum(len(part.probabilities[2]) for part in parts)
            sizes.append((size, on_gpu(unigrams.prob_V)))
            if on_gpu(unigrams.prob_V) and size > most:
                raise MemoryError
            return real(unigrams, parts, *more)

        return made

    for name in "assemble", "assemble_stretch":
        monkeypatch.setattr(estimate_model, name, fails_on_a_gpu(getattr(estimate_model, name)))
    assert estimated(text, 3, order=3) == expected
    if device == "gpu":
        assert sizes[0][0] == sizes[1][0] > min(size for size, _ in sizes) and len(sizes) > 4
        assert any(not is_on_gpu for _, is_on_gpu in sizes) == on_host


@pytest.mark.gpu
@pytest.mark.parametrize("order", [2, 3, 4])
def test_a_gpu_that_fills_up_while_an_order_is_adjusted(order, estimated, device, monkeypatch):
    """The order that does not fit is sorted in host memory, with one below that is on the GPU: the same model."""
    text, real, calls = random_text(400), part_counts._in_text_order, []
    expected = estimated(text, 3, order=4)

    def fails_on_a_gpu(rows, *arguments):
        calls.append((rows.n, on_gpu(rows.keys)))
        if calls[-1] == (order, True):
            raise MemoryError
        return real(rows, *arguments)

    monkeypatch.setattr(part_counts, "_in_text_order", fails_on_a_gpu)
    assert estimated(text, 3, order=4) == expected
    assert ((order, False) in calls) and ((order, True) in calls) == (device == "gpu")


@pytest.mark.gpu
@pytest.mark.parametrize("every", [1, 2, 3])
def test_a_gpu_that_fills_up_while_an_order_is_estimated(every, estimated, device, monkeypatch):
    """Values made in host memory, also between others that the GPU makes: the same model."""
    text, real, calls = random_text(400), part_values.interpolate, []
    expected = estimated(text, 3, order=4)

    def fails_on_a_gpu(count_R, *arguments):
        calls.append(on_gpu(count_R))
        if calls[-1] and len(calls) % every == 0:
            raise MemoryError
        return real(count_R, *arguments)

    monkeypatch.setattr(part_values, "interpolate", fails_on_a_gpu)
    assert estimated(text, 3, order=4) == expected
    assert False in calls and (True in calls) == (device == "gpu")


@pytest.mark.gpu
@pytest.mark.parametrize("order", [2, 3])
def test_a_gpu_that_fills_up_while_one_part_is_linked(order, estimated, device, monkeypatch):
    """The order that does not fit is linked in host memory, with one that is on the GPU: the same model."""
    text, real, calls = random_text(400), adjusted_counts.link_histories, []
    expected = estimated(text, 1, order=3)

    def fails_on_a_gpu(below, columns, n, bits):
        calls.append((n, on_gpu(columns)))
        if calls[-1] == (order, True):
            raise MemoryError
        return real(below, columns, n, bits)

    monkeypatch.setattr(adjusted_counts, "link_histories", fails_on_a_gpu)
    assert estimated(text, 1, order=3) == expected
    on_host = [(3, False), (2, False)] if device == "cpu" else [(3, True), (3, False)][: order - 1]
    assert calls == on_host + {"cpu": [], "gpu": [(2, True), (2, False)][: 4 - order]}[device]


def test_contexts_in_several_ranges(estimated, monkeypatch):
    """Bit for bit the same model."""
    text, ranges, real = random_text(400), [], engine.sum_contexts
    for options in {"order": 4}, {"order": 3, "prune": [0, 1]}:
        for shards in 1, 4:
            expected = estimated(text, shards, **options)
            with monkeypatch.context() as patch:
                patch.setattr(engine, "CONTEXTS_AT_ONCE", 37)
                patch.setattr(engine, "sum_contexts", lambda *a: ranges.append(a[3]) or real(*a))
                assert estimated(text, shards, **options) == expected
    assert 37 in ranges and max(ranges) == 37 and min(ranges) < 37


def random_text(lines, seed=0, words=40):
    rng = np.random.default_rng(seed)
    return b"".join(b" ".join(b"w%d" % w for w in rng.zipf(1.4, 9).clip(1, words)) + b"\n" for _ in range(lines))


COLLAPSED = {"order": 3, "collapse_values": True, "format": "arpa"}


@pytest.mark.parametrize("options", [{"order": 5}, {"order": 4, "prune": [0, 1]}, COLLAPSED, {"order": 2}])
def test_the_model_of_one_shard(estimated, options):
    """Bit for bit; words are split if there are many shards."""
    text = random_text(400)
    *expected, split = estimated(text, 1, **options)
    assert split == ()
    for shards in 4, 20, 64:
        *found, split = estimated(text, shards, **options)
        assert found == expected and bool(split) == (options["order"] > 2)
    assert len(split) > 3 or options["order"] == 2


@pytest.mark.parametrize("place", first_fast(["host", "device", "disk"]))
@pytest.mark.parametrize("copies, stretches", [(4, 5), (1, 2), (0, 0)])  # 0: in one pass
def test_one_worker_makes_as_many_stretches_as_memory_allows(
    copies, stretches, place, estimated, device, monkeypatch
):  # fmt: skip
    """Bit for bit the same model, wherever stretches are kept. On a GPU, which keeps the parts, a copy less is made."""
    text, made, real = random_text(400), [], estimate_model.assemble_stretch
    expected = estimated(text, 1, order=5)
    monkeypatch.setattr(assemble, "SAMPLED_NGRAMS", 4)
    monkeypatch.setattr(Budget, "place", lambda self, nbytes: place)
    monkeypatch.setattr(Budget, "fits_host", lambda self, nbytes: place != "disk")
    here = 120_000 if device == "gpu" else 0  # what values of n-grams take
    monkeypatch.setattr(Budget, "alone_bytes", lambda self: 100_000 + here)
    monkeypatch.setattr(estimate_model, "STRETCH_COPIES", copies)
    monkeypatch.setattr(estimate_model, "assemble_stretch", lambda *a: made.append(a[-2]) or real(*a))
    assert estimated(text, 6, order=5)[:2] == expected[:2]
    assert (len(made) > 1) == (copies == 4) if here else len(made) == stretches


def test_stretches_are_tried_again(tmp_path, monkeypatch):
    """At once; at once, after the parts have left the GPU; then twice as many each time. A try ends when one fails."""
    tried, made = [], []
    report = estimate_model.Report(np.empty(0, np.uint64), {2: 1}, 1000, 1000, {})
    monkeypatch.setattr(estimate_model, "_report_of", lambda part, bits: report._replace(gpu_bytes=part))
    monkeypatch.setattr(estimate_model, "leave_device", lambda part, budget, folder: 0)
    monkeypatch.setattr(
        estimate_model, "cut_words", lambda samples, V, n: tried.append(n) or [(i, i + 1) for i in range(n)]
    )
    monkeypatch.setattr(estimate_model, "finish", lambda *a: None)
    monkeypatch.setattr(estimate_model, "take_stretch", lambda part, bits, words: part)

    def make_stretch(parts, unigrams, words, how):
        made.append((tried[-1], how.may_leave, how.stays))
        return None if tried[-1] < 8 else words[0]

    monkeypatch.setattr(estimate_model, "make_stretch", make_stretch)
    monkeypatch.setattr(estimate_model, "join", lambda stretches, *_: stretches)
    executor = LocalExecutor(workers=1)
    try:
        resources = estimate_model.Resources(executor, Budget("gpu", 1 << 20, 1 << 20), str(tmp_path), Progress())
        assembly = estimate_model.Assembly(resources, None, None, 9, EstimateOptions(2, (0, 0)), ())
        parts = [executor.call(lambda: 1000) for _ in range(2)]
        model, seconds = assembly.assembled(parts)
        assert executor.fetch(model) == list(range(8)) and parts == [] and seconds == [{}, {}]
    finally:
        executor.close()
    assert tried == [1, 1, 2, 4, 8]
    assert made[-8:] == 8 * [(8, False, False)] and {n for n, *_ in made[:-8]} == {2, 4} and len(made) <= 8 + 2 + 3


HALF = b"".join(b"x w%d x x w%d x w%d\n" % (i % 7, i % 5, i % 11) for i in range(30))
PLAIN = {"order": 3, "smoothing": "witten-bell", "discount_fallback": None}


@pytest.mark.parametrize(
    "options", [{"order": 4}, {"order": 3, "prune": [0, 1, 2]}, PLAIN, PLAIN | {"prune": [0, 1, 2]}]
)
@pytest.mark.parametrize("text", [random_text(20), HALF, b"x\n", b"x", b"x y z\ny z x"], ids=len)
def test_any_number_of_parts(text, options, estimated):
    """From 1 to 9, some of them empty. One word is half of the text, or all of it; the last line may not end."""
    whole, *_ = estimated(text, 1, **options)
    assert [estimated(text, parts, **options)[0] == whole for parts in range(2, 10)] == [True] * 8


@pytest.mark.parametrize("options", [{"order": 4}, {"order": 3, "prune": [0, 1, 2]}, PLAIN])
@pytest.mark.parametrize("text", [random_text(20), HALF, b"x\n", b"x y z\ny z x"], ids=len)
def test_any_number_of_passes(text, options, estimated, passes):
    """One part in each pass over the tokens: 2 to 9 passes, or as many as the text has parts."""
    whole, *_ = estimated(text, 1, **options)
    assert [estimated(text, parts, **options)[0] == whole for parts in range(2, 10)] == [True] * 8
    assert passes[1:] == [*range(2, 10)] or (len(text) < 20 and min(passes[1:]) >= 2)


def test_any_number_of_passes_with_a_limited_vocabulary(estimated, passes, tmp_path):
    (tmp_path / "limit").write_text(" ".join(f"w{w}" for w in range(1, 40, 2)))
    options = {"order": 3, "limit_vocab_file": str(tmp_path / "limit")}
    whole, *_ = estimated(random_text(20), 1, **options)
    assert [estimated(random_text(20), parts, **options)[0] == whole for parts in range(2, 10)] == [True] * 8
    assert passes[1:] == [*range(2, 10)]


@pytest.mark.parametrize(("workers", "group"), first_fast([(3, 1), (1, 2), (3, 2)]))
@pytest.mark.parametrize("text", [random_text(60), HALF * 3], ids=len)
def test_any_number_of_passes_for_several_parts(text, workers, group, estimated, device, passes, monkeypatch):
    """1 to 9 passes, each for a group of parts of each worker. The last pass has fewer parts, some of them empty."""
    if device == "gpu" and workers > 1:
        pytest.skip("one process has one GPU")
    whole, *_ = estimated(text, 1, order=4)
    monkeypatch.setattr(estimate, "most_in_group", lambda *_: group)
    executor = LocalExecutor(device, workers)
    try:
        for wanted in range(1, 10):
            parts = max(2, workers * group * wanted - 1)
            assert estimated(text, parts, executor, order=4)[0] == whole
    finally:
        executor.close()
    assert passes[1:] == [*range(1, 10)]


def test_any_number_of_passes_over_text_with_markers(estimated, passes):
    """Parts have fewer tokens than words of text, because markers are skipped."""
    text, options = b"a <s> b\na </s> <unk> b a\n<s> <s> a b\n" * 9, {"order": 3, "skip_symbols": True}
    whole, *_ = estimated(text, 1, **options)
    assert [estimated(text, parts, **options)[0] == whole for parts in range(2, 14)] == [True] * 12
    assert {*passes[1:]} == {*range(2, 10)}


@pytest.fixture
def passes(monkeypatch):
    """The passes over the tokens of each run, of one part each."""
    found = []
    real, real_adjust = text_parts.window_groups, text_parts.TextParts.adjust

    def window_groups(*args):
        for groups in real(*args):
            found[-1] += 1
            yield groups

    def adjust(self, *args):
        found.append(0)
        return real_adjust(self, *args)

    monkeypatch.setattr(text_parts, "window_groups", window_groups)
    monkeypatch.setattr(text_parts.TextParts, "adjust", adjust)
    monkeypatch.setattr(estimate, "most_in_group", lambda *_: 1)
    return found


def test_any_number_of_parts_with_a_limited_vocabulary(estimated, tmp_path):
    (tmp_path / "limit").write_text(" ".join(f"w{w}" for w in range(1, 40, 2)))
    options = {"order": 3, "limit_vocab_file": str(tmp_path / "limit")}
    whole, *_ = estimated(random_text(20), 1, **options)
    assert [estimated(random_text(20), parts, **options)[0] == whole for parts in range(2, 10)] == [True] * 8


@pytest.fixture
def estimated_of_ids(tmp_path, device, part_tokens):
    """Return a function: the bytes of a model of 130 token ids in four files, in parts of some tokens."""
    rng = np.random.default_rng(1)
    paths = []
    for i, size in enumerate((60, 25, 5, 40)):
        rng.integers(0, 8, size).astype(np.uint16).tofile(tmp_path / f"{i}.bin")
        paths.append(str(tmp_path / f"{i}.bin"))
    options = {"unit": "id", "dtype": "uint16", "separator_id": 3, "order": 3, "discount_fallback": []}

    def made(tokens, chunk_bytes, **more):
        part_tokens(tokens)
        executor = LocalExecutor(device, 1)
        try:
            context = RunContext(executor, tmp_path / "model", single_file=True, overwrite=True)
            estimate.run(EstimateConfig(paths, chunk_bytes=chunk_bytes, **options, **more), context)
        finally:
            executor.close()
        return (tmp_path / "model").read_bytes()

    return made


@pytest.mark.parametrize("prune", [[], [0, 1, 1]])
def test_any_number_of_parts_of_files_of_ids(prune, estimated_of_ids):
    """A chunk may have the end of a file and other files in one block."""
    whole = estimated_of_ids(1 << 30, None, prune=prune)
    sizes = [(tokens, size) for tokens in (1 << 30, 60, 9) for size in (40, 60, 100)]
    assert [estimated_of_ids(*some, prune=prune) == whole for some in sizes] == [True] * 9


@pytest.mark.parametrize("prune", first_fast([[], [0, 1, 1]]))
def test_any_number_of_passes_over_ids(prune, estimated_of_ids, passes):
    whole = estimated_of_ids(1 << 30, None, prune=prune)
    tokens = 100, 60, 40, 32, 27, 23, 20, 18
    assert [estimated_of_ids(most, 60, prune=prune) == whole for most in tokens] == [True] * len(tokens)
    assert passes[1:] == [*range(2, 10)]


def test_the_slip_of_lmplz(estimated):
    """The last n-grams, whose raw counts lmplz uses, may be in another part than the bigram at their end."""
    moved = 0
    for seed in range(12):
        text = random_text(6, seed, words=6)
        exact = estimated(text, 1, order=4, exact_discounts=True)[1]
        *expected, _ = estimated(text, 1, order=4)
        *found, split = estimated(text, 30, order=4)
        assert found == expected and split
        moved += expected[1].counts_of_counts != exact.counts_of_counts
    assert moved > 1


def test_on_two_processes(start, device, estimated):
    """The fixture's workers have CPUs."""
    if device == "gpu":
        pytest.skip("once is enough")
    text = random_text(400)
    *expected, _ = estimated(text, 1, order=4)
    *found, split = estimated(text, 12, start(2), order=4)
    assert found == expected and split
