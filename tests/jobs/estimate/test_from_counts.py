"""Models of counts equal those of the counted text, bit for bit."""

import json
import lzma
import re
import shutil

import numpy as np
import pytest

from mgpu_ngram.cluster.local import LocalExecutor
from mgpu_ngram.core.counts import shards
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.memory_config import MemoryConfig
from mgpu_ngram.core.models.arpa import read_arpa
from mgpu_ngram.jobs.context import RunContext
from mgpu_ngram.jobs.count import run as count
from mgpu_ngram.jobs.count.run import CountConfig
from mgpu_ngram.jobs.estimate import from_counts as estimate_counts
from mgpu_ngram.jobs.estimate import run as estimate
from mgpu_ngram.jobs.estimate.run import EstimateConfig
from tests.support.slow_cases import first_fast, slow_cases

SMALL_SHARDS = 20_000  # tokens per shard: 12 shards of small.txt


@pytest.fixture
def executors(device):
    """Return a function: an executor with that many workers, closed after the test."""
    made = []

    def make(workers=2):
        made.append(LocalExecutor(device, workers))
        return made[-1]

    yield make
    for executor in made:
        executor.close()


@pytest.fixture
def counted(executors, tmp_path, monkeypatch):
    """Return a function: the folder with counts of text, in several shards."""

    def run(text, name="counts", shard_tokens=SMALL_SHARDS, **options):
        monkeypatch.setitem(shards.SHARD_TOKENS, "word", shard_tokens)
        (tmp_path / f"text of {name}").write_bytes(text)
        config = CountConfig([str(tmp_path / f"text of {name}")], **{"sentence_markers": True, **options})
        return count.run(config, RunContext(executors(), tmp_path / name)).path

    return run


@pytest.fixture
def model_of(executors, tmp_path):
    """Return a function: the bytes of the model file, or the ARPA file, of counts or of text."""

    def run(source, workers=2, **options):
        if isinstance(source, bytes):
            (tmp_path / "text").write_bytes(source)
            given = {"corpus": [str(tmp_path / "text")]}
        else:
            given = {"counts": str(source)}
        config = EstimateConfig(**given, **options)
        estimate.run(config, RunContext(executors(workers), tmp_path / "model", single_file=True, overwrite=True))
        return (tmp_path / "model").read_bytes()

    return run


@pytest.fixture(scope="module")
def small(shared_data):
    return lzma.decompress((shared_data / "golden" / "inputs" / "small.txt.xz").read_bytes())


def random_text(lines=400, seed=0, words=60):
    rng = np.random.default_rng(seed)
    return b"".join(b" ".join(b"w%d" % (w - 1) for w in rng.zipf(1.4, 8).clip(1, words)) + b"\n" for _ in range(lines))


@pytest.mark.parametrize(
    ("order", "columns"), first_fast([(4, "text"), (None, "text"), (2, "text"), (1, "text"), (4, "ids")])
)
def test_the_model_of_the_text(small, counted, model_of, order, columns):
    """Bit for bit, of the counted order and of lower orders, whose highest counts are then raw."""
    folder = counted(small, order=5, columns=columns)
    assert len(list((folder / "order=2").iterdir())) == 12
    expected = model_of(small, order=order)
    for workers in (1, 3, 64):
        assert model_of(folder, workers, order=order) == expected


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("small.o1", {"order": 1}),
        ("small.o3.limitvocab", {"order": 3, "limit_vocab_file": "small_vocab2000.txt"}),
        *slow_cases(
            ("small.o3", {"order": 3}),
            ("small.o5", {}),
            ("small.o5.prune00112", {"prune": [0, 0, 1, 1, 2]}),
            ("small.o3.iu0", {"order": 3, "interpolate_unigrams": False}),
        ),
    ],
)
def test_golden_models(small, counted, model_of, shared_data, tmp_path, model, options):
    """The stored models, which KenLM's lmplz made of the text."""
    golden = shared_data / "golden"
    if "limit_vocab_file" in options:
        options = options | {"limit_vocab_file": str(golden / "inputs" / options["limit_vocab_file"])}
    model_of(counted(small, order=5), format="arpa", **options)
    found, expected = entries(tmp_path / "model"), entries(golden / "models" / f"{model}.arpa.xz")
    assert found.keys() == expected.keys()
    differ = [ngram for ngram, values in expected.items() if found[ngram] != values]  # in their digits
    mine, theirs = (np.array([values[ngram] for ngram in differ], float) for values in (found, expected))
    np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-6)


def entries(path):
    """Return {n-gram: (log10 probability, log10 backoff)} of an ARPA file, as bytes."""
    text = lzma.decompress(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes()
    found = {}
    for line in text.split(b"\n"):
        fields = line.split(b"\t")
        if len(fields) > 1:
            found[fields[1]] = (fields[0], fields[2] if len(fields) > 2 else b"0")
    return found


def test_the_number_of_parts_follows_memory(counted, model_of, part_tokens, monkeypatch):
    """Parts of several shards each, and of one shard."""
    text = random_text()
    folder = counted(text, shard_tokens=300)
    names = sorted(path.name for path in (folder / "order=2").iterdir())
    assert len(names) == 14
    read, expected = [], model_of(text, discount_fallback=[])
    real = estimate_counts.read_part

    def note(paths, *rest):
        read.append([path.name for path in paths[2]])
        return real(paths, *rest)

    monkeypatch.setattr(estimate_counts, "read_part", note)
    for tokens, parts in (10**9, 1), (1500, 3), (1, 14):
        part_tokens(tokens)
        assert model_of(folder, 1, discount_fallback=[]) == expected
        assert len(read) == parts and max(map(len, read)) - min(map(len, read)) <= 1
        assert sorted(name for part in read for name in part) == names
        read.clear()


@pytest.mark.slow
def test_on_two_processes(start, device, counted, model_of, tmp_path, monkeypatch):
    """The fixture's workers have CPUs. One case spills all intermediate results."""
    if device == "gpu":
        pytest.skip("once is enough")
    text = random_text()
    folder, expected = counted(text, shard_tokens=300), model_of(text, discount_fallback=[])
    cluster = start(2)
    monkeypatch.chdir(tmp_path)  # workers have another current folder
    for memory in None, MemoryConfig(host_bytes=64 << 20):
        config = EstimateConfig(counts="counts", discount_fallback=[])
        result = estimate.run(
            config,
            RunContext(cluster, tmp_path / "model", single_file=True, overwrite=True, memory=memory or MemoryConfig()),
        )
        assert (tmp_path / "model").read_bytes() == expected and result.workers == 2
    config = EstimateConfig(counts="counts")
    (folder / "order=4" / "part-00003.parquet").unlink()
    with pytest.raises(InputError, match="part-00003.parquet is missing, so .* is incomplete; count again"):
        estimate.run(config, RunContext(cluster, tmp_path / "other", single_file=True))
    assert not list(tmp_path.glob("other*"))


def test_words_that_are_not_utf8(counted, model_of):
    """Binary words, and half of a character."""
    text = random_text().replace(b"w1 ", b"\xff\xe9 ").replace(b"w2 ", "日本 ".encode()).replace(b"w3 ", b"\xe6 ")
    text += b"\x0b\x0c \xc2\xa0 " + "\u3000".encode() + b"\n"  # no spaces
    assert model_of(counted(text, order=3), discount_fallback=[]) == model_of(text, order=3, discount_fallback=[])


def test_text_that_count_normalises(counted, model_of):
    """An unfinished last line is finished; ASCII letters may be lowercased."""
    text = random_text() + b"a line"
    assert model_of(counted(text, order=3), discount_fallback=[]) == model_of(
        text + b"\n", order=3, discount_fallback=[]
    )
    lower = counted(text.upper() + b"\n", "lower", order=3, lowercase=True)
    assert model_of(lower, discount_fallback=[]) == model_of(text + b"\n", order=3, discount_fallback=[])


def test_unusual_text(counted, model_of):
    """Empty lines only; one word; words with repeated spaces."""
    for i, text in enumerate([b"\n", b"\n\n\n", b"a\n", b"\0a\t\r b  \n\n a\n"]):
        folder = counted(text, f"counts {i}", shard_tokens=1, order=3)
        assert model_of(folder, discount_fallback=[]) == model_of(text, order=3, discount_fallback=[])


def test_the_slip_of_lmplz(counted, executors, tmp_path):
    """The first position of a word decides for which n-grams lmplz uses the raw count."""
    lines = random_text(6, seed=9, words=6).splitlines(keepends=True)
    seen = []
    for turn, text in enumerate([b"".join(lines), b"".join(lines[::-1])]):  # other words appear first
        (tmp_path / "text").write_bytes(text)
        folder = counted(text, f"counts {turn}", order=3)
        for exact in True, False:
            found = [
                estimate.run(
                    EstimateConfig(**source, order=3, discount_fallback=[], exact_discounts=exact),
                    RunContext(executors(), tmp_path / "model", single_file=True, overwrite=True),
                ).statistics
                for source in ({"corpus": [str(tmp_path / "text")]}, {"counts": str(folder)})
            ]
            assert found[0] == found[1]
            seen.append(found[1].counts_of_counts)
    assert seen[0] == seen[2] and seen[3] not in (seen[1], seen[2])


def test_the_slip_of_lmplz_at_order_1(counted, executors, tmp_path):
    """Text whose last new word occurs twice after one word; the figures are lmplz's output."""
    lines = [b" ".join(b"w%d" % (i * i * j % 97 % (5 + 6 * j)) for j in range(1, 8)) for i in range(90)]
    text = b"".join(line + b"\n" for line in [*lines, b"w1 last", b"w1 last"])
    printed = {
        1: ["0.238095", "1.375", "2.59184"],
        2: ["0.696203", "1.73892", "2.53587"],
        3: ["0.0814332", "1.99913", "2.0228"],
    }
    (tmp_path / "text").write_bytes(text)
    for source in {"corpus": [str(tmp_path / "text")]}, {"counts": str(counted(text, order=3))}:
        config = EstimateConfig(**source, order=3)
        found = estimate.run(
            config, RunContext(executors(), tmp_path / "model", single_file=True, overwrite=True)
        ).statistics
        assert {n: [f"{d:.6g}" for d in ds] for n, ds in found.discounts.items()} == printed


def test_folders(counted, executors, tmp_path):
    """The manifest names the counts of a model; a run that ended early starts again."""
    folder = counted(random_text())
    config = EstimateConfig(counts=str(folder), discount_fallback=[])
    result = estimate.run(config, RunContext(executors(), tmp_path / "out", resume=True))  # there is nothing to resume
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    [named] = manifest["inputs"]
    sizes = [p.stat().st_size for p in folder.rglob("*.parquet")]
    assert named["name"] == str(folder) and named["size_bytes"] == sum(sizes)
    assert manifest["order"] == manifest["options"]["order"] == result.order == 5
    assert result.tokens == len(random_text().split()) and result.resumed_chunks == 0
    assert not list(tmp_path.glob("out.*"))
    assert not estimate.changed_since(config, manifest)
    assert not estimate.changed_since(EstimateConfig(counts=str(folder), discount_fallback=[], order=5), manifest)
    assert estimate.changed_since(EstimateConfig(counts=str(folder), discount_fallback=[], order=4), manifest)
    shutil.rmtree(folder)
    counted(random_text(seed=1))
    assert estimate.changed_since(config, manifest)
    shutil.rmtree(folder)
    with pytest.raises(InputError, match="is not an output of count: there is nothing at that path"):
        estimate.changed_since(config, manifest)
    assert estimate.open_inputs(config) is None  # an earlier job may make it


def test_in_memory_and_with_a_header(counted, executors, tmp_path):
    folder = counted(random_text())
    model = estimate.run_to_model(
        EstimateConfig(counts=str(folder), order=2, discount_fallback=[]), RunContext(executors(), tmp_path)
    )
    assert model.trie.order == 2
    config = EstimateConfig(
        counts=str(folder), order=2, discount_fallback=[], format="arpa", verbose_header=True, prune=[0, 1]
    )
    result = estimate.run(config, RunContext(executors(), tmp_path / "model.arpa", single_file=True))
    assert f"# Input file: {folder}\n# Token count: {result.tokens}\n" in (tmp_path / "model.arpa").read_text()
    assert [len(level) for level in read_arpa(tmp_path / "model.arpa").levels()] == list(
        result.statistics.kept.values()
    )


TEXT = b"a b c\nb c\n"
REFUSED = [
    ({"unit": "byte", "sentence_markers": False}, TEXT, {}, "has counts of unit byte, not word; estimate from the co"),
    ({"unit": "id", "sentence_markers": False}, TEXT, {}, "has counts of unit id, not word; "),
    ({"sentence_markers": False}, TEXT, {}, "was counted without sentence_markers, .* again with --sentence-markers"),
    ({"min_count": 2}, TEXT, {}, "was counted with min_count 2, .* count again with min_count 1, and prune the model"),
    ({"order": 3}, TEXT, {"order": 4}, "^order is 4 but .*counts has orders up to 3; lower it, or count .* order 4$"),
    ({"order": 2}, TEXT, {"prune": [0, 0, 1]}, "prune has 3 thresholds for 2 orders; give at most"),
    ({}, b"", {}, "has the counts of an empty text; count text with"),
    ({}, b"a <unk>\n<unk>\n", {}, "^<unk> occurs 2 times as a word in the text of .*counts, .* --skip-symbols"),
    ({}, b"a\n<s> b\n", {}, "^<s> occurs 1 times as a word"),
    ({"lowercase": True}, b"a\n</S> b\n</s> c\n", {}, "^</s> occurs 2 times as a word"),
    ({}, TEXT, {}, "no discount can be computed for 1-grams"),
]


@pytest.mark.parametrize(("counting", "text", "options", "why"), REFUSED)
def test_invalid_counts(counted, executors, tmp_path, counting, text, options, why):
    """The error is one line, and no file remains."""
    folder = counted(text, **counting)
    before = sorted(tmp_path.iterdir())
    for single_file in False, True:
        with pytest.raises(InputError) as refusal:
            context = RunContext(executors(), tmp_path / "out", single_file)
            estimate.run(EstimateConfig(counts=str(folder), **options), context)
        assert re.search(why, str(refusal.value)) and "\n" not in str(refusal.value)
        assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    "option",
    [{"skip_symbols": True}, {"unit": "id"}, {"dtype": "uint32"}, {"text_column": "t"}, {"chunk_bytes": 9}],
)
def test_settings_of_text_are_refused(option):
    [name] = option
    with pytest.raises(InputError, match=f"^{name} is for text but counts are given; leave it out"):
        EstimateConfig(counts="counts", **option)


def test_no_counts(executors, tmp_path):
    """A file is taken for counts of SRILM."""
    (tmp_path / "file").write_text("a b\n")
    (tmp_path / "folder").mkdir()
    for name, why in {
        "none": "{} is not an output of count: there is nothing at that path",
        "folder": "{} is not an output of count: it has no manifest",
        "file": "line 1 of '{}' ends with 'b', which is not a count",
    }.items():
        path = tmp_path / name
        with pytest.raises(InputError, match=f"^{why.format(path)}"):
            estimate.run(EstimateConfig(counts=str(path)), RunContext(executors(), tmp_path / "out", single_file=True))
