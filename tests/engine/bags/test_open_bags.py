"""Files as bags of words: every format gives the same documents, in blocks that do not depend on cuts."""

import gzip
import json
import lzma
import pickle

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mgpu_ngram.core.bags.bag_files import save_bags
from mgpu_ngram.core.bags.bags import make_bags
from mgpu_ngram.core.bags.text_options import DEFAULT_PATTERN, TextOptions
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.engine.bags import bag_corpus
from mgpu_ngram.engine.bags import open_bags as opening
from mgpu_ngram.engine.bags.bags_of import bags_of
from mgpu_ngram.engine.bags.open_bags import open_bags

TEXTS = ["aa bb aa", "", "dd bb"]
BAGS = make_bags([0, 2, 2, 4], [0, 1, 1, 2], [2, 1, 1, 1], 3)
UCI = b"3\n3\n4\n1 1 2\n1 2 1\n3 2 1\n3 3 1\n"
WORDS = ["aa", "bb", "dd"]


def csr_npz(path):
    arrays = {"indptr": BAGS.starts_D1, "indices": BAGS.words_P, "data": BAGS.counts_P}
    np.savez(path, **arrays, shape=np.array([3, 3]), format=np.array(b"csr"))


WRITERS = {
    "docword.x.txt": lambda path: path.write_bytes(UCI),
    "docword.x.txt.xz": lambda path: path.write_bytes(lzma.compress(UCI)),
    "x.npz": csr_npz,
    "x.bags": lambda path: save_bags(path, BAGS),
    "x.txt": lambda path: path.write_text("\n".join(TEXTS) + "\n"),
    "x.txt.gz": lambda path: path.write_bytes(gzip.compress("\n".join(TEXTS).encode())),
    "x.jsonl": lambda path: path.write_text("".join(json.dumps({"text": t}) + "\n" for t in TEXTS)),
    "tokens.jsonl": lambda path: path.write_text("".join(json.dumps({"text": t.split()}) + "\n" for t in TEXTS)),
    "x.parquet": lambda path: pq.write_table(pa.table({"text": TEXTS}), path),
    "tokens.parquet": lambda path: pq.write_table(pa.table({"text": [t.split() for t in TEXTS]}), path),
}


@pytest.mark.parametrize("name", WRITERS)
def test_every_format(tmp_path, name):
    WRITERS[name](tmp_path / name)
    (tmp_path / "v").write_text("\n".join(WORDS))
    corpus = open_bags(tmp_path / name, str(tmp_path / "v"))
    assert corpus.read().check() == BAGS and list(corpus.words) == WORDS and corpus.num_words == 3
    assert list(corpus.blocks(3)) == [BAGS.slice(0, 2), BAGS.slice(2, 3)] == list(corpus.blocks(4))
    twice = open_bags([tmp_path / name, str(tmp_path / name)], WORDS)
    assert twice.read().documents == 6 and len(twice.states) == 2 and twice.states[0]["size_bytes"] > 0


@pytest.mark.parametrize("name", [name for name in WRITERS if name.split(".")[0] != "docword"])
def test_the_vocabulary_of_documents_is_found(tmp_path, name):
    WRITERS[name](tmp_path / name)
    corpus = open_bags(tmp_path / name)
    if name in ("x.npz", "x.bags"):
        assert corpus.words is None
    else:
        assert list(corpus.words) == WORDS
    assert corpus.read() == BAGS


def test_the_vocabulary_beside_a_docword_file(tmp_path):
    (tmp_path / "docword.x.txt.gz").write_bytes(gzip.compress(UCI))
    assert open_bags(tmp_path / "docword.x.txt.gz").words is None
    (tmp_path / "vocab.x.txt.gz").write_bytes(gzip.compress("\n".join(WORDS).encode()))
    assert list(open_bags(tmp_path / "docword.x.txt.gz").words) == WORDS
    (tmp_path / "vocab.x.txt").write_text("aa\n")
    with pytest.raises(InputError, match="the vocabulary has 1 words but .* has 3 columns; give"):
        open_bags(tmp_path / "docword.x.txt.gz")


@settings(max_examples=20)
@given(
    st.lists(st.text(alphabet=st.sampled_from("ab é"), max_size=12), min_size=1), st.integers(1, 60), st.integers(1, 9)
)
def test_chunks_do_not_matter(tmp_path_factory, texts, chunk_bytes, tokens):
    texts.append("zz")
    path = tmp_path_factory.getbasetemp() / "chunks.txt"
    path.write_text("\n".join(texts) + "\n")
    expected = bags_of(texts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(opening, "CHUNK_BYTES", chunk_bytes)
        patch.setattr(bag_corpus, "KEEP_BYTES", chunk_bytes * 20)
        patch.setattr(bag_corpus, "MERGED_TERMS", 2)
        corpus = open_bags(path)
    assert list(corpus.words) == list(expected.words)
    assert corpus.read() == expected.read()
    assert list(corpus.blocks(tokens)) == list(expected.blocks(tokens))


@pytest.mark.parametrize("pattern", [r"\S+", DEFAULT_PATTERN])
def test_chunks_are_spread(tmp_path, monkeypatch, pattern):
    monkeypatch.setattr(opening, "CHUNK_BYTES", 1000)
    (tmp_path / "x.txt").write_text("a-b c dd\n" * 400)
    chunks_seen = []

    def spread(fn, chunks):
        chunks_seen.append(len(chunks))
        return [pickle.loads(pickle.dumps(fn))(chunk) for chunk in pickle.loads(pickle.dumps(chunks))]

    options = TextOptions(token_pattern=pattern)
    corpora = [open_bags(tmp_path / "x.txt", options=options, spread=how) for how in (spread, None)]
    for corpus in corpora:
        assert list(corpus.words) == (["a-b", "c", "dd"] if pattern == r"\S+" else ["dd"])
        assert corpus.read() == corpora[0].read() and corpus.read().documents == 400
    assert chunks_seen == [4]


def test_on_the_device(tmp_path, device):
    WRITERS["x.txt"](tmp_path / "x.txt")
    assert open_bags(tmp_path / "x.txt", device=device).read() == BAGS


@pytest.mark.parametrize("name", [name for name in WRITERS if name != "x.bags"])
def test_urls(tmp_path, name):
    memory = pytest.importorskip("fsspec").filesystem("memory")
    WRITERS[name](tmp_path / name)
    memory.pipe(f"/bags/{name}", (tmp_path / name).read_bytes())
    assert open_bags(f"memory://bags/{name}", WORDS).read() == BAGS


def test_a_mapped_file_is_local(tmp_path):
    memory = pytest.importorskip("fsspec").filesystem("memory")
    WRITERS["x.bags"](tmp_path / "x.bags")
    memory.pipe("/bags/x.bags", (tmp_path / "x.bags").read_bytes())
    with pytest.raises(InputError, match="x.bags' is a file of bags of words, which must be a local file"):
        open_bags("memory://bags/x.bags")


def test_options_and_columns(tmp_path):
    pq.write_table(pa.table({"text": TEXTS, "title": ["Aa", "the", "Aa"]}), tmp_path / "x.parquet")
    options = TextOptions(stop_words="english", lowercase=False)
    assert list(open_bags(tmp_path / "x.parquet", None, options, "title").words) == ["Aa"]


def test_kos(shared_data):
    corpus = open_bags(shared_data / "lda_kos" / "docword.kos.txt.xz")
    assert corpus.words is not None and corpus.words.word(1) == "abandon"
    whole = corpus.read()
    assert (whole.documents, whole.tokens) == (3430, 467_714)
    assert [block.tokens for block in corpus.blocks(100_000)] == [block.tokens for block in whole.blocks(100_000)]


def test_refusals(tmp_path):
    for name in ("docword.x.txt", "x.npz", "x.txt"):
        WRITERS[name](tmp_path / name)
    with pytest.raises(
        InputError, match="docword.x.txt' is a UCI docword file but .*x.txt' is a file of documents; give"
    ):
        open_bags([tmp_path / "docword.x.txt", tmp_path / "x.npz", tmp_path / "x.txt"])
    (tmp_path / "docword.y.txt").write_bytes(b"1\n2\n1\n1 1 1\n")
    with pytest.raises(InputError, match="has parts of 3 and of 2 words; use one vocabulary for all"):
        open_bags([tmp_path / "docword.x.txt", tmp_path / "docword.y.txt"]).read()
    (tmp_path / "empty").write_bytes(b"")
    with pytest.raises(InputError, match="empty' is empty; give at least one"):
        open_bags(tmp_path / "empty")
    with pytest.raises(
        InputError, match="min_df is set but .*x.npz' is a matrix of counts, not text; leave min_df out"
    ):
        open_bags(tmp_path / "x.npz", None, TextOptions(min_df=2))
    with pytest.raises(InputError, match="does not exist"):
        open_bags(tmp_path / "nothing")
    for name, words in ("x.txt", ["a", "a"]), ("x.npz", ["a", "b", "a"]):
        with pytest.raises(InputError, match=r"words 0 and \d of the vocabulary are both 'a'; give each word once"):
            open_bags(tmp_path / name, words).read()
