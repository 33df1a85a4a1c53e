"""The list of stages. A new stage is one line here."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from mgpu_ngram.stages.contract import RegisteredStage


@dataclass(frozen=True)
class StageEntry:
    """A stage that is imported on first use.

    module  its module, which has an attribute STAGE
    help    description of its command in the list of commands
    verbs   names of its command, and of its key in YAML files; the first one is shown, the others are aliases
    """

    module: str
    help: str
    verbs: tuple[str, ...]


ENTRIES: dict[str, StageEntry] = {
    "count": StageEntry("mgpu_ngram.stages.count", "count the n-grams of text", ("count",)),
    "estimate": StageEntry(
        "mgpu_ngram.stages.estimate", "estimate a Kneser-Ney (or other) model from text or counts", ("estimate",)
    ),
    "adapt": StageEntry("mgpu_ngram.stages.adapt", "add text to a model whose counts were kept", ("adapt",)),
    "convert": StageEntry(
        "mgpu_ngram.stages.convert", "convert a model to another format; a model file loads fast", ("convert", "trie")
    ),
    "prune": StageEntry(
        "mgpu_ngram.stages.prune", "drop n-grams of a model, by entropy, size or vocabulary", ("prune",)
    ),
    "mix": StageEntry("mgpu_ngram.stages.mix", "mix models by linear or log-linear interpolation", ("mix",)),
    "score": StageEntry("mgpu_ngram.stages.score", "score text as KenLM's query does", ("score",)),
    "compare": StageEntry("mgpu_ngram.stages.compare", "compare models on a held-out text", ("compare",)),
    "distribution": StageEntry(
        "mgpu_ngram.stages.distribution", "write the probabilities of all next words", ("distribution",)
    ),
    "lda": StageEntry("mgpu_ngram.stages.lda", "train a topic model on documents", ("lda",)),
    "topics": StageEntry("mgpu_ngram.stages.topics", "describe topics, and find the topics of documents", ("topics",)),
    "rescore": StageEntry(
        "mgpu_ngram.stages.rescore", "add the scores of n-gram models to n-best lists, and sort them", ("rescore",)
    ),
    "tune": StageEntry("mgpu_ngram.stages.tune", "tune the weights of features of n-best lists", ("tune",)),
    "filter": StageEntry(
        "mgpu_ngram.stages.filter", "add perplexities to documents, and drop documents by perplexity", ("filter",)
    ),
    "decode": StageEntry("mgpu_ngram.stages.decode", "translate text by beam search, as Amun does", ("decode",)),
}


class _Stages(Mapping[str, RegisteredStage]):
    """The stages by name; the module of a stage is imported on first use."""

    def __getitem__(self, name: str) -> RegisteredStage:
        stage: RegisteredStage = importlib.import_module(ENTRIES[name].module).STAGE
        return stage

    def __iter__(self) -> Iterator[str]:
        return iter(ENTRIES)

    def __len__(self) -> int:
        return len(ENTRIES)


STAGES = _Stages()


def stage_of_format(format: object) -> RegisteredStage | None:
    """Return the stage whose manifests have this format."""
    return next((stage for stage in STAGES.values() if stage.format == format), None)
