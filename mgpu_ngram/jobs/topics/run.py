"""Describe the topics of a model and find the topics of documents: a table, rows of shares, and a page to explore."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from mgpu_ngram.core.bags.topic_model import TopicModel, find_topic_model, identify_topic_model, load_topic_model
from mgpu_ngram.core.documents.columns import check_column, check_column_of
from mgpu_ngram.core.errors import InputError, warn
from mgpu_ngram.core.inputs.corpus import Corpus
from mgpu_ngram.core.inputs.file_sources import refuse_column, stored_source
from mgpu_ngram.core.inputs.files import find_files
from mgpu_ngram.core.json_text import to_json
from mgpu_ngram.core.storage.manifest_changes import manifest_changes
from mgpu_ngram.core.storage.output import Output, new_file, write_manifest
from mgpu_ngram.core.version import VERSION
from mgpu_ngram.engine.bags.bag_corpus import BagCorpus
from mgpu_ngram.engine.bags.open_bags import (
    open_bags,
    open_texts,
    refuse_column_of_counts,
    states_of_inputs,
)
from mgpu_ngram.engine.topics.distances import nearest_of
from mgpu_ngram.engine.topics.doc_topics import GroupShares
from mgpu_ngram.engine.topics.infer import Grouping, InferOptions, text_options_of
from mgpu_ngram.engine.topics.page import NEAREST, PageOptions, topic_page
from mgpu_ngram.engine.topics.rows import TopicRows
from mgpu_ngram.engine.topics.table import WORD_LISTS, TableParts, TopicFacts, TopicTable, topic_table
from mgpu_ngram.engine.topics.words import largest
from mgpu_ngram.jobs.budget import limited_to
from mgpu_ngram.jobs.context import PlanContext, RunContext
from mgpu_ngram.jobs.topics.config import TopicsConfig
from mgpu_ngram.jobs.topics.export import export_topics
from mgpu_ngram.jobs.topics.files import TableOptions, open_table
from mgpu_ngram.jobs.topics.infer import InferredTotals, infer

FORMAT = "mgpu_ngram document topics"
DOC_TOPICS_FILE, TABLE_FILE, PAGE_FILE = "doc_topics", "topics.json", "topics.html"  # names in the folder of a run


@dataclass(frozen=True)
class Wanted:
    """Requests of the command besides the settings of the job.

    topic   the one topic to describe; None: all of them
    limit   number of largest topics to describe; None: all of them
    lists   lists of words to make
    page    file of the page; "" for no page
    export  folder of the exported topics; "" for no export
    """

    topic: int | None = None
    limit: int | None = None
    lists: tuple[str, ...] = WORD_LISTS
    page: str = ""
    export: str = ""


@dataclass(frozen=True)
class TopicTotals:
    """The totals of the documents of a run.

    empty            number of documents without known words
    tokens, unknown  numbers of tokens of known words, and of other tokens without stop words
    rejects          number of records and files that could not be read
    """

    documents: int
    empty: int
    tokens: int
    unknown: int
    rejects: int


@dataclass(frozen=True)
class TopicsResult:
    """The topics of a model, and the totals of the documents if there are any; `path` is None if no rows were written.

    page_topics  number of topics on the page; 0: no page was written
    """

    path: Path | None
    table: TopicTable
    num_topics: int
    found: TopicTotals | None
    groups: GroupShares | None
    snippets: dict[int, str]
    page: str
    page_topics: int
    export: str
    seconds: dict[str, float]
    wall_seconds: float
    workers: int
    device: str
    transport: str

    @property
    def tokens_per_second(self) -> float:
        return self.found.tokens / self.wall_seconds if self.found else 0.0

    def as_json(self) -> dict[str, Any]:
        """Return all known fields by name, for machines."""
        named: dict[str, Any] = {"path": self.path and str(self.path)} if self.found else {}
        named |= asdict(self.found) if self.found else {}
        named |= self.table.as_json() | (self.groups.as_json() if self.groups else {})
        named |= {name: getattr(self, name) for name in ("page", "export") if getattr(self, name)}
        if self.found:
            work = ("seconds", "wall_seconds", "workers", "device", "transport", "tokens_per_second")
            named |= {name: getattr(self, name) for name in work}
        return named


def open_inputs(config: TopicsConfig) -> Corpus | None:
    """Return the documents that a config names, if they are text. Raises InputError if they cannot be used."""
    if not config.documents:
        return None
    grouping = config.group_by or config.time
    if config.text_column is None and not os.path.exists(config.model):  # an earlier job makes it
        states_of_inputs(config.documents)
        if grouping:
            for name, location in find_files(config.documents):
                check_column_of(stored_source(name, location), grouping)
        return None
    stored = _settings(config).get("text_column")
    column = config.text_column or (None if stored == "text" else stored)  # "text" was once the default
    corpus = open_texts(config.documents, column)
    if corpus is None:
        refuse_column_of_counts(config.text_column, config.documents[0])
    else:
        refuse_column(config.text_column, corpus.sources)
    if corpus is None and grouping:
        raise InputError(
            f"{config.documents[0]!r} is a matrix, which has no column {grouping!r}; give documents as text"
        )
    if corpus and config.vocabulary:
        raise InputError(f"vocabulary is {config.vocabulary!r} but the documents are text; leave it out")
    if corpus and grouping:
        check_column(corpus, grouping)
    return corpus


def _settings(config: TopicsConfig) -> dict[str, Any]:
    return load_topic_model(find_topic_model(config.model), verify=False).settings


def plan(config: TopicsConfig, context: PlanContext) -> dict[str, Any]:
    """Return the plan of `run`, from the sizes of the inputs alone."""
    states = states_of_inputs(config.documents) if config.documents else []
    return {
        "job": config.name,
        "inputs": len(states),
        "input_bytes": sum(state["size_bytes"] for state in states),
        "workers": context.workers,
        "device": context.device,
        "model": config.model,
        "format": config.format,
    }


def work_bytes(config: TopicsConfig) -> int:
    """Return the bytes of the documents."""
    return sum(state["size_bytes"] for state in states_of_inputs(config.documents)) if config.documents else 0


def changed_since(config: TopicsConfig, manifest: dict[str, Any]) -> str:
    """Return how an output differs from this job's, by settings, model and inputs; "" if it does not."""
    return manifest_changes(manifest, _made_of(config, find_topic_model(config.model)))


def _made_of(config: TopicsConfig, path: str) -> dict[str, Any]:
    """Return the inputs and options that an output depends on."""
    left_out = ("model", "documents", "name")
    return {
        "inputs": states_of_inputs(config.documents) if config.documents else [],
        "model": {"path": config.model, "identity": identify_topic_model(path)},
        "options": {name: value for name, value in asdict(config).items() if name not in left_out},
    }


def run(config: TopicsConfig, context: RunContext, wanted: Wanted | None = None) -> TopicsResult:
    """Write the topics of the documents, and return the table of topics.

    A folder gets doc_topics.FORMAT, topics.json, manifest.json and, if requested, topics.html; a single file gets only
    the rows. Not resumable.
    """
    wanted = wanted or Wanted()
    path = find_topic_model(config.model)
    if context.output is None or context.single_file:
        return _run(config, context, wanted, path, context.output)
    made_of = _made_of(config, path)
    with Output.create(context.output, context.overwrite) as out:
        rows = out.folder / f"{DOC_TOPICS_FILE}.{config.format}" if config.documents else None
        wanted = replace(wanted, page=str(out.folder / PAGE_FILE) if config.html else "")
        result = _run(config, context, wanted, path, rows)
        page = str(out.path / PAGE_FILE) if config.html else ""
        result = replace(result, path=out.path, page=page)
        table = result.table.as_json() | (result.groups.as_json() if result.groups else {})
        with new_file(out.folder / TABLE_FILE) as sink:
            sink.write(to_json(table, indent=2).encode() + b"\n")
        found = asdict(result.found) if result.found else None
        about = {"topics": result.num_topics, "documents": found, "versions": {"mgpu-ngram": VERSION}}
        write_manifest(out.folder, made_of | about, FORMAT)
        out.commit()
    return result


def _run(config: TopicsConfig, context: RunContext, wanted: Wanted, path: str, file: str | Path | None) -> TopicsResult:
    start = time.perf_counter()
    executor = limited_to(context.executor, context.memory)
    model = load_topic_model(path)
    check_topic(wanted.topic, model.num_topics)
    rows = TopicRows.of_model(model)
    chosen = None if wanted.limit is None else largest(rows.totals_Z, wanted.limit).tolist()
    parts = TableParts(wanted.lists, chosen if wanted.topic is None else [wanted.topic])
    neighbours = config.nearest if config.nearest is not None else 0 if wanted.topic is None else NEAREST
    nearest = nearest_of(rows, neighbours, parts.topics, _threads(context)) if neighbours else {}
    summary = _infer(config, replace(context, executor=executor), wanted, (path, model), file)
    facts = TopicFacts(nearest=nearest)
    if summary is not None:
        facts = replace(facts, documents_Z=summary.documents_Z, examples=summary.examples)
    word = _word_of(model)
    table = topic_table(
        rows, word, config.top, facts, config.relevance_lambda, threads=_threads(context), parts=parts
    )  # fmt: skip
    groups = summary.group_shares() if summary and (config.group_by or config.time) else None
    page_topics = 0
    if wanted.page:
        text = summary.snippets.__getitem__ if summary and summary.snippets else None
        options = PageOptions(
            title=_title(config.model), lambda_=config.relevance_lambda, text=text, groups=groups,
            threads=_threads(context),
        )  # fmt: skip
        page_topics = min(rows.num_topics, options.max_topics)
        with new_file(wanted.page) as sink:
            sink.write(topic_page(rows, word, facts, options).encode())
    if wanted.export:
        export_topics(wanted.export, model, rows, word, config.top, context.overwrite)
    found = None
    if summary:
        found = TopicTotals(
            documents=summary.documents, empty=summary.empty, tokens=summary.tokens, unknown=summary.unknown,
            rejects=summary.damage.number,
        )  # fmt: skip
        if summary.damage.number:
            warn(summary.damage.said)
    return TopicsResult(
        path=None if file is None else Path(file),
        table=table,
        num_topics=model.num_topics,
        found=found,
        groups=groups,
        snippets=summary.snippets if summary else {},
        page=wanted.page,
        page_topics=page_topics,
        export=wanted.export,
        seconds=summary.seconds if summary else {},
        wall_seconds=time.perf_counter() - start,
        workers=executor.workers,
        device=executor.device,
        transport=executor.transport,
    )


def _infer(
    config: TopicsConfig, context: RunContext, wanted: Wanted, at: tuple[str, TopicModel], file: str | Path | None
) -> InferredTotals | None:
    """Find the topics of the documents and write them to `file`, if there is one; None without documents."""
    if not config.documents:
        return None
    path, model = at
    text, column = text_options_of(model.settings), config.group_by or config.time
    options = InferOptions(
        model=path,
        identity=identify_topic_model(path),
        text=text,
        device=context.executor.device,
        threshold=config.threshold,
        dense=config.writes_dense and file is not None,
        examples=config.examples,
        snippets=bool(wanted.page) or wanted.topic is not None,
        grouping=Grouping(column, config.by if config.time else None) if column else None,
    )
    corpus: Corpus | BagCorpus | None = open_inputs(config)
    if corpus is None:
        corpus = open_bags(config.documents, config.vocabulary)
    elif model.words is None:
        raise InputError(
            f"the model {config.model} has no words, because it was trained on a matrix without a vocabulary; give "
            f"matrices with {model.num_words:,} columns"
        )
    about = {"model": config.model, "identity": options.identity, "threshold": config.threshold}
    with ExitStack() as stack:
        take = None
        if file is not None:
            table = TableOptions(config.format, model.num_topics, options.dense, about)
            take = stack.enter_context(open_table(file, table)).write
        known = model.num_topics, model.num_words, model.words
        return infer(corpus, options, known, context.executor, context.progress, take)


def check_topic(topic: int | None, num_topics: int) -> None:
    """Raise InputError unless a model has the topic."""
    if topic is not None and not 0 <= topic < num_topics:
        raise InputError(f"topic is {topic} but the model has topics 0 to {num_topics - 1:,}")


def _word_of(model: TopicModel) -> Any:
    """Return a function from the id of a word to its text."""
    return model.words.word if model.words is not None else "#{}".format


def _title(model: str) -> str:
    """Return a model's name for people: the name of its folder if the file has the usual name."""
    path = Path(os.path.abspath(model))
    return (path.parent if path.name == "model.safetensors" else path).name


def _threads(context: RunContext) -> int:
    return context.executor.threads * context.executor.tasks_per_process
