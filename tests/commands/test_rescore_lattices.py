"""`mgpu-ngram rescore --lattices`: by hand, beside brute force over all paths, and refusals."""

import gzip
import json
import math
import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mgpu_ngram import kenlm
from mgpu_ngram.core.errors import InputWarning

LN_10 = math.log(10)
KALDI = """utt-1
0 1 <eps> 0.5,1,1_2
0 2 c 0.25,2,3
1 3 a ,1.5,
2 3 a
3 4 b 1,0.5,4_4
3 5 c 0,0,
4 0.5,0.25,
5 0,2,

utt-2
0 1 b
1

"""
SLF = """# of HTK
VERSION=1.0
UTTERANCE=utt-1
lmscale=9.0
N=6 L=7
I=0 t=0.00 W=!NULL
I=1 t=0.10 W=a
I=2 t=0.20 W=c
I=3 t=0.30 W=b
I=4 t=0.40 W="c"
I=5 t=0.50 W=!NULL
J=0 S=0 E=1 a=-2.5 l=-0.5
J=1 S=0 E=2 a=-2 l=-0.25
J=2 S=2 E=1
J=3 S=1 E=3 a=-0.5 l=-1
J=4 S=1 E=4
J=5 S=3 E=5 a=-0.25 l=-0.5
J=6 S=4 E=5 a=-2
"""
# The four texts of both, with the sums of graph (or lm) and acoustic scores
TEXTS = {"a b": (-2.0, -3.25), "a c": (-0.5, -4.5), "c a b": (-1.75, -2.75), "c a c": (-0.25, -4.0)}


@pytest.fixture
def rescore(arpa, tmp_path, monkeypatch, command):
    """Return rescore(*words), which runs in this process: (status, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    Path("kaldi").write_text(KALDI)
    Path("utt-1.slf").write_text(SLF)

    def run(*words):
        return command("rescore", *words, "--workers", "0", "--device", "cpu")

    return run


def lm_of(text):
    return np.float32(np.float64(np.float32(kenlm.Model("model.arpa").score(text))) * LN_10)


def shown(value):
    return np.format_float_positional(np.float32(value), trim="-")


@pytest.mark.parametrize(("file", "format", "name"), [("kaldi", "kaldi", "graph"), ("utt-1.slf", "slf", "lm")])
def test_texts_by_hand(file, format, name, rescore):
    """Epsilons and nodes without words are not words; final weights count; the total is the sum of both scores."""
    flags = ["--lattices", format, "--n-best", 9, "--lm", "model.arpa", "--names", "LM"]
    status, out, err = rescore(file, *flags, "--weights", "LM=0.25", "ac=2", f"{name}=-1")
    lines = []
    for text, (graph, ac) in TEXTS.items():
        lm = lm_of(text)
        total = 2 * ac - graph + 0.25 * float(lm)
        features = f"{name}= {shown(graph)} ac= {shown(ac)} LM= {shown(lm)}"
        lines.append((-total, f"utt-1 ||| {text} ||| {features} ||| {shown(total)}"))
    assert (status, err) == (0, "") and out.splitlines()[:4] == [line for _, line in sorted(lines)]
    status, out, err = rescore(file, *flags)
    assert [line.split(" ||| ")[1] for line in out.splitlines()[:4]] == ["c a c", "c a b", "a c", "a b"]
    assert [line.split(" ||| ")[3] for line in out.splitlines()[:4]] == ["-4.25", "-4.5", "-5", "-5.25"]


def test_the_best_texts(rescore):
    """A lattice of one word is one, too; n-best is at most what there is."""
    flags = ["kaldi", "--lattices", "kaldi", "--lm", "model.arpa"]
    assert rescore(*flags, "--weights", "ac=1", "--best") == (0, "utt-1 c a b\nutt-2 b\n", "")
    best = max(TEXTS, key=lambda text: sum(TEXTS[text]) + 3 * float(lm_of(text)))
    assert rescore(*flags, "--weights", "model=3", "--best") == (0, f"utt-1 {best}\nutt-2 b\n", "")
    assert rescore(*flags, "--n-best", 3)[1].count("utt-1 |||") == 3


def test_the_best_text_by_the_total_alone(rescore):
    assert rescore("kaldi", "--lattices", "kaldi", "--weights", "total=1", "--best") == (
        0,
        "utt-1 c a c\nutt-2 b\n",
        "",
    )


def test_the_best_of_several_paths_without_words(rescore):
    """The path over nodes 1 and 2 has no cost; the direct one has."""
    arcs = "0 1 <eps>\n0 3 <eps> 5,0\n1 2 <eps>\n2 3 <eps>\n3 4 a 0,1\n4\n"
    Path("empty").write_text(f"u\n{arcs}")
    out = rescore("empty", "--lattices", "kaldi", "--lm", "model.arpa")[1]
    assert out.startswith("u ||| a ||| graph= 0 ac= -1 model= ")


def test_nodes_without_a_way_to_the_end_are_left_out(rescore):
    """Also cycles there, and nodes that the start does not reach."""
    Path("dead").write_text("u\n0 1 a 3,0\n1 2 b\n0 3 c\n3 3 c\n4 1 c\n1\n")
    out = rescore("dead", "--lattices", "kaldi", "--weights", "graph=1", "--n-best", 9)[1]
    assert out == "u ||| a ||| graph= -3 ac= 0 ||| -3\n"


def test_costs_below_0(rescore):
    """The text that begins worse is better as a whole."""
    Path("below").write_text("u\n0 1 a 0,0\n0 2 b 5,0\n1 3 c 1,0\n2 3 d -10,0\n3\n")
    assert rescore("below", "--lattices", "kaldi", "--weights", "graph=1", "--best") == (0, "u b d\n", "")


def test_text_of_openfst(rescore):
    """A transducer without a name and an acceptor; the file is compressed."""
    transducer = "0 1 1 a 0.5\n1 2 2 <eps> 1\n1 2 3 b 0.25\n2 0.125\n"
    Path("fst.gz").write_bytes(gzip.compress(f"{transducer}\n0 1 a 0.5\n1 2 b\n2\n".encode()))
    status, out, err = rescore("fst.gz", "--lattices", "kaldi", "--n-best", 5, "--weights", "graph=1")
    assert (status, err) == (0, "")
    assert out.splitlines() == [
        "0 ||| a b ||| graph= -0.875 ac= 0 ||| -0.875",
        "0 ||| a ||| graph= -1.625 ac= 0 ||| -1.625",
        "1 ||| a b ||| graph= -0.5 ac= 0 ||| -0.5",
    ]


def test_words_that_are_like_weights(rescore):
    """A transducer of OpenFst omits weights of 0; its output labels may have commas."""
    words = [",", "),", "a,b", "nan", "inf", "1st", "x1,"]
    arcs = "".join(f"{i} {i + 1} in {word}\n" for i, word in enumerate(words))
    Path("fst").write_text(f"u\n{arcs}{len(words)}\n")
    assert rescore("fst", "--lattices", "kaldi", "--weights", "graph=1", "--best") == (0, f"u {' '.join(words)}\n", "")


def random_lattice(rng):
    """Return (lines, {text: (graph, ac) of each path}) of a random lattice; many paths have equal texts."""
    nodes, arcs = rng.randint(3, 7), []
    for source in range(nodes - 1):
        for _ in range(rng.randint(1, 3)):
            word = rng.choice(["a", "b", "c", "<eps>"])
            costs = rng.randint(0, 16) / 8, rng.randint(0, 16) / 8
            arcs.append((source, rng.randint(source + 1, nodes - 1), word, costs))
    ends = {nodes - 1: (0.25, 0.5)} | ({1: (1.0, 0.0)} if rng.random() < 0.5 else {})
    paths = {}

    def walk(node, words, graph, ac):
        if node in ends:
            paths.setdefault(" ".join(words), []).append((graph - ends[node][0], ac - ends[node][1]))
        for source, target, word, (g, a) in arcs:
            if source == node:
                walk(target, [*words, word] if word != "<eps>" else words, graph - g, ac - a)

    walk(0, [], 0.0, 0.0)
    numbers = rng.sample(range(50), nodes)  # nodes may have any numbers
    shuffled = [arcs[0], *rng.sample(arcs[1:], len(arcs) - 1)]  # the first arc leaves the start
    lines = [f"{numbers[s]} {numbers[t]} {word} {g},{a}," for s, t, word, (g, a) in shuffled]
    return lines + [f"{numbers[node]} {g},{a}," for node, (g, a) in ends.items()], paths


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("models", [1, 2])
def test_beside_brute_force(models, seed, rescore):
    """The best texts of random lattices, several in a task: all paths are tried, with the drop-in of KenLM's module."""
    rng, weights = random.Random(seed), {"graph": 0.75, "ac": 1.25, "A": 0.5, "B": -0.25}
    lattices = [random_lattice(rng) for _ in range(12)]
    text = "".join(f"u{i}\n" + "\n".join(lines) + "\n\n" for i, (lines, _) in enumerate(lattices))
    Path("random").write_text(text)
    unigrams = "-3\t<unk>\n-1\t<s>\n-0.5\t</s>\n-0.25\tb\n"
    Path("other.arpa").write_text(f"\\data\\\nngram 1=4\n\n\\1-grams:\n{unigrams}\n\\end\\\n")
    names = ["A", "B"][:models]
    flags = [x for path in ("model.arpa", "other.arpa")[:models] for x in ("--lm", path)]
    weights = {name: weight for name, weight in weights.items() if name in ("graph", "ac", *names)}
    given = [f"{name}={weight}" for name, weight in weights.items()]
    status, out, err = rescore(
        "random", "--lattices", "kaldi", "--n-best", 4, *flags, "--names", *names, "--weights", *given
    )
    assert (status, err) == (0, "")
    scorers = [kenlm.Model(path) for path in ("model.arpa", "other.arpa")[:models]]
    for i, (_, paths) in enumerate(lattices):
        totals = {}
        for words, several in paths.items():
            best = max(weights["graph"] * graph + weights["ac"] * ac for graph, ac in several)
            scores = (weights[name] * scorer.score(words) * LN_10 for name, scorer in zip(names, scorers, strict=True))
            totals[words] = best + sum(scores)
        found = [line.split("|||") for line in out.splitlines() if line.startswith(f"u{i} |||")]
        texts = [fields[1].strip() for fields in found]
        assert len(set(texts)) == len(texts) == min(4, len(totals))
        assert [float(fields[-1]) for fields in found] == pytest.approx([totals[text] for text in texts], abs=1e-4)
        assert sorted((totals[text] for text in texts), reverse=True) == pytest.approx(
            sorted(totals.values(), reverse=True)[:4], abs=1e-4
        )


def test_histories_that_end_a_sentence(rescore):
    """A model may have backoffs of n-grams that end in </s>; all of its states there are one end."""
    unigrams = "-3\t<unk>\n-1\t<s>\t0\n-0.5\t</s>\t-0.25\n-0.5\ta\t-0.125\n-0.5\tb\n"
    longer = "\\2-grams:\n-0.75\ta </s>\t-0.5\n-0.5\t<s> b\n\n\\3-grams:\n-1\ta </s> a\n"
    counts = "\\data\\\nngram 1=5\nngram 2=2\nngram 3=1\n"
    Path("ends.arpa").write_text(f"{counts}\n\\1-grams:\n{unigrams}\n{longer}\n\\end\\\n")
    Path("two").write_text("u\n0 1 a 0,1\n0 1 b 0,2\n1\n")
    status, out, err = rescore(
        "two", "--lattices", "kaldi", "--lm", "ends.arpa", "--n-best", 9, "--weights", "total=0", "ends=1"
    )
    a, b = (shown(-value * LN_10) for value in (0.5 + 0.75, 0.5 + 0.5))
    assert (status, err) == (0, "")
    assert [line.split("|||")[1:3] for line in out.splitlines()] == [
        [" b ", f" graph= 0 ac= -2 ends= {b} "], [" a ", f" graph= 0 ac= -1 ends= {a} "]
    ]  # fmt: skip


def test_too_many_arcs_are_refused(rescore, monkeypatch):
    monkeypatch.setattr("mgpu_ngram.engine.rescore.lattices.MAX_ARCS", 9)
    status, out, err = rescore("kaldi", "--lattices", "kaldi", "--lm", "model.arpa")
    assert (status, out) == (
        2,
        "",
    ) and "lattices have over 9 arcs with the models; prune them, or use smaller" in err, err


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("u\n0 1 a 1,2,3_4\n1 0 b\n1\n", "'wrong', the lattice at line 1: the lattice has a cycle; remove it"),
        ("\nu\n0 1 a\n0 0 b\n1\n", "'wrong', the lattice at line 2: the lattice has a cycle"),
        ("u\n", "'wrong', the lattice at line 1: the lattice has no arc; leave it out"),
        ("u\n0 1 a\n", "no path leads from the start to a final node"),
        ("u\n0 1 a\n2\n", "no path leads from the start to a final node"),
        ("u\n-1 2 a\n2\n", "'-1 2 a' is neither an arc"),
        ("u\n0 -1 a\n-1\n", "'0 -1 a' is neither an arc"),
        ("u\n0 x a\n1\n", "'0 x a' is neither an arc 'from to word graph,acoustic'"),
        ("u\n0 1 a 1 2 3\n1\n", "'0 1 a 1 2 3' is neither an arc"),
        ("u\n0 1 a nan,1,\n1\n", "has the cost nan; a cost is a number, or inf where no path may pass"),
        ("u\n0 1 a x,1,\n1\n", "'0 1 a x,1,' is neither an arc"),
        ("u\n0 1 a 1e999\n1\n", "no path leads from the start to a final node; add one, or leave the lattice out"),
        ("u\n0 1 a 1_0,1,\n1\n", "'0 1 a 1_0,1,' is neither an arc"),
        ("u\n0 1 a \uff11,1,\n1\n", "'0 1 a \uff11,1,' is neither an arc"),
        ("u\n0 1_0 a 1\n10\n", "'0 1_0 a 1' is neither an arc"),
        ("u\n0 1 a\n1 1_0\n", "'1 1_0' is neither an arc"),
        ("u\n0 1 a Infinity\n1\n", "no path leads from the start to a final node; add one, or leave the lattice out"),
        ("u\n0 1 a -Infinity,Infinity,\n1\n", "'0 1 a -Infinity,Infinity,' has the cost -inf; a cost is a number"),
        ("u\n0 1 a||| 2\n1\n", "the word 'a|||' would be read as several words or as the end of a text"),
        ("|||u\n0 1 a\n1\n", "the id '|||u' has white space, or begins or ends with |||; give it another name"),
        ("u\n0 1 |||\n1\n", "the word '|||' would be read as several words or as the end of a text"),
        ("u\n0 1 1 a x\n1\n", "'0 1 1 a x' is neither an arc"),
        ("u\n0 1 a\n1 inf\n", "no path leads from the start to a final node; add one, or leave the lattice out"),
        (
            "u\n0 1 a\n1\n\nv\n0 1 a\n1\n\nu\n0 1 a\n1\n",
            "'wrong', the lattice at line 9 has the id 'u', which "
            "'wrong', the lattice at line 1 has, too; give each lattice its own",
        ),
        (
            "u\n0 1 a\n1\n\nu\n0 1 b\n1\n",
            "the lattice at line 5 has the id 'u', which 'wrong', the lattice at line 1 has",
        ),
        (
            "u \0BCFST\n",
            "'wrong' has NUL bytes, so it is not text; write lattices as text: lattice-copy ark:FILE ark,t:-",
        ),
        (f"u\n0 1 {'a' * 99} b c d\n1\n", f"'0 1 {'a' * 56}...' is neither an arc"),
    ],
)
def test_wrong_lattices(lines, message, rescore):
    Path("wrong").write_text(lines)
    status, out, err = rescore("wrong", "--lattices", "kaldi", "--lm", "model.arpa", "-o", "out.txt")
    assert (status, out) == (2, "") and message in err and err.count("\n") == 1, err
    assert not Path("out.txt").exists()


@pytest.mark.parametrize(
    ("costs", "weight", "message"),
    [
        ("1e308,1e308", 1, "a total that is infinite"),
        ("1e38", 1e10, "is not finite"),
        ("1e38", 1e300, "is not finite"),
    ],
)
def test_scores_beyond_float32(costs, weight, message, rescore):
    """The parser of the lists that are made of lattices refuses them."""
    Path("wrong").write_text(f"u\n0 1 a {costs}\n1 2 b {costs}\n2\n")
    flags = ["--lattices", "kaldi", "--lm", "model.arpa", "--weights", f"graph={weight}"]
    status, out, err = rescore("wrong", *flags)
    assert (status, out) == (2, "") and message in err and err.count("\n") == 1, err


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("J=0 S=0", "J=0 T=0", "'J=0 T=0 E=1 a=-2.5 l=-0.5' is neither a node 'I=0 W=word' nor a link"),
        ("I=3 ", "I=x ", "is neither a node 'I=0 W=word'"),
        ("N=6 L=7", "N=7 L=7", "N=7 but there are 6; the lattice is truncated"),
        ("N=6 L=7", "N=6 L=8", "L=8 but there are 7; the lattice is truncated"),
        ("a=-2.5", "a=-2_5", "link J=0 has a score that is not a number, or infinitely high"),
        ("a=-2.5", "a-2.5", "is neither a node 'I=0 W=word' nor a link"),
        ("a=-2.5", "=-2.5", "is neither a node 'I=0 W=word' nor a link"),
        ("I=0 ", "I=0 t ", "'I=0 t t=0.00 W=!NULL' is neither a node 'I=0 W=word' nor a link"),
        ("E=1", "E=0_1", "'J=0 S=0 E=0_1 a=-2.5 l=-0.5' is neither a node"),
        ("a=-2.5", "a=x", "link J=0 has a score that is not a number, or infinitely high"),
        ("a=-2.5", "a=inf", "link J=0 has a score that is not a number, or infinitely high"),
        ("J=0 S=0 E=1", "J=0 S=9 E=1", "link J=0 joins a node that is missing"),
        ("J=6 S=4", "J=6 S=1", "2 nodes may be the end node; give its number in the header: end=0"),
        ("lmscale=9.0", "base=x", "base=x is not a base of logarithms"),
        ("lmscale=9.0", "base=1", "base=1 is not a base of logarithms"),
        ("lmscale=9.0", "start=x", "start=x is not the number of a node"),
        ("lmscale=9.0", "end=-1", "end=-1 is not the number of a node"),
        ("I=0 ", "I=-1 ", "'I=-1 t=0.00 W=!NULL' is neither a node 'I=0 W=word'"),
        ("lmscale=9.0", "SUBLAT=x", "sublattices are not read"),
        ("UTTERANCE=utt-1", "UTTERANCE='utt 1'", "the id 'utt 1' has white space, or begins or ends with |||"),
        ("W=b", 'W="b c"', "the word 'b c' would be read as several words or as the end of a text in an n-best list"),
        ("J=1 S=0", "J=1 S=1", "the lattice has a cycle"),
        ("I=5", "I=4", "several nodes have one number 'I='; give a file for each lattice"),
    ],
)
def test_wrong_slf(old, new, message, rescore):
    Path("wrong").write_text(SLF.replace(old, new))
    status, out, err = rescore("wrong", "--lattices", "slf", "--lm", "model.arpa")
    assert (status, out) == (2, "") and err.startswith("mgpu-ngram: 'wrong': ") and message in err, err
    assert err.count("\n") == 1


def test_strings_of_slf(rescore):
    """Quotes and escapes as HTK writes them, and words that begin with an apostrophe, as SRILM does."""
    words = {r"\'em": "'em", "'em": "'em", "don't": "don't", '"x\\"y"': 'x"y', "'q'": "q", r"stra\303\237e": "straße"}
    nodes = "".join(f"I={i} W={word} t=0\n" for i, word in enumerate(words, 1))
    links = "".join(f"J={i} S={i} E={i + 1} a=0\n" for i in range(len(words)))
    Path("strings.slf").write_text(f"U=\"u\" base=2.7\nI=0 W=''\n{nodes}{links}")
    status, out, err = rescore("strings.slf", "--lattices", "slf", "--weights", "ac=1", "--best")
    assert (status, out, err) == (0, f"u {' '.join(words.values())}\n", "")


def test_spaces_of_unicode_are_parts_of_words(rescore):
    """As in texts: words end at the white space of C alone."""
    word = "5\u00a0\u3000km\x1c"
    Path("spaces").write_text(f"u\n0 1 {word} 1,2\n1 2 b 0,0,1_2\n2\n")
    Path("spaces.slf").write_text(f"U=u base=2.7\nI=0 W=''\nI=1 W={word}\nI=2 W=\"b\"\nJ=0 S=0 E=1\nJ=1 S=1 E=2\n")
    for file, format in ("spaces", "kaldi"), ("spaces.slf", "slf"):
        status, out, err = rescore(file, "--lattices", format, "--weights", "ac=1", "--best")
        assert (status, out, err) == (0, f"u {word} b\n", "")


def test_words_of_links(rescore):
    """SLF may have words on links in place of nodes, or beside them; those of links count."""
    links = 'J=0 S=0 E=1 W=a a=-1\nJ=1 S=0 E=1 W="" a=-3\nJ=2 S=0 E=1 a=-2\n'
    Path("links.slf").write_text(f"U=u base=2.7\nI=0\nI=1 W=b\n{links}")
    status, out, err = rescore("links.slf", "--lattices", "slf", "--n-best", 9, "--weights", "ac=1")
    assert (status, err) == (0, "") and [line.split(" ||| ")[1] for line in out.splitlines()] == ["a", "b", ""]


@pytest.mark.parametrize(("file", "format"), [("kaldi", "kaldi"), ("utt-1.slf", "slf")])
def test_lines_of_windows(file, format, rescore):
    flags = ["--lattices", format, "--lm", "model.arpa", "--n-best", 9]
    wanted = rescore(file, *flags)
    Path(file).write_bytes(Path(file).read_bytes().replace(b"\n", b"\r\n"))
    assert rescore(file, *flags) == wanted and wanted[0] == 0


def test_names_of_files_are_ids_of_lattices(rescore):
    """Without their suffixes; a name may have other dots."""
    text = SLF.replace("UTTERANCE=utt-1\n", "")
    for name in "a.1.slf", "a.2.lat", "b":
        Path(name).write_text(text)
    Path("a.3.slf.gz").write_bytes(gzip.compress(text.encode()))
    files = ["a.1.slf", "a.2.lat", "a.3.slf.gz", "b", "--lattices", "slf", "--lm", "model.arpa"]
    status, out, err = rescore(*files)
    assert (status, err) == (0, "") and [line.split()[0] for line in out.splitlines()] == ["a.1", "a.2", "a.3", "b"]
    Path("a.1.lat").write_text(text)
    status, out, err = rescore("a.1.lat", *files)
    assert (status, out) == (2, "") and "'a.1.slf' has the id 'a.1', which 'a.1.lat' has, too" in err, err


def test_numbers_are_ids_of_lattices(rescore):
    """A lattice that is left out keeps its number. After a file that cannot be read, numbers are unknown."""
    arcs = "0 1 a\n1 2 dog\n2\n"
    Path("plain").write_text(arcs)
    Path("named").write_text(f"u\n{arcs}")
    Path("cycle").write_text("0 1 a\n1 0 b\n1\n")
    Path("nul").write_bytes(b"0 1 a\0\n1\n")
    flags = ["--lattices", "kaldi", "--weights", "ac=1", "--best"]
    assert rescore("plain", "named", "plain", *flags) == (0, "0 a dog\nu a dog\n2 a dog\n", "")
    with pytest.warns(InputWarning, match=r"1 of 2 lattices or files are left out; .*'cycle', the lattice at line 1"):
        assert rescore("cycle", "plain", *flags)[:2] == (0, "1 a dog\n")
    with pytest.warns(InputWarning, match=r"2 of 4 lattices or files are left out; the first is 'nul' has NUL bytes"):
        assert rescore("plain", "nul", "named", "plain", *flags)[:2] == (0, "0 a dog\nu a dog\n")


def test_files_that_cannot_be_read_are_left_out(rescore):
    """Also files whose first bytes are damaged, or are no text."""
    whole = gzip.compress(KALDI.encode() * 50)
    Path("cut.gz").write_bytes(whole[: len(whole) // 2])
    Path("head.gz").write_bytes(whole[:30])
    Path("wide").write_text(KALDI, encoding="utf-16")
    Path("lines.jsonl").write_text('{"text": "u"}\n')
    Path("lat.parquet").write_bytes(b"PAR1" + bytes(90))
    messages = {
        "cut.gz": "'cut.gz' is truncated gzip data", "head.gz": "'head.gz' is truncated gzip data",
        "wide": "'wide' is UTF-16 text, but text must be UTF-8", "lines.jsonl": "'lines.jsonl' holds JSON lines",
        "lat.parquet": "'lat.parquet' is damaged Parquet",
    }  # fmt: skip
    flags = ["--lattices", "kaldi", "--weights", "ac=1", "--best"]
    wanted = rescore("kaldi", *flags)
    assert wanted[0] == 0 and wanted[1]
    for name, message in messages.items():
        with pytest.warns(InputWarning, match=f"1 of 3 lattices or files are left out; the first is {message}"):
            assert rescore(name, "kaldi", *flags)[:2] == wanted[:2]
        status, out, err = rescore(name, *flags)
        assert (status, out) == (2, "") and message in err and err.count("\n") == 1, err
    with pytest.warns(InputWarning, match="5 of 7 lattices or files are left out; the first is 'cut.gz'"):
        assert rescore(*messages, "kaldi", *flags)[:2] == wanted[:2]
    assert "'none' does not exist" in rescore("none", "kaldi", *flags)[2]


def test_lattices_and_files_that_are_left_out_are_counted(rescore, command):
    Path("nul").write_bytes(b"0 1 a\0\n1\n")
    Path("some").write_text("one\n0 1 a\n\ntwo\n0 1 b\n1\n\nthree\n0 1 b nan,1,\n1\n")
    Path("jobs.yaml").write_text(
        "output: out\ncluster: {workers: 0}\n"
        "jobs: [rescore: {text: [kaldi, nul, some], lattices: kaldi, lm: model.arpa}]\n"
    )
    wanted = {"lists": 3, "hypotheses": 3, "words": 8, "oovs": {"model": 2}, "rejects": 3}  # of c a c, b and b
    files = ["kaldi", "nul", "some", "--lattices", "kaldi", "--lm", "model.arpa", "-o", "out.txt"]
    with pytest.warns(InputWarning, match="3 of 6 lattices or files are left out"):
        assert json.loads(rescore(*files, "--json")[1])["totals"] == wanted
    with pytest.warns(InputWarning, match="3 of 6 lattices or files are left out"):
        status, out, _ = rescore(*files, "--overwrite")
    assert status == 0 and "out.txt: 3 lists, 3 hypotheses, 8 words, 2 unknown to model, 3 rejects\n" in out
    with pytest.warns(InputWarning, match="3 of 6 lattices or files are left out"):
        assert command("run", "jobs.yaml")[0] == 0
    assert json.loads(Path("out/rescore/manifest.json").read_text())["totals"] == wanted
    assert (
        "out/rescore: 3 lists, 3 hypotheses, 8 words, 2 unknown to model, 3 rejects"
        in command("info", "out/rescore")[1]
    )


def test_lattices_in_a_column(rescore):
    table = pa.table({"text": ["u\n0 1 a\n1\n", "v\n0 1 b\n1\n"], "other": ["w\n0 1 c\n1\n", "x\n0 1 a\n1\n"]})
    pq.write_table(table, "lat.parquet")
    flags = ["--lattices", "kaldi", "--weights", "ac=1", "--best"]
    assert rescore("lat.parquet", *flags) == (0, "u a\nv b\n", "")
    assert rescore("lat.parquet", *flags, "--text-column", "other") == (0, "w c\nx a\n", "")


def test_scores_of_slf_to_another_base(rescore):
    """Base 10, and base 0: probabilities; the header may name the start and the end."""
    flags = ["--lattices", "slf", "--n-best", 9, "--weights", "ac=1"]
    out = rescore("utt-1.slf", *flags)[1]
    Path("ten.slf").write_text(
        SLF.replace("lmscale=9.0", "base=10 start=0 end=5").replace("a=-2.5", f"a={-2.5 / LN_10:.12f}")
        .replace("a=-2 ", f"a={-2 / LN_10:.12f} ").replace("a=-2\n", f"a={-2 / LN_10:.12f}\n")
        .replace("a=-0.5 ", f"a={-0.5 / LN_10:.12f} ").replace("a=-0.25 ", f"a={-0.25 / LN_10:.12f} ")
    )  # fmt: skip
    found = rescore("ten.slf", *flags)[1]
    totals = [[float(line.split(" ||| ")[-1]) for line in text.splitlines()] for text in (out, found)]
    assert totals[0] == pytest.approx(totals[1], abs=1e-5) and len(totals[0]) == 4
    Path("one.slf").write_text("base=0\nI=0\nI=1 W=a\nJ=0 S=0 E=1 a=0.5 l=1\n")
    out = rescore("one.slf", *flags)[1]
    assert out == f"one ||| a ||| lm= 0 ac= {shown(math.log(0.5))} ||| {shown(math.log(0.5))}\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--lattices", "kaldi", "--kaldi"], "lattices are kaldi, but kaldi is for n-best archives"),
        (["--n-best", 2], "n_best is 2 but the texts are lists; leave it out, or give --lattices kaldi"),
        (["--lattices", "kaldi", "--n-best", 0], "n_best is 0 but must be at least 1"),
        (["--lattices", "kaldi", "--weights", "F0=1"], "lattices have no feature F0; their features are graph, ac"),
        (["--lattices", "slf", "--names", "lm"], "lattices already have a feature lm; give the model another name"),
        (["--lattices", "kaldi", "--weights", "ac=1,2"], "ac has 2 weights but one value; give one"),
    ],
)
def test_wrong_flags(words, message, rescore):
    status, out, err = rescore("kaldi", "--lm", "model.arpa", *words)
    assert (status, out) == (2, "") and message in err and err.count("\n") == 1, err
