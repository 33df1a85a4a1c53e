"""Print a sentence that a model generates, and the most probable words after its first two words.

python examples/generate.py MODEL [SEED]
"""

from __future__ import annotations

import sys

import mgpu_ngram as ng

TRIES = 100  # seeds, for a sentence that is not empty


def main(path: str, seed: str = "1") -> None:
    """Load the model, generate a sentence, and print it with the next words of its beginning."""
    model = ng.Model.load(path)
    # Empty lines of the text make empty sentences likely; the next seed gives another one.
    sentences = (model.generate("", max_words=30, seed=number) for number in range(int(seed), int(seed) + TRIES))
    sentence = next(filter(None, sentences), "")
    print(f"a sentence: {sentence}")
    beginning = " ".join(sentence.split()[:2])
    ids, values = model.distribution(beginning, orders="max", top_k=5, bos=True)
    words = ", ".join(
        f"{model.vocabulary.word(i)} {p:.1%}"
        for i, p in zip(ids.ravel().tolist(), values.ravel().tolist(), strict=True)
    )
    print(f"after {beginning!r}: {words}")


if __name__ == "__main__":
    main(*sys.argv[1:3])
