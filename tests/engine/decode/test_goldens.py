"""Outputs of Amun on trained models: the same text, scores within the digits that it prints and its approximate exp."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
import yaml

from mgpu_ngram.core.nmt.bpe import words_in_line
from mgpu_ngram.core.nmt.files import load_nmt_model
from mgpu_ngram.core.nmt.vocabulary import load_nmt_vocabulary
from mgpu_ngram.engine.decode import output as decode_output
from mgpu_ngram.engine.decode.batch import Batching, decode
from mgpu_ngram.engine.decode.search_options import SearchOptions
from tests.support.slow_cases import only_fast

NAMES = [
    *(f"{m}.b{b}{n}" for m in ("gru2", "gru_ln_amun", "gru_ln_nematus_bx0") for b in (1, 5, 12) for n in ("", "n")),
    *(f"gru.{name}" for name in ("b1", "b1n", "b5", "b5n", "b12", "align", "allowunk", "nbest12", "nbest5n")),
    *(f"gru.{name}" for name in ("nbestalign", "nematusalign", "shortlen", "trunc5", "wipo")),
    *(f"{m}.nbest{n}" for m in ("gru2", "gru_ln_amun", "gru_ln_nematus_bx0") for n in ("12", "5n")),
    "ens2.b5n",
]
TOLERANCE = 1e-3 + 5e-4  # its approximate exp and tanh, and the 3 decimals that it prints
RELATIVE = 1e-4  # of sums over many words
NEAR = 1e-5  # difference of scores below which the approximation may change the order


@pytest.fixture(scope="module")
def folder(shared_data):
    return shared_data / "nmt" / "cmudict-g2p"


def options_of(command):
    """Return (options, greatest source length, lines of input, flags) of a command of Amun."""
    words = command.replace("<", " ").split()

    def value(name, kind, default):
        return kind(words[words.index(name) + 1]) if name in words else default

    beam, flags = value("-b", int, 1), {word for word in words if word.startswith("-")}
    options = SearchOptions(
        beam_size=beam,
        n_best=beam if "--n-best" in flags else 1,
        length_penalty=float("-n" in flags),
        max_length_multiple=value("--max-length-multiple", float, 2.0),
        allow_unk="-u" in flags,
        alignments=any("alignment" in flag for flag in flags),
    )
    lines = re.search(r"head -(\d+)", command)
    return options, value("--max-length", int, 200), int(lines[1]) if lines else None, flags


def numbers_apart(lines):
    """Return the lines with numbers of a decimal point replaced, and these numbers."""
    pattern = re.compile(r"-?\d+\.\d+(?:e-?\d+)?")
    text = "\n".join(lines)
    return pattern.sub("#", text).splitlines(), np.array([float(number) for number in pattern.findall(text)])


def settled(best, texts, target):
    """Return the results with neighbours exchanged, if `texts` has them so and their scores are nearly equal."""
    best = list(best)
    for i, text in enumerate(texts[: len(best) - 1]):
        if decode_output.text_of(best[i], target) != text and best[i].score - best[i + 1].score < NEAR:
            best[i : i + 2] = best[i + 1], best[i]
    return best


# Each model once, and each option of the command.
SHORT = ["gru2.b1", "gru2.b5n", "gru_ln_amun.b5", "gru_ln_nematus_bx0.b5", "gru.b1n", "ens2.b5n"]
SHORT += [name for name in NAMES if re.search(r"align|allowunk|nbest|shortlen|trunc|wipo", name)]


@pytest.mark.parametrize("name", only_fast(NAMES, *SHORT))
def test_outputs_of_amun(folder, name, placed):
    golden = (folder / "golden" / f"{name}.out").read_text().splitlines()
    config = yaml.safe_load((folder / "golden" / f"{name}.yml").read_text())
    options, max_length, head, flags = options_of((folder / "golden" / f"{name}.cmd").read_text())
    models = [placed(load_nmt_model(str(folder / "golden" / scorer["path"]))) for scorer in config["scorers"].values()]
    weights = None if len(models) == 1 else list(config["weights"].values())
    source, target = (load_nmt_vocabulary(str(folder / f"vocab.{side}.json")) for side in ("src", "trg"))
    lines = (folder / "test.src").read_text().splitlines()[:head]
    if head is None:
        step = 1 if name.endswith(".b5n") else 3  # all 2,250 words once for each model
        lines, golden = lines[::step], golden[::step]
        options = replace(options, n_best=min(2, options.beam_size))
    words = [words_in_line(line)[: max_length or None] for line in lines]
    ids = [source.encode_words(kept, len(models[0].source_embeddings[0])) for kept in words]
    found = []
    for i, best in enumerate(decode(models, ids, options, Batching(128), weights)):
        if "--return-nematus-alignment" in flags:
            found += decode_output.nematus_alignment(i, best[0], decode_output.text_of(best[0], target), lines[i])
        elif "--n-best" in flags:
            first = len(found) + ("--wipo" in flags)
            texts = [line.split(" ||| ")[1] for line in golden[first : first + len(best)]]
            best = settled(best, texts, target)
            of_line = decode_output.n_best_lines(
                i, best, target, alignment="hard" if options.alignments else "", decimals=7
            )
            found += decode_output.wipo_lines(of_line) if "--wipo" in flags else of_line
        elif "--return-alignment" in flags:
            found.append(
                " ||| ".join([decode_output.text_of(best[0], target), decode_output.hard_alignment(best[0], 0)])
            )
        else:
            found.append(decode_output.text_of(settled(best, [golden[i]], target)[0], target))
    # Weights below 1e-4 may be printed without a decimal point.
    found, golden = ([re.sub(r"(?<=\s)(\d)e-", r"\1.0e-", f" {line}") for line in text] for text in (found, golden))
    (text, numbers), (golden_text, golden_numbers) = numbers_apart(found), numbers_apart(golden)
    assert text == golden_text
    np.testing.assert_allclose(numbers, golden_numbers, rtol=RELATIVE, atol=TOLERANCE)


@pytest.mark.parametrize(("name", "beam"), [("b1", 1), ("b5n", 5)])
def test_a_multiplicative_lstm(folder, name, beam, placed):
    """Goldens of the plain program of the equations, in 5 decimals."""
    model = placed(load_nmt_model(str(folder / "model.mlstm.npz")))
    source, target = (load_nmt_vocabulary(str(folder / f"vocab.{side}.json")) for side in ("src", "trg"))
    ids = [source.encode(line, 28) for line in (folder / "test.src").read_text().splitlines()[:500]]
    options = SearchOptions(beam, beam, length_penalty=float(beam > 1))
    found = [
        line
        for i, best in enumerate(decode([model], ids, options))
        for line in decode_output.n_best_lines(i, best, target, decimals=5)
    ]
    golden = (folder / "golden" / f"mlstm.{name}.nbest.out").read_text().splitlines()
    (text, numbers), (golden_text, golden_numbers) = numbers_apart(found), numbers_apart(golden)
    assert text == golden_text
    np.testing.assert_allclose(numbers, golden_numbers, rtol=0, atol=1e-4)


def test_a_model_without_attention(shared_data, placed):
    folder = shared_data / "nmt" / "g2p-en-gru"
    model = placed(load_nmt_model(str(folder / "checkpoint20.npz")))
    source, target = (
        load_nmt_vocabulary(str(folder / f"vocab.{side}.json"), named_ends=True) for side in ("src", "trg")
    )
    assert (source.eos, target.eos, model.source_eos, model.eos) == (2, 3, 2, 3)
    lines = (folder / "test.src").read_text().splitlines()[::3]
    ids = [source.encode(line, len(source.tokens)) for line in lines]
    options = SearchOptions(max_length_multiple=100.0, max_steps=20, allow_unk=True)
    found = [decode_output.text_of(best[0], target) for best in decode([model], ids, options)]
    assert found == (folder / "golden.greedy.trg").read_text().splitlines()[::3]


def test_every_golden_is_tested(folder):
    names = {path.name.removesuffix(".out") for path in (folder / "golden").glob("*.out")}
    assert names - set(NAMES) == {"mlstm.b1", "mlstm.b5n", "mlstm.b1.nbest", "mlstm.b5n.nbest"}
    assert json.loads((folder / "vocab.src.json").read_text())["eos"] == 0
