"""Kneser-Ney models of counts equal those of KenLM's lmplz, for any division of the n-grams into parts."""

import lzma
import re
from collections import Counter
from functools import lru_cache

import numpy as np
import pytest

from mgpu_ngram.core.counts.tables import Table
from mgpu_ngram.core.ngrams.kneser_ney_discounts import FALLBACK, discounts_of
from mgpu_ngram.engine.count.count_chunk import pack_codes
from mgpu_ngram.engine.estimate import adjusted_counts, assemble, part_counts, part_of_tables, part_rows, part_values
from mgpu_ngram.engine.estimate import probabilities as engine
from mgpu_ngram.engine.estimate.part import EstimateOptions, add_split_left
from mgpu_ngram.engine.memory.device import device_of
from mgpu_ngram.kernels import check
from mgpu_ngram.kernels.dispatch import to_host
from mgpu_ngram.kernels.estimate.count_counts import count_counts
from tests.support.slow_cases import first_fast

CASES = {  # tests/jobs/estimate/test_estimate.py has the others
    "small.o1": ("small.txt", 1, {}),
    "small.o3": ("small.txt", 3, {}),
    "small.o3.prune001": ("small.txt", 3, {"prune": (0, 0, 1)}),
    "small.o3.iu0": ("small.txt", 3, {"interpolate_unigrams": False}),
    "small.o3.limitvocab": ("small.txt", 3, {"limit": "small_vocab2000.txt"}),
    "small.o3.vocabpad": ("small.txt", 3, {"vocab_pad": 50_000}),
    "tiny.o5.fallback": ("tiny.txt", 5, {"fallback": FALLBACK}),
    "tiny.o3.fallback_custom": ("tiny.txt", 3, {"fallback": (0.4, 0.8, 1.2)}),
    "edge_nonl": ("edge_train_nonl.txt", 2, {"fallback": FALLBACK}),
    "edge_crlf": ("edge_train_crlf.txt", 3, {"fallback": FALLBACK}),
    "edge_empty": ("edge_train_empty.txt", 2, {"fallback": FALLBACK}),
}
SPECIALS = [b"<unk>", b"<s>", b"</s>"]


def read(path):
    """Return the bytes of a file, or of the .xz file beside it."""
    return path.read_bytes() if path.exists() else lzma.open(f"{path}.xz").read()


@lru_cache(maxsize=2)
def counted(data, order):
    """Return (words by lmplz's id, {n-gram of ids: count}) of text, without the specials in it."""
    words = dict(zip(SPECIALS, range(3), strict=True))
    counts = Counter()
    lines = data.split(b"\n")
    for i, line in enumerate(lines):
        found = [w for w in re.split(rb"[\0\t\r ]+", line) if w and w not in SPECIALS]
        ids = [1, *(words.setdefault(w, len(words)) for w in found), 2]
        if i == len(lines) - 1:  # the last line has no newline
            ids.pop()
        for n in range(1, order + 1) if ids != [1] else ():
            counts.update(zip(*(ids[i:] for i in range(n)), strict=False))
    return list(words), counts


def cut(counts, order, bits, parts, to_device, split):
    """Return the tables of each part, by order: an n-gram belongs to its last context word, or the word before.

    A part has the bigrams of its longer n-grams, too. Keys are slices of longer columns, as after a merge.
    """
    made = [{} for _ in range(parts)]
    for n in range(2, order + 1):
        ngrams = [g for g in counts if len(g) == n]
        ids = np.array(ngrams, np.uint32).reshape(-1, n)
        place = np.lexsort(ids.T[::-1])
        ids, counts_G = ids[place], np.array([counts[g] for g in ngrams], np.int64)[place]
        context = np.where(np.isin(ids[:, -2], split), ids[:, -3], ids[:, -2]) if n > 2 else ids[:, -2]
        for p, tables in enumerate(made):
            rows = context % parts == p
            if n == 2 and order > 2:
                last_two = {g[-2:] for g in counts if len(g) == 3 and g[1] in split and g[0] % parts == p}
                rows |= np.array([tuple(g) in last_two for g in ids.tolist()], bool)
            keys = pack_codes([np.ascontiguousarray(ids[rows, i] + 1) for i in range(n)], bits)
            longer = to_device(np.pad(keys, ((0, 0), (0, 5)), constant_values=1))
            tables[n] = Table(longer[:, : rows.sum()], to_device(counts_G[rows]), n, bits)
    return made


def estimated(
    words,
    counts,
    order,
    to_device,
    parts=1,
    prune=(0,),
    limit=None,
    fallback=None,
    exact=False,
    split=(),
    stretches=1,
    **options,
):
    """Return the trie, the kept words and the discounts of counts by n-gram."""
    split = split if order > 2 else ()
    V = len(words)
    bits = max(17, check.code_bits(V))  # four words need two columns
    options = EstimateOptions(order, (*prune, *prune[-1:] * (order - len(prune))), **options)
    counts_V = to_device(np.array([counts[v,] for v in range(V)]))
    bad_V = None if limit is None else to_device(np.array([w not in {*limit, *SPECIALS} for w in words]))
    tables = cut(counts, order, bits, parts, to_device, split) if order > 1 else []
    alone = parts == 1 and not split
    if alone:
        raw = [adjusted_counts.with_suffixes(adjusted_counts.linked_part(t, V, options, bad_V)) for t in tables]
        adjusted = [adjusted_counts.adjust_counts(part, V) for part in raw]
    else:
        adjusted = [
            part_of_tables.part_of_tables(
                {n: part_of_tables.in_suffix_order(table) for n, table in t.items()}, V, options, bad_V, split,
                [v for v in split if v % parts != p],
            )
            for p, t in enumerate(tables)
        ]  # fmt: skip
    left_V = sum(part.left_V for part in adjusted) if adjusted else to_device(np.zeros(V, np.int64))
    count_V, kept_V = adjusted_counts.adjust_unigrams(left_V, counts_V, options, bad_V)
    found = {n: np.sum([p.counts_of_counts[n] for p in adjusted], axis=0) for n in range(2, order + 1)}
    found[1] = np.array(count_counts(count_V, 4))
    if split:
        left_L = add_split_left(*(part.split_left for part in adjusted)).dense(len(split) * V)
        found[2] = found[2] + count_counts(left_L, 4)
    if not exact and order > 1:
        rank_V = np.arange(V)  # ids as in lmplz
        word = max(v for v in range(V) if counts[v,] and v != 1)
        slipped, suffixes, n = [(1, int(count_V[word]), counts[word,])], [word] * len(adjusted), 2
        while n < order:
            chains = [
                adjusted_counts.last_ngrams(part, n, suffix, rank_V, split)
                for part, suffix in zip(adjusted, suffixes, strict=True)
            ]
            chain = max(chains, default=[])
            if not chain:
                break
            first = chain[0].first
            if n == 2 and first in split:
                place = split.index(first) * V + word
                chain = [chain[0]._replace(adjusted=int(left_L[place]))]
                suffixes = [adjusted_counts.row_of_split(part, place) for part in adjusted]
                suffixes = [-1 if suffix is None else suffix for suffix in suffixes]  # no row
                slipped.append((2, *chain[0][2:]))
                n = 3
                continue
            slipped += [(m, *ngram[2:]) for m, ngram in enumerate(chain, n)]
            break
        for n, true, taken in slipped:
            for count, sign in (true, -1), (taken, 1):
                if 1 <= count <= 4:
                    found[n][count - 1] += sign
    for part in adjusted:
        part.drop_raw_counts()
        assert not [name for name in part.arrays() if name.endswith(".count")]  # one array of counts for each order
    device = device_of(counts_V)
    counted = [] if alone else [part_counts.counts_of_part(part, V, options, device) for part in adjusted]
    discounts = {n: discounts_of(n, found[n].tolist(), fallback)[0] for n in found}
    unigrams = engine.estimate_unigrams(count_V, kept_V, discounts[1], options)
    split_L = to_device(np.full(len(split) * V, np.nan, np.float32))
    how = split, left_L if split else None
    for part in counted if split else ():
        places, probs = part_values.split_probs(part, discounts[2], unigrams.prob_V, *how, device)
        split_L[places] = to_device(to_host(probs))
    if alone:
        made = [engine.estimate_part(part, discounts, unigrams) for part in adjusted]
    else:
        rest = unigrams.prob_V, *how, split_L if split else None, device
        values = [part_values.values_of_part(part, discounts, *rest) for part in counted]
        made = [part_values.with_names(*some, options) for some in zip(values, counted, strict=True)]
    if stretches == 1:
        trie = assemble.assemble(unigrams, made, bits, split=split)
    else:
        words_of = assemble.cut_words([assemble.sample_first_words(part, bits) for part in made], V, stretches)
        taken = [[assemble.take_stretch(part, bits, some) for part in made] for some in words_of]
        found = part_rows.rows_of_parts([part_rows.rows_of(part) for part in made], V, split)
        apart = [assemble.assemble_stretch(unigrams, t, bits, w, found) for t, w in zip(taken, words_of, strict=True)]
        places = [assemble.places_of(stretch) for stretch in apart]
        linked = [assemble.add_suffixes(stretch, places, lambda array: array) for stretch in apart]
        trie = assemble.join_stretches(linked, lambda array: array)
    return trie, [w for w, kept in zip(words, to_host(kept_V), strict=True) if kept], discounts


def test_places_in_a_text():
    """Specials come first; other words by the source and the offset of their first occurrence."""
    source_V, offset_V = np.array([0, 0, 1, 1, 0, 1, 0]), np.array([9, 3, 7, 5, 9, 0, 2])
    found = adjusted_counts.places_in_text(source_V, offset_V)
    assert found.dtype == np.int64 and np.argsort(found).tolist() == [0, 1, 2, 6, 4, 5, 3]


def entries(trie, words):
    """Return {n-gram: (log10 probability, log10 backoff)} of every node."""
    word_G, prob_G, backoff_M, first_child_M = (
        to_host(a).tolist() for a in (trie.word_G, trie.prob_G, trie.backoff_M, trie.first_child_M)
    )
    ngrams = [(words[w],) for w in word_G[: trie.symbols]]
    for node in range(len(first_child_M) - 1):
        children = range(first_child_M[node], first_child_M[node + 1])
        ngrams += [(*ngrams[node], words[word_G[c]]) for c in children]
    backoffs = [*backoff_M, *[0.0] * (len(trie) - len(backoff_M))]
    return {g: values for g, *values in zip(ngrams, prob_G, backoffs, strict=True)}


def arpa_entries(text):
    """Return {n-gram: (log10 probability, log10 backoff)} of an ARPA file."""
    found, inside = {}, False
    for line in text.split(b"\n"):
        inside |= line.endswith(b"-grams:")
        fields = line.split(b"\t")
        if inside and len(fields) > 1:
            values = [float(np.float32(f)) for f in (fields[0], *fields[2:])]
            found[tuple(fields[1].split(b" "))] = [*values, 0.0][:2]
    return found


def heaviest(counts, n):
    """Return the n most frequent words by id, without specials."""
    return tuple(sorted(sorted((v for v, *more in counts if v > 2 and not more), key=lambda v: -counts[v,])[:n]))


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_golden_models(case, shared_data, to_device):
    """Models match lmplz, also with split words."""
    name, order, options = CASES[case]
    golden = shared_data / "golden"
    if "limit" in options:
        options = options | {"limit": read(golden / "inputs" / options["limit"]).split()}
    words, counts = counted(read(golden / "inputs" / name), order)
    expected = arpa_entries(read(golden / "models" / f"{case}.arpa"))
    log = (golden / "models" / f"{case}.log").read_text()
    printed = re.findall(r"^(\d+) \d+(?:/\d+)? D1=(\S+) D2=(\S+) D3\+=(\S+)", log, re.MULTILINE)
    for split in 0, 4:
        trie, kept, discounts = estimated(words, counts, order, to_device, 3, split=heaviest(counts, split), **options)
        got = entries(trie, kept)
        assert got.keys() == expected.keys()
        np.testing.assert_allclose(list(map(got.get, expected)), list(expected.values()), rtol=0, atol=1e-6)
        assert [(int(n), *map(float, ds)) for n, *ds in printed] == [
            (n, *(float(f"{d:.6g}") for d in ds)) for n, ds in sorted(discounts.items())
        ]


@pytest.mark.parametrize("options", first_fast([{"prune": (0, 1)}, {}, {"limit": [b"w1", b"w2", b"w3", b"w9"]}]))
def test_parts_give_the_same_model(options, to_device, monkeypatch):
    """Bit for bit, also with empty parts, split words, and a model made in stretches. Keys of 4 words need 68 bits."""
    rng = np.random.default_rng(0)
    text = b"\n".join(b" ".join(b"w%d" % w for w in rng.zipf(1.5, 9).clip(1, 40)) for _ in range(300)) + b"\n"
    words, counts = counted(text, 5)
    whole, *_ = estimated(words, counts, 5, to_device, fallback=FALLBACK, **options)
    monkeypatch.setattr(assemble, "SAMPLED_NGRAMS", 4)
    for parts, split, stretches in (2, 0, 1), (5, 0, 2), (64, 0, 40), (1, 1, 3), (5, 1, 1), (5, 7, 2), (64, 16, 4):
        how = {"split": heaviest(counts, split), "stretches": stretches, "fallback": FALLBACK}
        trie, *_ = estimated(words, counts, 5, to_device, parts, **how, **options)
        assert trie.starts == whole.starts
        for name, array in whole.arrays().items():
            assert to_host(array).tobytes() == to_host(trie.arrays()[name]).tobytes()


@pytest.mark.parametrize("prune", [(0,), (0, 0, 2)])
def test_probabilities_sum_to_one(prune, to_device):
    """The sum is over all words except <s>, after every history."""
    rng = np.random.default_rng(1)
    text = b"\n".join(b" ".join(b"w%d" % w for w in rng.zipf(1.6, 12).clip(1, 30)) for _ in range(400)) + b"\n"
    words, counts = counted(text, 3)
    trie, kept, _ = estimated(words, counts, 3, to_device, prune=prune, fallback=FALLBACK)
    model = entries(trie, kept)

    def prob(history, word):
        if (*history, word) in model:
            return 10 ** model[*history, word][0]
        return 10 ** model.get(history, (0, 0))[1] * prob(history[1:], word)

    for history in {g[:-1] for g in model}:
        assert sum(prob(history, w) for w in kept if w != b"<s>") == pytest.approx(1, abs=2e-6)
