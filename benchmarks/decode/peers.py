"""Other programs at the work of a decoder: softmax and k-best in steps, and a translation model in PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np

from mgpu_ngram.benchmarks.harness.timing import measure
from mgpu_ngram.benchmarks.inputs.plain_beam_search import EOS, UNK
from mgpu_ngram.cluster.devices import cpu_cores
from mgpu_ngram.engine.decode.search_options import Hypothesis
from mgpu_ngram.kernels.dispatch import array_module


def has_torch() -> bool:
    """Return whether PyTorch is here."""
    return find_spec("torch") is not None


def choose_threads(call: Callable[[], Any], device: str) -> None:
    """Let PyTorch use one thread of a CPU or all, whichever makes `call` faster: busy cores make threads wait."""
    import torch

    if device == "gpu":
        return
    seconds: dict[int, float] = {}
    for threads in {1, cpu_cores()}:
        torch.set_num_threads(threads)
        seconds[threads] = min(measure(call, device, runs=2))
    torch.set_num_threads(min(seconds, key=lambda threads: seconds[threads]))


def release_torch(device: str) -> None:
    """Give the GPU memory back that PyTorch keeps, if it is here."""
    if device == "gpu" and has_torch():
        import torch

        torch.cuda.empty_cache()


def add_bias(logits_RV: Any, bias_V: Any) -> Any:
    """Return float32 logits with their bias."""
    return logits_RV.astype(np.float32, copy=False) + bias_V


def log_softmax(x_RV: Any) -> Any:
    """Return the logarithms of probabilities, in array code."""
    xp = array_module(x_RV)
    shifted_RV = x_RV - x_RV.max(axis=1, keepdims=True)
    return shifted_RV - xp.log(xp.exp(shifted_RV).sum(axis=1, keepdims=True))


def k_best(scores_RV: Any, k: int) -> tuple[Any, Any]:
    """Return (words, scores), (R, k), by taking the greatest k times; overwrites its argument."""
    xp = array_module(scores_RV)
    rows_R, words, scores = xp.arange(len(scores_RV)), [], []
    for _ in range(k):
        word_R = scores_RV.argmax(axis=1)
        words.append(word_R)
        scores.append(scores_RV[rows_R, word_R])
        scores_RV[rows_R, word_R] = -np.inf
    return xp.stack(words, axis=1), xp.stack(scores, axis=1)


def best_of_sentences(words_RK: Any, scores_RK: Any) -> tuple[Any, Any]:
    """Return (words, scores), (S, k), of sentences of k rows each."""
    xp, k = array_module(words_RK), words_RK.shape[1]
    scores_SC, words_SC = scores_RK.reshape(-1, k * k), words_RK.reshape(-1, k * k)
    order_SK = xp.argsort(-scores_SC, axis=1)[:, :k]
    return xp.take_along_axis(words_SC, order_SK, axis=1), xp.take_along_axis(scores_SC, order_SK, axis=1)


def as_torch(array: Any) -> Any:
    """Return an array as a tensor on its device, without a copy; uint16 as bfloat16, whose bits it holds."""
    import torch

    if array.dtype == np.uint16:
        return torch.from_dlpack(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_dlpack(array)


def torch_best(logits_RV: Any, costs_R: Any, k: int, bias_V: Any = None) -> tuple[Any, Any]:
    """Return (words, scores), (S, k), of sentences of k rows each, by PyTorch; arguments are tensors."""
    import torch

    x_RV = logits_RV if bias_V is None else logits_RV + bias_V
    scores_RK, words_RK = torch.log_softmax(x_RV, dim=1).topk(k, dim=1)
    scores_SC = (scores_RK.float() + costs_R[:, None]).view(-1, k * k)
    scores_SK, at_SK = scores_SC.topk(k, dim=1)
    return words_RK.view(-1, k * k).gather(1, at_SK), scores_SK


class TorchModel:
    """A GRU model of Nematus in PyTorch, and a search that is a plain loop over a batch of sentences of one length.

    tensors  by Nematus' names
    dtype    "float32" or "float16"
    """

    def __init__(self, tensors: Mapping[str, np.ndarray], device: str, dtype: str):
        import torch

        self.device = "cuda" if device == "gpu" else "cpu"
        self.dtype = getattr(torch, dtype)
        torch.backends.cudnn.allow_tf32 = False  # float32 is float32, as in products
        self.t = {name: torch.from_numpy(array).to(self.device, self.dtype) for name, array in tensors.items()}
        E, H = self.t["encoder_Wx"].shape
        self.encoder = torch.nn.GRU(E, H, bidirectional=True)
        cells = [torch.nn.GRUCell(E, H), torch.nn.GRUCell(2 * H, H)]
        for end, prefix in (("_l0", "encoder_"), ("_l0_reverse", "encoder_r_")):
            self._fill(self.encoder, end, prefix, "")
        self._fill(cells[0], "", "decoder_", "")
        self._fill(cells[1], "", "decoder_", "_nl")
        self.encoder, self.first, self.second = (m.to(self.device, self.dtype) for m in (self.encoder, *cells))

    def _fill(self, module: Any, end: str, prefix: str, nl: str) -> None:
        """Set the weights of a cell; PyTorch's gates are in the same order."""
        import torch

        t, w = self.t, prefix + ("Wc" if nl else "W")
        bias = torch.cat([t[f"{prefix}b{nl}"], t[f"{prefix}bx{nl}"]])
        found = {
            "weight_ih": torch.cat([t[w], t[f"{w}x"]], 1).T,
            "weight_hh": torch.cat([t[f"{prefix}U{nl}"], t[f"{prefix}Ux{nl}"]], 1).T,
            "bias_ih": torch.zeros_like(bias) if nl else bias,
            "bias_hh": bias if nl else torch.zeros_like(bias),
        }
        for name, value in found.items():
            getattr(module, name + end).data = value.float().cpu().contiguous()

    def translate(self, sources: Sequence[np.ndarray], beam_size: int, batch: int) -> list[list[Hypothesis]]:
        """Return the best result of each sentence, as many words as its source has."""
        import torch

        found: list[list[Hypothesis]] = []
        with torch.no_grad():
            for first in range(0, len(sources), batch):
                ids = torch.from_numpy(np.stack(sources[first : first + batch])).to(self.device)
                words_BL, costs_B = self._batch(ids, beam_size)
                pairs = zip(words_BL.tolist(), costs_B.tolist(), strict=True)
                found += [[Hypothesis(tuple(words), cost, cost, ())] for words, cost in pairs]
        return found

    def _batch(self, ids_BT: Any, k: int) -> tuple[Any, Any]:
        """Return (words (B, T), costs (B,)) of the best results."""
        import torch

        t, (B, T) = self.t, ids_BT.shape
        context_BTC = self.encoder(t["Wemb"][ids_BT.T])[0].transpose(0, 1).contiguous()
        memory_BTA = context_BTC @ t["decoder_Wc_att"] + t["decoder_b_att"]
        h = torch.tanh(context_BTC.mean(1) @ t["ff_state_W"] + t["ff_state_b"]).repeat_interleave(k, 0)
        y = torch.zeros(B * k, t["Wemb_dec"].shape[1], dtype=self.dtype, device=self.device)
        costs_BK = torch.full((B, k), -torch.inf, device=self.device)
        costs_BK[:, 0] = 0
        words_BKL = torch.empty(B, k, 0, dtype=torch.int64, device=self.device)
        offset_B1 = torch.arange(B, device=self.device)[:, None] * k
        for _ in range(T):
            h = self.first(y, h)
            query = (h @ t["decoder_W_comb_att"]).view(B, k, 1, -1)
            energy_BKT = (torch.tanh(memory_BTA[:, None] + query) @ t["decoder_U_att"])[..., 0]
            c = (torch.softmax(energy_BKT, 2) @ context_BTC).view(B * k, -1)
            h = self.second(c, h)
            parts = (("lstm", h), ("prev", y), ("ctx", c))
            top = torch.tanh(sum(x @ t[f"ff_logit_{part}_W"] + t[f"ff_logit_{part}_b"] for part, x in parts))
            scores = torch.log_softmax((top @ t["ff_logit_W"] + t["ff_logit_b"]).float(), 1)
            scores[:, [EOS, UNK]] = -torch.inf
            best_RK, word_RK = scores.topk(k, 1)
            costs_BK, at_BK = (costs_BK.view(-1, 1) + best_RK).view(B, k * k).topk(k, 1)
            word_BK, parent_BK = word_RK.view(B, k * k).gather(1, at_BK), at_BK // k
            words_BKL = words_BKL.gather(1, parent_BK[:, :, None].expand(-1, -1, words_BKL.shape[2]))
            words_BKL = torch.cat([words_BKL, word_BK[:, :, None]], 2)
            h = h[(offset_B1 + parent_BK).view(-1)]
            y = t["Wemb_dec"][word_BK.view(-1)]
        return words_BKL[:, 0], costs_BK[:, 0]
