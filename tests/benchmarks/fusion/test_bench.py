"""`mgpu-ngram bench fusion` runs completely, writes all rows, and times no wrong result."""

from collections import Counter
from importlib.util import find_spec

import numpy as np
import pytest

from mgpu_ngram.benchmarks.fusion import bench as fusion
from mgpu_ngram.benchmarks.fusion import ctc as fusion_ctc
from mgpu_ngram.benchmarks.fusion import mixture as fusion_mixture
from mgpu_ngram.benchmarks.fusion import rescore as fusion_rescore
from mgpu_ngram.benchmarks.harness.options import BenchOptions
from mgpu_ngram.benchmarks.harness.suite import WrongResult
from mgpu_ngram.benchmarks.inputs import fusion_text
from mgpu_ngram.benchmarks.inputs.plain_beam_search import PlainNgrams
from mgpu_ngram.core.ngrams.trie import Ngrams
from mgpu_ngram.core.ngrams.words import Words
from tests.support.short_benches import measure_once

pytestmark = pytest.mark.slow

HAS_TORCH = find_spec("torch") is not None


@pytest.fixture(scope="module")
def bench_run(tmp_path_factory):
    """Run with few rows and lists, and without a compiler: the tests need no precise times."""
    folder = tmp_path_factory.mktemp("results")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(fusion_mixture.SHAPES, "cpu", ((10, 100),))
        patch.setitem(fusion_rescore.LISTS, "cpu", (5, 7))
        patch.setitem(fusion_text.TOKENS, "cpu", 2_000)
        patch.setattr(fusion_rescore, "VOCABULARY", 1_000)  # as of the words, so that tables are made once
        patch.setattr(fusion_ctc, "VOCABULARY", 1_000)
        patch.setattr(fusion_ctc, "PIECES", 70)
        patch.setattr(fusion_ctc, "find_spec", lambda name: None)
        patch.setitem(fusion_ctc.BATCH, "cpu", 2)
        patch.setitem(fusion_ctc.FRAMES, "cpu", 60)
        measure_once(patch)
        if HAS_TORCH:
            patch.setattr("torch.compile", lambda fn, dynamic: fn)
        yield fusion.bench(BenchOptions("cpu", folder)), folder


def test_every_part_has_rows(bench_run, stored_rows):
    found, folder = bench_run
    stored_rows(folder, found)
    kernels = Counter(row["kernel"].removeprefix("fusion/") for row in found)
    of_mixtures = ("mixture, loss alone", "mixture torch", "mixture torch.compile", "mixture")
    assert {name: kernels[name] for name in of_mixtures} == dict.fromkeys(of_mixtures, 3 if HAS_TORCH else 0)
    of_words = (
        "words best 10",
        "words best 10 of whole rows by PyTorch",
        "words whole rows by PyTorch",
        "words whole rows",
    )
    assert {name: kernels[name] for name in of_words} == dict.fromkeys(of_words, 2 if HAS_TORCH else 0)
    assert kernels["ctc"] == (4 if HAS_TORCH else 0)
    assert kernels["rescore"] == kernels["rescore, parse"] == 1


@pytest.mark.skipif(not HAS_TORCH, reason="PyTorch is not installed")
def test_mixtures_of_a_wrong_target_are_not_timed():
    import torch

    from mgpu_ngram.torch import mixture_loss

    logits, log_probs = torch.randn(4, 12, requires_grad=True), torch.rand(4, 2).log()
    target = torch.tensor([0, 1, 2, 3])
    losses = mixture_loss(logits, log_probs, target, 10)
    fusion_mixture._check(losses, logits, log_probs, target, 10, "float32")
    with pytest.raises(WrongResult, match="losses differ by"):
        fusion_mixture._check(mixture_loss(logits, log_probs, target, 10), logits, log_probs, target + 1, 10, "float32")


@pytest.mark.skipif(not HAS_TORCH, reason="PyTorch is not installed")
@pytest.mark.parametrize("dtype", fusion_mixture.GRADIENT_TOLERANCES)
def test_cross_entropies_that_differ_from_ours_are_not_timed(dtype):
    import torch

    logits = torch.randn(12, 100 + fusion_mixture.COUNTS).to(getattr(torch, dtype)).requires_grad_()
    target = torch.arange(12)

    def check(scale, columns):
        def peer():
            return scale * torch.nn.functional.cross_entropy(logits[:, :columns], target, reduction="none")

        fusion_mixture._check_peer("torch", peer, logits, target, 100, dtype)

    check(1, None)
    for scale, columns in (1, 100), (1.02, None), (-1, None):  # no counts; other losses; gradients of another sign
        with pytest.raises(WrongResult, match="losses of torch differ by a share of"):
            check(scale, columns)


def test_lists_with_other_scores_are_not_timed(tmp_path):
    """A model of <unk>, <s>, </s>, a and b without backoffs: ln P(a) = -ln 10 and ln P(</s>) = -2 ln 10."""
    words, zeros = Words.of(["<unk>", "<s>", "</s>", "a", "b"]), np.zeros(5, np.float32)
    singles = Ngrams(np.arange(5, dtype=np.uint32)[:, None], np.array([-9, 0, -2, -1, -3], np.float32), zeros)
    pairs = Ngrams(np.array([[4, 4]], np.uint32), np.array([-1], np.float32), None)
    plain = PlainNgrams([singles, pairs], np.arange(5), 1)
    of_a, of_b = -3 * np.log(10), -5 * np.log(10)
    given, made = tmp_path / "given", tmp_path / "made"
    given.write_text("0 ||| b ||| F0= -2 ||| 0\n0 ||| a ||| F0= -1 ||| 0\n")
    lines = [
        f"0 ||| {text} ||| F0= {f0} lm= {score:.6f} ||| {f0 + 0.2 * score:.6f}\n"
        for text, f0, score in (("a", -1, of_a), ("b", -2, of_b))
    ]
    made.write_text("".join(lines))
    fusion_rescore.check(made, given, 2, words, plain)
    for wrong, message in (
        (lines[::-1], "is not sorted"),
        ([lines[0].replace("lm= -6", "lm= -7"), lines[1]], "'a' has"),
    ):
        made.write_text("".join(wrong))
        with pytest.raises(WrongResult, match=message):
            fusion_rescore.check(made, given, 2, words, plain)


@pytest.mark.skipif(not HAS_TORCH, reason="PyTorch is not installed")
def test_texts_with_other_scores_or_words_are_not_timed(tmp_path):
    from mgpu_ngram import kenlm
    from mgpu_ngram.engine.states.ctc_search import CTCHypothesis, CTCWord

    arpa = tmp_path / "words.arpa"
    arpa.write_text("\\data\\\nngram 1=4\n\n\\1-grams:\n-9\t<unk>\n0\t<s>\n-2\t</s>\n-1\ta\n\n\\end\\\n")
    score = -5 + 2 * 1.5 + 0.5 * np.log(10) * -4  # of two words and </s>
    found = CTCHypothesis("a a", [CTCWord("a", 0, 1), CTCWord("a", 2, 3)], -5.0, score, 0)
    sounds, plain = fusion_ctc.Sounds(["", "a", " "], np.zeros((1, 3, 3), np.float32), ["a a"]), kenlm.Model(str(arpa))
    fusion_ctc.check_texts([[found]], sounds, plain)
    with pytest.raises(WrongResult, match="has the score"):
        fusion_ctc.check_texts([[found._replace(score=score + 1)]], sounds, plain)
    sounds.texts = ["b a b b"]
    with pytest.raises(WrongResult, match="3 of 4 words are wrong"):
        fusion_ctc.check_texts([[found]], sounds, plain)
