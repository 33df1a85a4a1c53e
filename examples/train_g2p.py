"""Train a model of pronunciation: letters to phonemes, for `mgpu-ngram decode`.

python examples/train_g2p.py cmudict.dict -o runs/cmudict

The model is a recurrent network with attention (Bahdanau et al. 2015) with the names and the equations of Nematus. The
dictionary has the format of CMUdict: a word, then its phonemes, on each line. Needs PyTorch.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import re
from pathlib import Path

import numpy as np
import torch
from error_rate import edits  # beside this file
from torch import Tensor, nn

EOS, UNK = 0, 1
BATCH, EMBEDDING, RATE, DROPOUT = 128, 64, 3e-3, 0.1
WORD = re.compile("[a-z]{2,22}")
Pair = tuple[list[str], list[str]]  # letters, phonemes


def read_dictionary(path: str) -> dict[str, list[Pair]]:
    """Return the pairs of "train", "dev" and "test": 97, 1 and 2 percent, by the SHA-1 hash of the word.

    A word's other pronunciations, as "read(2)", and words with other characters than a to z are left out.
    """
    parts: dict[str, list[Pair]] = {"train": [], "dev": [], "test": []}
    for line in Path(path).read_text("utf-8").splitlines():
        word, *phonemes = line.split("#")[0].split() or [""]
        if WORD.fullmatch(word) and phonemes:
            place = int(hashlib.sha1(word.encode()).hexdigest(), 16) % 1000
            parts["test" if place < 20 else "dev" if place < 30 else "train"].append((list(word), phonemes))
    return parts


def vocabulary(sequences: list[list[str]]) -> dict[str, int]:
    """Return the ids of all tokens, as Nematus numbers them: the end is 0, unknown tokens are 1."""
    tokens = sorted({token for tokens in sequences for token in tokens})
    return {"eos": EOS, "UNK": UNK} | {token: i for i, token in enumerate(tokens, 2)}


def batches(pairs: list[Pair], letters: dict[str, int], phonemes: dict[str, int], size: int) -> list[list[Tensor]]:
    """Return batches of words of one length, so that no source needs padding.

    A batch is letters (B, T) and phonemes (B, L), ends included; phonemes after the end are -1.
    """
    found = []
    pairs = sorted(pairs, key=lambda pair: (len(pair[0]), random.random()))
    while pairs:
        length = len(pairs[0][0])
        batch = [pair for pair in pairs[:size] if len(pair[0]) == length]
        pairs = pairs[len(batch) :]
        source = torch.tensor([[letters[x] for x in word] + [EOS] for word, _ in batch])
        target = [torch.tensor([phonemes[y] for y in spoken] + [EOS]) for _, spoken in batch]
        found.append([source, nn.utils.rnn.pad_sequence(target, batch_first=True, padding_value=-1)])
    return found


def shapes(Vs: int, Vt: int, E: int, H: int) -> dict[str, tuple[int, ...]]:
    """Return the shape of each tensor of a Nematus model. Vs, Vt: tokens; E: embedding; H: state; C: context."""
    C = 2 * H
    found: dict[str, tuple[int, ...]] = {"Wemb": (Vs, E), "Wemb_dec": (Vt, E)}
    cells = (("encoder", E, "", ""), ("encoder_r", E, "", ""), ("decoder", E, "", ""), ("decoder", C, "c", "_nl"))
    for cell, X, c, nl in cells:
        found |= {f"{cell}_W{c}": (X, 2 * H), f"{cell}_W{c}x": (X, H), f"{cell}_U{nl}": (H, 2 * H)}
        found |= {f"{cell}_Ux{nl}": (H, H), f"{cell}_b{nl}": (2 * H,), f"{cell}_bx{nl}": (H,)}
    found |= {"ff_state_W": (C, H), "ff_state_b": (H,), "decoder_W_comb_att": (H, C), "decoder_Wc_att": (C, C)}
    found |= {"decoder_b_att": (C,), "decoder_U_att": (C, 1), "decoder_c_tt": (1,)}
    for part, X in (("lstm", H), ("prev", E), ("ctx", C)):
        found |= {f"ff_logit_{part}_W": (X, E), f"ff_logit_{part}_b": (E,)}
    return found | {"ff_logit_W": (E, Vt), "ff_logit_b": (Vt,)}


class Model(nn.ParameterDict):
    """The parameters by name, and the network's equations. B: words; T: letters; L: phonemes."""

    def __init__(self, Vs: int, Vt: int, E: int, H: int):
        super().__init__({name: nn.Parameter(torch.zeros(shape)) for name, shape in shapes(Vs, Vt, E, H).items()})
        for name, weight in self.items():
            if name.startswith("Wemb"):
                nn.init.normal_(weight, std=0.1)
            elif weight.dim() == 2:
                nn.init.xavier_uniform_(weight)

    def inputs(self, x: Tensor, cell: str, c: str = "") -> Tensor:
        """Return the sums of a cell's input: reset gates, update gates and proposals."""
        return x @ torch.cat([self[f"{cell}_W{c}"], self[f"{cell}_W{c}x"]], 1)

    def gru(self, x: Tensor, h: Tensor, cell: str, nl: str = "") -> Tensor:
        """Return the next state (B, H) of a gated recurrent unit from its input's sums (B, 3H) and its state (B, H)."""
        s = h @ torch.cat([self[f"{cell}_U{nl}"], self[f"{cell}_Ux{nl}"]], 1)
        bias = torch.cat([self[f"{cell}_b{nl}"], self[f"{cell}_bx{nl}"]])
        x, s = (x, s + bias) if nl else (x + bias, s)  # the cell on the context has its bias on the side of the state
        H = h.shape[1]
        reset, update = torch.sigmoid(x[:, : 2 * H] + s[:, : 2 * H]).chunk(2, 1)
        proposal = torch.tanh(x[:, 2 * H :] + reset * s[:, 2 * H :])
        return proposal + update * (h - proposal)

    def encode(self, source: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the contexts (B, T, 2H), their part of the energies and the decoder's first state."""
        x = self["Wemb"][source]
        sides = []
        for cell, steps in (("encoder", range(x.shape[1])), ("encoder_r", range(x.shape[1])[::-1])):
            h = x.new_zeros(len(x), len(self["encoder_Ux"]))
            sums, states = self.inputs(x, cell), {}
            for t in steps:
                h = states[t] = self.gru(sums[:, t], h, cell)
            sides.append(torch.stack([states[t] for t in range(x.shape[1])], 1))
        context = torch.cat(sides, 2)
        first = torch.tanh(context.mean(1) @ self["ff_state_W"] + self["ff_state_b"])
        return context, context @ self["decoder_Wc_att"] + self["decoder_b_att"], first

    def step(self, y: Tensor, h: Tensor, context: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Return the next state (B, H) and the mean context (B, 2H). y: sums of the phoneme before."""
        h = self.gru(y, h, "decoder")
        energy = torch.tanh(memory + (h @ self["decoder_W_comb_att"])[:, None]) @ self["decoder_U_att"]
        mean = (torch.softmax(energy, 1) * context).sum(1)
        return self.gru(self.inputs(mean, "decoder", "c"), h, "decoder", "_nl"), mean

    def logits(self, h: Tensor, y: Tensor, mean: Tensor, dropout: float = 0.0) -> Tensor:
        """Return the scores of all phonemes."""
        parts = (("lstm", h), ("prev", y), ("ctx", mean))
        hidden = sum(x @ self[f"ff_logit_{part}_W"] + self[f"ff_logit_{part}_b"] for part, x in parts)
        return nn.functional.dropout(torch.tanh(hidden), dropout) @ self["ff_logit_W"] + self["ff_logit_b"]

    def loss(self, source: Tensor, target: Tensor, dropout: float = 0.0) -> Tensor:
        """Return the mean negative logarithm of the probability of a phoneme."""
        context, memory, h = self.encode(source)
        y = nn.functional.pad(self["Wemb_dec"][target[:, :-1].clamp(min=0)], (0, 0, 1, 0))  # 0 before the first
        sums, states, means = self.inputs(y, "decoder"), [], []
        for t in range(target.shape[1]):
            h, mean = self.step(sums[:, t], h, context, memory)
            states.append(h)
            means.append(mean)
        scores = self.logits(torch.stack(states, 1), y, torch.stack(means, 1), dropout)
        return nn.functional.cross_entropy(scores.flatten(0, 1), target.flatten(), ignore_index=-1)

    @torch.no_grad()
    def greedy(self, source: Tensor) -> list[list[int]]:
        """Return the phonemes of each word, each the most probable one after those before."""
        context, memory, h = self.encode(source)
        y, words = torch.zeros(len(source), self["Wemb_dec"].shape[1], device=source.device), []
        for _ in range(2 * source.shape[1]):
            h, mean = self.step(self.inputs(y, "decoder"), h, context, memory)
            words.append(self.logits(h, y, mean).argmax(1))
            y = self["Wemb_dec"][words[-1]]
        return [[*word, EOS][: [*word, EOS].index(EOS)] for word in torch.stack(words, 1).tolist()]


def error_rate(model: Model, dev: list[list[Tensor]]) -> float:
    """Return the phoneme error rate of greedy search."""
    pairs = [
        (found, [y for y in spoken if y > EOS])
        for source, target in dev
        for found, spoken in zip(model.greedy(source), target.tolist(), strict=True)
    ]
    return sum(edits(*pair) for pair in pairs) / sum(len(spoken) for _, spoken in pairs)


def main() -> None:
    """Train, print the losses, and write the model, its vocabularies and the words of the test."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dictionary", help="a dictionary in CMUdict's format")
    parser.add_argument("-o", "--output", default="runs/cmudict", metavar="FOLDER", help="(default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=10, help="passes over the words (default: %(default)s)")
    parser.add_argument("--state", type=int, default=128, help="numbers of a GRU's state (default: %(default)s)")
    options = parser.parse_args()
    torch.set_num_threads(1)  # the products are too small for more
    torch.manual_seed(1)
    random.seed(1)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    parts = read_dictionary(options.dictionary)
    letters = vocabulary([word for word, _ in parts["train"]])
    phonemes = vocabulary([spoken for _, spoken in parts["train"]])

    def batched(part: str) -> list[list[Tensor]]:
        found = batches(parts[part], letters, phonemes, BATCH)
        return [[tensor.to(device) for tensor in batch] for batch in random.sample(found, len(found))]

    model = Model(len(letters), len(phonemes), EMBEDDING, options.state).to(device)
    adam = torch.optim.Adam(model.parameters(), RATE)
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(adam, options.epochs * len(batched("train")))
    dev = batched("dev")
    for epoch in range(options.epochs):
        losses = []
        for source, target in batched("train"):
            adam.zero_grad()
            loss = model.loss(source, target, DROPOUT)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            adam.step()
            decay.step()
            losses.append(loss.item())
        with torch.no_grad():
            held_out = np.mean([model.loss(*batch).item() for batch in dev])
        per = error_rate(model, dev)
        print(f"epoch {epoch + 1}: loss {np.mean(losses):.4f}, dev {held_out:.4f}, PER {per:.2%}", flush=True)
    folder = Path(options.output)
    folder.mkdir(parents=True, exist_ok=True)
    # All programs read float32. Rounded to the precision of float16 it packs to little more.
    weights = {name: weight.detach().cpu().numpy().astype(np.float16) for name, weight in model.items()}
    np.savez_compressed(folder / "model.npz", **{name: weight.astype(np.float32) for name, weight in weights.items()})
    for name, ids in (("letters", letters), ("phonemes", phonemes)):
        (folder / f"{name}.json").write_text(json.dumps(ids, indent=0) + "\n")
    for part in ("train", "test"):
        (folder / f"{part}.words").write_text("".join(" ".join(word) + "\n" for word, _ in parts[part]))
        (folder / f"{part}.phonemes").write_text("".join(" ".join(spoken) + "\n" for _, spoken in parts[part]))


if __name__ == "__main__":
    main()
