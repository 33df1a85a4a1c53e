"""Make n-best lists from lattices: read the lattices, then compose and search them in tasks."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator

from mgpu_ngram.cluster.executor import Executor, Handle, in_order
from mgpu_ngram.core.errors import InputError, warn
from mgpu_ngram.core.inputs.compress import SUFFIX_FORMATS
from mgpu_ngram.core.inputs.corpus import Corpus
from mgpu_ngram.core.inputs.sources import Source
from mgpu_ngram.core.nbest.files import lattice_text
from mgpu_ngram.core.nbest.lattices import split_lattices
from mgpu_ngram.engine.rescore.lattices import LatticeOptions, best_texts
from mgpu_ngram.engine.score.score_chunk import ScoreOptions
from mgpu_ngram.jobs.progress import Progress
from mgpu_ngram.jobs.rescore.config import LATTICE_FEATURES, TOTAL, ListsConfig

TASK_BYTES = 1 << 18  # of the lattices of a task: about 10,000 arcs, which are some 100,000 with a model
AHEAD = 4  # tasks per worker in flight or buffered

LatticeText = tuple[str, str | None, list[str]]


def lattice_lists(
    config: ListsConfig, corpus: Corpus, executor: Executor, progress: Progress, models: tuple[ScoreOptions, ...]
) -> tuple[Corpus, int]:
    """Return (the best texts of lattices as lines of Moses, in memory, number of lattices and files left out).

    See `engine.rescore.lattices.best_texts`. One warning tells of lattices and files that cannot be read. Raises
    InputError if none can be read.
    """
    weights = config.list_weights
    names = LATTICE_FEATURES[config.lattices]
    total, first, second = (weights.get(name, (0.0,))[0] for name in (TOTAL, *names))
    options = LatticeOptions(
        models, config.model_weights, names, (total, first, second), config.lattices, config.n_best, executor.device
    )
    wrong: list[str] = []
    texts = list(_texts(config, corpus, wrong))
    sizes: deque[int] = deque()  # lattices of each task

    def calls() -> Iterator[Handle]:
        for group in _groups(texts):
            sizes.append(len(group))
            yield executor.call(best_texts, group, options, label=f"composing {group[0][0]}")

    progress.start("compose", len(texts), "lattices")
    parts, place_of = [], dict[str, str]()
    for named_places, lines, wrong_here in in_order(executor, calls(), AHEAD * executor.workers):
        for place, id in named_places:
            if id in place_of:
                raise InputError(f"{place} has the id {id!r}, which {place_of[id]} has, too; give each lattice its own")
            place_of[id] = place
        parts.append(lines)
        wrong += wrong_here
        progress.advance(sizes.popleft())
    progress.finish()
    if wrong and not place_of:
        raise InputError(wrong[0])
    if wrong:
        warn(
            f"{len(wrong):,} of {len(wrong) + len(place_of):,} lattices or files are left out; the first is {wrong[0]}"
        )
    data = b"".join(parts)
    return Corpus((Source(corpus.sources[0].name, "memory", len(data), data=data),), "word"), len(wrong)


def _texts(config: ListsConfig, corpus: Corpus, wrong: list[str]) -> Iterator[LatticeText]:
    """Yield (place for messages, id if the lattice has none, lines) of each lattice.

    The id is the name of a file in SLF, otherwise the number of the lattice from 0. It is None after a file that cannot
    be read: the number of lattices in that file is unknown.

    wrong  receives what is wrong with each file that cannot be read
    """
    number: int | None = 0
    for source in corpus.sources:
        try:
            text = lattice_text(source, config.text_column)
            found = list(split_lattices(text, config.lattices, source.name))
        except InputError as error:
            wrong.append(str(error))
            number = None
            continue
        for place, lines in found:
            if config.lattices == "slf":
                yield place, _stem(source.name), lines
            elif number is None:
                yield place, None, lines
            else:
                yield place, str(number), lines
                number += 1


def _stem(path: str) -> str:
    """Return the name of a file without its suffix, and without that of a compressed file."""
    name, suffix = os.path.splitext(os.path.basename(path))
    return os.path.splitext(name)[0] if suffix in SUFFIX_FORMATS else name


def _groups(texts: list[LatticeText]) -> Iterator[list[LatticeText]]:
    """Yield neighbouring lattices of about TASK_BYTES of text."""
    group, size = list[LatticeText](), 0
    for text in texts:
        group.append(text)
        size += sum(map(len, text[2]))
        if size >= TASK_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group
