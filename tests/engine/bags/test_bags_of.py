"""Bags of words of Python values: every kind of matrix, documents, and Dask collections."""

import subprocess
import sys

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from mgpu_ngram.core.bags.bags import make_bags
from mgpu_ngram.core.bags.text_options import TextOptions
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.engine.bags.bags_of import bags_of

pl = pytest.importorskip("polars")

DENSE = np.array([[0, 2, 0, 1], [0, 0, 0, 0], [70_000, 0, 0, 3]])
BAGS = make_bags([0, 2, 2, 4], [1, 3, 0, 3], [2, 1, 70_000, 3], 4)


class Csr:
    """A matrix as SciPy and cupyx have it."""

    format, shape = "csr", (3, 4)
    indptr, indices = np.array([0, 2, 2, 4], np.int32), np.array([1, 3, 0, 3, 9], np.int32)
    data = np.array([2.0, 1.0, 70_000.0, 3.0, 9.0])  # the last one is unused room
    dtype = data.dtype
    tocsr = None


class Csc(Csr):
    format, indptr = "csc", np.array([0, 1, 2, 2, 4])
    indices, data = np.array([2, 0, 2, 0]), np.array([70_000, 2, 3, 1])


class Coo(Csr):
    format = "coo"
    row, col, data = np.array([2, 0, 2, 0, 0]), np.array([3, 1, 0, 3, 1]), np.array([3, 1, 70_000, 1, 1])


MATRICES = {
    "ndarray": DENSE,
    "float32": DENSE.astype(np.float32),
    "object": DENSE.astype(object),
    "fortran": np.asfortranarray(DENSE),
    "lists": DENSE.tolist(),
    "tuples of arrays": tuple(DENSE),
    "bags": BAGS,
    "csr": Csr(),
    "csc": Csc(),
    "coo": Coo(),
    "pandas": pd.DataFrame(DENSE),
    "pandas sparse": pd.DataFrame(DENSE).astype(pd.SparseDtype(int, 0)),
    "polars": pl.DataFrame(DENSE),
}


@pytest.mark.parametrize("kind", MATRICES)
def test_matrices(kind):
    corpus = bags_of(MATRICES[kind])
    assert corpus.read().check() == BAGS and corpus.num_words == 4
    assert list(corpus.blocks(3)) == [BAGS.slice(0, 2), BAGS.slice(2, 3)]
    assert list(bags_of(MATRICES[kind], list("abcd")).words) == list("abcd")


@pytest.mark.parametrize("kind", ["csr", "csc", "coo", "lil", "dok", "bsr", "dia"])
@pytest.mark.parametrize("made", ["matrix", "array"])
def test_scipy(kind, made):
    sparse = pytest.importorskip("scipy.sparse")
    X = getattr(sparse, f"{kind}_{made}")(DENSE)
    assert bags_of(X).read() == BAGS
    assert bags_of(sparse.csr_matrix((0, 4))).read().documents == 0


@pytest.mark.gpu
def test_cupy():
    import cupy
    import cupyx.scipy.sparse as sparse

    dense = cupy.asarray(DENSE, np.float32)
    for X in (dense, sparse.csr_matrix(dense), sparse.csc_matrix(dense), sparse.coo_matrix(dense)):
        assert bags_of(X).read() == BAGS


def test_columns_of_a_table_are_words():
    assert list(bags_of(pd.DataFrame(DENSE, columns=list("dcba"))).words) == list("dcba")
    assert list(bags_of(pl.DataFrame(DENSE, schema=list("dcba"), orient="row")).words) == list("dcba")
    assert bags_of(pd.DataFrame(DENSE)).words is None


TEXTS = ["aa bb aa", "", "Cc bb"]
TOKENS = [["aa", "bb", "aa"], [], ["cc", "bb"]]
EXPECTED = make_bags([0, 2, 2, 4], [0, 1, 1, 2], [2, 1, 1, 1], 3)


@pytest.mark.parametrize(
    "documents",
    [
        TEXTS, tuple(TEXTS), iter(TEXTS), [t.encode() for t in TEXTS], np.array(TEXTS), np.array(TEXTS, object),
        pd.Series(TEXTS), pd.Series(TEXTS, dtype=object), pl.Series(TEXTS), pa.array(TEXTS), dict.fromkeys(TEXTS),
        TOKENS, tuple(map(tuple, TOKENS)), (list(t) for t in TOKENS), pd.Series(TOKENS), pa.array(TOKENS),
        [np.array(t) for t in TOKENS],
    ],
)  # fmt: skip
def test_documents(documents):
    corpus = bags_of(documents)
    assert list(corpus.words) == ["aa", "bb", "cc"]
    assert corpus.read() == EXPECTED == corpus.read()


def test_one_shot_documents_with_a_vocabulary():
    corpus = bags_of(iter(TEXTS), ["bb", "zz"])
    assert corpus.read().words_P.tolist() == [0, 0] == corpus.read().words_P.tolist()
    assert bags_of([], ["a"]).read().documents == 0


def test_tokens_are_taken_as_they_are():
    assert list(bags_of([["A b", "", "x"], ["x"]]).words) == ["", "A b", "x"]
    assert list(bags_of([["A b", "x"], ["x"]], options=TextOptions(min_df=2, stop_words=["y"])).words) == ["x"]


def test_lone_surrogates_are_no_letters():
    assert list(bags_of(["ab\ud800cd", "\udc80ee"]).words) == ["ab", "cd", "ee"]


@pytest.mark.parametrize(
    ("X", "said"),
    [
        ("text", "X is one text; give an iterable of documents"),
        (7, "X is a int but must be a matrix"),
        (np.zeros(3), r"X has shape \(3,\), but a matrix of counts is 2D.*reshape"),
        (np.zeros((1, 1, 1)), r"X has shape \(1, 1, 1\)"),
        (np.array([["a"]]), "X is a matrix of <U1, not of counts"),
        (np.array([["a", None]], object), "X is a matrix of objects, not of counts"),
        (DENSE * 0.5 + 0.1, "document 0 of X has the count 0.1, but counts are whole"),
        (-DENSE, "document 0 of X has the count -2"),
        (np.array([[1.0, np.nan]]), "document 0 of X has the count NaN"),
        ([[1, 2], [3]], "X is not a matrix of counts"),
        ([[1, 2], ["a"]], "X is not a matrix of counts"),
        (["a", ["b"]], r"document 1 of X is \['b'\] \(list\), unlike other documents"),
        ([["a"], "b"], r"document 1 of X is 'b' \(str\), unlike other documents"),
        ([["a"], ["b", 3]], r"document 1 of X has the token 3 \(int\) but tokens must be str"),
        ([["a"], None], "document 1 of X is None, not text; leave missing texts out"),
        (["a", float("nan")], "document 1 of X is nan, not text; leave missing texts out"),
        ([], "X is empty; give at least one"),
        (["a", "b"], "X has no word in its 2 documents"),
        (pd.DataFrame({"a": pd.arrays.SparseArray([1.0, np.nan])}), "column 0 of X is filled with nan; fill"),
    ],
)  # fmt: skip
def test_refusals(X, said):
    with pytest.raises(InputError, match=said) as error:
        bags_of(X).read()
    assert "\n" not in str(error.value)


def test_a_vocabulary_of_the_wrong_length():
    with pytest.raises(InputError, match="the vocabulary has 3 words but X has 4 columns; give"):
        bags_of(DENSE, ["a", "b", "c"])


def test_dask_arrays():
    da = pytest.importorskip("dask.array")
    X = da.from_array(DENSE, chunks=(2, 4))
    assert bags_of(X).read() == BAGS
    assert list(bags_of(X).blocks(3)) == [BAGS.slice(0, 2), BAGS.slice(2, 3)]
    assert bags_of(X.map_blocks(lambda block: block[block.sum(axis=1) > 0])).read() == make_bags(
        [0, 2, 4], BAGS.words_P, BAGS.counts_P, 4
    )
    with pytest.raises(InputError, match="X is cut between words into 2 blocks; use X.rechunk"):
        bags_of(X.rechunk({1: 2}))
    with pytest.raises(InputError, match="X is a Dask array of 1 dimensions"):
        bags_of(X[0])
    with pytest.raises(InputError, match="document 0 of block 1 of X has the count -70000"):
        bags_of(da.from_array(DENSE * np.array([[1], [1], [-1]]), chunks=(2, 4))).read()


def test_dask_blocks_of_csr():
    da, sparse = pytest.importorskip("dask.array"), pytest.importorskip("scipy.sparse")
    X = da.from_array(DENSE, chunks=(2, 4)).map_blocks(sparse.csr_matrix)
    assert bags_of(X).read() == BAGS


def test_dask_bags_and_series():
    db = pytest.importorskip("dask.bag")
    for documents in (TEXTS, TOKENS):
        corpus = bags_of(db.from_sequence(documents, npartitions=2))
        assert list(corpus.words) == ["aa", "bb", "cc"] and corpus.read() == EXPECTED


def test_nothing_heavy_is_imported():
    script = "import sys, numpy as np\nfrom mgpu_ngram.engine.bags.bags_of import bags_of\nbags_of(np.eye(3)).read()\n"
    check = "print([m for m in ('dask', 'pandas', 'sklearn', 'pyarrow') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script + check], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr
