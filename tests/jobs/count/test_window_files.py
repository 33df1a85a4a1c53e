"""Counts that are made from the tokens, one group of shards after another: as counts from tables of chunks."""

from itertools import pairwise

import numpy as np
import pytest

from mgpu_ngram.cluster.executor import Offer
from mgpu_ngram.core.counts import shards
from mgpu_ngram.core.errors import RunError
from mgpu_ngram.engine.count import window_blocks
from mgpu_ngram.jobs.count import plan, window_files
from mgpu_ngram.jobs.count.window_groups import spans_of, window_groups
from tests.jobs.conftest import random_text
from tests.support.interrupt import Interrupt
from tests.support.slow_cases import first_fast

TEXTS = {  # by what is special in them
    "several files": [b"a b c a b\nb c d\n", b"a b c\n" * 30, b"d c b a\n\n\na b\n"],
    "no last newline": [b"a b c\na b\nc a b", b"b c"],
    "one word": [b"a\n"],
    "one word is half of the text": [b" ".join(b"the w%d" % (i % 40) for i in range(400)) + b"\n"],
    "one n-gram": [b"a a a a a a a a a a a a\n" * 20],
    "empty": [b""],
    "empty lines": [b"\n\n\n"],
    "markers": [b"<s> a b </s>\n<unk> a <unk>\n<s> <s> </s>\n"],
}


@pytest.fixture
def from_tokens(monkeypatch):
    """Return a function that makes later runs count from tokens: groups of some tokens, blocks of some windows."""

    def use(tokens=1 << 40, windows=None):
        monkeypatch.setattr(plan.Budget, "kept_host_bytes", lambda budget: -1)
        monkeypatch.setattr(window_files, "tokens_of_group", lambda *_: tokens)
        if windows:
            monkeypatch.setattr(window_blocks, "sort_bytes_per_token", lambda order, bits: 0)
            monkeypatch.setattr(window_blocks, "room_bytes", lambda budget: windows * window_blocks.RESORTED_BYTES)

    return use


@pytest.fixture
def small_shards(monkeypatch):
    for unit in "word", "id":
        monkeypatch.setitem(shards.SHARD_TOKENS, unit, 7)


def files(folder, texts):
    folder.mkdir()
    for i, text in enumerate(texts):
        (folder / f"{i}.txt").write_bytes(text)
    return sorted(folder.iterdir())


OPTIONS = first_fast(
    [
        {"order": 4, "min_count": 2},
        {"order": 5},
        {"order": 2},
        {"order": 3, "columns": "ids", "sentence_markers": True},
        {"order": 5, "min_count": 7, "columns": "ids"},
        {"order": 9, "min_count": 1000, "strategy": "sort"},
    ]
)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("text", TEXTS)
def test_words(text, options, from_tokens, small_shards, run_here, contents, tmp_path):
    paths = files(tmp_path / "text", TEXTS[text])
    expected = run_here(tmp_path / "expected", paths, chunk_bytes=11, **options)
    for tokens, windows in (1 << 40, None), (50, 20), (1, 3):
        from_tokens(tokens, windows)
        result = run_here(tmp_path / f"{tokens} tokens", paths, chunk_bytes=11, **options)
        assert contents(result.path) == contents(expected.path), tokens
        assert result.top == expected.top
        assert all("one group of shards" in planned.reason for planned in result.plans[1:])
    assert not [path for path in tmp_path.iterdir() if "." in path.name]


@pytest.mark.parametrize("separator_id", [None, 3])
def test_ids(separator_id, from_tokens, small_shards, run_here, contents, tmp_path):
    (tmp_path / "text").mkdir()
    rng = np.random.default_rng(0)
    for name, size in ("a", 500), ("b", 1), ("c", 0), ("d", 90):
        np.minimum(rng.zipf(1.5, size), 60).astype(np.uint16).tofile(tmp_path / "text" / name)
    paths = sorted((tmp_path / "text").iterdir())
    options = {"unit": "id", "order": 4, "separator_id": separator_id}
    expected = run_here(tmp_path / "expected", paths, chunk_bytes=64, **options)
    for tokens in 1 << 40, 400, 200, 100, 1:  # in more and more groups of shards, and so passes over the ids
        from_tokens(tokens, windows=50)
        result = run_here(tmp_path / f"{tokens} tokens", paths, chunk_bytes=64, **options)
        assert contents(result.path) == contents(expected.path)


@pytest.mark.parametrize("wanted", range(1, 10))
@pytest.mark.parametrize("options", [{}, {"min_count": 3}, {"unit": "id", "separator_id": 0, "min_count": 2}], ids=str)
def test_every_number_of_groups(options, wanted, from_tokens, run_here, contents, monkeypatch, tmp_path):
    """About that many: shards differ in size. One worker makes a pass over the tokens for each group."""
    unit, order = options.get("unit", "word"), {"order": 3}
    monkeypatch.setitem(shards.SHARD_TOKENS, unit, 230)
    rng = np.random.default_rng(1)
    text = random_text(rng, 2000, 60).encode() if unit == "word" else rng.integers(0, 60, 2000).astype("<u2").tobytes()
    paths = files(tmp_path / "text", [text])
    expected = run_here(tmp_path / "expected", paths, **options, **order)
    tokens_S, made = [], []
    real = window_files.spans_of

    def spans_of(*args):
        tokens_S.extend(args[0])
        made.extend(real(*args))
        return made

    monkeypatch.setattr(window_files, "spans_of", spans_of)
    from_tokens(-(-expected.manifest["tokens"] // wanted))
    result = run_here(tmp_path / "out", paths, 1, chunk_bytes=3000, **options, **order)
    assert contents(result.path) == contents(expected.path)
    assert sum(tokens_S) == expected.manifest["tokens"] and len(tokens_S) == 9
    assert wanted - 1 <= len(made) <= 2 * wanted and made[0][0] == 0 and made[-1][1] == 9
    assert all(before[1] == after[0] for before, after in pairwise(made))


def test_bytes_are_read_once(from_tokens, run_here, contents, monkeypatch, tmp_path):
    """Few n-grams of bytes are distinct, so tables of chunks are small: no pass is made for a group of shards."""
    monkeypatch.setitem(shards.SHARD_TOKENS, "byte", 70)
    paths = files(tmp_path / "text", [random_text(np.random.default_rng(1), 200, 60).encode(), b"no last newline"])
    expected = run_here(tmp_path / "expected", paths, order=3, unit="byte")
    assert expected.manifest["num_shards"] > 9
    from_tokens(1)
    monkeypatch.setattr(window_files, "groups_of_shards", None)
    for workers in 1, 3:
        result = run_here(tmp_path / f"{workers} workers", paths, workers, order=3, unit="byte", chunk_bytes=100)
        assert contents(result.path) == contents(expected.path)


def test_spans_of_shards_that_are_left():
    tokens_S = [5, 1, 1, 9, 1, 1, 1, 1, 40, 2]
    assert spans_of(tokens_S, set(), 1000, 1) == [(0, 10)]
    assert spans_of(tokens_S, {2, 8}, 1000, 1) == [(0, 2), (3, 8), (9, 10)]
    assert spans_of(tokens_S, set(), 31, 2) == [(0, 8), (8, 9), (9, 10)]  # 42 tokens do not fit
    assert spans_of(tokens_S, set(), 20, 1) == [(0, 4), (4, 8), (8, 9), (9, 10)]
    assert spans_of([], set(), 20, 3) == spans_of([4, 4], {0, 1}, 20, 3) == []


@pytest.mark.parametrize(("shards", "workers"), [(10, 4), (16, 8), (40, 8), (200, 64), (1024, 512), (3, 8)])
def test_spans_of_equal_shards(shards, workers):
    """One pass over the tokens is enough if memory is."""
    sizes = [past - first for first, past in spans_of([7] * shards, set(), 1000, workers)]
    assert len(sizes) == min(shards, workers) and sum(sizes) == shards and max(sizes) - min(sizes) <= 1


class Selected:
    """An executor of two workers that notes which shards windows are selected of."""

    transport, workers, device = "tcp", 2, "cpu"

    def __init__(self):
        self.spans = []

    def call(self, fn, *args, **_):
        self.spans += [args[1]] * (fn.__name__ == "select_keys")
        return object()

    def offer(self, handles):
        return Offer(tuple(handles))


def test_a_pass_selects_no_windows_of_finished_shards():
    executor = Selected()
    spans = {0: (0, 1), 1: (4, 6), 2: (6, 9), 3: (9, 10)}
    made = [list(pieces) for pieces in window_groups(executor, [object()], object(), 3, spans)]
    assert made == [[0], [1, 2], [3]] and executor.spans == [(0, 1), (4, 9), (9, 10)]


@pytest.mark.parametrize("columns", ["text", "ids"])
def test_added_counts(columns, from_tokens, small_shards, run_here, contents, tmp_path):
    """Earlier counts and new text: as one count of both texts, except for names of inputs."""
    first, second = files(tmp_path / "text", [b"a b c a b\nb c d\n" * 9, b"new words a b\nb c d new\n" * 5])
    options = {"order": 4, "columns": columns}
    run_here(tmp_path / "first", [first], **options)
    expected = run_here(tmp_path / "expected", [second], add=[str(tmp_path / "first")], **options)
    for tokens, windows in (1 << 40, None), (1, 9):
        from_tokens(tokens, windows)
        out = tmp_path / f"{tokens} tokens"
        result = run_here(out, [second], chunk_bytes=30, add=[str(tmp_path / "first")], **options)
        assert contents(result.path) == contents(expected.path)
        assert result.top == expected.top


def test_added_counts_that_an_interrupted_run_has_spilled(
    from_tokens, small_shards, run_here, contents, monkeypatch, tmp_path
):
    first, second = files(tmp_path / "text", [b"a b c a b\nb c d\n" * 9, b"new words a b\nb c d new\n" * 5])
    run_here(tmp_path / "first", [first], order=3)
    options = {"add": [str(tmp_path / "first")], "order": 3}
    expected = run_here(tmp_path / "expected", [second], **options)
    from_tokens(20)
    monkeypatch.setattr(plan.Budget, "fits_host", lambda budget, nbytes: False)
    with pytest.raises(KeyboardInterrupt):
        run_here(tmp_path / "out", [second], progress=Interrupt("write", 1), checkpoint_seconds=0, **options)
    assert list((tmp_path / "out.checkpoint").glob("entries-*/run-*"))
    result = run_here(tmp_path / "out", [second], resume=True, **options)
    assert contents(result.path) == contents(expected.path)


FULL = [("order=4/", 1), (".written-", 1), (".waiting-", 1), (".waiting-", 1 << 40)]


@pytest.mark.parametrize(("of", "tokens"), FULL)
def test_a_full_disk(
    of, tokens, from_tokens, several_shards, corpus, run_here, contents, undisturbed, full_disk, monkeypatch, tmp_path
):
    """Of the files of counts, of the entries that say which ones are written, of windows, or of all tokens; before the
    tokens, nothing is saved.
    """
    from_tokens(tokens)
    monkeypatch.setattr(plan.Budget, "fits_host", lambda budget, nbytes: tokens == 1)
    full_disk(of=of)
    with pytest.raises(RunError, match=r"^cannot write \S+ after 0 bytes: No space left on device; free space"):
        run_here(tmp_path / "out", corpus, order=4, checkpoint_seconds=0)
    has_saved = tokens == 1
    assert [path.name for path in tmp_path.iterdir()] == ["out.checkpoint"] * has_saved
    full_disk(room=1 << 30)
    result = run_here(tmp_path / "out", corpus, order=4, resume=has_saved)
    assert (result.resumed_chunks > 0) == has_saved and contents(result.path) == undisturbed
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_disk_that_fills_up(
    from_tokens, several_shards, corpus, run_here, contents, undisturbed, full_disk, tmp_path
):  # fmt: skip
    """While the files of the last groups are written: each file is whole or absent, and the groups before are final."""
    from_tokens(1)
    full_disk(room=700, of="order=4/", after=7)
    with pytest.raises(RunError, match=r"^cannot write \S+/order=4/\S+ after \d+ bytes: No space left on device; free"):
        run_here(tmp_path / "out", corpus, 1, order=4, checkpoint_seconds=0)
    [written] = (tmp_path / "out.checkpoint").glob("written-*")
    found = contents(written)
    assert len(found) >= 3 * 7 and found.items() <= undisturbed.items()
    full_disk(room=1 << 30)
    result = run_here(tmp_path / "out", corpus, order=4, resume=True)
    assert 3 <= result.resumed_shards <= 7 and contents(result.path) == undisturbed


@pytest.mark.parametrize("damage", ["bytes", "missing", "first shard", "none"])
def test_written_files_are_verified(
    damage, from_tokens, several_shards, corpus, run_here, contents, undisturbed, tmp_path
):
    from_tokens(1)
    out = tmp_path / "out"

    with pytest.raises(KeyboardInterrupt):
        run_here(out, corpus, 2, order=4, progress=Interrupt("write", 6, pause=0.05), checkpoint_seconds=0)
    [written] = (tmp_path / "out.checkpoint").glob("written-*")
    assert len(list((tmp_path / "out.checkpoint").glob("entries-*/written-*"))) >= 2
    (written / "order=3" / ".part-00009.parquet.1.tmp").touch()  # of a process that was killed
    path = written / "order=2" / "part-00001.parquet"
    if damage == "first shard":
        path = written / "vocabulary.parquet"
        path.write_bytes(b"")
    elif damage == "bytes":
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    elif damage == "missing":
        path.unlink()
    if damage == "none":
        result = run_here(out, corpus, 2, order=4, resume=True)
    else:
        with pytest.warns(UserWarning, match=rf"{path.name}.*\(its items are computed again\)"):
            result = run_here(out, corpus, 2, order=4, resume=True)
    assert 1 <= result.resumed_shards < 10
    assert contents(result.path) == undisturbed
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
