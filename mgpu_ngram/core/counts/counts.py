"""Read counts back: the class that `count` returns and `read_counts` opens."""

from __future__ import annotations

import functools
import json
import operator
import os
import shutil
import weakref
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mgpu_ngram.core.counts.arrow_numbers import numbers_from_arrow, numbers_to_arrow
from mgpu_ngram.core.counts.parquet import (
    count_columns,
    join_ngrams,
    ngram_type,
    open_parquet,
    read_vocabulary,
    reading,
)
from mgpu_ngram.core.counts.shards import deal_words
from mgpu_ngram.core.counts.vocabulary import SymbolIndex, Vocabulary
from mgpu_ngram.core.errors import InputError, RunError
from mgpu_ngram.core.inputs.files import check_path
from mgpu_ngram.core.lazy_import import LazyModule
from mgpu_ngram.core.storage.output import FORMAT_VERSION, MANIFEST, Output
from mgpu_ngram.core.typed_config import check_whole

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc
else:
    pa = LazyModule("pyarrow")
    pc = LazyModule("pyarrow.compute")

FORMAT = "mgpu_ngram counts"
Ngram = str | bytes | tuple[int, ...]
BATCH_ROWS = 1 << 17
DELIMITERS_TO_SPACE = bytes.maketrans(b"\x00\t\n\r", b"    ")


def read_counts(path: str | Path) -> Counts:
    """Open the output folder of a count run. Raises InputError for another folder or a newer version."""
    return Counts(path)


def read_manifest(path: str | Path) -> dict[str, Any]:
    """Return the manifest of the counts at `path`. Raises InputError if this version cannot read one there."""
    file = Path(path) / MANIFEST
    try:
        manifest = json.loads(file.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        what = f"it has no {MANIFEST}" if os.path.lexists(path) else "there is nothing at that path"
        raise InputError(f"{path} is not an output of count: {what}; give the folder that count wrote") from None
    except OSError as error:
        raise InputError(f"cannot read {file}: {error.strerror or error}; check its permissions") from error
    except ValueError as error:
        raise InputError(f"{file} is damaged: {error}; count again") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        found = manifest.get("format") if isinstance(manifest, dict) else type(manifest).__name__
        raise InputError(
            f"{path} is not an output of count: {file} has format {found!r}, not {FORMAT!r}; "
            "give the folder that count wrote"
        )
    version = manifest.get("format_version")
    if not isinstance(version, int) or version > FORMAT_VERSION:
        raise InputError(
            f"{file} has format version {version!r} but this mgpu_ngram reads up to {FORMAT_VERSION}; "
            "upgrade mgpu_ngram"
        )
    return manifest


class Counts:
    """The n-grams of a corpus with their counts; files are read on demand.

        counts["of the"]         count of an n-gram, 0 if it does not occur
        "of the" in counts
        counts.order(3).top(10)  the most frequent trigrams

    path          the folder that count wrote
    owned_folder  a temporary folder to remove with this object
    unit          "word", "byte" or "id"
    max_order     the highest order counted
    columns       "text" or "ids": the form of n-grams in the files
    totals        order -> n-grams of that order in the corpus, with repetitions
    manifest      the run's manifest, a dict
    """

    def __init__(self, path: str | Path, owned_folder: str | Path | None = None):
        check_path(path, "path")
        self.path = Path(path)
        if owned_folder is not None:
            self._remove = weakref.finalize(self, _remove_folder, Path(owned_folder), os.getpid())
        self.manifest = read_manifest(path)
        try:
            self.unit: str = self.manifest["unit"]
            self.max_order = int(self.manifest["order"])
            self.totals = {int(n): int(o["total"]) for n, o in sorted(self.manifest["orders"].items())}
            self._distinct = {int(n): int(o["distinct"]) for n, o in self.manifest["orders"].items()}
            self._num_shards = int(self.manifest["num_shards"])
            self.columns: str = self.manifest.get("options", {}).get("columns", "text")
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(f"{self.path / MANIFEST} is damaged: no usable {error}; count again") from error
        # The caches refer to files, not to this object, so it is freed with its last user.
        self._group_starts = functools.lru_cache(maxsize=4096)(_group_starts)
        self._row_group = functools.lru_cache(maxsize=8)(_row_group)

    @functools.cached_property
    def vocabulary(self) -> Vocabulary:
        """The symbols of the corpus with their counts and first positions."""
        return read_vocabulary(self.path / "vocabulary.parquet", self.unit)

    @functools.cached_property
    def _index(self) -> SymbolIndex:
        return SymbolIndex(self.vocabulary)

    @functools.cached_property
    def _shard_V(self) -> np.ndarray:
        shard_V: np.ndarray = deal_words(self.vocabulary.counts_V, self._num_shards)
        return shard_V

    def order(self, n: int) -> OrderCounts:
        """Return the n-grams of order n. Raises InputError if that order was not counted."""
        if not isinstance(n, (int, np.integer)) or n not in self.totals:
            raise InputError(
                f"order {n!r} was not counted; {self.path} has orders {self._orders()}: "
                "give one of them, or count again"
            )
        return OrderCounts(self, n)

    def __getitem__(self, key: Any) -> int:
        """Return the count of an n-gram; 0 if it does not occur or was pruned.

        key  words: a str or bytes of words separated by spaces, or a tuple or list of words;
             bytes: bytes, or a str, which stands for its UTF-8; ids: a tuple or list of ints

        The number of symbols is the order. Raises KeyError if that order was not counted, TypeError for
        other keys. Reads one row group of one file.
        """
        symbols = self._symbols(key)
        n = len(symbols)
        if n not in self.totals:
            raise KeyError(f"{key!r} has order {n} but {self.path} has orders {self._orders()}")
        ids = tuple(self._index.find(symbol) for symbol in symbols)
        if -1 in ids:
            return 0
        path, names = self.part_path(n, int(self._shard_V[ids[-2]]) if n > 1 else 0), self.names(n)
        # Rows are sorted by ids: find the row group, then the row.
        group = bisect_right(self._group_starts(path, names), ids, key=self._row_ids) - 1
        if group < 0:
            return 0
        *ngrams, counts = self._row_group(path, names, group)

        def ids_of(row: int) -> tuple[int, ...]:
            return self._row_ids(tuple(column[row].as_py() for column in ngrams))

        row = bisect_left(range(len(counts)), ids, key=ids_of)
        return counts[row].as_py() if row < len(counts) and ids_of(row) == ids else 0

    def __contains__(self, key: Any) -> bool:
        try:
            return self[key] > 0
        except KeyError:
            return False

    __iter__ = None  # iterate over .order(n)

    def _symbols(self, key: Any) -> list[bytes]:
        """Return the symbols of a key, as the vocabulary spells them."""
        if self.unit == "id":
            if not isinstance(key, tuple | list):
                raise TypeError(f"n-grams of ids are looked up by a tuple or list of ints, not {_kind(key)}")
            ids = [operator.index(i) for i in key]
            if any(not 0 <= i < 2**32 for i in ids):
                return [b""] * len(ids)  # no symbol is empty, so none is found
            return [i.to_bytes(4, "little") for i in ids]
        if self.unit == "byte":
            if not isinstance(key, str | bytes):
                raise TypeError(f"n-grams of bytes are looked up by bytes or str, not {_kind(key)}")
            return [bytes([c]) for c in _to_bytes(key)]
        if isinstance(key, str | bytes):
            return [word for word in _to_bytes(key).translate(DELIMITERS_TO_SPACE).split(b" ") if word]
        if isinstance(key, tuple | list) and all(isinstance(word, str | bytes) for word in key):
            return [_to_bytes(word) for word in key]
        raise TypeError(
            f"n-grams of words are looked up by a str, bytes, or a tuple or list of words, not {_kind(key)}"
        )

    def names(self, n: int) -> tuple[str, ...]:
        """Return the names of the columns of the files of order n."""
        return tuple(count_columns(n, self.columns))

    def _row_ids(self, row: tuple[Any, ...]) -> tuple[int, ...]:
        """Return the vocabulary ids of a row without its count; rows are sorted by them."""
        if self.columns == "ids":
            return row
        [ngram] = row
        ids = tuple(self._index.find(symbol) for symbol in self._symbols(tuple(ngram) if self.unit == "id" else ngram))
        if -1 in ids:
            raise InputError(
                f"{self.path} is damaged: n-gram {ngram!r} has a symbol outside its vocabulary; count again"
            )
        return ids

    def part_path(self, n: int, shard: int) -> Path:
        """Return the file of one order and shard."""
        return self.path / f"order={n}" / f"part-{check_whole(shard, 'shard'):05d}.parquet"

    def part_paths(self, n: int) -> list[Path]:
        """Return the files of one order: one for order 1, else one per shard."""
        n = check_whole(n, "order", 1)
        return [self.part_path(n, shard) for shard in range(self._num_shards if n > 1 else 1)]

    def to_parquet(self, path: str | Path, overwrite: bool = False) -> Path:
        """Copy the output to a new folder, which appears when it is complete; return its path."""
        with Output.create(path, overwrite) as output:
            try:
                shutil.copytree(self.path, output.folder, dirs_exist_ok=True)
            except (OSError, shutil.Error) as error:
                raise RunError(f"cannot copy {self.path} to {path}: {error}; give another output path") from error
            output.commit()
        return output.path

    def close(self) -> None:
        """Remove the temporary folder if this object owns one; afterwards counts cannot be read."""
        if hasattr(self, "_remove"):
            self._remove()

    def __reduce__(self) -> tuple[Any, ...]:
        return Counts, (self.path,)  # a copy in another process reads the folder but does not own it

    def _orders(self) -> str:
        return ", ".join(map(str, self.totals))

    def __repr__(self) -> str:
        orders = ", ".join(f"{n}: {self._distinct[n]:,} of {total:,}" for n, total in self.totals.items())
        return f"<Counts {str(self.path)!r}, unit {self.unit}, distinct n-grams of all by order {{{orders}}}>"


class OrderCounts:
    """The n-grams of one order: str (words), bytes (bytes, or words that are not UTF-8) or tuples of ints (ids)."""

    def __init__(self, counts: Counts, n: int):
        self.counts = counts  # also keeps a temporary folder alive
        self.n = n
        self.total = counts.totals[n]

    def __len__(self) -> int:
        return self.counts._distinct[self.n]

    def batches(self, batch_rows: int = BATCH_ROWS) -> Iterator[pa.RecordBatch]:
        """Yield record batches with columns ngram and count, file by file; rows of a file are sorted by word ids."""
        batch_rows = min(check_whole(batch_rows, "batch_rows", 1), len(self) or 1)
        for path in self.counts.part_paths(self.n):
            with reading(path):
                file = open_parquet(path, self.counts.names(self.n))
                for batch in file.iter_batches(batch_rows, use_threads=False):
                    yield from [batch] if self.counts.columns == "text" else self._with_text(path, batch)

    def _with_text(self, path: Path, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield a batch of ids with the column ngram in place of the ids, in pieces that fit an Arrow array."""
        vocabulary = self.counts.vocabulary
        *columns, counts = map(numbers_from_arrow, batch.columns)
        ids_NR = np.stack(columns).view(np.uint32)
        if ids_NR.size and ids_NR.max() >= len(vocabulary):
            raise InputError(
                f"{path} is damaged: it has id {ids_NR.max():,} but its vocabulary has {len(vocabulary):,}; count again"
            )
        row = 0
        while row < len(counts):
            ngrams = join_ngrams(ids_NR[:, row:], vocabulary, self._type)
            yield pa.record_batch([ngrams, batch["count"][row : row + len(ngrams)]], self._schema)
            row += len(ngrams)

    @property
    def _type(self) -> pa.DataType:
        return ngram_type(self.counts.unit, self.counts.unit == "word" and self.counts.vocabulary.as_text)

    @property
    def _schema(self) -> pa.Schema:
        return pa.schema([pa.field("ngram", self._type, False), pa.field("count", pa.int64(), False)])

    def __iter__(self) -> Iterator[tuple[Ngram, int]]:
        for batch in self.batches():
            yield from _pairs(batch)

    def top(self, k: int) -> list[tuple[Ngram, int]]:
        """Return the k most frequent n-grams, ties by bytes (ids: by value). Keeps 2 k rows and a batch in memory.

        Raises InputError for a negative k.
        """
        k = min(check_whole(k, "k"), len(self))
        held: list[pa.Table] = []
        floor = 0  # rows below it are not among the top k
        for batch in self.batches(BATCH_ROWS) if k > 0 else ():
            rows = pa.Table.from_batches([batch])
            least = numbers_to_arrow(np.array([floor]))[0]  # `pyarrow.scalar` would import pandas
            held.append(rows.filter(pc.greater_equal(rows["count"], least)))
            if sum(map(len, held)) > 2 * k + BATCH_ROWS:
                held = [_heaviest(pa.concat_tables(held), k, self.n)]
                floor = held[0]["count"][k - 1].as_py()
        return list(_pairs(_heaviest(pa.concat_tables(held), k, self.n))) if held else []

    def to_arrow(self) -> pa.Table:
        """Return all n-grams as one table with columns ngram and count."""
        if self.counts.columns == "ids":
            return pa.Table.from_batches(self.batches(), self._schema)
        tables = []
        for path in self.counts.part_paths(self.n):
            with reading(path):
                tables.append(open_parquet(path, self.counts.names(self.n)).read())
        return pa.concat_tables(tables)

    def __repr__(self) -> str:
        return f"<OrderCounts of order {self.n}: {len(self):,} distinct of {self.total:,} n-grams>"


def _heaviest(rows: pa.Table, k: int, order: int) -> pa.Table:
    """Return the k rows of highest count, sorted."""
    sortable, ties = rows, ["ngram"]
    if pa.types.is_list(rows["ngram"].type):  # Arrow cannot sort lists: use a column per position
        ids_GN = pc.list_flatten(rows["ngram"]).to_numpy().reshape(-1, order)
        ties = [f"id{n}" for n in range(order)]
        sortable = pa.table({"count": rows["count"], **dict(zip(ties, ids_GN.T.copy(), strict=True))})
    keys = [("count", "descending"), *((name, "ascending") for name in ties)]
    return rows.take(pc.select_k_unstable(sortable, k, keys))


def _pairs(rows: pa.Table | pa.RecordBatch) -> Iterator[tuple[Ngram, int]]:
    ngrams, counts = rows.column("ngram").to_pylist(), rows.column("count").to_pylist()
    if pa.types.is_list(rows.schema.field("ngram").type):
        ngrams = map(tuple, ngrams)
    return zip(ngrams, counts, strict=True)


def _group_starts(path: Path, names: tuple[str, ...]) -> list[tuple[Any, ...]]:
    """Return the first row of each row group of a file, without its count."""
    file = open_parquet(path, names)
    starts = []
    for group in range(file.num_row_groups):
        with reading(path):  # decodes one page of each column
            batch = next(file.iter_batches(1, row_groups=[group], columns=list(names[:-1]), use_threads=False))
        starts.append(tuple(column[0].as_py() for column in batch.columns))
    return starts


def _row_group(path: Path, names: tuple[str, ...], group: int) -> list[pa.ChunkedArray]:
    """Return the columns of one row group of a file."""
    with reading(path):
        columns: list[pa.ChunkedArray] = open_parquet(path, names).read_row_group(group, use_threads=False).columns
        return columns


def _to_bytes(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape")


def _kind(key: Any) -> str:
    return f"{key!r} ({type(key).__name__})"


def _remove_folder(folder: Path, pid: int) -> None:
    """Remove a temporary folder, but only in the process that made it, not in a fork."""
    if os.getpid() == pid:
        shutil.rmtree(folder, ignore_errors=True)
