"""Print a document, its topics, and the documents with the most similar topics.

python examples/topics.py FOLDER DOCUMENTS.jsonl [NUMBER]

FOLDER is the output of a topics job over these documents, such as runs/docstrings/topics of configs/lda.yaml.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq


def main(folder: str, documents: str, number: str = "0") -> None:
    """Read the rows of the documents and the table of topics, and print both for one document."""
    rows = pq.read_table(Path(folder, "doc_topics.parquet")).to_pylist()
    table = json.loads(Path(folder, "topics.json").read_text("utf-8"))
    words = {topic["topic"]: " ".join(topic["words"][:5]) for topic in table["topics"]}
    texts = [json.loads(line)["text"] for line in Path(documents).read_text("utf-8").splitlines()]
    shares_DZ = np.zeros((len(rows), len(words)))
    for row in rows:
        shares_DZ[row["document"], row["topics"]] = row["weights"]
    chosen = int(number)
    print(f"document {chosen}: {beginning(texts[chosen])}")
    for topic, share in zip(rows[chosen]["topics"][:3], rows[chosen]["weights"], strict=False):
        print(f"  {share:.0%} topic {topic}: {words[topic]}")
    similar_D = np.sqrt(shares_DZ) @ np.sqrt(shares_DZ[chosen])  # Bhattacharyya coefficient
    for d in np.argsort(-similar_D, kind="stable")[1:4].tolist():
        print(f"similar ({similar_D[d]:.2f}): document {d}: {beginning(texts[d])}")


def beginning(text: str) -> str:
    """Return the first words of a text as one line."""
    return " ".join(text.split())[:70]


if __name__ == "__main__":
    main(*sys.argv[1:4])
