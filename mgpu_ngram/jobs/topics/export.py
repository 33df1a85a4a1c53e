"""Write a topic model as plain files that other programs read."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from pathlib import Path

import numpy as np

from mgpu_ngram.core.bags.topic_model import TopicModel
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.storage.output import Output, new_file, write_manifest
from mgpu_ngram.core.utf8 import to_bytes
from mgpu_ngram.core.version import VERSION
from mgpu_ngram.engine.topics.rows import TopicRows
from mgpu_ngram.engine.topics.words import most_probable

FORMAT = "mgpu_ngram exported topics"


def export_topics(
    folder: str, model: TopicModel, rows: TopicRows, word: Callable[[int], str], top: int, overwrite: bool
) -> None:
    """Write the folder, topic by topic, so that memory holds no matrix.

    topics.csv         the `top` most probable words of each topic: topic, share, rank, word, probability
    words.txt          all words, one a line, in the order of the columns
    counts.npy         (Z, V) uint32, number of tokens of each word in each topic
    probabilities.npy  (Z, V) float32, p(word | topic)
    alpha.npy          (Z,) float64, the prior of each topic in a document
    """
    words = [word(v) for v in range(rows.num_words)]
    broken = next((v for v, text in enumerate(words) if "\n" in text), None)
    if broken is not None:
        raise InputError(
            f"word {broken:,} is {words[broken]!r}, which has a line break and cannot be a line of words.txt; "
            "train without this word"
        )
    with Output.create(folder, overwrite) as out:
        _write_table(out.folder / "topics.csv", rows, words, top)
        with new_file(out.folder / "words.txt") as sink:
            sink.write(to_bytes("".join(f"{text}\n" for text in words)))
        entries = model.word_starts_V1, model.topics_N, model.counts_N
        counted = TopicRows.of_words(*entries, model.num_topics, model.priors.beta)  # without the priors of seed words
        _write_matrix(out.folder / "counts.npy", counted, np.dtype(np.uint32))
        _write_matrix(out.folder / "probabilities.npy", rows, np.dtype(np.float32))
        with new_file(out.folder / "alpha.npy") as sink:
            file = io.BytesIO()
            np.save(file, model.priors.alpha_Z)
            sink.write(file.getvalue())
        about = {"topics": model.num_topics, "words": model.num_words, "beta": model.priors.beta}
        write_manifest(out.folder, about | {"versions": {"mgpu-ngram": VERSION}}, FORMAT)
        out.commit()


def _write_table(path: Path, rows: TopicRows, words: list[str], top: int) -> None:
    best = most_probable(rows, top)
    file = io.StringIO()
    table = csv.writer(file, lineterminator="\n")
    table.writerow(["topic", "share", "rank", "word", "probability"])
    for z in range(rows.num_topics):
        scores = zip(best.words_Zn[z].tolist(), best.scores_Zn[z].tolist(), strict=True)
        for rank, (v, probability) in enumerate(scores, 1):
            if np.isfinite(probability):
                table.writerow([z, f"{rows.shares_Z[z]:.6g}", rank, words[v], f"{probability:.6g}"])
    with new_file(path) as sink:
        sink.write(to_bytes(file.getvalue()))


def _write_matrix(path: Path, rows: TopicRows, dtype: np.dtype) -> None:
    """Write counts, of an integer dtype, or probabilities."""
    shape = rows.num_topics, rows.num_words
    with new_file(path) as sink:
        file = io.BytesIO()
        described = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, described)
        sink.write(file.getvalue())
        for z in range(rows.num_topics):
            if dtype.kind == "f":
                row_V = rows.probabilities(z).astype(dtype)
            else:
                row_V = np.zeros(rows.num_words, dtype)
                ids, counts = rows.row(z)
                row_V[ids] = counts
            sink.append(row_V.tobytes())
