"""Tables written to Parquet, compared with plain Python and read by other packages."""

import errno
import os
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import mgpu_ngram.core.counts.parquet as parquet_module
import mgpu_ngram.core.storage.output as output_module
from mgpu_ngram.core.counts.parquet import PartWriter, read_vocabulary, write_vocabulary
from mgpu_ngram.core.counts.tables import Table
from mgpu_ngram.core.counts.vocabulary import SymbolIndex, Vocabulary, vocabulary_is_text
from mgpu_ngram.core.errors import InputError, RunError
from mgpu_ngram.kernels.count.ngram_keys import ngram_keys
from tests.support.parquet_parts import write_part

WORDS = [b"<unk>", b"<s>", b"</s>", b"the", b"of", b"caf\xc3\xa9", b"a", "\u65e5\u672c".encode(), b"x" * 300]


def vocabulary_of(symbols, unit="word"):
    V = len(symbols)
    offsets_V = np.concatenate([[0], np.cumsum([len(s) for s in symbols])]).astype(np.int64)
    data = np.frombuffer(b"".join(symbols), np.uint8)
    return Vocabulary(
        unit, offsets_V, data, np.arange(V, 0, -1), np.arange(V, dtype=np.int32) % 3 - 1, np.arange(V) * 10
    )


def table_of(grams, order, bits):
    """Return a Table of n-grams given as id tuples -> count."""
    stream = np.array([i + 1 for gram in sorted(grams) for i in gram], np.uint32)
    keys = ngram_keys(stream, order, bits, positions_R=np.arange(len(grams)) * order)
    return Table(keys, np.array([grams[gram] for gram in sorted(grams)], np.int64), order, bits)


def random_grams(rng, V, order, size=500):
    return Counter(map(tuple, rng.integers(0, V, (size, order)).tolist()))


@pytest.mark.parametrize("bits", [4, 19, 25])
@pytest.mark.parametrize("order", [1, 2, 5])
def test_words_as_text(tmp_path, order, bits):
    grams = random_grams(np.random.default_rng(order), len(WORDS), order)
    report = write_part(table_of(grams, order, bits), vocabulary_of(WORDS), tmp_path / "part", as_text=True)
    table = pq.read_table(tmp_path / "part")
    assert table.schema.equals(
        pa.schema([pa.field("ngram", pa.string(), False), pa.field("count", pa.int64(), False)]), check_metadata=True
    )
    assert table["ngram"].to_pylist() == [b" ".join(WORDS[i] for i in gram).decode() for gram in sorted(grams)]
    assert table["count"].to_pylist() == [grams[gram] for gram in sorted(grams)]
    content = (tmp_path / "part").read_bytes()
    assert report == {"rows": len(grams), "bytes": len(content), "crc32": output_module.zlib.crc32(content)}


@pytest.mark.parametrize("rows", [1, 63, 64, 65, 300])
def test_words_of_all_lengths(rows, tmp_path):
    """Words are copied 16 bytes at a time, unless fewer bytes precede or follow the word."""
    words = [bytes([97 + i % 26]) * (40 - i % 41) for i in range(3, 200)] + [b"yy", b"z"]
    grams = random_grams(np.random.default_rng(rows), len(words), 3, rows)
    write_part(table_of(grams, 3, 25), vocabulary_of(words), tmp_path / "part", True)
    texts = pq.read_table(tmp_path / "part")["ngram"].to_pylist()
    assert texts == [" ".join(words[i].decode() for i in gram) for gram in sorted(grams)]


def test_words_that_are_not_utf8(tmp_path):
    words = [*WORDS[:3], b"caf\xe9", b"\xff\xfe"]
    write_part(table_of({(3, 4): 2, (4, 4): 1}, 2, 3), vocabulary_of(words), tmp_path / "part", as_text=False)
    assert pq.read_table(tmp_path / "part")["ngram"].to_pylist() == [b"caf\xe9 \xff\xfe", b"\xff\xfe \xff\xfe"]


def test_bytes_of_all_values(tmp_path):
    vocabulary = vocabulary_of([bytes([c]) for c in range(256)], "byte")
    grams = {(c, 255 - c, c): c + 1 for c in range(256)}
    write_part(table_of(grams, 3, 9), vocabulary, tmp_path / "part", as_text=False)
    table = pq.read_table(tmp_path / "part")
    assert table.schema.field("ngram").type == pa.binary()
    assert table["ngram"].to_pylist() == [bytes(gram) for gram in sorted(grams)]
    assert table["count"].to_pylist() == list(range(1, 257))


def test_ids(tmp_path):
    values = [0, 7, 65536, 2**32 - 1]
    vocabulary = vocabulary_of([v.to_bytes(4, "little") for v in values], "id")
    grams = random_grams(np.random.default_rng(0), 4, 4)
    write_part(table_of(grams, 4, 25), vocabulary, tmp_path / "part", as_text=False)
    table = pq.read_table(tmp_path / "part")
    assert table.schema.field("ngram").type.value_type == pa.uint32()
    assert table["ngram"].to_pylist() == [[values[i] for i in gram] for gram in sorted(grams)]


@pytest.mark.parametrize("order", [1, 2, 5])
@pytest.mark.parametrize("rows", [0, 1, 500])
def test_columns_of_ids(tmp_path, order, rows):
    """Each word is an int32 column of packed differences."""
    grams = random_grams(np.random.default_rng(order), len(WORDS), order, rows)
    write_part(table_of(grams, order, 25), vocabulary_of(WORDS), tmp_path / "part", True, "ids")
    names = [f"id{n + 1}" for n in range(order)]
    fields = [*(pa.field(name, pa.int32(), False) for name in names), pa.field("count", pa.int64(), False)]
    table = pq.read_table(tmp_path / "part")
    assert table.schema.equals(pa.schema(fields), check_metadata=True)
    assert list(zip(*(table[name].to_pylist() for name in names), strict=True)) == sorted(grams)
    assert table["count"].to_pylist() == [grams[gram] for gram in sorted(grams)]
    if rows:
        column = pq.ParquetFile(tmp_path / "part").metadata.row_group(0).column(0)
        assert "DELTA_BINARY_PACKED" in column.encodings and column.compression == "UNCOMPRESSED"


@pytest.mark.parametrize("unit", ["word", "byte", "id"])
def test_empty_table(tmp_path, unit):
    symbols = {"word": WORDS, "byte": [b"a"], "id": [b"\1\0\0\0"]}[unit]
    report = write_part(table_of({}, 3, 25), vocabulary_of(symbols, unit), tmp_path / "part", as_text=unit == "word")
    table = pq.read_table(tmp_path / "part")
    assert (report["rows"], len(table), table.column_names) == (0, 0, ["ngram", "count"])


def test_row_groups_are_cut_by_rows_and_by_bytes(tmp_path, monkeypatch):
    grams = random_grams(np.random.default_rng(0), len(WORDS), 3)
    table, vocabulary = table_of(grams, 3, 25), vocabulary_of(WORDS)
    write_part(table, vocabulary, tmp_path / "whole", as_text=True)
    monkeypatch.setattr(parquet_module, "GROUP_ROWS", 100)
    write_part(table, vocabulary, tmp_path / "rows", as_text=True)
    monkeypatch.setattr(parquet_module, "GROUP_BYTES", 299)  # a long word precedes it: a row group of one row
    write_part(table, vocabulary, tmp_path / "bytes", as_text=True)
    write_vocabulary(vocabulary, tmp_path / "vocabulary", as_text=True)
    groups = [pq.ParquetFile(tmp_path / name).num_row_groups for name in ("whole", "rows", "bytes", "vocabulary")]
    assert groups[:2] == [1, -(-len(grams) // 100)]
    assert groups[2] > groups[1] and groups[3] == 2
    for name in ("rows", "bytes"):
        assert pq.read_table(tmp_path / name).equals(pq.read_table(tmp_path / "whole"))
    assert read_vocabulary(tmp_path / "vocabulary", "word").data.tobytes() == b"".join(WORDS)


def test_a_row_longer_than_a_string_is_refused(tmp_path, monkeypatch):
    offsets_V = np.array([0, 2**30], np.int64)
    one = np.zeros(1, np.int64)
    vocabulary = Vocabulary("word", offsets_V, np.empty(0, np.uint8), one, one.astype(np.int32), one)
    with pytest.raises(RunError, match=r"order 2 has over 2,147,483,647 bytes"):
        write_part(table_of({(0, 0): 1}, 2, 1), vocabulary, tmp_path / "part", as_text=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("columns", ["text", "ids"])
@pytest.mark.parametrize("word", [-1, 9])  # codes 0 and 10
def test_codes_outside_the_vocabulary_are_refused(tmp_path, columns, word):
    with pytest.raises(ValueError, match=r"order 2 has codes outside 1\.\.9, the codes of its vocabulary"):
        write_part(table_of({(3, 4): 1, (3, word): 1}, 2, 8), vocabulary_of(WORDS), tmp_path / "part", True, columns)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("columns", ["text", "ids"])
def test_rewriting_gives_the_same_bytes_from_any_thread(tmp_path, columns):
    table, vocabulary = (
        table_of(random_grams(np.random.default_rng(0), len(WORDS), 3), 3, 25),
        vocabulary_of(WORDS),
    )
    write_part(table, vocabulary, tmp_path / "0", True, columns)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda i: write_part(table, vocabulary, tmp_path / str(i % 3), True, columns), range(12)))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["0", "1", "2"]
    assert len({p.read_bytes() for p in tmp_path.iterdir()}) == 1


def test_a_full_disk_is_one_line_and_leaves_no_file(tmp_path, monkeypatch):
    class Full:
        def __enter__(self):
            return self

        def __exit__(self, *error):
            pass

        def write(self, data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(output_module, "open_file", lambda path: Full())
    with pytest.raises(RunError, match=r"cannot write .*part after 0 bytes: No space left on device; free space"):
        write_part(table_of({(3,): 1}, 1, 8), vocabulary_of(WORDS), tmp_path / "part", as_text=True)
    with pytest.raises(RunError, match="No space left on device"):
        write_vocabulary(vocabulary_of(WORDS), tmp_path / "vocabulary", as_text=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("cut", [False, True])
def test_an_error_midway_keeps_the_older_file(tmp_path, monkeypatch, cut):
    monkeypatch.setattr(parquet_module, "GROUP_ROWS", 100)
    table = table_of(random_grams(np.random.default_rng(0), len(WORDS), 3), 3, 25)
    (tmp_path / "part").write_text("older")
    ngrams, calls = parquet_module._checked_ids, []

    def interrupt(*args):
        calls.append(args)
        if len(calls) > 1 and not cut:
            raise KeyboardInterrupt
        return ngrams(*args)

    monkeypatch.setattr(parquet_module, "_checked_ids", interrupt)
    with pytest.raises(KeyboardInterrupt), PartWriter(tmp_path / "part", 3, vocabulary_of(WORDS), True) as part:
        part.add(table)
        raise KeyboardInterrupt
    assert len(calls) == (len(table) // 100 if cut else 2)  # nor are the buffered rows
    assert not hasattr(part, "written")
    assert [p.name for p in tmp_path.iterdir()] == ["part"]
    assert (tmp_path / "part").read_text() == "older"


def pieces_of(table, cuts):
    """Return tables of the rows between cuts, each with its own arrays."""
    ends = [0, *sorted(cuts), len(table)]
    for a, b in zip(ends, ends[1:], strict=False):
        yield Table(table.keys[:, a:b].copy(), table.counts[a:b].copy(), table.order, table.bits)


def groups_by_hand(texts, group_rows, group_bytes):
    """Return the rows of each row group: as many as both limits allow, at least one."""
    groups, rows, size_bytes = [], 0, 0
    for text in texts:
        if rows and (rows == group_rows or size_bytes + len(text) > group_bytes):
            groups.append(rows)
            rows = size_bytes = 0
        rows, size_bytes = rows + 1, size_bytes + len(text)
    return groups + [rows] * (rows > 0)


@given(
    unit=st.sampled_from(["word", "byte", "id"]),
    num_grams=st.integers(0, 130),
    cuts=st.lists(st.integers(0, 130), max_size=9),
    group_rows=st.sampled_from([1, 10, 64, 1 << 20]),
    group_bytes=st.sampled_from([1, 60, 700, 1 << 28]),
)
@example(unit="word", num_grams=130, cuts=[64], group_rows=64, group_bytes=700)  # a group with rows left over
@settings(max_examples=80)
def test_bytes_do_not_depend_on_the_batches(tmp_path_factory, unit, num_grams, cuts, group_rows, group_bytes):
    folder = tmp_path_factory.mktemp("parts")
    symbols = {
        "word": WORDS,
        "byte": [bytes([c]) for c in range(9)],
        "id": [v.to_bytes(4, "little") for v in range(7, 16)],
    }
    vocabulary = vocabulary_of(symbols[unit], unit)
    grams = random_grams(np.random.default_rng(num_grams), 9, 3, num_grams)
    table = table_of(grams, 3, 25)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parquet_module, "GROUP_ROWS", group_rows)
        patch.setattr(parquet_module, "GROUP_BYTES", group_bytes)
        whole = write_part(table, vocabulary, folder / "whole", unit == "word")
        with PartWriter(folder / "cut", 3, vocabulary, unit == "word") as part:
            for piece in pieces_of(table, [min(c, len(grams)) for c in cuts]):
                part.add(piece)
                piece.keys[:], piece.counts[:] = 0, 0  # the caller may reuse the arrays
    content = (folder / "cut").read_bytes()
    assert content == (folder / "whole").read_bytes()
    assert part.written == whole
    assert whole == {"rows": len(grams), "bytes": len(content), "crc32": output_module.zlib.crc32(content)}
    file = pq.ParquetFile(folder / "cut")
    texts = [b" ".join(symbols[unit][i] for i in gram) if unit == "word" else b"" for gram in sorted(grams)]
    found = [file.metadata.row_group(g).num_rows for g in range(file.num_row_groups)]
    assert found == groups_by_hand(texts, group_rows, group_bytes)
    assert file.read()["count"].to_pylist() == [grams[gram] for gram in sorted(grams)]
    if unit == "word":
        assert file.read()["ngram"].to_pylist() == [text.decode() for text in texts]


def test_at_most_one_group_of_rows_is_buffered(tmp_path, monkeypatch):
    """After each batch, all rows except an incomplete last group are queued for the file."""
    monkeypatch.setattr(parquet_module, "GROUP_ROWS", 100)
    grams = random_grams(np.random.default_rng(0), len(WORDS), 3)
    table = table_of(grams, 3, 25)
    taken = []
    ngrams = parquet_module._checked_ids
    monkeypatch.setattr(
        parquet_module, "_checked_ids", lambda table, *rest: taken.append(len(table)) or ngrams(table, *rest)
    )
    added = 0
    with PartWriter(tmp_path / "part", 3, vocabulary_of(WORDS), True) as part:
        for piece in pieces_of(table, [1, 2, 99, 100, 101, 350]):
            part.add(piece)
            added += len(piece)
            assert taken == [100] * (added // 100)
    assert taken == [100] * (len(grams) // 100) + [len(grams) % 100]


def test_pieces_of_columns_of_ids(tmp_path, monkeypatch):
    """Row groups and bytes do not depend on the pieces; the caller may reuse their arrays."""
    monkeypatch.setattr(parquet_module, "IDS_GROUP_ROWS", 100)
    grams = random_grams(np.random.default_rng(0), len(WORDS), 3)
    table, vocabulary = table_of(grams, 3, 25), vocabulary_of(WORDS)
    whole = write_part(table, vocabulary, tmp_path / "whole", True, "ids")
    with PartWriter(tmp_path / "cut", 3, vocabulary, True, "ids") as part:
        for piece in pieces_of(table, [1, 2, 99, 100, 101, 350]):
            part.add(piece)
            piece.keys[:], piece.counts[:] = 0, 0
    content = (tmp_path / "cut").read_bytes()
    assert content == (tmp_path / "whole").read_bytes() and part.written == whole
    assert whole == {"rows": len(grams), "bytes": len(content), "crc32": output_module.zlib.crc32(content)}
    assert pq.read_metadata(tmp_path / "cut").num_row_groups == -(-len(grams) // 100)


def test_a_part_without_tables_is_an_empty_file(tmp_path):
    with PartWriter(tmp_path / "part", 2, vocabulary_of(WORDS), True) as part:
        assert not (tmp_path / "part").exists()
    assert part.written["rows"] == 0
    assert pq.read_table(tmp_path / "part").column_names == ["ngram", "count"]


def test_a_table_of_another_order_is_refused(tmp_path):
    with (
        pytest.raises(ValueError, match=r"order 1 does not belong to .*part, of order 2"),
        PartWriter(tmp_path / "part", 2, vocabulary_of(WORDS), True) as part,
    ):
        part.add(table_of({(1,): 1}, 1, 8))
    assert list(tmp_path.iterdir()) == []


VOCABULARIES = {
    "text": ("word", WORDS),
    "not text": ("word", [*WORDS, b"\xff"]),
    "bytes": ("byte", [bytes([c]) for c in range(256)]),
    "ids": ("id", [v.to_bytes(4, "little") for v in (0, 5, 2**32 - 1)]),
    "no words": ("word", []),
    "no ids": ("id", []),
}


@pytest.mark.parametrize("name", VOCABULARIES)
def test_vocabulary_round_trip(tmp_path, name):
    unit, symbols = VOCABULARIES[name]
    vocabulary = vocabulary_of(symbols, unit)
    write_vocabulary(vocabulary, tmp_path / "v", vocabulary_is_text(vocabulary))
    back = read_vocabulary(tmp_path / "v", unit)
    assert back.unit == unit
    for field in ("offsets_V", "data", "counts_V", "first_source_V", "first_offset_V"):
        mine, theirs = getattr(vocabulary, field), getattr(back, field)
        assert mine.dtype == theirs.dtype and mine.tolist() == theirs.tolist()
    table = pq.read_table(tmp_path / "v")
    kind = {"text": pa.string(), "no words": pa.string(), "ids": pa.uint32(), "no ids": pa.uint32()}
    assert table.schema.field("symbol").type == kind.get(name, pa.binary())
    assert table["id"].to_pylist() == list(range(len(symbols)))
    assert table["first_source"].type == pa.int32()


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (WORDS, True),
        ([], True),
        ([b"\xff"], False),
        ([b"\xc3", b"\xa9"], False),  # valid only as a concatenation
    ],
)
def test_vocabulary_is_text(words, text):
    assert vocabulary_is_text(vocabulary_of(words)) is text


def test_bytes_are_never_text():
    assert not vocabulary_is_text(vocabulary_of([b"a"], "byte"))


def test_symbol_index_finds_every_symbol_and_no_other():
    symbols = [b"", *WORDS, *(str(i).encode() for i in range(5000))]
    index = SymbolIndex(vocabulary_of(symbols))
    assert [index.find(s) for s in symbols] == list(range(len(symbols)))
    assert [index.find(s) for s in (b"th", b"thee", b"5000", b"x" * 299)] == [-1] * 4
    assert SymbolIndex(vocabulary_of([])).find(b"the") == -1


@pytest.mark.parametrize("damage", ["missing", "cut", "flipped", "other columns"])
def test_a_damaged_vocabulary_is_bad_input(tmp_path, damage):
    path = tmp_path / "vocabulary.parquet"
    write_vocabulary(vocabulary_of(WORDS), path, as_text=True)
    content = bytearray(path.read_bytes())
    if damage == "missing":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(content[:-20])
    elif damage == "flipped":
        content[content.index(b"<unk>") + 1] ^= 1
        path.write_bytes(content)
    else:
        pq.write_table(pa.table({"a": [1]}), path)
    with pytest.raises(InputError, match=r"vocabulary\.parquet"):
        read_vocabulary(path, "word")


UNITS = {
    "word": (vocabulary_of(WORDS), 3, lambda g: b" ".join(WORDS[i] for i in g).decode()),
    "byte": (vocabulary_of([bytes([c]) for c in range(256)], "byte"), 3, bytes),
    "id": (
        vocabulary_of([(v * 999).to_bytes(4, "little") for v in range(50)], "id"),
        3,
        lambda g: [i * 999 for i in g],
    ),
}


@pytest.fixture(params=UNITS)
def folder(request, tmp_path):
    """A folder of two parts and an empty one, and the rows in it."""
    vocabulary, order, spell = UNITS[request.param]
    grams = random_grams(np.random.default_rng(0), len(vocabulary), order)
    halves = [{g: c for g, c in grams.items() if g[1] % 2 == half} for half in (0, 1)]
    folder = tmp_path / "order=3"
    folder.mkdir()
    for i, half in enumerate([*halves, {}]):
        write_part(table_of(half, order, 25), vocabulary, folder / f"part-{i:05d}.parquet", request.param == "word")
    return folder, [(spell(g), half[g]) for half in halves for g in sorted(half)]


def test_pandas_reads_the_folder(folder):
    pandas = pytest.importorskip("pandas")
    path, rows = folder
    frame = pandas.read_parquet(path)
    ngrams = [list(g) if isinstance(g, np.ndarray) else g for g in frame["ngram"]]
    assert list(zip(ngrams, frame["count"], strict=True)) == rows


def test_polars_reads_the_folder(folder):
    polars = pytest.importorskip("polars")
    path, rows = folder
    frame = polars.read_parquet(path)
    assert list(zip(frame["ngram"].to_list(), frame["count"].to_list(), strict=True)) == rows


def test_duckdb_reads_the_folder(folder):
    duckdb = pytest.importorskip("duckdb")
    path, rows = folder
    found = duckdb.sql(f"select ngram, count from '{path}/*.parquet'").fetchall()
    assert sorted(found) == sorted(rows)


def test_ids_are_joined_with_the_vocabulary(tmp_path):
    polars, duckdb = pytest.importorskip("polars"), pytest.importorskip("duckdb")
    vocabulary, order, spell = UNITS["word"]
    grams = random_grams(np.random.default_rng(0), len(vocabulary), order)
    write_part(table_of(grams, order, 25), vocabulary, tmp_path / "part.parquet", True, "ids")
    write_vocabulary(vocabulary, tmp_path / "vocabulary.parquet", True)
    rows = [(spell(g), grams[g]) for g in sorted(grams)]

    words = polars.read_parquet(tmp_path / "vocabulary.parquet")["symbol"]
    ids = polars.read_parquet(tmp_path / "part.parquet")
    columns = [words.gather(ids[name]).alias(name) for name in ids.columns[:-1]]
    text = polars.DataFrame(columns).select(polars.concat_str("*", separator=" "))
    assert list(zip(text.to_series().to_list(), ids["count"].to_list(), strict=True)) == rows

    found = duckdb.sql(f"""
        select a.symbol || ' ' || b.symbol || ' ' || c.symbol, t.count
        from '{tmp_path}/part.parquet' t
        join '{tmp_path}/vocabulary.parquet' a on t.id1 = a.id
        join '{tmp_path}/vocabulary.parquet' b on t.id2 = b.id
        join '{tmp_path}/vocabulary.parquet' c on t.id3 = c.id
        order by id1, id2, id3
    """).fetchall()
    assert found == rows
