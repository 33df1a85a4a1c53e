"""Sparse matrices in .npz files: by hand, as SciPy writes them, and damaged ones."""

import io
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mgpu_ngram.core.bags import csr_npz
from mgpu_ngram.core.bags.bags import join_bags
from mgpu_ngram.core.bags.csr_npz import csr_npz_words, is_csr_npz, read_csr_npz
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.inputs.sources import Source

CSR = {
    "indices": np.array([4, 1, 0], np.int32),
    "indptr": np.array([0, 2, 2, 3], np.int32),
    "format": np.array(b"csr"),
    "shape": np.array([3, 5]),
    "data": np.array([2.0, 1.0, 70_000.0]),
}
ROWS = [[0, 1, 0, 0, 2], [0] * 5, [70_000, 0, 0, 0, 0]]


def save(arrays, path, compress=True):
    (np.savez_compressed if compress else np.savez)(path, **arrays)
    return path


def read(path):
    source = Source(str(path), "plain", 0, str(path))
    bags = join_bags(read_csr_npz(source))
    assert csr_npz_words(source) == bags.num_words
    return bags


def dense(bags):
    matrix = np.zeros((bags.documents, bags.num_words), np.int64)
    matrix[np.repeat(np.arange(bags.documents), np.diff(bags.starts_D1)), bags.words_P] = bags.counts_P
    return matrix.tolist()


@pytest.mark.parametrize("compress", [True, False])
def test_by_hand(tmp_path, compress):
    path = save(CSR, tmp_path / "x.npz", compress)
    assert dense(read(path).check()) == ROWS
    assert is_csr_npz(path.read_bytes()[:100]) and not is_csr_npz(b"PK\x03\x04" + bytes(60)) and not is_csr_npz(b"")


@pytest.mark.parametrize("dtype", [">i4", "<u2", ">f8", "float32", "int64"])
def test_every_dtype(tmp_path, dtype):
    arrays = CSR | {"data": np.array([2, 1, 7], dtype), "indices": CSR["indices"].astype(">i8")}
    assert dense(read(save(arrays, tmp_path / "x.npz")))[2][0] == 7


def test_other_formats_by_hand(tmp_path):
    coo = {"row": np.array([2, 0, 0, 0]), "col": np.array([0, 4, 1, 4]), "data": np.array([70_000, 1, 1, 1])}
    coo |= {"shape": np.array([3, 5]), "format": np.array("coo")}
    assert dense(read(save(coo, tmp_path / "coo.npz")).check()) == ROWS
    csc = {"indices": np.array([2, 0, 0]), "indptr": np.array([0, 1, 2, 2, 2, 3]), "data": np.array([70_000, 1, 2])}
    csc |= {"shape": np.array([3, 5]), "format": np.array(b"csc")}
    assert dense(read(save(csc, tmp_path / "csc.npz")).check()) == ROWS


@settings(max_examples=15)
@given(st.integers(0, 6), st.integers(0, 5), st.integers(0, 2**32 - 1), st.sampled_from(["csr", "csc", "coo"]))
def test_as_scipy_writes_it(tmp_path_factory, rows, columns, seed, format):
    sparse = pytest.importorskip("scipy.sparse")
    matrix = np.random.default_rng(seed).poisson(0.5, (rows, columns))
    path = tmp_path_factory.getbasetemp() / "scipy.npz"
    sparse.save_npz(path, getattr(sparse, f"{format}_matrix")(matrix))
    assert dense(read(path).check()) == matrix.tolist()


def test_rows_are_read_in_blocks(tmp_path, monkeypatch):
    path = save(CSR, tmp_path / "x.npz")
    for pairs, documents in (1, [1, 2]), (2, [2, 1]), (3, [3]):
        monkeypatch.setattr(csr_npz, "BLOCK_PAIRS", pairs)
        assert [b.documents for b in read_csr_npz(Source("x", "plain", 0, str(path)))] == documents
        assert dense(read(path)) == ROWS
    monkeypatch.setattr(csr_npz, "BLOCK_PAIRS", 1)
    with pytest.raises(InputError, match="document 2 of .* the count 0.5"):
        read(save(CSR | {"data": np.array([1, 1, 0.5])}, path))
    empty = CSR | {"indptr": np.zeros(1, int), "indices": np.zeros(0, int), "data": np.zeros(0), "shape": [0, 5]}
    assert read(save(empty, path)).documents == 0


class Evil:
    def __reduce__(self):
        return (pytest.fail, ("the pickle ran",))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"data": np.array([1.5, 1, 1])}, "document 0 of '.*' has the count 1.5, but counts are whole numbers"),
        ({"data": np.array([1, np.nan, 1])}, "the count NaN"),
        ({"data": np.array([1, 1, -1])}, "document 2 of .* the count -1"),
        ({"data": np.array([1, 1])}, "3 word ids but 2 counts; write it again"),
        ({"data": np.array(["a", "b", "c"])}, "counts of .* are of dtype <U1 but must be whole numbers"),
        ({"indices": np.array([5, 1, 0])}, "document 0 of .* has the word id 5, but the ids of 5 words"),
        ({"indices": np.array([4, 1, -1])}, "word id -1"),
        ({"indptr": np.array([0, 2, 3])}, "it has 3 rows but 3 row starts; write it again"),
        ({"indptr": np.array([0, 2, 1, 3])}, "row starts .* fall at document 1"),
        ({"indptr": np.array([0.0, 2, 2, 3])}, "row starts of .* are float64"),
        ({"shape": np.array([3, -5])}, r"its shape is \[3, -5\]"),
        ({"shape": np.array([3])}, r"its shape is \[3\]"),
        ({"format": np.array(b"csc"), "shape": np.array([2**40, 3])}, "it has 1,099,511,627,776 rows but 3 counts"),
        ({"format": np.array(b"bsr")}, "of format 'bsr'; convert it with .tocsr"),
        ({"format": np.array([1])}, "of format .*int64"),
        ({"format": None}, "holds data, indices, indptr, shape, not a sparse matrix; write one"),
        ({"data": None}, "it lacks the array 'data'"),
        ({"data": np.ones((3, 1))}, r"array 'data' of .* has shape \(3, 1\) but must have at most 1 axis; "),
        ({"data": np.array([Evil()], object)}, "array 'data' of .* is a pickle, which could run code"),
    ],
)
def test_wrong_content(tmp_path, changes, said):
    arrays = {name: array for name, array in (CSR | changes).items() if array is not None}
    with pytest.raises(InputError, match=said) as error:
        read(save(arrays, tmp_path / "x.npz"))
    assert "\n" not in str(error.value)


def test_a_bomb_is_refused(tmp_path):
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<i8", "fortran_order": False, "shape": (10**15,)})
    save({name: array for name, array in CSR.items() if name != "data"}, tmp_path / "x.npz")
    with zipfile.ZipFile(tmp_path / "x.npz", "a") as archive:
        archive.writestr("data.npy", header.getvalue())
    with pytest.raises(InputError, match="array 'data' of int64 has shape .1000000000000000,. but 128 bytes"):
        read(tmp_path / "x.npz")


def test_missing_file(tmp_path):
    with pytest.raises(InputError, match="cannot read .*: No such file"):
        read(tmp_path / "x.npz")


@settings(max_examples=200)
@given(st.data())
def test_a_damaged_file_is_read_or_refused_in_one_line(tmp_path_factory, data):
    path = save(CSR, tmp_path_factory.getbasetemp() / "fuzz.npz", data.draw(st.booleans()))
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content[: data.draw(st.sampled_from([len(content), len(content) // 2, len(content) - 5]))])
    try:
        read(path).check()
    except InputError as error:
        assert "\n" not in str(error)
