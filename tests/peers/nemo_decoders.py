"""NeMo's batched decoders find the same texts with `NGramLM` as with NeMo's own n-gram model.

The networks are random and small. NEMO_ARPA names a model of 1,024 tokens; see nemo_model.py.
"""

import os

import pytest
import torch
from nemo.collections.asr.modules.rnnt import RNNTDecoder, RNNTJoint
from nemo.collections.asr.parts.submodules import ctc_beam_decoding, ctc_greedy_decoding
from nemo.collections.asr.parts.submodules.ngram_lm import NGramGPULanguageModel
from nemo.collections.asr.parts.submodules.rnnt_beam_decoding import BeamBatchedRNNTInfer
from nemo.collections.asr.parts.submodules.rnnt_greedy_decoding import GreedyBatchedRNNTInfer, GreedyBatchedTDTInfer
from nemo.collections.asr.parts.submodules.tdt_beam_decoding import BeamBatchedTDTInfer

from mgpu_ngram.torch import NGramLM

ARPA, V, B, T, HIDDEN = os.environ["NEMO_ARPA"], 1024, 6, 40, 32
DURATIONS = [0, 1, 2, 4]
MODELS = NGramGPULanguageModel, NGramLM
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))]


@pytest.fixture(params=DEVICES)
def device(request):
    return request.param


@pytest.fixture(scope="module")
def models():
    return [kind.from_file(ARPA, vocab_size=V) for kind in MODELS]


def found(decoder, **inputs):
    """Return (tokens, score) of the best hypothesis of each row."""
    with torch.inference_mode():
        hypotheses = decoder(**inputs)[0]
    return [([int(token) for token in hypothesis.y_sequence], float(hypothesis.score)) for hypothesis in hypotheses]


def check(of_nemo, of_ours, without):
    assert [tokens for tokens, _ in of_ours] == [tokens for tokens, _ in of_nemo]
    assert [score for _, score in of_ours] == pytest.approx([score for _, score in of_nemo], rel=1e-4, abs=1e-3)
    assert sum(len(tokens) for tokens, _ in of_nemo) > B
    assert of_nemo != without  # the n-gram model matters


@pytest.mark.parametrize("normalize_unk", [True, False])
def test_a_file_that_nemo_wrote(tmp_path, normalize_unk):
    of_nemo = NGramGPULanguageModel.from_file(ARPA, vocab_size=V, normalize_unk=normalize_unk)
    of_nemo.save_to(str(tmp_path / "lm.nemo"))
    models, made = (of_nemo, NGramLM.from_file(tmp_path / "lm.nemo", vocab_size=V, device="cpu")), torch.Generator()
    for bos in True, False:
        states = [model.get_init_states(64, bos) for model in models]
        for step in range(12):
            rows = [model.advance(s) for model, s in zip(models, states, strict=True)]
            ends = [model.get_final(s) for model, s in zip(models, states, strict=True)]
            assert torch.allclose(rows[0][0], rows[1][0], atol=1e-5) and torch.allclose(*ends, atol=1e-5)
            probs = rows[0][0].exp() if step % 3 else torch.ones(64, V)
            words = torch.multinomial(probs, 1, generator=made)
            states = [after.gather(1, words)[:, 0] for _, after in rows]


@pytest.mark.parametrize("beam", [0, 4])
def test_ctc(monkeypatch, device, beam):
    made = torch.Generator().manual_seed(beam)
    log_probs = (2 * torch.randn(B, T, V + 1, generator=made)).log_softmax(2).to(device)
    lengths = torch.tensor([T, T - 3, 1, 17, T, 30], device=device)

    def run(kind, model=ARPA):
        for module in ctc_beam_decoding, ctc_greedy_decoding:
            monkeypatch.setattr(module, "NGramGPULanguageModel", kind)
        if beam:
            options = {"blank_index": V, "beam_size": beam, "beam_beta": 2.0}
            decoder = ctc_beam_decoding.BeamBatchedCTCInfer(**options, ngram_lm_model=model, ngram_lm_alpha=0.5)
        else:
            options = {"blank_id": V, "ngram_lm_model": model, "ngram_lm_alpha": 0.5}
            decoder = ctc_greedy_decoding.GreedyBatchedCTCInfer(**options)
        return found(decoder, decoder_output=log_probs, decoder_lengths=lengths)

    check(*map(run, MODELS), run(None, None))


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (GreedyBatchedRNNTInfer, {}),
        (GreedyBatchedTDTInfer, {}),
        (BeamBatchedRNNTInfer, {"beam_size": 4, "search_type": "malsd_batch"}),
        (BeamBatchedRNNTInfer, {"beam_size": 4, "search_type": "malsd_batch", "blank_lm_score_mode": "no_score"}),
        (BeamBatchedRNNTInfer, {"beam_size": 4, "search_type": "maes_batch"}),
        (BeamBatchedTDTInfer, {"beam_size": 4, "search_type": "malsd_batch"}),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "-".join(map(str, value.values())),
)
def test_transducers(models, device, kind, options):
    torch.manual_seed(3)
    durations = DURATIONS if kind in (GreedyBatchedTDTInfer, BeamBatchedTDTInfer) else []
    prediction = RNNTDecoder({"pred_hidden": HIDDEN, "pred_rnn_layers": 1}, vocab_size=V).to(device).eval()
    sizes = {"encoder_hidden": HIDDEN, "pred_hidden": HIDDEN, "joint_hidden": HIDDEN, "activation": "relu"}
    joint = RNNTJoint(sizes, V, num_extra_outputs=len(durations)).to(device).eval()
    with torch.no_grad():
        joint.joint_net[-1].weight *= 8
        joint.joint_net[-1].bias[V] += 2 if durations else 6  # a blank for many steps
    inputs = {
        "encoder_output": torch.randn(B, HIDDEN, T).to(device),
        "encoded_lengths": torch.tensor([T, T - 3, 1, 17, T, 30], device=device),
    }

    def run(model=None):
        fusion = {} if model is None else {"fusion_models": [model], "fusion_models_alpha": [0.2]}
        decoder = kind(
            prediction, joint, blank_index=V, max_symbols_per_step=5, **options, **fusion,
            **({"durations": durations} if durations else {}),
        )  # fmt: skip
        return found(decoder, **inputs)

    check(*map(run, models), run())
