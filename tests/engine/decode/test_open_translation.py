"""Translation systems from files: what they read of a line, members of ensembles, shortlists, files that do not fit."""

import gzip
import json
import math
import re
import runpy
from pathlib import Path

import numpy as np
import pytest

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.nmt.shortlist import load_shortlist
from mgpu_ngram.core.nmt.vocabulary import load_nmt_vocabulary
from mgpu_ngram.engine.decode.batch import Forced, decode
from mgpu_ngram.engine.decode.nmt_steps import NmtSteps
from mgpu_ngram.engine.decode.open_translation import COMPUTE_DTYPES, TranslationFiles, open_translation
from mgpu_ngram.engine.decode.output import text_of
from mgpu_ngram.engine.decode.search_options import SearchOptions

ERROR_RATE = Path(__file__).parents[3] / "examples" / "error_rate.py"
SOURCE = ("eos", "UNK", "a", "b", "c", "d", "e", "f", "g\u00a0h")
TARGET = ("eos", "UNK", "x", "y", "z", "u", "v")


@pytest.fixture
def vocabularies(tmp_path):
    """Return the paths of a source and of a target vocabulary that fit the random models."""
    paths = [tmp_path / "src.json", tmp_path / "trg.json"]
    for path, words in zip(paths, (SOURCE, TARGET), strict=True):
        path.write_text(json.dumps({word: i for i, word in enumerate(words)}))
    return [str(path) for path in paths]


@pytest.fixture
def files(random_tensors, save_model, vocabularies):
    """Return files(seeds, kinds, **rest): a system of random models."""

    def make(*seeds, kind=None, **rest):
        models = tuple(save_model(random_tensors(seed, **(kind or {})), f"m{seed}") for seed in seeds)
        return TranslationFiles(
            models, **({"source_vocabs": ((vocabularies[0],),), **rest}), target_vocab=vocabularies[1]
        )

    return make


def test_a_line_becomes_ids(files, tmp_path):
    """Spaces alone separate words; BPE splits them."""
    translation = open_translation(files(0))
    assert translation.encode(translation.pieces("a  b g\u00a0h zz")).tolist() == [2, 3, 8, 1, 0]
    assert translation.encode_target("x zz v").tolist() == [2, 1, 6]
    codes = tmp_path / "codes.gz"
    codes.write_bytes(gzip.compress(b"#version: 0.2\na b</w>\n"))
    translation = open_translation(files(0, bpe=(str(codes),)))
    assert translation.pieces("ab ca") == [["ab", "c@@", "a"]]


def test_a_source_with_factors(files, vocabularies, tmp_path):
    tags = tmp_path / "tags.json"
    tags.write_text(json.dumps({"eos": 0, "UNK": 1, "N": 2, "V": 3}))
    with_tags = files(0, kind={"factors": (2,)}, source_vocabs=((vocabularies[0], str(tags)),))
    translation = open_translation(with_tags)
    assert translation.encode(translation.pieces("a|N zz|V")).tolist() == [[2, 2], [1, 3], [0, 0]]
    assert translation.decode([translation.encode(translation.pieces("a|N b|V"))])[0]
    with pytest.raises(InputError, match="'a' has 1 factors"):
        translation.encode(translation.pieces("a"))
    with pytest.raises(InputError, match="has 2 factors in a source word but column 0 has 1"):
        open_translation(files(0, kind={"factors": (2,)}))


def test_members_of_an_ensemble_read_their_own_columns(files, vocabularies):
    """Each model's sum for a given target is that of the model alone on its column."""
    both = files(0, 1, source_vocabs=((vocabularies[0],),) * 2, columns=(1, 0))
    translation = open_translation(both)
    line, target = "a b c\td e", [2, 3]
    source = translation.encode(translation.pieces(line))
    assert len(source) == 3  # the first model reads the second column
    options, forced = SearchOptions(breakdown=True), Forced(targets=[target])
    ((found,),) = translation.decode([source], options, weights=[0.5, 2.0], forced=forced)
    alone = []
    for seed, text in ((0, "d e"), (1, "a b c")):
        one = open_translation(files(seed))
        ((result,),) = one.decode([one.encode(one.pieces(text))], forced=forced)
        alone.append(result.cost)
    assert found.parts == pytest.approx(alone, abs=1e-5)
    assert found.cost == pytest.approx(0.5 * alone[0] + 2 * alone[1], abs=1e-5)
    for wrong in ("a b c", "a\tb\tc"):
        with pytest.raises(InputError, match="columns between tabs but 2"):
            translation.pieces(wrong)


def test_models_with_other_numbers_of_embeddings_share_a_vocabulary(files, random_tensors, save_model):
    """A word that the smaller model lacks is unknown to that model alone."""
    tensors = random_tensors(1)
    tensors["Wemb"] = tensors["Wemb"][:4]
    small = save_model(tensors, "small")
    pair = files(0)
    pair = TranslationFiles((*pair.models, small), pair.source_vocabs, pair.target_vocab)
    translation = open_translation(pair)
    source = translation.encode(translation.pieces("a g\u00a0h"))
    assert [part.tolist() for part in source.parts] == [[2, 8, 0], [2, 1, 0]]
    assert translation.decode([source])[0]


def test_a_shortlist_by_hand(vocabularies, tmp_path):
    source, target = map(load_nmt_vocabulary, vocabularies)
    spaces, tabs = tmp_path / "lex", tmp_path / "lex.gz"
    spaces.write_text("x a 0.1\ny a 0.7\nz a 0.7\nu b 1\nx qq 1\nqq a 1\nu g\u00a0h 1\r\n\n")
    tabs.write_bytes(gzip.compress("a\tx\t0.1\na\ty\t0.7\na\tz\t7e-1\r\nb\tu\t1\ng\u00a0h\tu\t1\n".encode()))
    for path in (spaces, tabs):
        shortlist = load_shortlist(str(path), source, target, 0, 2)
        found = {word: ids.tolist() for word, ids in shortlist.translations.items()}
        assert (shortlist.first, found) == (2, {2: [3, 4], 3: [5], 8: [5]})
    assert np.flatnonzero(shortlist.allowed(np.array([2, 7, 0]), 7)).tolist() == [0, 1, 3, 4]
    first_three = load_shortlist(str(spaces), source, target, 3, 0)
    assert np.flatnonzero(first_three.allowed(np.array([2]), 7)).tolist() == [0, 1, 2]


@pytest.mark.parametrize("line", ["x a", "x a p", "x a 1 2", "x a nan", "a\tx"])
def test_a_damaged_shortlist_is_one_line(vocabularies, tmp_path, line):
    path = tmp_path / "lex"
    path.write_text(f"x a 1\n{line}\n")
    with pytest.raises(InputError, match="line 2 of shortlist") as error:
        load_shortlist(str(path), *map(load_nmt_vocabulary, vocabularies), 0, 2)
    assert "\n" not in str(error.value)


def test_a_shortlist_of_other_words_is_refused(vocabularies, tmp_path):
    path = tmp_path / "lex"
    path.write_text("a x 1\nb y 0.5\n")  # source and target exchanged
    with pytest.raises(InputError, match="no line of shortlist") as error:
        load_shortlist(str(path), *map(load_nmt_vocabulary, vocabularies), 0, 2)
    assert "\n" not in str(error.value)
    path.write_text("\n")
    assert load_shortlist(str(path), *map(load_nmt_vocabulary, vocabularies), 0, 2).translations == {}


def test_probabilities_are_those_among_the_allowed_words(files, tmp_path):
    """Each word's logarithm, beside the model's row restricted to the shortlist of its sentence."""
    lex = tmp_path / "lex"
    lex.write_text("x a 1\ny b 1\nz c 1\n")
    translation = open_translation(files(0, shortlist=str(lex), first_words=0))
    lines = ["a", "b c a", "d e", "a c"]
    allowed = [{0, 2}, {0, 2, 3, 4}, {0}, {0, 2, 4}]
    sources = [translation.encode(translation.pieces(line)) for line in lines]
    options = SearchOptions(3, 3)
    (model,) = translation.models
    results = translation.decode(sources, options)
    assert results[2][0].words == (0,) and results[2][0].cost == pytest.approx(
        math.log(1 / (1 + ratio(model, sources[2])))
    )
    for source, words, found in zip(sources, allowed, results, strict=True):
        for result in found:
            assert set(result.words) <= words
            steps = NmtSteps(model)
            state, before = steps.start(None, [source], [0]), -1
            for word, score in zip(result.words, result.word_scores, strict=True):
                state, scores = steps.step(state, np.array([before]))
                p = np.exp((scores.logits_RV[0] + scores.bias_V).astype(float))
                assert score == pytest.approx(math.log(p[word] / p[sorted(words | {1})].sum()), abs=1e-5)
                before = word
    alone = [translation.decode([source], options)[0] for source in sources]
    assert [[r.words for r in found] for found in alone] == [[r.words for r in found] for found in results]


def ratio(model, source):
    """Return p(<unk>) / p(</s>) of the first word: <unk> keeps its probability but is not chosen."""
    steps = NmtSteps(model)
    _, scores = steps.step(steps.start(None, [source], [0]), np.array([-1]))
    x = scores.logits_RV[0] + scores.bias_V
    return math.exp(x[1] - x[0])


def test_an_ngram_model_takes_part(files, arpa):
    """The sum of an n-gram model that knows `y` alone of the target: <unk> at the place of `x`, and </s>."""
    with pytest.raises(InputError, match="knows no word of vocabulary .*trg.json', such as 'v'; "):
        open_translation(files(0, lm=str(arpa)))
    arpa.write_text(re.sub(r"\bb\b", "y", arpa.read_text()))
    translation = open_translation(files(0, lm=str(arpa)))
    source = translation.encode(translation.pieces("a b"))
    forced, options = Forced(targets=[[2]]), SearchOptions(breakdown=True)
    ((found,),) = translation.decode([source], options, lm_weight=0.5, forced=forced)
    ((alone,),) = decode(translation.models, [source], forced=forced)
    # p(<unk> | <s>) = backoff(<s>) p(<unk>) and p(</s> | <s> <unk>) = p(</s>), in the fixture `arpa`
    lm = (-0.5 - 2 - 1) * math.log(10)
    assert found.parts == pytest.approx((alone.cost, lm), abs=1e-5)
    assert found.cost == pytest.approx(alone.cost + 0.5 * lm, abs=1e-5)


def test_half_precision_gives_nearly_the_same_scores(files):
    """Weights rounded to 11 bits change a sum of a few logarithms by less than 1 %, to 8 bits by less than 8 %."""
    system, forced, costs = files(0), Forced(targets=[[2, 3, 4, 5]]), {}
    for dtype in ("float32", "float16", "bfloat16"):
        translation = open_translation(system, dtype=dtype)
        assert translation.models[0].target_embedding.dtype == np.float32  # of all products on a CPU
        ((found,),) = translation.decode([translation.encode(translation.pieces("a b c"))], forced=forced)
        costs[dtype] = found.cost
    assert costs["float16"] == pytest.approx(costs["float32"], rel=0.01)
    assert costs["bfloat16"] == pytest.approx(costs["float32"], rel=0.08)
    assert len(set(costs.values())) == 3


def test_weights_are_rounded_to_even(files, random_tensors, save_model):
    """By hand: float16 has 10 bits after the leading one, bfloat16 7."""
    tensors = random_tensors(0)
    tensors["ff_logit_b"][:4] = 1 + 2.0**-8, 1 + 3 * 2.0**-8, 1 + 2.0**-11, 1 + 3 * 2.0**-11
    tensors["ff_logit_b"][4:6] = -(2.0**-10) - 2.0**-19, 0
    system = TranslationFiles(
        (save_model(tensors, "m"),), *(getattr(files(0), n) for n in ("source_vocabs", "target_vocab"))
    )
    outputs = {dtype: open_translation(system, dtype=dtype).models[0].output for dtype in COMPUTE_DTYPES}
    found = {dtype: output.bias_Y[:6].tolist() for dtype, output in outputs.items()}
    assert found["tf32"] == found["float32"] == tensors["ff_logit_b"][:6].tolist()
    assert found["bfloat16"] == [1, 1 + 2.0**-6, 1, 1, -(2.0**-10), 0]
    assert found["float16"] == [1 + 2.0**-8, 1 + 3 * 2.0**-8, 1, 1 + 2.0**-9, -(2.0**-10) - 2.0**-19, 0]


@pytest.mark.parametrize(
    ("dtype", "device"),
    [
        ("float16", "cpu"),
        ("bfloat16", "cpu"),
        *(pytest.param(dtype, "gpu", marks=pytest.mark.gpu) for dtype in COMPUTE_DTYPES),
    ],
)
def test_dtypes_change_few_results(shared_data, dtype, device):
    """At most 0.5 % of Amun's outputs in float32, 11 of 2,250, and the phoneme error rate by at most 0.1 points."""
    folder = shared_data / "nmt" / "cmudict-g2p"
    source, target = (str(folder / f"vocab.{side}.json") for side in ("src", "trg"))
    translation = open_translation(
        TranslationFiles((str(folder / "model.gru.npz"),), ((source,),), target), device, dtype
    )
    lines = (folder / "test.src").read_text().splitlines()
    sources = [translation.encode(translation.pieces(line)) for line in lines]
    found = [text_of(best, translation.target) for (best,) in translation.decode(sources, SearchOptions(5, 1, 1.0))]
    golden = (folder / "golden" / "gru.b5n.out").read_text().splitlines()
    spoken, edits = (folder / "test.trg").read_text().splitlines(), runpy.run_path(str(ERROR_RATE))["edits"]
    changed = [lines for lines in zip(found, golden, spoken, strict=True) if lines[0] != lines[1]]
    assert len(changed) <= 11
    more = sum(edits(a.split(), c.split()) - edits(b.split(), c.split()) for a, b, c in changed)
    assert abs(more) <= 0.001 * sum(len(line.split()) for line in spoken)


def test_the_identity_is_of_the_contents(files, vocabularies):
    system = files(0)
    before = system.identity()
    assert set(before) == {*system.models, *vocabularies} and before == files(0).identity()
    with open(vocabularies[1], "a") as file:
        file.write("\n")
    after = system.identity()
    assert [path for path in after if after[path] != before[path]] == [vocabularies[1]]


def test_files_that_do_not_fit_are_one_line(
    files, vocabularies, random_tensors, tensors_without_attention, save_model, tmp_path
):  # fmt: skip
    named = tmp_path / "named.json"
    named.write_text(json.dumps({"</s>": 1, "<unk>": 0, **{f"w{i}": i for i in range(2, 10)}}))
    short = tmp_path / "short.json"
    short.write_text(json.dumps({"eos": 0, "UNK": 1, "x": 2}))
    wide = random_tensors(5)
    wide = wide | {
        "Wemb_dec": np.tile(wide["Wemb_dec"], (2, 1)),
        "ff_logit_W": np.tile(wide["ff_logit_W"], 2),
        "ff_logit_b": np.tile(wide["ff_logit_b"], 2),
    }
    first, source = files(0).models[0], ((vocabularies[0],),)
    free = save_model(tensors_without_attention(), "free")
    cases = {
        "the list of models is empty": lambda: TranslationFiles((), source, vocabularies[1]),
        "no source vocabulary": lambda: TranslationFiles((first,), (), vocabularies[1]),
        "1 models but 2 columns": lambda: files(0, columns=(0, 0)),
        "reads column 1": lambda: files(0, columns=(1,)),
        "1 files of BPE codes but 2": lambda: files(0, source_vocabs=source * 2, bpe=("codes",)),
        "one column of source words": lambda: files(0, source_vocabs=source * 2, shortlist="lex"),
        "-1 and 1000": lambda: files(0, first_words=-1),
        "has 14 target words": lambda: TranslationFiles((first, save_model(wide, "wide")), source, vocabularies[1]),
        "are not exchanged": lambda: TranslationFiles((first,), source, str(short)),
        "'short.json'": lambda: files(0, source_vocabs=(("short.json",),)),
        "lacks '</s>'": lambda: TranslationFiles((free,), source, vocabularies[1]),
        "has </s> as 1": lambda: TranslationFiles((free,), ((str(named),),), str(named)),
        "BPE codes": lambda: files(0, bpe=(str(tmp_path / "latin"),)),
    }
    (tmp_path / "latin").write_bytes(b"\xff")
    for message, make in cases.items():
        with pytest.raises(InputError) as error:
            open_translation(make())
        assert message in str(error.value) and "\n" not in str(error.value)
    with pytest.raises(InputError, match="dtype is 'int8'"):
        open_translation(files(0), dtype="int8")
