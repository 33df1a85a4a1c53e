"""The public Counts object, compared with collections.Counter."""

import gc
import pickle
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

import mgpu_ngram.core.counts.counts as counts_module
import mgpu_ngram.core.counts.parquet as parquet_module
from mgpu_ngram.core.counts.counts import FORMAT, Counts, read_counts, read_manifest
from mgpu_ngram.core.counts.parquet import write_vocabulary
from mgpu_ngram.core.counts.shards import deal_words
from mgpu_ngram.core.counts.tables import Table
from mgpu_ngram.core.counts.vocabulary import SPECIALS, Vocabulary, vocabulary_is_text
from mgpu_ngram.core.errors import InputError, RunError
from mgpu_ngram.core.storage.output import Output, write_manifest
from mgpu_ngram.kernels.count.ngram_keys import ngram_keys
from tests.support.parquet_parts import write_part

BITS = 25  # order 3 and 5 have words across two columns
MAX_ORDER = 5


def ngrams_of(lines, n):
    return Counter(tuple(line[i : i + n]) for line in lines for i in range(len(line) - n + 1))


def write_output(path, lines, unit, num_shards=3, max_order=MAX_ORDER):
    """Write the output of count for `lines`, lists of symbols as bytes."""
    occurrences = Counter(symbol for line in lines for symbol in line)
    if unit == "word":
        symbols = [*SPECIALS, *sorted(occurrences, key=lambda w: (-occurrences[w], w))]
    else:
        symbols = sorted(occurrences, key=lambda s: s[::-1])  # ids are little-endian
    V = len(symbols)
    vocabulary = Vocabulary(
        unit,
        np.concatenate([[0], np.cumsum([len(s) for s in symbols])]).astype(np.int64),
        np.frombuffer(b"".join(symbols), np.uint8),
        np.array([occurrences[s] for s in symbols], np.int64),
        np.zeros(V, np.int32),
        np.zeros(V, np.int64),
    )
    code = {s: v + 1 for v, s in enumerate(symbols)}
    shard_V = deal_words(vocabulary.counts_V, num_shards)
    as_text = vocabulary_is_text(vocabulary)
    orders = {}
    with Output.create(path) as output:
        for n in range(1, max_order + 1):
            coded = {tuple(code[s] for s in g): c for g, c in ngrams_of(lines, n).items()}
            stream = np.array([c for g in sorted(coded) for c in g], np.uint32)
            keys = ngram_keys(stream, n, BITS, positions_R=np.arange(len(coded)) * n)
            whole = Table(keys, np.array([coded[g] for g in sorted(coded)], np.int64), n, BITS)
            owner_G = np.array([shard_V[g[-2] - 1] if n > 1 else 0 for g in sorted(coded)])
            folder = output.folder / f"order={n}"
            folder.mkdir()
            for shard in range(num_shards if n > 1 else 1):
                mine = np.flatnonzero(owner_G == shard)
                part = Table(whole.keys[:, mine], whole.counts[mine], n, BITS)
                write_part(part, vocabulary, folder / f"part-{shard:05d}.parquet", as_text)
            orders[str(n)] = {"distinct": len(whole), "total": int(whole.counts.sum())}
        write_vocabulary(vocabulary, output.folder / "vocabulary.parquet", as_text)
        manifest = {"unit": unit, "order": max_order, "orders": orders, "num_shards": num_shards}
        write_manifest(output.folder, manifest, FORMAT)
        output.commit()
    return path


def random_lines(symbols, seed=0, lines=120):
    rng = np.random.default_rng(seed)
    ranks = np.minimum(rng.zipf(1.4, (lines, 12)), len(symbols)) - 1
    return [[symbols[r] for r in row[: rng.integers(0, 13)]] for row in ranks]


WORDS = [b"the", b"of", b"caf\xc3\xa9", b"a", b"banana", "\u65e5\u672c".encode(), b"The", *b"k l m n o".split()]
CORPORA = {
    "text": ("word", random_lines(WORDS), lambda g: b" ".join(g).decode()),
    "not text": ("word", random_lines([*WORDS[:4], b"\xff", b"\xe9\x80"]), b" ".join),
    "bytes": ("byte", [[bytes([c]) for c in np.random.default_rng(1).integers(0, 256, 3000)]], b"".join),
    "ids": (
        "id",
        random_lines([int(v).to_bytes(4, "little") for v in (256, 1, 0, 70000, 2**32 - 1, 5)]),
        lambda g: tuple(int.from_bytes(s, "little") for s in g),
    ),
    "empty": ("word", [], None),
}


@pytest.fixture(params=CORPORA)
def corpus(request, tmp_path, monkeypatch):
    """A Counts and its expected contents: order -> Counter."""
    monkeypatch.setattr(parquet_module, "GROUP_ROWS", 37)  # several row groups
    unit, lines, spell = CORPORA[request.param]
    counts = read_counts(write_output(tmp_path / "out", lines, unit))
    expected = {n: Counter({spell(g): c for g, c in ngrams_of(lines, n).items()}) for n in range(1, MAX_ORDER + 1)}
    return counts, expected


@pytest.fixture
def text(tmp_path):
    return read_counts(write_output(tmp_path / "out", CORPORA["text"][1], "word"))


def test_orders_hold_exactly_the_ngrams(corpus):
    counts, expected = corpus
    assert counts.max_order == MAX_ORDER
    for n in expected:
        order = counts.order(n)
        assert dict(order) == expected[n]
        assert len(order) == len(expected[n]) == sum(1 for _ in order)
        assert order.total == counts.totals[n] == expected[n].total()
        table = order.to_arrow()
        assert table.column_names == ["ngram", "count"]
        assert sum_counts(table) == expected[n].total()
        assert pa.Table.from_batches(order.batches(10), table.schema).equals(table)


def sum_counts(table):
    return sum(table["count"].to_pylist())


@pytest.mark.parametrize("batch_rows", [7, 1 << 17])
def test_top(corpus, monkeypatch, batch_rows):
    monkeypatch.setattr(counts_module, "BATCH_ROWS", batch_rows)
    counts, expected = corpus
    for n in expected:
        ranked = sorted(expected[n].items(), key=lambda e: (-e[1], e[0].encode() if isinstance(e[0], str) else e[0]))
        for k in (0, 1, 10, 10**6):
            assert counts.order(n).top(k) == ranked[:k]
        with pytest.raises(InputError, match="k is -1 but must be a whole number from 0 on"):
            counts.order(n).top(-1)


def test_every_ngram_is_found_and_absent_ones_count_0(corpus):
    counts, expected = corpus
    for n in expected:
        for ngram, count in list(expected[n].items())[:200]:
            assert counts[ngram] == count
            assert ngram in counts
    absent = {
        "word": ["nowhere", "the nowhere", ("the of", "a"), ("a", ""), "n n n n n"],
        "byte": [b"\0\0\0\0\0"],
        "id": [(77, 5), (-1,), (2**32, 5), (1, 1, 1, 1, 0)],
    }
    for key in absent[counts.unit]:
        assert counts[key] == 0
        assert key not in counts


def test_forms_of_a_key_of_words(text):
    expected = ngrams_of(CORPORA["text"][1], 2)[(b"the", b"caf\xc3\xa9")]
    assert expected > 0
    forms = ["the café", "the café".encode(), ("the", "café"), ["the", b"caf\xc3\xa9"], " the\tcafé\n"]
    assert [text[form] for form in forms] == [expected] * len(forms)


def test_words_that_are_not_utf8_are_found_by_str(tmp_path):
    counts = read_counts(write_output(tmp_path / "out", [[b"caf\xe9", b"x"]], "word"))
    assert counts["caf\udce9 x"] == counts[b"caf\xe9 x"] == 1


def test_forms_of_other_keys(tmp_path):
    in_bytes = read_counts(write_output(tmp_path / "bytes", [[bytes([c]) for c in "é a".encode()]], "byte"))
    assert in_bytes["é"] == in_bytes["é".encode()] == in_bytes[" "] == 1
    ids = read_counts(write_output(tmp_path / "ids", [[b"\1\0\0\0", b"\2\0\0\0"]], "id"))
    assert ids[1, 2] == ids[[1, 2]] == ids[np.array([1, 2]).tolist()] == ids[(np.int64(1), np.uint16(2))] == 1


def test_invalid_keys(corpus):
    counts, _ = corpus
    too_long = {"word": "a b c d e f", "byte": b"abcdef", "id": (1, 2, 3, 4, 5, 6)}[counts.unit]
    with pytest.raises(KeyError, match="has order 6 but .* has orders 1, 2, 3, 4, 5"):
        counts[too_long]
    assert too_long not in counts
    wrong = {"word": [3, None, ("a", 3)], "byte": [3, ("a",), ["a"]], "id": [3, "1 2", b"12", ("1",), (1.0,)]}
    for key in wrong[counts.unit]:
        with pytest.raises(TypeError):
            counts[key]
    with pytest.raises(KeyError, match="order 0"):
        counts[() if counts.unit == "id" else ""]
    with pytest.raises(InputError, match="order 6 was not counted"):
        counts.order(6)
    with pytest.raises(TypeError, match="not iterable"):
        iter(counts)


def test_a_lookup_opens_one_part_only(text, monkeypatch):
    opened = []
    real = counts_module.open_parquet
    monkeypatch.setattr(counts_module, "open_parquet", lambda path, c: opened.append(path) or real(path, c))
    assert text["the of the"] > 0
    assert len(set(opened)) == 1
    before = len(opened)
    assert text["the of the"] > 0
    assert len(opened) == before  # from the cache


def test_repr(text):
    assert "unit word" in repr(text) and f"{text.totals[1]:,}" in repr(text)
    assert "order 2" in repr(text.order(2))


@pytest.mark.parametrize("damage", ["missing", "cut", "flipped"])
def test_a_damaged_part_is_bad_input(text, damage):
    path = text.part_path(2, int(text._shard_V[text._index.find(b"the")]))
    content = bytearray(path.read_bytes())
    if damage == "missing":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(content[: len(content) // 2])
    else:
        content[60] ^= 0xFF  # in the first page
        path.write_bytes(content)
    for read in (
        lambda: text["the of"],
        lambda: list(text.order(2)),
        text.order(2).to_arrow,
        lambda: text.order(2).top(3),
    ):
        with pytest.raises(InputError, match=path.name):
            read()


def test_a_manifest_without_its_keys_is_bad_input(tmp_path):
    write_manifest(tmp_path, {"unit": "word"}, FORMAT)
    with pytest.raises(InputError, match=r"manifest\.json is damaged: no usable 'order'"):
        read_counts(tmp_path)
    with pytest.raises(InputError, match="nothing at that path"):
        read_counts(tmp_path / "nowhere")


def test_copies(text, tmp_path, monkeypatch):
    place = text.to_parquet(tmp_path / "copy")
    assert dict(read_counts(place).order(3)) == dict(text.order(3))
    with pytest.raises(InputError, match="exists"):
        text.to_parquet(tmp_path / "copy")
    text.to_parquet(tmp_path / "copy", overwrite=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["copy", "out"]

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(counts_module.shutil, "copytree", full)
    with pytest.raises(RunError, match="No space left on device"):
        text.to_parquet(tmp_path / "other")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["copy", "out"]


def test_a_temporary_folder_lives_as_long_as_its_last_user(tmp_path):
    owned = tmp_path / "temporary"
    write_output(owned / "out", CORPORA["text"][1], "word")
    counts = Counts(owned / "out", owned_folder=owned)
    assert counts["the"] > 0
    copy = pickle.loads(pickle.dumps(counts))
    assert copy["the"] == counts["the"]
    del copy
    order = counts.order(2)
    del counts
    gc.collect()
    assert len(order.top(3)) == 3
    del order
    gc.collect()
    assert not owned.exists()


def test_closing_removes_the_owned_folder_only(text, tmp_path):
    text.close()
    assert text.path.exists()
    owned = tmp_path / "temporary"
    text.to_parquet(owned / "out")
    Counts(owned / "out", owned_folder=owned).close()
    assert not owned.exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "is not an output of count"),
        ('{"format": "mgpu_ngram counts", "form', "damaged"),
        ("[]", "is not an output of count"),
        ('{"format": "mgpu_ngram model"}', "'mgpu_ngram model'"),
        ('{"format": "mgpu_ngram counts", "format_version": 2}', "upgrade mgpu_ngram"),
        ('{"format": "mgpu_ngram counts"}', "version None"),
    ],
)
def test_manifest_refusals(tmp_path, text, message):
    if text is not None:
        (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(InputError, match=message):
        read_manifest(tmp_path)


def test_a_missing_path_is_not_an_output(tmp_path):
    with pytest.raises(InputError, match="nothing at that path"):
        read_manifest(tmp_path / "nowhere")
