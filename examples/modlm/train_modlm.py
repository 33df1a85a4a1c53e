"""Mix n-gram counts with an LSTM: perplexities of the mixture, the LSTM, interpolated counts and Kneser-Ney.

    python examples/python_docs.py runs/python_docs.txt
    python examples/modlm/train_modlm.py runs/python_docs.txt runs/python_docs_heldout.txt

The second file is cut into text to choose the best epoch and text to test. All paragraphs are sentences of a closed
vocabulary; <unk> is a word of it. Needs PyTorch.
"""

from __future__ import annotations

import argparse
import re
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from count_distributions import END, FEATURES, FIRST_WORD, UNK, CountDistributions  # beside this file
from torch import Tensor, nn

import mgpu_ngram as ng

TOKEN = re.compile(r"\w+|[^\w\s]+")
FOLDS, BATCH, STEPS, RATE, DROPOUT = 10, 32, 32, 2e-3, 0.5
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def read_sentences(path: str) -> list[list[str]]:
    """Return the tokens of each paragraph, in lower case."""
    paragraphs = re.split(r"\n\s*\n", Path(path).read_text("utf-8").lower())
    return [tokens for paragraph in paragraphs if (tokens := TOKEN.findall(paragraph))]


class Data:
    """Sentences as one stream on DEVICE: words before, targets, and what the counts of other sentences say of them.

    words_T       (T,) int64; END before each sentence
    targets_T     (T,) int64: each word, and END
    log_probs_TN  (T, N) float32
    features_TF   (T, F) float32
    """

    def __init__(self, sentences: list[np.ndarray], log_probs_TN: np.ndarray, features_TF: np.ndarray):
        targets_T = np.concatenate([np.append(sentence, END) for sentence in sentences])
        words_T = np.concatenate([[END], targets_T[:-1]])
        arrays = words_T, targets_T, log_probs_TN, features_TF
        self.words_T, self.targets_T, self.log_probs_TN, self.features_TF = (
            torch.from_numpy(array).to(DEVICE) for array in arrays
        )

    def steps(self, batch: int, steps: int) -> list[tuple[Tensor, Tensor, Tensor, Tensor]]:
        """Return the stream as `batch` streams side by side, (L, batch, ...), cut into parts of L = `steps` or fewer.

        Up to batch - 1 targets at the end are left out.
        """
        length = len(self.targets_T) // batch
        arrays = [
            array[: length * batch].unflatten(0, (batch, length)).transpose(0, 1)
            for array in (self.words_T, self.targets_T, self.log_probs_TN, self.features_TF)
        ]
        return [tuple(array[i : i + steps] for array in arrays) for i in range(0, length, steps)]


def jackknife(sentences: list[np.ndarray], order: int, num_words: int) -> Data:
    """Return the data of sentences with the counts of the other nine tenths: each tenth is every tenth sentence."""
    log_probs, features = [], []
    for fold in range(FOLDS):
        held_out = sentences[fold::FOLDS]
        others = [sentence for i, sentence in enumerate(sentences) if i % FOLDS != fold]
        found = CountDistributions(others, order, num_words).of(held_out)
        ends = np.cumsum([len(sentence) + 1 for sentence in held_out])[:-1]
        log_probs.append(np.split(found[0], ends))
        features.append(np.split(found[1], ends))
    in_order = [(i % FOLDS, i // FOLDS) for i in range(len(sentences))]
    return Data(
        sentences,
        np.concatenate([log_probs[fold][i] for fold, i in in_order]),
        np.concatenate([features[fold][i] for fold, i in in_order]),
    )


class Recurrent(nn.Module):
    """An LSTM whose state and the features of counts choose the weights of the distributions."""

    def __init__(self, num_words: int, num_counts: int, num_features: int, size: int):
        super().__init__()
        self.embedding = nn.Embedding(num_words, size)
        self.lstm = nn.LSTM(size, size)
        self.dropout = nn.Dropout(DROPOUT)
        dropped = {"counts": 0.5} if num_counts else {}
        self.mixture = ng.torch.MixtureOfDistributions(size + num_features, num_words, num_counts, dropped)
        self.num_features = num_features

    def forward(self, words: Tensor, targets: Tensor, log_probs: Tensor, features: Tensor, state: Any) -> Any:
        """Return -ln P of the targets, (L, B), and the state after them."""
        hidden, state = self.lstm(self.dropout(self.embedding(words)), state)
        hidden = torch.cat([self.dropout(hidden), features[..., : self.num_features]], -1)
        return self.mixture(hidden, log_probs[..., : self.mixture.num_counts], targets), state


class Interpolated(nn.Module):
    """Count distributions alone: their weights depend on the features."""

    def __init__(self, num_counts: int, num_features: int, size: int):
        super().__init__()
        self.weights = nn.Sequential(nn.Linear(num_features, size), nn.Tanh(), nn.Linear(size, num_counts))

    def forward(self, words: Tensor, targets: Tensor, log_probs: Tensor, features: Tensor, state: None) -> Any:
        """Return -ln P of the targets, (L, B), and no state."""
        return -(self.weights(features).log_softmax(-1) + log_probs).logsumexp(-1), None


@torch.no_grad()
def perplexity(model: nn.Module, data: Data) -> float:
    """Return exp of the mean of -ln P over all targets."""
    model.eval()
    total, state = 0.0, None
    for part in data.steps(1, 1024):
        losses, state = model(*part, state)
        total += float(losses.double().sum())
    return float(np.exp(total / len(data.targets_T)))


def train(name: str, model: nn.Module, data: dict[str, Data], epochs: int) -> float:
    """Train a model, and return the test perplexity after the epoch that is best on the development text."""
    optimizer = torch.optim.Adam(model.parameters(), RATE)
    best = (float("inf"), float("inf"))
    for epoch in range(1, epochs + 1):
        start, state = time.monotonic(), None
        model.train()
        for part in data["train"].steps(BATCH, STEPS):
            losses, state = model(*part, state)
            state = state and tuple(s.detach() for s in state)
            optimizer.zero_grad()
            losses.mean().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        seconds = time.monotonic() - start
        of_dev = perplexity(model, data["dev"])
        best = min(best, (of_dev, perplexity(model, data["test"])))
        print(f"{name}, epoch {epoch}: development perplexity {of_dev:.1f}, {seconds:.0f} s", flush=True)
    return best[1]


def main() -> None:
    """Train all models and print their perplexities."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train", help="text")
    parser.add_argument("heldout", help="text to choose epochs and to test")
    parser.add_argument("--order", type=int, default=5, help="longest n-grams (default: 5)")
    parser.add_argument("--size", type=int, default=128, help="numbers of an LSTM's state (default: 128)")
    parser.add_argument("--epochs", type=int, default=4, help="passes over the text (default: 4)")
    parser.add_argument("--least", type=int, default=6, help="rarer words are <unk> (default: 6)")
    options = parser.parse_args()
    torch.manual_seed(1)
    tokens = {"train": read_sentences(options.train)}
    heldout = read_sentences(options.heldout)
    tokens |= {"dev": heldout[0::2], "test": heldout[1::2]}
    counts = Counter(word for sentence in tokens["train"] for word in sentence)
    kept = sorted(word for word, count in counts.items() if count >= options.least)
    ids = {word: i for i, word in enumerate(kept, FIRST_WORD)}
    num_words = FIRST_WORD + len(ids)
    sentences = {
        part: [np.array([ids.get(word, UNK) for word in sentence]) for sentence in of_part]
        for part, of_part in tokens.items()
    }
    start = time.monotonic()
    distributions = CountDistributions(sentences["train"], options.order, num_words)
    data = {part: Data(sentences[part], *distributions.of(sentences[part])) for part in ("dev", "test")}
    data["train"] = jackknife(sentences["train"], options.order, num_words)
    sizes = ", ".join(f"{part} {len(d.targets_T):,}" for part, d in data.items())
    print(f"{num_words:,} words; tokens: {sizes}; counted in {time.monotonic() - start:.0f} s", flush=True)

    N, F = options.order + 2, FEATURES * options.order
    of_test = data["test"].log_probs_TN[:, options.order].double()
    models = {
        "interpolated counts": Interpolated(N, F, options.size),
        "LSTM": Recurrent(num_words, 0, 0, options.size),
        "mixture": Recurrent(num_words, N, F, options.size),
    }
    found = {"Kneser-Ney": float((-of_test.mean()).exp())}
    found |= {name: train(name, model.to(DEVICE), data, options.epochs) for name, model in models.items()}
    print("\ntest perplexity")
    for name, value in found.items():
        print(f"{name:20s} {value:7.1f}")
    better = min(found["LSTM"], found["Kneser-Ney"])
    share = found["mixture"] / better - 1
    side = "below" if share < 0 else "above"
    print(f"The mixture is {100 * abs(share):.1f} % {side} the better of the LSTM and Kneser-Ney.")


if __name__ == "__main__":
    main()
