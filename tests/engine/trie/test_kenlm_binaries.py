"""Models from KenLM's binary files score as KenLM does, to the bit, and are those of the ARPA files."""

import itertools
from functools import partial

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mgpu_ngram as ng
from mgpu_ngram import kenlm
from mgpu_ngram.api.document_filter import DocumentFilter
from mgpu_ngram.core.errors import InputError, InputWarning
from mgpu_ngram.core.kenlm.binary_file import KenlmFile, slots_of
from mgpu_ngram.core.kenlm.probing import KenlmProbing, combine
from mgpu_ngram.core.kenlm.sizes import probing_bytes, trie_bytes
from mgpu_ngram.core.kenlm.trie import KenlmTrie, Packing
from mgpu_ngram.core.models.model_file import save_model
from mgpu_ngram.core.models.model_head import identify
from mgpu_ngram.engine.model_tools.write_kenlm import write_kenlm
from mgpu_ngram.engine.trie.open_model import open_model
from mgpu_ngram.jobs.convert.run import ConvertConfig, build
from mgpu_ngram.kernels.dispatch import array_module

GOLDEN = [
    *("t2.probing", "t2.trie", "t3.probing", "t3.probing_p2", "t3.rest", "t3.trie", "t3.trie_a22", "t3.trie_a22_q8b8"),
    *("t3.trie_a5", "t3.trie_q4b3", "t3.trie_q8b8", "t4p.probing", "t4p.trie", "t5.probing", "t5.probing_p2"),
    *("t5.trie", "t5.trie_a22", "t5.trie_a22_q8b8", "t5.trie_a5", "t5.trie_q4b3", "t5.trie_q8b8"),
    *("t3.probing_i_novocab", "t3.trie_novocab", "t5.probing_i_novocab", "t5.trie_novocab"),
]


def open_file(path):
    return KenlmFile(path, path.read_bytes())


def ngrams_of(model):
    """Return {words: (log10 probability, backoff)} of all n-grams of a model."""
    trie, words = model.trie.decoded(), list(model.words)
    spelled, found = [()], {}
    for n, (begin, end) in enumerate(itertools.pairwise(trie.starts), 1):
        children = trie.first_child_M[trie.starts[n - 2] : begin + 1] if n > 1 else [0, end]
        parents = np.repeat(np.arange(len(spelled)), np.diff(children))
        spelled = [(*spelled[p], words[w]) for p, w in zip(parents, trie.word_G[begin:end], strict=True)]
        backoffs = trie.backoff_M[begin:end] if n < trie.order else np.zeros(end - begin)
        found |= dict(zip(spelled, zip(trie.prob_G[begin:end].tolist(), backoffs.tolist(), strict=True), strict=True))
    return found


def test_a_small_model(binaries, put, binary_type, device):
    path = put(binaries.BINARIES[binary_type])
    drop_in, model = kenlm.Model(str(path)), ng.Model.load(path, device)
    for text, words in binaries.SCORES.items():
        assert [(prob, matched) for prob, matched, _ in drop_in.full_scores(text)] == words
        assert [(prob, matched) for prob, matched, _ in model.full_scores(text)] == words
    assert ("naïve" in model, "c" in model, model.order) == (True, False, 3)
    assert ngrams_of(model.arrays) == ngrams_of(open_model(put(binaries.ARPA.encode(), "model.arpa")))
    assert identify(path) == f"{len(binaries.BINARIES[binary_type]):,} bytes of {path.stat().st_mtime_ns}"


def test_the_drop_in_refuses_a_damaged_file_as_kenlm_does(binaries, put):
    with pytest.raises(OSError, match="Cannot read model .* is a damaged KenLM binary model: it ends with 5 words"):
        kenlm.Model(str(put(binaries.BINARIES["trie"][:-1])))


def test_a_model_without_words_scores_text(binaries, put, device, tmp_path):
    content = binaries.BINARIES["trie"]
    path = put(content[:100] + b"\0" + content[101 : content.rindex(b"<unk>\0")])
    model = ng.Model.load(path, device)
    for text, words in binaries.SCORES.items():
        assert [(prob, matched) for prob, matched, _ in model.full_scores(text)] == words
        assert [(prob, matched) for prob, matched, _ in kenlm.Model(str(path)).full_scores(text)] == words
    states = model.start(1)
    words = array_module(states).asarray(np.array([model.vocabulary.id("a")], np.int32))
    assert model.step(states, words)[0].tolist() == [-0.5]
    for save in save_model, partial(write_kenlm, format="kenlm-trie"):
        with pytest.raises(InputError, match="model.binary' holds only hashes of its words, so it can only score text"):
            save(tmp_path / "new", model.arrays)
    with pytest.raises(InputError, match="holds only hashes of its words"):
        build(ConvertConfig(str(path), format="arpa"), tmp_path / "new.arpa")
    assert [file.name for file in tmp_path.iterdir()] == ["model.binary"]


def test_keys_by_hand(binaries):
    """Of the 2-gram of words 3 4, from KenLM's table; its suffix is word 4."""
    keys = np.frombuffer(binaries.BINARIES["probing"], "<u8,<f4,<f4", 9, 136 + 8 + 12 * 9 + 8 * 7)
    key = combine(np.array([4], np.uint64), np.array([3], np.uint32))
    [found] = keys[keys["f0"] == key]
    assert (abs(found["f1"]), found["f2"]) == (0.375, -0.5)  # "a b"


@pytest.fixture
def no_search(monkeypatch):
    """Let the test fail when the n-grams of a probing model are searched."""

    def fail(*_):
        raise AssertionError("the words of n-grams are not needed")

    monkeypatch.setattr("mgpu_ngram.core.kenlm.probing.find_key_pairs", fail)


@pytest.mark.parametrize("words", [True, False])
@pytest.mark.parametrize("kind", ["probing", "probing with rest costs"])
def test_text_is_scored_with_the_tables_of_a_probing_file(binaries, put, tmp_path, device, no_search, kind, words):
    content = binaries.BINARIES[kind]
    if not words:
        content = content[:100] + b"\0" + content[101 : content.rindex(b"<unk>\0")]
    path, text = put(content), tmp_path / "text"
    texts, expected = list(binaries.SCORES), list(binaries.SCORES.values())
    totals = [sum(prob for prob, _ in scores) for scores in expected]
    text.write_text("".join(line + "\n" for line in texts))
    model = ng.Model.load(path, device)
    assert [[(prob, n) for prob, n, _ in model.full_scores(line)] for line in texts] == expected
    assert model.score(texts).tolist() == totals and model.order == 3
    assert repr(model) == "<Model of order 3, 6 words, 15 n-grams>"
    assert "naïve" in model and "c" not in model
    table = pq.read_table(ng.score(path, text, tmp_path / "scores.parquet", device=device).path)
    assert table["prob_log10"].to_pylist() == totals
    documents = DocumentFilter(path, keep="log10", device=device)(texts)
    assert documents.columns["log10"] == [total if line else None for line, total in zip(texts, totals, strict=True)]


def test_other_work_finds_the_ngrams_of_a_probing_file(binaries, put, no_search):
    model = ng.Model.load(put(binaries.BINARIES["probing"]), "cpu")
    with pytest.raises(AssertionError, match="the words of n-grams are not needed"):
        model.distribution("a")


def test_a_table_without_an_empty_slot_is_refused(binaries, put):
    """A search for a key that it lacks would not end."""
    path = put(binaries.BINARIES["probing"])
    sections = KenlmProbing(open_file(path))._sections
    for n in (2, 3):
        at = open_file(path).search + sum(section.nbytes for section in sections[: n - 1])
        content = bytearray(path.read_bytes())
        for slot in range(len(sections[n - 1])):
            content[at + slot * sections[n - 1][0].nbytes] |= 1
        with pytest.raises(InputError, match=f"damaged KenLM binary model: its table of {n}-grams has no empty slot"):
            ng.Model.load(put(bytes(content), "damaged.binary"), "cpu")


@given(st.integers(0, 2**32), st.integers(1, 60), st.integers(2, 4))
def test_joins_find_the_ngrams_of_random_tables(tmp_path_factory, seed, words, order):
    """Of tables that are filled by hand, with a few words so that many n-grams share the words between."""
    rng = np.random.default_rng(seed)
    sets = [{(w,) for w in range(words)}]
    for n in range(2, order + 1):
        drawn = rng.integers(0, words, (rng.integers(0, 4 * words), n)).tolist()
        sets.append({tuple(g) for g in drawn if tuple(g[1:]) in sets[-1] and tuple(g[:-1]) in sets[-1]})
    file = plain_file(sets)
    found = [set(map(tuple, level.ids.tolist())) for level in KenlmProbing(file, threads=2).levels()]
    assert found == sets


class plain_file:
    """The n-grams of sets as a probing file in memory, filled word by word in plain Python."""

    def __init__(self, sets):
        header = type("", (), {})()
        header.counts, header.multiplier, header.kind = tuple(map(len, sets)), 1.5, 0
        header.order = len(sets)
        self.name = "plain"
        self.header, self.search, self.hash_V = header, 0, np.zeros(len(sets[0]), np.uint64)
        suffixes = {g[1:] for level in sets for g in level}
        histories = {g[:-1] for level in sets for g in level}
        value = lambda g: (1.0 if g in suffixes else -1.0, 0.0 if g in histories else -0.0)  # noqa: E731
        unigrams = np.array([value((w,)) for w in range(len(sets[0]))] + [(0, 0)], "<f4,<f4")
        self.parts = [unigrams]
        for n, level in enumerate(sets[1:], 2):
            slots = max(len(level) + 1, 3 * len(level) // 2)
            table = np.zeros(slots, "<u8,<f4" if n == len(sets) else "<u8,<f4,<f4")
            for g in level:
                key = g[-1]
                for w in g[-2::-1]:
                    key = (key * 8978948897894561157 ^ (1 + w) * 17894857484156487943) % 2**64
                at = key % slots
                while table["f0"][at]:
                    at = (at + 1) % slots
                table[at] = (key, *value(g)[: len(table.dtype) - 1])
            self.parts.append(table)

    def array(self, at, dtype, count):
        data = b"".join(part.tobytes() for part in self.parts)
        return np.frombuffer(data, dtype, count, at)

    def damaged(self, why):
        return AssertionError(why)


def test_a_warning_before_many_pairs(binaries, put, monkeypatch):
    monkeypatch.setattr("mgpu_ngram.core.kenlm.probing.MANY_PAIRS", 15)
    with pytest.warns(InputWarning, match="model.binary' stores no words of n-grams, so 20 pairs are tested; convert "):
        open_model(put(binaries.BINARIES["probing"]))


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_queries_of_binaries(put, kenlm_files, name):
    """KenLM's ids, matches and scores; its numbers are the shortest ones of float32."""
    path, lines = put(kenlm_files[f"bin/{name}.bin"]), kenlm_files["bin/q.txt"].splitlines()
    drop_in, totals = kenlm.Model(str(path)), ng.Model.load(path, "cpu").score(lines)
    words = open_model(path).words
    rows = kenlm_files[f"bin/{name}.bin.query.txt"].splitlines()
    for line, row, total in zip(lines, rows, totals, strict=False):
        *fields, end = row.split(b"\t")
        expected = [field.rpartition(b"=")[2].split(b" ") for field in fields]
        found = [
            (words.id(word), matched, np.float32(prob))
            for word, (prob, matched, _) in zip([*line.split(), b"</s>"], drop_in.full_scores(line), strict=True)
        ]
        assert found == [(int(v), int(matched), np.float32(prob)) for v, matched, prob in expected]
        assert total == np.float32(end.split()[1])
    assert len(rows) == len(lines) + 4


@pytest.mark.parametrize("name", ["t2", "t3", "t4p", "t5"])
def test_golden_binaries_hold_the_ngrams_of_the_arpa_file(put, kenlm_files, name):
    arpa = open_model(put(kenlm_files[f"bin/{name}.arpa"], "model.arpa"))
    assert open_model(put(kenlm_files[f"bin/{name}.probing.bin"])).fingerprint == arpa.fingerprint
    assert ngrams_of(open_model(put(kenlm_files[f"bin/{name}.trie.bin"]))) == ngrams_of(arpa)


PACKINGS = {
    "trie": Packing(),
    "trie_q8b8": Packing(8, 8),
    "trie_q4b3": Packing(4, 3),
    "trie_a22": Packing(pointer_bits=22),
    "trie_a5": Packing(pointer_bits=5),
    "trie_a22_q8b8": Packing(8, 8, 22),
}


@pytest.mark.parametrize("name", [name for name in GOLDEN if name.partition(".")[2] in PACKINGS])
def test_golden_tries_are_written_as_kenlm_writes_them(put, kenlm_files, name, tmp_path):
    model, _, kind = name.partition(".")
    arpa = open_model(put(kenlm_files[f"bin/{model}.arpa"], "model.arpa"))
    write_kenlm(tmp_path / "trie", arpa, "kenlm-trie", packing=PACKINGS[kind])
    expected = kenlm_files[f"bin/{name}.bin"]
    assert (tmp_path / "trie").read_bytes() == expected
    found = open_file(tmp_path / "trie")
    assert trie_bytes(found.header.counts, PACKINGS[kind]) == KenlmTrie(found).end - found.header.size_bytes


def test_golden_rest_costs_are_written_as_kenlm_writes_them(put, kenlm_files, tmp_path):
    """KenLM fills slots in the order of the ARPA file, we in that of the trie."""
    arpas = [open_model(put(kenlm_files[f"bin/{name}.arpa"], f"{name}.arpa")) for name in ("t1", "t2", "t3")]
    write_kenlm(tmp_path / "rest", arpas[2], "kenlm-probing", lower=arpas[:2])
    found, expected = open_file(tmp_path / "rest"), open_file(put(kenlm_files["bin/t3.rest.bin"]))
    assert found.header == expected.header
    sections, others = KenlmProbing(found), KenlmProbing(expected)
    at, end = found.search, found.header.size_bytes + probing_bytes(found.header.counts, 1.5, rest=True)
    assert sections.end == others.end == end
    sizes = [12 * (found.header.counts[0] + 1), 20 * slots_of(found.header.counts[1], 1.5)]
    assert found.data[at : at + sizes[0]].tobytes() == expected.data[at : at + sizes[0]].tobytes()
    tables = [np.sort(file.data[at + sizes[0] :][: sizes[1]].view("V20")) for file in (found, expected)]
    assert np.array_equal(*tables)


def test_models_whose_rest_costs_are_unknown(put, kenlm_files, tmp_path):
    arpas = [open_model(put(kenlm_files[f"bin/{name}.arpa"], f"{name}.arpa")) for name in ("t1", "t2", "t3")]
    for lower, why in (
        (arpas[:1], r"rest costs are given by models of orders \[1\], but a model of order 3 needs orders \[1, 2\]"),
        (arpas[1::-1], r"orders \[2, 1\]"),
    ):
        with pytest.raises(InputError, match=why):
            write_kenlm(tmp_path / "rest", arpas[2], "kenlm-probing", lower=lower)
    put(ONE_ORDER.encode(), "one.arpa")
    with pytest.raises(InputError, match="the model of order 1 lacks the word '.*'; all models of rest costs need the"):
        write_kenlm(tmp_path / "rest", arpas[2], "kenlm-probing", lower=[open_model(tmp_path / "one.arpa"), arpas[1]])


ONE_ORDER = "\\data\\\nngram 1=3\n\n\\1-grams:\n-1\t<unk>\n0\t<s>\n-1\t</s>\n\n\\end\\\n"
