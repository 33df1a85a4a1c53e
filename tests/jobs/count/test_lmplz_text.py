"""Both passes over text read as lmplz reads it, compared with plain Python and KenLM's own figures."""

import bz2
import gzip
import itertools
import lzma
import re
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mgpu_ngram.cluster.local import LocalExecutor
from mgpu_ngram.core.counts import shards as core_shards
from mgpu_ngram.core.counts.shards import PartLimits, deal_words
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.inputs.corpus import Chunk
from mgpu_ngram.core.inputs.in_memory import Lines
from mgpu_ngram.core.memory_config import MemoryConfig
from mgpu_ngram.core.storage.checkpoint import Checkpoint
from mgpu_ngram.engine.count import token_streams
from mgpu_ngram.engine.count.sentence_markers import LmplzText
from mgpu_ngram.engine.count.text_ids import keys_of_shard, select_keys, whole_tables
from mgpu_ngram.jobs.context import RunContext
from mgpu_ngram.jobs.count import chunk_ranges
from mgpu_ngram.jobs.count import passes as count_passes
from mgpu_ngram.jobs.count.passes import CountPasses
from mgpu_ngram.jobs.count.plan import count_budget, num_streams
from mgpu_ngram.jobs.count.run import CountConfig, open_inputs
from mgpu_ngram.kernels import check as check_kernels
from tests.support.slow_cases import first_fast

SPECIALS = [b"<unk>", b"<s>", b"</s>"]
STRATEGIES = ["auto", "global", "private", "sort", "hash"]
SKIP, REFUSE = (LmplzText(skip, PartLimits(1, 1, 1 << 22, 1 << 22, 3)) for skip in (True, False))


def files(folder, *texts, make=bytes):
    for i, text in enumerate(texts):
        (folder / f"{i:03}").write_bytes(make(text))
    return [str(folder / f"{i:03}") for i in range(len(texts))]


@pytest.fixture(scope="session")
def passes(device, unpack_keys):
    """Return a function: ({order: {n-gram: count}}, [(word, count) by id], totals) after both passes and the merge."""

    def run(corpus, folder, lmplz, order=3, chunk_bytes=1 << 20, block_bytes=1 << 20, cluster=None, **options):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(count_passes, "MIN_BLOCK_BYTES", 1)
            patch.setattr(count_passes, "BLOCK_BYTES", {device: block_bytes})
            config = CountConfig(corpus, order=order, **options)
            executor = cluster or LocalExecutor(device, 2)
            try:
                inputs = open_inputs(config)
                chunks = inputs.chunks(chunk_bytes) or [Chunk(0, (), 0)]
                budget = count_budget(MemoryConfig(), executor)
                with Checkpoint.open(folder / "out", {}, False, True) as checkpoint:
                    context = RunContext(executor, folder)
                    job = CountPasses(config, context, chunks, budget, checkpoint, lmplz, lmplz is not None)
                    counted = job.count(num_streams(config, inputs, len(chunks)))
                    made = executor.gather(job.texts(counted, job.budget) if lmplz else job.merge(counted))
                    vocabulary, lexicon = executor.gather([counted.vocabulary, counted.lexicon])
                    checkpoint.discard()
            finally:
                if executor is not cluster:
                    executor.close()
        words = [vocabulary.symbol(v) for v in range(len(vocabulary))]
        S = counted.totals.num_shards
        if lmplz:
            rows = windows_of_text(made, lexicon, job.counting, order, unpack_keys)
        else:
            rows = windows_of_runs(made, S, unpack_keys)
        found = {n: Counter() for n in range(2, order + 1)}
        for s, ngram, count in rows:
            owner = -3 if len(ngram) > 2 and ngram[-2] - 1 in lexicon.split else -2
            assert S == 1 or lexicon.shard_V[ngram[owner] - 1] == s
            found[len(ngram)][tuple(words[c - 1] for c in ngram)] += count
        share = vocabulary.counts_V.sum() // S
        split = [v for v in range(3, len(words)) if vocabulary.counts_V[v] > share][:16] if lmplz else []
        assert [*lexicon.split] == split
        is_split_V = np.isin(np.arange(len(words)), split)
        mass_V = np.where(is_split_V, vocabulary.counts_V // 8, vocabulary.counts_V)
        shard_V = deal_words(mass_V, S)
        assert lexicon.shard_V.tolist() == shard_V.tolist()
        return found, list(zip(words, vocabulary.counts_V.tolist(), strict=True)), counted.totals

    return run


def windows_of_runs(runs, S, unpack_keys):
    """Yield (shard, n-gram of codes, count) of all tables of sorted runs."""
    for run in runs:
        for n, tables in run.tables.items():
            for s, table in itertools.product(range(S), tables):
                rows = table.shard(s)
                ngrams = unpack_keys(to_numpy(rows.keys), n, table.bits)
                assert ngrams == sorted(set(ngrams))
                yield from ((s, *row) for row in zip(ngrams, rows.counts.tolist(), strict=True) if n > 1)


def windows_of_text(texts, lexicon, counting, order, unpack_keys):
    """Yield the same of the tokens of a text: from tables if it has one shard, else from the windows of each shard."""
    bits = check_kernels.code_bits(lexicon.symbols)
    if lexicon.num_shards == 1 and order > 1:
        for n, table in whole_tables(texts, lexicon, counting).items():
            yield from zip(itertools.repeat(0), unpack_keys(to_numpy(table.keys), n, bits), table.counts.tolist())
    elif order > 1:
        for s in range(lexicon.num_shards):
            span = s // 2 * 2, min(s // 2 * 2 + 2, lexicon.num_shards)
            pieces = [select_keys([text], span, lexicon, order, counting.budget.device) for text in texts]
            keys = to_numpy(keys_of_shard(pieces, s, lexicon, order, counting.budget.device))
            for last, word, *before in unpack_keys(keys, order, bits):
                if lexicon.shard_V[last - 1] == s:
                    yield s, (last, word), 1
                yield from ((s, (*before[:n][::-1], last, word), 1) for n in range(1, len(before) + 1))


def to_numpy(array):
    return array.get() if hasattr(array, "get") else array


def sentences(*texts):
    """Return the lines of texts with their markers, split as lmplz splits, without its specials.

    A piece after the last newline gets no </s>; if it has no words, it is left out.
    """
    found = []
    for text in texts:
        *lines, last = [
            [w for w in re.split(rb"[\0\t\r ]+", line) if w and w not in SPECIALS] for line in text.split(b"\n")
        ]
        found += [[b"<s>", *line, b"</s>"] for line in lines]
        found += [[b"<s>", *last]] if last else []
    return found


def windows(lines, order):
    return Counter(tuple(line[i : i + order]) for line in lines for i in range(len(line) - order + 1))


def by_rank(lines, value=bytes):
    """Return [(word, count)] by id; ties are sorted by the value of the word."""
    counts = Counter(word for line in lines for word in line)
    rest = sorted(set(counts) - set(SPECIALS), key=lambda w: (-counts[w], value(w)))
    return [(word, counts[word]) for word in (*SPECIALS, *rest)]


def check(result, lines, value=bytes):
    found, words, totals = result
    assert found == {n: windows(lines, n) for n in found}
    assert words == by_rank(lines, value)
    assert totals.tokens == sum(map(len, lines)) and totals.lines == len(lines)


def test_by_hand(passes, tmp_path):
    """The golden edge_train_nonl.txt: its model has 'b </s>' and 'c </s>' only from the first two lines."""
    paths = files(tmp_path, b"a b c\na b\nc a b")
    for strategy in STRATEGIES:
        found, words, totals = passes(paths, tmp_path, REFUSE, 2, strategy=strategy)
        assert found[2] == {
            (b"<s>", b"a"): 2, (b"a", b"b"): 3, (b"b", b"c"): 1, (b"c", b"</s>"): 1, (b"b", b"</s>"): 1,
            (b"<s>", b"c"): 1, (b"c", b"a"): 1,
        }  # fmt: skip
        assert words == [(b"<unk>", 0), (b"<s>", 3), (b"</s>", 2), (b"a", 3), (b"b", 3), (b"c", 2)]
        assert (totals.tokens, totals.lines, totals.symbols, totals.num_shards) == (13, 3, 6, 1)
    counted, *_ = passes(paths, tmp_path, None, 2, sentence_markers=True)
    assert counted[2] == found[2] + Counter({(b"b", b"</s>"): 1})  # 0 ends every line


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (b"", []),
        (b"\n", [b"<s> </s>"]),
        (b" ", []),
        (b"a", [b"<s> a"]),
        (b"a\n", [b"<s> a </s>"]),
        (b"a\n  ", [b"<s> a </s>"]),
        (b"a\n\n", [b"<s> a </s>", b"<s> </s>"]),
        (b"a\r\n\r\nb\r", [b"<s> a </s>", b"<s> </s>", b"<s> b"]),
        (b"<unk> a <s>b <s>\nb</s> </s> b\n<s>", [b"<s> a <s>b </s>", b"<s> b</s> b </s>"]),
        (b"<unk>\n<unk> a", [b"<s> </s>", b"<s> a"]),
    ],
)
def test_lines_by_hand(passes, tmp_path, text, lines):
    expected = [line.split() for line in lines]
    assert sentences(text) == expected
    for strategy in ("auto", "sort"):
        check(passes(files(tmp_path, text), tmp_path, SKIP, 3, strategy=strategy), expected)


PIECES = [b"a", b"bb", b" ", b"\n", b"\r\n", b"<unk>", b"<s>", b"</s>", b" c" * 9, b"\0", b"<UNK>"]
TEXTS = st.lists(st.lists(st.sampled_from(PIECES), max_size=12).map(b"".join), max_size=5)


@settings(max_examples=80, deadline=None)
@given(
    texts=TEXTS, order=st.integers(1, 4), chunk_bytes=st.integers(1, 60), block_bytes=st.integers(1, 60),
    strategy=st.sampled_from(STRATEGIES), make=st.sampled_from([bytes, gzip.compress, bz2.compress]),
)  # fmt: skip
# Unfinished last lines share a block.
@example([b" ", b"a", b" <s>", b"b", b"\n", b"c"], 2, 1000, 1000, "sort", bytes)
def test_against_plain_python(passes, tmp_path_factory, texts, order, chunk_bytes, block_bytes, strategy, make):
    folder = tmp_path_factory.mktemp("texts")
    (folder / "corpus").mkdir()
    paths = files(folder / "corpus", b"a\n", *texts, make=make)
    result = passes(paths, folder, SKIP, order, chunk_bytes, block_bytes, strategy=strategy)
    check(result, sentences(b"a\n", *texts))


@pytest.mark.parametrize("chunk_bytes", [64, 1 << 20])
def test_text_that_is_read_again(passes, tmp_path, monkeypatch, chunk_bytes):
    """As if memory had no room for streams."""
    monkeypatch.setattr(chunk_ranges, "without_words", lambda tokenised: None)
    texts = [b"a b <unk>\nc" * 9, b"c a b", b"b\n", b" "]
    check(passes(files(tmp_path, *texts), tmp_path, SKIP, 3, chunk_bytes, 10), sentences(*texts))


def test_last_lines_of_parquet_and_memory_are_finished(passes, tmp_path):
    pq.write_table(pa.table({"text": ["a b", None, "c", " "]}), tmp_path / "rows.parquet", row_group_size=2)
    expected = sentences(b"a b\n\nc\n \n")
    check(passes([str(tmp_path / "rows.parquet")], tmp_path, REFUSE), expected)
    check(passes(Lines(["a b", "", b"c", " \n"]), tmp_path, REFUSE), expected)


def test_specials_are_refused(passes, tmp_path):
    texts = [b"a b\n", b"the <unk>\n<s> of </s>\n"]
    way_out = "; remove it, or add --skip-symbols"
    for chunk_bytes in (5, 1 << 20):
        with pytest.raises(InputError, match=f"^<unk> stands in '.*001' at byte 4, .*{way_out}"):
            passes(files(tmp_path, *texts), tmp_path, REFUSE, chunk_bytes=chunk_bytes)
    with pytest.raises(InputError, match="^</s> stands in '.*000' at byte 2 of its text,"):
        passes(files(tmp_path, b"a </s> <s>", make=gzip.compress), tmp_path, REFUSE)
    pq.write_table(pa.table({"text": ["a b", "c", "a <s>"]}), tmp_path / "rows", row_group_size=2)
    with pytest.raises(InputError, match="^<s> stands in '.*rows' at byte 2 of the text of row group 1,"):
        passes([str(tmp_path / "rows")], tmp_path, REFUSE)
    for text in (b"<S> <s>> <UNK>\n", b"x<unk>\n"):  # ordinary words
        check(passes(files(tmp_path, text), tmp_path, REFUSE), sentences(text))


@pytest.mark.parametrize(
    ("least", "shard_tokens", "alone_tokens", "shards"),
    [
        (1, 60, 100, 1),
        (1, 60, 99, 2),
        (1, 10, 100, 1),
        (3, 34, 34, 3),
        (3, 20, 100, 6),
        (1, 9, 9, 12),
        (9, 50, 10, 9),
        (2000, 1, 1, 1024),
    ],
)
def test_shards(passes, tmp_path, least, shard_tokens, alone_tokens, shards):
    text = b"a b c d e f g h\n" * 10
    limits = PartLimits(least, least, shard_tokens, alone_tokens, 3)
    result = passes(files(tmp_path, text), tmp_path, LmplzText(True, limits), strategy="sort")
    assert result[2].tokens == 100 and result[2].num_shards == shards
    check(result, sentences(text))


@pytest.mark.parametrize(("usual_bits", "shards"), [(4, 1), (2, 2)])
def test_distinct_words_make_keys_longer(usual_bits, shards, passes, tmp_path, monkeypatch):
    """11 words have codes of 4 bits: 22 of them take two columns, where codes of 2 bits take one."""
    monkeypatch.setattr(core_shards, "USUAL_KEY", (22, usual_bits))
    limits = PartLimits(1, 1, 60, 100, 22)
    result = passes(files(tmp_path, b"a b c d e f g h\n" * 10), tmp_path, LmplzText(True, limits), strategy="sort")
    assert result[2].symbols == 11 and result[2].num_shards == shards


def id_sentences(separator, *streams):
    """Return runs of ids between separators with their markers; the last has no </s>, and is left out if empty."""
    found = []
    for ids in streams:
        runs = [[]]
        for v in ids:
            if v == separator:
                runs.append([])
            else:
                runs[-1].append(b"%d" % v)
        if separator is None:
            runs = [*runs, []] if ids else runs
        *lines, last = runs
        found += [[b"<s>", *line, b"</s>"] for line in lines] + ([[b"<s>", *last]] if last else [])
    return found


def test_ids_by_hand(passes, tmp_path):
    paths = files(tmp_path, np.array([10, 9, 0, 0, 10, 70000, 0], "<u4").tobytes(), np.array([9, 2], "<u4").tobytes())
    for strategy in STRATEGIES:
        options = {"unit": "id", "dtype": "uint32", "strategy": strategy}
        found, words, totals = passes(paths, tmp_path, REFUSE, 2, separator_id=0, **options)
        assert found[2] == {
            (b"<s>", b"10"): 2, (b"10", b"9"): 1, (b"9", b"</s>"): 1, (b"<s>", b"</s>"): 1, (b"10", b"70000"): 1,
            (b"70000", b"</s>"): 1, (b"<s>", b"9"): 1, (b"9", b"2"): 1,
        }  # fmt: skip
        assert words == [(b"<unk>", 0), (b"<s>", 4), (b"</s>", 3), (b"9", 2), (b"10", 2), (b"2", 1), (b"70000", 1)]
        assert (totals.tokens, totals.lines) == (13, 4)
        found, words, totals = passes(paths, tmp_path, REFUSE, 2, **options)
        assert found[2][b"<s>", b"10"] == found[2][b"2", b"</s>"] == found[2][b"0", b"</s>"] == 1
        assert words[:4] == [(b"<unk>", 0), (b"<s>", 2), (b"</s>", 2), (b"0", 3)] and totals.lines == 2


IDS = st.lists(st.sampled_from([0, 0, 1, 9, 10, 65535]), max_size=30)


@pytest.mark.parametrize("small_bytes", first_fast([20, 1, 1 << 20]))
@settings(max_examples=60, deadline=None)
@given(
    streams=st.lists(IDS, min_size=1, max_size=4), order=st.integers(1, 4), chunk_bytes=st.integers(1, 60),
    block_bytes=st.integers(2, 60), separator_id=st.sampled_from([None, 0]), strategy=st.sampled_from(STRATEGIES),
    make=st.sampled_from([bytes, bytes, gzip.compress]),
)  # fmt: skip
def test_ids_against_plain_python(
    passes, tmp_path_factory, small_bytes, streams, order, chunk_bytes, block_bytes, separator_id, strategy, make
):
    folder = tmp_path_factory.mktemp("ids")
    (folder / "corpus").mkdir()
    paths = files(folder / "corpus", *(np.array(ids, "<u2").tobytes() for ids in streams), make=make)
    options = {"unit": "id", "separator_id": separator_id, "strategy": strategy}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(token_streams, "SMALL_BYTES", small_bytes)
        result = passes(paths, folder, REFUSE, order, chunk_bytes, block_bytes, **options)
    check(result, id_sentences(separator_id, *streams), int)


def test_on_two_processes(passes, start, device, tmp_path):
    """The fixture's workers have CPUs."""
    if device == "gpu":
        pytest.skip("once is enough")
    cluster = start(2)
    texts = [b"a b <unk>\nc a\n" * 9, b"c </s> a b", b"b\n", b" "]
    check(passes(files(tmp_path, *texts), tmp_path, SKIP, 3, 40, 20, cluster, strategy="sort"), sentences(*texts))
    with pytest.raises(InputError, match="^<unk> stands in '.*000' at byte 4,"):
        passes(files(tmp_path, *texts), tmp_path, REFUSE, 3, 40, 20, cluster)
    ids = [[1, 2, 0, 3] * 9, [5, 0], [7]]
    paths = files(tmp_path, *(np.array(stream, "<u2").tobytes() for stream in ids), b"")
    check(passes(paths, tmp_path, SKIP, 3, 20, 10, cluster, unit="id", separator_id=0), id_sentences(0, *ids), int)


LOGS = ["edge_nonl", "edge_empty", "edge_crlf", "small_unk.o3.skip", "small.o3"]


@pytest.mark.parametrize("log", first_fast(LOGS, 3))
def test_what_lmplz_logged(passes, shared_data, tmp_path, log):
    """Tokens exclude </s>; types include the three specials; and the distinct n-grams of each order."""
    golden = shared_data / "golden"
    name = log.split(".")[0].replace("edge_", "edge_train_")
    path = golden / "inputs" / (f"{name}.txt" if name.startswith("edge") else f"{name}.txt.xz")
    text = path.read_bytes()
    text = lzma.decompress(text) if path.suffix == ".xz" else text
    (tmp_path / "plain").write_bytes(text)
    logged = (golden / "models" / f"{log}.log").read_text()
    [tokens] = re.findall(r"Unigram tokens (\d+) ", logged)
    distinct = {int(n): int(ngrams) for n, ngrams in re.findall(r"^(\d) (\d+) D1", logged, re.MULTILINE)}
    for corpus, chunk_bytes in (path, 1 << 30), (tmp_path / "plain", 1 << 16):
        found, words, totals = passes([str(corpus)], tmp_path, SKIP, max(distinct), chunk_bytes, 1 << 18)
        (_, starts), (_, ends) = words[1:3]
        assert totals.tokens - starts - ends == int(tokens)
        assert {1: len(words)} | {n: len(rows) for n, rows in found.items()} == distinct
    check((found, words, totals), sentences(text))
