"""`mgpu-ngram decode`: goldens of Amun by its own commands, every option, YAML jobs, and refusals in one line."""

import gzip
import io
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

import mgpu_ngram as ng
from mgpu_ngram import cli
from mgpu_ngram.core.errors import InputWarning
from mgpu_ngram.engine.decode.batch import Forced
from mgpu_ngram.engine.decode.open_translation import TranslationFiles, open_translation
from mgpu_ngram.engine.decode.search_options import SearchOptions

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ("eos", "UNK", "a", "b", "c", "d", "e", "f", "g")
TARGET = ("eos", "UNK", "x", "y@@", "z", "u@@", "v")
LINES = ("a b c", "d zz e f", "", "g", "b b b b b b")
SMALL = ("align", "allowunk", "nbest12", "nbestalign", "nematusalign", "shortlen", "trunc5", "wipo")
GOLDENS = [*(f"gru.{name}" for name in SMALL), "gru_ln_amun.nbest5n", "gru_ln_nematus_bx0.nbest5n"]
NUMBER = re.compile(r"-?\d+\.\d+(?:e-?\d+)?|(?<=\s)\d(?=e-)")


@pytest.fixture
def decode(monkeypatch, command):
    """Return decode(*words, stdin), which decodes in this process: (status, stdout, stderr)."""

    def run(*words, stdin=b"", verb="decode"):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        words = [*map(str, words)]
        if verb == "decode":
            words += ["--workers", "0"] + ([] if "--device" in words else ["--device", "cpu"])
        return command(verb, *words)

    return run


@pytest.fixture
def system(random_tensors, save_model, tmp_path, monkeypatch):
    """Files of two models in the current directory, and a text."""
    monkeypatch.chdir(tmp_path)
    for seed in (0, 1):
        save_model(random_tensors(seed), f"m{seed}")
    for name, words in (("src.json", SOURCE), ("trg.json", TARGET)):
        Path(name).write_text(json.dumps({word: i for i, word in enumerate(words)}))
    Path("text").write_text("".join(f"{line}\n" for line in LINES))
    return ["m0.npz", "-s", "src.json", "-t", "trg.json"]


def expected(*models, forced=None, lines=LINES, **options):
    """Return the hypotheses that the engine finds."""
    translation = open_translation(TranslationFiles(models or ("m0.npz",), (("src.json",),), "trg.json"))
    sources = [translation.encode(translation.pieces(line)) for line in lines]
    return translation.decode(sources, SearchOptions(**options), forced=forced)


def texts(results):
    return "".join(" ".join(TARGET[w] for w in found[0].words if w) + "\n" if found else "\n" for found in results)


def numbers_apart(text):
    """Return the text with its numbers of a decimal point replaced, and these numbers."""
    return NUMBER.sub("#", text), np.array([float(number) for number in NUMBER.findall(text)])


@pytest.mark.filterwarnings("ignore:.*with more than 5 words were cut")
@pytest.mark.parametrize("name", GOLDENS)
def test_commands_of_amun(name, shared_data, decode, monkeypatch):
    golden = shared_data / "nmt" / "cmudict-g2p" / "golden"
    monkeypatch.chdir(golden)
    _, *words = (golden / f"{name}.cmd").read_text().split()
    flags = words[: words.index("<")]
    head = re.search(r"head -(\d+)", " ".join(words))
    text = (golden.parent / "test.src").read_bytes().splitlines(keepends=True)[: int(head[1])]
    status, out, err = decode(*flags, stdin=b"".join(text))
    assert (status, err) == (0, "")
    (found, numbers), (wanted, golden_numbers) = map(numbers_apart, (out, (golden / f"{name}.out").read_text()))
    assert found == wanted
    np.testing.assert_allclose(numbers, golden_numbers, rtol=1e-4, atol=2.1e-3)  # both round


def test_text_from_a_pipe_a_file_and_compressed_files(system, decode):
    wanted = texts(expected(beam_size=4))
    assert decode(*system, "-b", 4, stdin=Path("text").read_bytes())[:2] == (0, wanted)
    assert decode(*system, "-b", 4, "-", stdin=Path("text").read_bytes())[:2] == (0, wanted)
    Path("text.gz").write_bytes(gzip.compress(Path("text").read_bytes()))
    assert decode(*system, "-b", 4, "-i", "text.gz")[:2] == (0, wanted)
    assert decode("-b", 4, *system, "text", "text.gz")[:2] == (0, wanted + wanted)
    Path("crlf").write_bytes(Path("text").read_bytes().replace(b"\n", b"\r\n").removesuffix(b"\r\n"))
    assert decode(*system, "crlf", "-b", 4)[:2] == (0, wanted)
    assert decode(*system)[:2] == (0, "")


def test_tables_change_no_line(system, decode):
    wanted = decode(*system, "text", "-b", 4, "--n-best")
    assert wanted[0] == 0 and decode(*system, "text", "-b", 4, "--n-best", "--table-bytes", "0") == wanted


def test_n_best_lists(system, decode):
    """One line for each result: its number, text, sum and score; numbers go on over files and tasks."""
    status, out, _ = decode(*system, "text", "text", "--n-best", "-b", 3, "-n", "--chunk-sentences", 2)
    found = expected(beam_size=3, n_best=3, length_penalty=1.0) * 2
    lines = [
        f"{i} ||| {texts([[result]])[:-1]} ||| F0= {result.cost:.3f} ||| {result.score:.3f}"
        for i, results in enumerate(found)
        for result in results
    ]
    empty = [i for i, results in enumerate(found) if not results]
    lines += [f"{i} |||  ||| F0= 0.000 ||| 0.000" for i in empty]
    assert (status, out.splitlines()) == (0, sorted(lines, key=lambda line: int(line.split()[0]))) and len(empty) == 2
    wipo = decode(*system, "text", "--n-best", "-b", 3, "-n", "--wipo")[1]
    assert wipo.startswith("OUT: 3\nOUT: 0 ||| ") and wipo.count("\nOUT: 0\n") == 1, "the empty line has no result"
    weighted = decode(*system, "text", "--n-best", "-b", 3, "--weights", 0.5)[1].splitlines()[0]
    cost = expected(beam_size=3, n_best=3)[0][0].cost
    assert weighted.endswith(f" ||| F0= {cost:.3f} ||| {cost / 2:.3f}"), "the sum of a model is without its weight"


def test_alignments(system, decode):
    found = expected(alignments=True)
    soft, hard = [], []
    for results in found:
        text = texts([results])[:-1]
        if not results:
            soft.append(text)
            hard.append(text)
            continue
        rows = [row for word, row in zip(results[0].words, results[0].alignment_LT, strict=True) if word]
        soft.append(f"{text} ||| " + " ".join(",".join(f"{weight:g}" for weight in row) for row in rows))
        hard.append(f"{text} ||| " + " ".join(f"{t}-{row.argmax()}" for t, row in enumerate(rows)))
    assert decode(*system, "text", "--return-soft-alignment")[1].splitlines() == soft
    assert decode(*system, "text", "--return-alignment")[1].splitlines() == hard
    matrix = decode(*system, "text", "--return-nematus-alignment")[1].split("\n\n")
    assert len(matrix) == len(LINES) + 1 and matrix[2] == "2 |||  ||| 0 |||  ||| 1 0"
    first = matrix[1].splitlines()
    length = len(found[1][0].words)
    assert first[0] == f"1 ||| {texts([found[1]])[:-1]} ||| {-found[1][0].cost / length:g} ||| d zz e f ||| 5 {length}"
    assert len(first) == 1 + length and all(len(row.split()) == 5 for row in first[1:])
    out = decode(*system, "--return-nematus-alignment", stdin="a\u00a0b  c\n".encode())[1].splitlines()
    assert out[0].rsplit(" ", 1)[0].endswith(" ||| a\u00a0b c ||| 3") and len(out[1].split()) == 3


def test_byte_pair_codes_split_and_join(system, decode):
    """`a b` merges to `ab`, which the vocabulary lacks; pieces of the output are joined unless --no-debpe."""
    Path("codes").write_text("#version: 0.2\na b</w>\n")
    Path("targets").write_text("y@@ z x\nx u@@\n")
    sums = [found[0].cost for found in expected(lines=["a@@ c", "UNK c"], forced=Forced(targets=[[3, 4, 2], [2, 5]]))]
    for flags, wanted in (([], ["yz x", "x u"]), (["--no-debpe"], ["y@@ z x", "x u@@"])):
        flags += ["--targets", "targets", "--n-best", "--bpe", "codes"]
        out = decode(*system, *flags, stdin=b"ac\nab c\n")[1].splitlines()
        assert out == [f"{i} ||| {wanted[i]} ||| F0= {sums[i]:.3f} ||| {sums[i]:.3f}" for i in (0, 1)]


def test_an_ensemble_with_an_ngram_model(system, decode, arpa):
    """The sums of all models stand in n-best lists, under their names; their weighted sum is the score."""
    arpa.write_text(re.sub(r"\ba\b", "x", arpa.read_text()))
    status, out, _ = decode(
        "m0.npz", "m1.npz", *system[1:], "--weights", 0.7, 0.3, "--lm", arpa, "--lm-weight", 0.5, "text",
        "-b", 2, "--n-best", "-u",
    )  # fmt: skip
    assert status == 0 and out
    for line in out.splitlines():
        sums = {name: float(value) for name, value in re.findall(r"(\w+)= (-?\d+\.\d+)", line)}
        assert list(sums) == ["F0", "F1", "LM"]
        total = 0.7 * sums["F0"] + 0.3 * sums["F1"] + 0.5 * sums["LM"]
        assert float(line.rsplit(" ", 1)[1]) == pytest.approx(total, abs=2e-3)
    names = {f"F{i}": {"path": f"m{i}.npz"} for i in (0, 1)}
    config = {
        "scorers": names,
        "weights": {"F0": 0.7, "F1": 0.3},
        "source-vocab": "src.json",
        "target-vocab": "trg.json",
    }
    Path("amun.yml").write_text(yaml.safe_dump(config))
    again = decode("-c", "amun.yml", "--lm", arpa, "--lm-weight", 0.5, "-i", "text", "-b", 2, "--n-best", "-u")
    assert again[:2] == (0, out)
    Path("amun.yml").write_text(yaml.safe_dump(config | {"scorers": {"x": names["F0"], "y": names["F1"]},
                                                         "weights": {"x": 1, "y": 1}}))  # fmt: skip
    assert " ||| x= -" in decode("-c", "amun.yml", "-i", "text", "--n-best")[1]


def test_given_results_are_scored(system, decode):
    """A line for each target: its score. The n-best form gives its sum, too."""
    Path("targets").write_text("x z\n\ny@@\nv\nx x\n")
    ids = [[2, 4], [], [3], [6], [2, 2]]
    found = expected(forced=Forced(targets=ids), length_penalty=1.0)
    status, out, _ = decode(*system, "text", "--targets", "targets", "-n")
    assert status == 0 and [float(line) for line in out.split()] == pytest.approx([r[0].score for r in found], abs=1e-6)
    lines = decode(*system, "text", "--targets", "targets", "--n-best", "--chunk-sentences", 2)[1].splitlines()
    assert [line.split(" ||| ")[1] for line in lines] == ["x z", "", "y@@", "v", "x x"]
    Path("lex").write_text("x a 1\n")
    found = decode(*system, "text", "--targets", "targets", "-f", "lex", 0)[1].splitlines()
    assert [score == "-inf" for score in found] == [True, False, True, True, True], (
        "the shortlist has `x` for `a` alone"
    )


def test_results_with_given_first_words(system, decode):
    Path("prefixes").write_text("x z\n\n\nv\nx\n")
    found = expected(forced=Forced(prefixes=[[2, 4], [], [], [6], [2]]), beam_size=3)
    status, out, _ = decode(*system, "text", "--prefixes", "prefixes", "-b", 3, "--chunk-sentences", 2)
    assert (status, out) == (0, texts(found)) and out.startswith("x z")


def test_samples_depend_on_the_seed_alone(system, decode):
    flags = [*system, "text", "text", "--sample", "-b", 3, "--n-best", "--top-k", 5, "--temperature", 1.5]
    out = [decode(*flags, *more)[1] for more in ([], ["--chunk-sentences", 1], ["--seed", 1], ["--mini-batch", 2])]
    assert out[0] == out[1] == out[3] != out[2]
    texts_of = [re.sub(r"^\d+", "", line) for line in out[0].splitlines()]
    assert texts_of[: len(texts_of) // 2] != texts_of[len(texts_of) // 2 :], "equal sentences have other samples"


@pytest.mark.parametrize(
    ("flags", "options"),
    [
        (["--length-penalty", 0.6, "--word-penalty", 0.5], {"length_penalty": 0.6, "word_penalty": 0.5}),
        (["--max-length-multiple", 1.2], {"max_length_multiple": 1.2}),
        (["--max-steps", 2, "-u"], {"max_steps": 2, "allow_unk": True}),
        (["--early-stopping", "first"], {"early_stopping": "first"}),
        (["--early-stopping", "bound", "--batching", "drain", "--mini-batch-words", 8], {"early_stopping": "bound"}),
        (["--maxi-batch", 2, "--mini-batch", 2, "--batching", "naive"], {}),
    ],
    ids=["penalties", "multiple", "steps", "first", "bound", "batches"],
)
def test_options_of_the_search(system, decode, flags, options):
    found = expected(beam_size=3, n_best=3, **options)
    lists = [(i, texts([[best]]).strip(), best) for i, results in enumerate(found) for best in results]
    lines = [f"{i} ||| {text} ||| F0= {best.cost:.3f} ||| {best.score:.3f}\n" for i, text, best in lists]
    lines += [f"{i} |||  ||| F0= 0.000 ||| 0.000\n" for i, results in enumerate(found) if not results]
    wanted = "".join(sorted(lines, key=lambda line: int(line.split()[0])))
    assert decode(*system, "text", "-b", 3, "--n-best", *flags)[:2] == (0, wanted)


def test_words_beyond_the_greatest_length_are_not_read(system, decode):
    wanted = texts(expected(lines=[" ".join(line.split()[:2]) for line in LINES]))
    with pytest.warns(InputWarning, match="more than 2 words were cut: 3 of 5;"):
        assert decode(*system, "text", "--max-length", 2)[:2] == (0, wanted)
    assert decode(*system, "text", "--max-length", 6)[1] == texts(expected())
    two = ["m0.npz", "-s", "src.json", "src.json", "-t", "trg.json"]
    with pytest.warns(InputWarning, match="were cut: 1 of 1;"):
        decode(*two, "--max-length", 2, stdin=b"a\tb c d\n")
    Path("codes").write_text("a b</w>\n")
    with pytest.warns(InputWarning, match="were cut: 1 of 1;"):
        out = decode(*system, "--bpe", "codes", "--no-debpe", "--max-length", 2, stdin=b"ac b\n")[1]
    assert out == texts(expected(lines=["a@@ c"])), "pieces of words count"


def test_a_shortlist(system, decode):
    Path("lex").write_text("x a 1\nv b 0.5\nx b 0.4\n")
    out = decode(*system, "text", "-b", 3, "--max-length-multiple", 3, "-f", "lex", 0, 1)[1].splitlines()
    allowed = [{"x", "v"}, set(), set(), set(), {"v"}]
    assert [set(line.split()) <= words for line, words in zip(out, allowed, strict=True)] == [True] * 5
    assert decode(*system, "text", "-f", "lex", 7)[1] == texts(expected()), "7 first words are all"


def test_columns_and_factors(system, decode, random_tensors, save_model):
    tags = {"eos": 0, "UNK": 1, "N": 2, "V": 3}
    Path("tags.json").write_text(json.dumps(tags))
    save_model(random_tensors(0, factors=(2,)), "factors")
    flags = ["factors.npz", "-s", "src.json", "tags.json", "-t", "trg.json"]
    status, out, err = decode(*flags, stdin=b"a|N b|V\n")
    assert (status, err) == (0, "") and out.strip()
    status, _, err = decode(*flags, stdin=b"a|N b|V\na b\n")
    assert status == 2 and "line 2 of the text: token 'a' has 1 factors" in err
    Path("lex").write_text("x a 1\nv b 1\n")
    out = decode(*flags, "-f", "lex", 0, "--max-length-multiple", 9, stdin=b"b|N\n")[1]
    assert set(out.split()) == {"v"}, "of a word, not of a factor, whose ids are other words"
    scorers = {"F0": {"path": "m0.npz", "tab": 1}, "F1": {"path": "m1.npz"}}
    options = {"scorers": scorers, "weights": {"F0": 1, "F1": 0}, "source-vocab": ["src.json"] * 2}
    Path("amun.yml").write_text(yaml.safe_dump(options | {"target-vocab": "trg.json"}))
    text = "".join(f"d e f a b c\t{line}\n" for line in LINES if line).encode()
    wanted = texts(expected(lines=[line for line in LINES if line], max_length_multiple=1.0))
    out = decode("-c", "amun.yml", "--max-length-multiple", 1, stdin=text)[1]
    assert out == wanted, "the second column alone counts"


def test_a_yaml_job_writes_what_the_command_prints(system, decode):
    wanted = decode(*system, "text", "-b", 3, "-n", "--n-best")[1]
    dumped = decode(*system, "text", "-b", 3, "-n", "--n-best", "--dump-config")[1]
    assert yaml.safe_load(decode(*system, "--dump-config")[1])["jobs"][0]["decode"]["text"] == []
    Path("jobs.yaml").write_text(dumped)
    assert yaml.safe_load(dumped)["cluster"] == {"device": "cpu", "workers": 0}
    status, out, _ = decode("jobs.yaml", verb="plan")
    assert status == 0 and "beam of 3 by m0.npz; 256 sentences at once, refill" in out
    status, out, _ = decode("jobs.yaml", verb="run")
    assert status == 0 and out.startswith("runs/decode: 5 sentences, 14 words to ")
    assert Path("runs/decode/translations.txt").read_text() == wanted
    status, out, _ = decode("runs/decode", verb="info")
    assert status == 0 and out.startswith("runs/decode: 5 sentences, 14 words to ") and "beam_size=3" in out
    assert json.loads(decode("runs/decode", "--json", verb="info")[1])["totals"]["sentences"] == 5
    assert decode("jobs.yaml", "--resume", verb="run")[2] == "runs/decode: finished before\n"
    with open("m0.npz", "ab") as file:
        file.write(b"\0")
    status, _, err = decode("jobs.yaml", "--resume", verb="run")
    assert status == 2 and "files.m0.npz" in err


@pytest.mark.parametrize(
    ("flags", "cluster"),
    [
        ("", None),
        ("-d all", {"device": "gpu"}),
        ("-d 0 2", {"device": "gpu", "workers": 2}),
        ("-d 1", {"device": "gpu", "workers": 0}),
        ("--cpu-threads 3", {"device": "cpu", "workers": 3}),
        ("--workers 2", {"workers": 2}),
    ],
)
def test_the_dumped_job_runs_where_the_command_does(flags, cluster, system, capsys):
    with pytest.raises(SystemExit, match="0"):
        cli.main(["decode", *system, *flags.split(), "--dump-config"])
    assert yaml.safe_load(capsys.readouterr().out).get("cluster") == cluster


def test_the_dumped_job_has_every_setting(system, decode):
    """All that differ from the defaults, under their own names."""
    wanted = {
        "models": ["m0.npz", "m1.npz"], "text": ["text"], "source_vocab": ["src.json"], "target_vocab": "trg.json",
        "bpe": ["codes"], "debpe": False, "weights": [0.5, 2.0], "lm": "lm.arpa", "lm_weight": 0.3, "beam_size": 7,
        "n_best": 7, "length_penalty": 0.6, "word_penalty": -0.5, "max_length": 9, "max_length_multiple": 1.5,
        "max_steps": 4, "allow_unk": True, "early_stopping": "bound", "sample": True, "top_k": 3, "top_p": 0.5,
        "temperature": 2.0, "seed": 8, "prefixes": "first", "softmax_filter": "lex", "first_words": 5,
        "most_translations": 6, "alignment": "soft", "wipo": True, "mini_batch": 10, "mini_batch_words": 11,
        "maxi_batch": 12, "batching": "drain", "dtype": "tf32", "table_bytes": 0, "chunk_sentences": 13,
        "text_column": "line",
    }  # fmt: skip
    flags = """--bpe codes --no-debpe --weights 0.5 2 --lm lm.arpa --lm-weight 0.3 -b 7 --n-best --length-penalty 0.6
        --word-penalty -0.5 --max-length 9 --max-length-multiple 1.5 --max-steps 4 -u --early-stopping bound --sample
        --top-k 3 --top-p 0.5 --temperature 2 --seed 8 --prefixes first -f lex 5 6 --return-soft-alignment --wipo
        --mini-batch 10 --mini-batch-words 11 --maxi-batch 12 --batching drain --dtype tf32 --table-bytes 0
        --chunk-sentences 13 --text-column line --dump-config"""
    status, out, err = decode("m0.npz", "m1.npz", *system[1:], "text", *flags.split())
    assert (status, err) == (0, "") and yaml.safe_load(out)["jobs"] == [{"decode": wanted}]
    out = decode("m1.npz", *system[1:], "-m", "m0.npz", "--dump-config")[1]
    assert yaml.safe_load(out)["jobs"][0]["decode"]["models"] == ["m0.npz", "m1.npz"]


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"beam_size": 0}, "beam_size is 0 but must be at least 1"),
        ({"max_steps": -3}, "max_steps is -3 but must be 0"),
        ({"columns": [5]}, "a model reads column 5"),
        ({"softmax_filter": "nothing"}, "'nothing' does not exist"),
        ({"models": "nothing.npz"}, "'nothing.npz' does not exist"),
        ({"lm": "nothing.arpa"}, "nothing.arpa: "),
        ({"weights": [-1]}, "the weight of a model is -1.0 but"),
        ({"lm_weight": -0.5}, "the weight of a model is -0.5 but"),
    ],
)
def test_a_plan_refuses_what_a_run_refuses(setting, message, system, decode):
    """The n-gram model of an earlier job does not exist yet."""
    Path("corpus").write_text("x z\n")
    job = {
        "models": "m0.npz",
        "text": "text",
        "source_vocab": "src.json",
        "target_vocab": "trg.json",
        "lm": "lm",
    } | setting
    jobs = [{"estimate": {"corpus": "corpus", "name": "lm"}}, {"decode": job}]
    Path("jobs.yaml").write_text(json.dumps({"output": "runs", "jobs": jobs, "cluster": {"workers": 0}}))
    for verb in ("plan", "run"):
        status, out, err = decode("jobs.yaml", verb=verb)
        assert (status, out) == (2, "") and message in err and err.count("\n") == 1


def test_vocabularies_that_nematus_names(system, decode):
    """By their paths, or in the folder of the model."""
    wanted = texts(expected())
    Path("m0.npz.json").write_text(json.dumps({"dictionaries": ["src.json", "/gone/trg.json"]}))
    assert decode("m0.npz", "text")[:2] == (0, wanted)
    Path("sub").mkdir()
    for name in ("m0.npz", "m0.npz.json", "trg.json"):
        Path(name).rename(f"sub/{name}")
    assert decode("sub/m0.npz", "text")[:2] == (0, wanted)
    Path("sub/m0.npz.json").write_text('{"dictionaries": ["src.json"]}')
    assert "there is no source vocab" in decode("sub/m0.npz", "text")[2]


def test_the_job_the_command_and_python_give_the_same(decode, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    out = decode("-c", "examples/g2p/amun.yml", "-i", "examples/g2p/words.txt")[1]
    assert out.count("\n") == len(Path("examples/g2p/words.txt").read_text().splitlines())
    status, shown, _ = decode("configs/decode.yaml", f"output={tmp_path}", "cluster.workers=0", verb="run")
    assert status == 0 and (tmp_path / "decode" / "translations.txt").read_text() == out, shown
    files = (f"examples/g2p/{name}" for name in ("model.npz", "letters.json", "phonemes.json"))
    translator = ng.Translator(*files, device="cpu")
    words = Path("examples/g2p/words.txt").read_text().splitlines()
    assert [best[0].text for best in translator.translate(words, beam_size=5, length_penalty=1)] == out.splitlines()


def test_a_model_that_an_earlier_job_makes(system, decode):
    """The n-gram model of a job takes part in the next one."""
    Path("corpus").write_text("x z\nv x\n" * 20)
    jobs = [
        {"estimate": {"corpus": "corpus", "order": 2, "discount_fallback": [], "name": "lm"}},
        {"decode": {"models": "m0.npz", "text": "text", "source_vocab": "src.json", "target_vocab": "trg.json",
                    "lm": "lm", "lm_weight": 3.0}},
    ]  # fmt: skip
    Path("jobs.yaml").write_text(
        json.dumps({"output": "runs", "jobs": jobs, "cluster": {"workers": 0, "device": "cpu"}})
    )
    assert decode("jobs.yaml", verb="run")[0] == 0
    fused = Path("runs/decode/translations.txt").read_text()
    assert fused != texts(expected())
    lm = next(Path("runs/lm").glob("*.safetensors"))
    assert decode(*system, "text", "--lm", lm, "--lm-weight", 3)[1] == fused


def test_a_file_and_its_summary(system, decode):
    status, out, _ = decode(*system, "text", "-o", "out.txt")
    assert status == 0 and out.startswith("out.txt: 5 sentences, 14 words to ") and " sentences/s, " in out
    assert Path("out.txt").read_text() == texts(expected())
    assert decode(*system, "text", "-o", "out.txt")[0] == 2
    assert decode(*system, "text", "-o", "-")[1] == texts(expected()) and not Path("-").exists()
    found = json.loads(decode(*system, "text", "-o", "out.txt", "--overwrite", "--json")[1])
    assert (found["sentences"], found["source_words"]) == (5, 14) and found["words_per_second"] > 0
    Path("given").write_text("x z\n\nv\nx\n\n")
    scored = json.loads(decode(*system, "text", "--targets", "given", "-o", "scores.txt", "--json")[1])
    assert scored["words"] == 4, "without the ends of sentences"
    assert sorted(path.name for path in Path().glob("out*")) == ["out.txt"]
    short = ["--max-steps", 1, "-o", "out.txt", "--overwrite", "--json"]  # results without the end of the sentence
    assert json.loads(decode(*system, "text", *short)[1])["words"] == len(Path("out.txt").read_text().split()) > 0


def test_weights_are_shown(system, decode):
    assert decode("m0.npz", "m1.npz", "--show-weights")[:2] == (0, "F0= 1\nF1= 1\n")
    given = "m0.npz", "m1.npz", "--show-weights", "--weights"
    assert decode(*given, 0.7, 0.25)[:2] == (0, "F0= 0.7\nF1= 0.25\n")


def test_a_model_is_described(system, decode, random_tensors, save_model):
    status, out, _ = decode("m0.npz", verb="info")
    assert (
        status == 0 and "a translation model, 9 source words to 7 target words\nGRU of 4, embeddings of 5, with" in out
    )
    sizes = sum(array.size for name, array in random_tensors(0).items() if name != "decoder_c_tt")
    assert f"{sizes} parameters" in out
    save_model(random_tensors(0, cell="mlstm", factors=(2,)), "m2")
    found = json.loads(decode("m2.npz", "--json", verb="info")[1])
    assert (found["cell"], found["source_words"], found["state"]) == ("multiplicative LSTM", [9, 4], 4)
    np.savez("other.npz", a=np.zeros(2))
    assert decode("other.npz", verb="info")[1].startswith("other.npz: ZIP archive")
    Path("damaged.npz").write_bytes(Path("m0.npz").read_bytes()[:2000])
    assert decode("damaged.npz", verb="info")[1].startswith("damaged.npz: ZIP archive")
    save_model({**random_tensors(0), "extra": np.zeros(3, np.float32)}, "extra")
    assert "tensor 'extra' (3,)" in decode("extra.npz", verb="info")[2]


def test_a_model_without_attention_has_no_alignment(shared_data, decode, monkeypatch):
    monkeypatch.chdir(shared_data / "nmt" / "g2p-en-gru")
    system = ["checkpoint20.npz", "-s", "vocab.src.json", "-t", "vocab.trg.json"]
    golden = Path("golden.greedy.trg").read_text().splitlines(keepends=True)
    text = b"".join(Path("test.src").read_bytes().splitlines(keepends=True)[:100])
    status, out, _ = decode(*system, "--max-steps", 20, "--max-length-multiple", 100, "-u", stdin=text)
    assert (status, out) == (0, "".join(golden[:100]))
    status, _, err = decode(*system, "--return-alignment", stdin=text)
    assert status == 2 and "checkpoint20.npz' has no attention to write" in err


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["gru.nbestalign", "gru_ln_nematus_bx0.nbest5n"])
def test_commands_of_amun_on_a_gpu(name, shared_data, decode, monkeypatch):
    golden = shared_data / "nmt" / "cmudict-g2p" / "golden"
    monkeypatch.chdir(golden)
    _, *words = (golden / f"{name}.cmd").read_text().split()
    flags, text = words[: words.index("<")], (golden.parent / "test.src").read_bytes().splitlines(keepends=True)[:50]
    (on_gpu, gpu_numbers), (here, numbers) = (
        numbers_apart(decode(*flags, "--device", device, stdin=b"".join(text))[1]) for device in ("gpu", "cpu")
    )
    assert on_gpu == here and here
    np.testing.assert_allclose(gpu_numbers, numbers, atol=2e-3)


def test_gpus_by_number(system, decode, monkeypatch):
    """The run sees the GPUs that it names; one works in this process."""
    from mgpu_ngram.commands import run_flags

    monkeypatch.setattr(run_flags, "visible_gpus", lambda: 4)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5,6,7")
    assert run_flags.use_gpus("all") == 4
    assert run_flags.use_gpus([1, 3]) == 2 and run_flags.os.environ["CUDA_VISIBLE_DEVICES"] == "5,7"
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert run_flags.use_gpus([2]) == 0 and run_flags.os.environ["CUDA_VISIBLE_DEVICES"] == "2"


WRONG = {
    "there is no model; give MODEL.npz or -c": "text -s src.json -t trg.json",
    "there is no source vocab": "m0.npz -t trg.json",
    "there is no target vocab": "m0.npz -s src.json",
    "'no.npz' does not exist": "no.npz -s src.json -t trg.json text",
    "'no.json' does not exist": "m0.npz -s no.json -t trg.json text",
    "'nothing' does not exist": "m0.npz -s src.json -t trg.json nothing",
    "are not exchanged": "m0.npz -s src.json -t short.json text",
    "is damaged JSON": "m0.npz -s damaged.json -t trg.json text",
    "-v is not used": "-v",
    "--log-info is not used": "--log-info off",
    "'x' is not true or false": "--use-fused-softmax x",
    "table_bytes is '-1' but must be a size such as": "m0.npz -s src.json -t trg.json text --table-bytes -1",
    "use-fused-softmax is false but": "m0.npz -s src.json -t trg.json text --use-fused-softmax false",
    "lm_weight is 0.3 but there is no n-gram model; give --lm": "m0.npz -s src.json -t trg.json text --lm-weight 0.3",
    "there are 1 models but 2 weights": "m0.npz -s src.json -t trg.json text --weights 1 2",
    "wipo is a format of n-best lists": "m0.npz -s src.json -t trg.json text --wipo",
    "the Nematus alignment is only for the best": "m0.npz -s src.json -t trg.json --n-best --return-nematus-alignment",
    "top_k is for samples": "m0.npz -s src.json -t trg.json text --top-k 5",
    "prefixes and targets are given": "m0.npz -s src.json -t trg.json text --prefixes text --targets text",
    "targets are scored without a search": "m0.npz -s src.json -t trg.json text --targets text --sample",
    "line 2 of the targets has </s> but": "m0.npz -s src.json -t trg.json text --targets ends",
    "line 2 of the prefixes has </s> but": "m0.npz -s src.json -t trg.json text --prefixes ends",
    "--input-file short and text are given": "m0.npz -s src.json -t trg.json text -i short",
    "there are 2 models but 1 weights": "m0.npz m1.npz --weights 1 --show-weights",
    "there is no model, so there are no weights": "--show-weights",
    "--weights and --load-weights are given": "m0.npz -s src.json -t trg.json text --weights 1 --load-weights short",
    "'short' has 1 lines but the text has 5": "m0.npz -s src.json -t trg.json text --targets short",
    "another --length-penalty": "m0.npz -s src.json -t trg.json text -n --length-penalty 0.5",
    "give -o FILE for them": "m0.npz -s src.json -t trg.json text --json",
    "output text is an input of this run": "m0.npz -s src.json -t trg.json text -o text --overwrite",
    "output ends is an input of this run": "m0.npz -s src.json -t trg.json text --targets ends -o ends",
    "but its name ends with .json": "m0.npz -s src.json -t trg.json text -o out.json",
    "not a file in an existing folder": "m0.npz -s src.json -t trg.json text -o no/out.txt",
    "there is no output to resume": "m0.npz -s src.json -t trg.json text --resume",
    "nothing to resume": "m0.npz -s src.json -t trg.json text -o out.txt --resume",
    "max_length_multiple is 1e+09, so results of sentence 4 may have more than 1,048,576 words; lower it": "m0.npz -s "
    "src.json -t trg.json text --max-length-multiple 1e9",
    "max_length_multiple is 1e+308, so results of": "m0.npz -s src.json -t trg.json text --max-length-multiple 1e308",
    "beam_size is 0 but must be at least 1": "m0.npz -s src.json -t trg.json text -b 0",
    "mgpu-ngram: unrecognized arguments: --beamsize 3; see": "m0.npz -s src.json -t trg.json text --beamsize 3",
    "invalid choice: 'never'": "m0.npz -s src.json -t trg.json text --early-stopping never",
    "but --device cpu is given; leave one of them out": "m0.npz -s src.json -t trg.json text -d 0",
    "columns between tabs": "m0.npz -s src.json -t trg.json tabs",
    "softmax-filter is ['lex', 'x']": "m0.npz -s src.json -t trg.json text -f lex x",
}


@pytest.mark.parametrize("message", WRONG)
def test_what_cannot_work_is_refused_in_one_line(message, system, decode):
    Path("short.json").write_text('{"eos": 0, "UNK": 1}')
    Path("damaged.json").write_text('{"eos": 0')
    Path("short").write_text("x\n")
    Path("ends").write_text("x\nx </s>\n\n\n\n")
    Path("tabs").write_text("a\tb\n")
    status, out, err = decode(*WRONG[message].split())
    assert (status, out) == (2, "") and message in err and err.count("\n") == 1


HELP = """
--config --input-file --model --source-vocab --target-vocab --weights --load-weights --show-weights --bpe --no-debpe
--devices --cpu-threads --tensor-cores --mini-batch --maxi-batch --mini-batch-words --beam-size --normalize
--softmax-filter --allow-unk --n-best --return-alignment --return-soft-alignment --return-nematus-alignment --max-length
--max-length-multiple --wipo --relative-paths --dump-config --help -c -i -m -s -t -d -b -n -f -u -h
"""  # Amun's own, without those that have no effect here


def test_the_help_has_every_option_of_amun(decode):
    out = decode("--help")[1]
    assert "examples:" in out and "--lm " in out
    shown = re.findall(r"(?<!\S)--?[a-z][a-z-]*", out.replace(",", " ").replace("[", " "))
    assert set(HELP.split()) - set(shown) == set()


@pytest.mark.parametrize(
    ("flags", "options", "place"),
    [
        ([], {}, ("auto", None, None)),
        (["-d", "0", "1"], {}, ("auto", None, [0, 1])),
        (["-d", "0"], {"cpu-threads": 2}, ("auto", None, [0])),
        (["-d", "all", "--device", "gpu"], {"devices": [2]}, ("gpu", None, "all")),
        ([], {"devices": [2]}, ("auto", None, [2])),
        (["--device", "cpu"], {"devices": [2]}, ("cpu", None, None)),
        (["--workers", "3"], {"cpu-threads": 2}, ("auto", 3, None)),
        (["--scheduler", "tcp://h:1"], {"devices": [2]}, ("auto", None, None)),
        ([], {"cpu-threads": 2}, ("cpu", 2, None)),
        (["--cpu-threads", "1"], {"devices": [2]}, ("cpu", 0, None)),
        (["--mode", "CPU", "--threads", "8", "--threads-per-device", "1"], {"devices": [2]}, ("cpu", 0, None)),
        (["--device", "gpu"], {"cpu-threads": 2}, ("gpu", None, None)),
    ],
)
def test_where_flags_and_config_files_let_the_work_run(system, flags, options, place):
    """(device, workers, GPUs): flags before the config file."""
    from mgpu_ngram.cli import _parse
    from mgpu_ngram.stages.decode import STAGE

    Path("amun.yml").write_text(json.dumps({"model": "m0.npz", **options}))
    arguments = _parse(["decode", "-c", "amun.yml", *system[1:], *flags])
    STAGE.settings(arguments)
    assert (arguments.device, arguments.workers, arguments.devices) == place
