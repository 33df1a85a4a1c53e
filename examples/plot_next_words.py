"""Plot the most probable words after each of several histories.

python examples/plot_next_words.py MODEL OUT.png "the value of" "a list of" ...

Needs matplotlib.
"""

from __future__ import annotations

import sys

import matplotlib.pyplot as plt

import mgpu_ngram as ng

TOP_K = 8  # words for each history


def main(model_path: str, out: str, *histories: str) -> None:
    """Load the model, ask it for the next words of all histories at once, and draw one panel for each."""
    model = ng.Model.load(model_path)
    ids, probs = model.distribution(list(histories), orders="max", top_k=TOP_K)  # each (histories, 1, TOP_K)
    figure, panels = plt.subplots(1, len(histories), figsize=(3.2 * len(histories), 2.8), squeeze=False)
    for h, (panel, history) in enumerate(zip(panels[0], histories, strict=True)):
        words = [model.vocabulary.word(int(i)) for i in ids[h, 0]]
        panel.barh(range(TOP_K), [float(p) for p in probs[h, 0]], color="#4c72b0")
        panel.set_yticks(range(TOP_K), words)
        panel.invert_yaxis()
        panel.set_title(f"{history} …", fontsize=11)
        panel.set_xlabel("probability of the next word")
    figure.tight_layout()
    figure.savefig(out, dpi=120)


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
