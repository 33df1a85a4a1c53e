"""The topics stage: its command, and how its plans, results and outputs are shown."""

from __future__ import annotations

import argparse
import json
import math
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.jobs.topics.config import TopicsConfig
from mgpu_ngram.stages.contract import STDOUT, Product, Stage, Target, given
from mgpu_ngram.stages.flags import add_overwrite, add_text
from mgpu_ngram.stages.report import many, show_seconds, show_transport, shown_path, where, where_planned

if TYPE_CHECKING:
    from mgpu_ngram.core.inputs.corpus import Corpus
    from mgpu_ngram.jobs.context import RunContext
    from mgpu_ngram.jobs.topics.run import TopicsResult

EXAMPLES = """examples:
  mgpu-ngram topics topics.lda --top 10
  mgpu-ngram topics topics.lda --topic 7
  mgpu-ngram topics topics.lda new_docs.jsonl.zst -o doc_topics.parquet
  mgpu-ngram topics topics.lda news.parquet --time published --by month
  mgpu-ngram topics topics.lda news.parquet --html topics.html
  mgpu-ngram topics topics.lda --export topics"""
FLAGS: dict[str, dict[str, Any]] = {
    "top": {"type": int, "metavar": "N", "help": "print N words of each topic (default 10)"},
    "order": {
        "choices": ["probability", "relevance", "frex"], "help": "order of the words of a topic (default probability)"
    },
    "relevance_lambda": {
        "type": float, "metavar": "SHARE", "help": "weight of the probability in the relevance (default 0.6)"
    },
    "text_column": {"metavar": "NAME", "help": "column of Parquet files, or key of JSON lines (default: as trained)"},
    "vocabulary": {
        "metavar": "FILE", "help": "words of the columns of a matrix, one a line (default: the words of the model)"
    },
    "dense": {"action": "store_true", "help": "write the shares of all topics"},
    "threshold": {"type": float, "metavar": "SHARE", "help": "do not write smaller shares (default 0.01)"},
    "group_by": {"metavar": "COLUMN", "help": "mean shares of topics for each class in a column"},
    "time": {"metavar": "COLUMN", "help": "mean shares of topics for each period of the dates in a column"},
    "by": {
        "choices": ["year", "month", "week", "day"],
        "help": "periods of --time (default month); a week has the date of its Monday"
    },
    "examples": {"type": int, "metavar": "N", "help": "number of representative documents of each topic (default 3)"},
    "nearest": {
        "type": int, "metavar": "N",
        "help": "show the N topics nearest to each topic (default 0; 5 if --topic is given)",
    },
}  # fmt: skip
VOCABULARY_TOKEN_BYTES = 8  # about the bytes of text for each token that is in the vocabulary
SHOWN_TOPICS = 20  # topics of the table after the rows of documents


@dataclass(frozen=True)
class TopicsCommand(TopicsConfig):
    """Settings of the command.

    topic    the one topic to show
    limit    topics to show, the largest first; None: all, or SHOWN_TOPICS for documents
    page     file of the page
    export   folder of the exported topics
    as_json  print all lists of words, and all topics unless there is a limit
    """

    topic: int | None = None
    limit: int | None = None
    page: str = ""
    as_json: bool = False
    export: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.limit is not None and self.limit < 1:
            raise InputError(f"limit is {self.limit} but must be at least 1")


class TopicsStage(Stage[TopicsConfig, "TopicsResult"]):
    """A topic model in, a description of its topics out; documents in, their topics out."""

    name = "topics"
    config = TopicsConfig
    format = "mgpu_ngram document topics"
    memory_keys = frozenset({"device_bytes"})
    needs: ClassVar[Mapping[str, Product]] = {"model": "topics"}
    files = ("documents", "vocabulary")
    examples = EXAMPLES

    def add_flags(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("model", metavar="MODEL", help="topic model file, or the folder that lda wrote")
        add_text(parser, "documents", metavar="DOCUMENTS", required=False, stdin=False)
        parser.add_argument(
            "-o", "--output", metavar="OUT", help="file for the topics of DOCUMENTS: .parquet, .jsonl, .npy or .npz"
        )
        add_overwrite(parser)
        parser.add_argument("--topic", type=int, metavar="K", help="show one topic in detail")
        parser.add_argument("--limit", type=int, metavar="N", help="show the N largest topics")
        for setting, how in FLAGS.items():
            flag = "lambda" if setting == "relevance_lambda" else setting.replace("_", "-")
            parser.add_argument("--" + flag, dest=setting, **how)
        parser.add_argument("--html", metavar="FILE", help="write a page to explore the topics")
        parser.add_argument("--export", metavar="FOLDER", help="write the topics as CSV and NumPy files")

    def settings(self, arguments: argparse.Namespace) -> TopicsConfig:
        from mgpu_ngram.core.typed_config import fill
        from mgpu_ngram.jobs.topics.files import format_of

        if arguments.by and not arguments.time:
            raise InputError(f"--by {arguments.by} needs a column of dates; give --time COLUMN, or leave it out")
        for flag, path in (("--html", arguments.html), ("--export", arguments.export)):
            if path == STDOUT:
                raise InputError(f"{flag} - is standard output, where topics writes no files; name an output")
        found = given(arguments, ["model", "documents", "topic", "limit", "export", *FLAGS])
        found |= {"page": arguments.html or "", "as_json": arguments.json}
        if arguments.output:
            if not arguments.documents:
                raise InputError(
                    f"-o {arguments.output} would have the topics of documents; name documents, or give --html FILE"
                )
            found["format"] = format_of(arguments.output)
        elif arguments.dense or arguments.threshold is not None:
            flag = "--dense" if arguments.dense else "--threshold"
            raise InputError(f"{flag} is for the rows of documents; give -o doc_topics.parquet, or leave it out")
        return fill(TopicsCommand, found, "topics")

    def target(self, arguments: argparse.Namespace) -> Target:
        return Target(arguments.output or None, single_file=True)

    def check_target(self, config: TopicsConfig, target: Target, overwrite: bool) -> None:
        from mgpu_ngram.core.storage.output import check_file, check_free, check_kind, check_not_input
        from mgpu_ngram.jobs.topics.export import FORMAT
        from mgpu_ngram.jobs.topics.files import HTML

        super().check_target(config, target, overwrite)
        if not isinstance(config, TopicsCommand):
            return
        named: dict[str, str] = {}
        for flag, path in ("-o", target.path), ("--html", config.page), ("--export", config.export):
            if path and (other := named.setdefault(os.path.realpath(path), flag)) != flag:
                raise InputError(f"{other} and {flag} are both {path}; give each output a path of its own")
        if config.page:
            check_not_input(config.page, self.inputs(config))
            check_file(config.page, overwrite, *HTML)
        if config.export:
            check_not_input(config.export, self.inputs(config))
            check_free(config.export, overwrite)
            check_kind(config.export, FORMAT)

    def check_file(self, config: TopicsConfig, path: str | Path, overwrite: bool) -> None:
        from mgpu_ngram.core.storage.output import check_file
        from mgpu_ngram.jobs.topics.files import TABLE_KINDS

        start, kind = TABLE_KINDS[config.format]
        check_file(path, overwrite, kind, start)

    def check(self, config: TopicsConfig, made: Collection[str] = ()) -> None:
        from mgpu_ngram.core.bags.topic_model import describe_topic_model, find_topic_model
        from mgpu_ngram.jobs.topics.run import check_topic

        if config.model in made:
            return
        described = describe_topic_model(find_topic_model(config.model))
        if isinstance(config, TopicsCommand):
            check_topic(config.topic, described["topics"])

    def open_inputs(self, config: TopicsConfig) -> Corpus | None:
        from mgpu_ngram.jobs.topics.run import open_inputs

        return open_inputs(config)

    def work_bytes(self, config: TopicsConfig, inputs: Corpus | None) -> int:
        from mgpu_ngram.jobs.topics.run import work_bytes

        return inputs.text_bytes if inputs else work_bytes(config)

    def cpu_seconds(self, config: TopicsConfig, inputs: Corpus | None) -> float:
        from mgpu_ngram.core.bags.topic_model import describe_topic_model, find_topic_model
        from mgpu_ngram.engine.lda.fold_in import cpu_seconds

        if not config.documents:
            return 0.0
        if not os.path.exists(config.model):
            return math.inf
        topics = describe_topic_model(find_topic_model(config.model))["topics"]
        return cpu_seconds(self.work_bytes(config, inputs) / VOCABULARY_TOKEN_BYTES, topics)

    def run(self, config: TopicsConfig, context: RunContext, inputs: Corpus | None) -> TopicsResult:
        from mgpu_ngram.jobs.topics.run import Wanted, run

        if isinstance(config, TopicsCommand):
            wanted = Wanted(config.topic, config.limit, page=config.page, export=config.export)
            if not config.as_json:
                lists = wanted.lists if config.topic is not None else (config.order,)
                limit = config.limit or (SHOWN_TOPICS if config.documents else None)
                wanted = replace(wanted, limit=limit, lists=lists)
            return run(config, context, wanted)
        return run(config, context)

    def describe(self, path: str, manifest: dict[str, object]) -> dict[str, object]:
        with open(os.path.join(path, "topics.json"), encoding="utf-8") as file:
            return manifest | {"table": json.load(file)}

    def show_result(self, config: TopicsConfig, result: TopicsResult) -> None:
        from mgpu_ngram.stages.topic_output import MANY_GROUPS, show_classes, show_groups, show_topic, show_topics

        if result.path:
            print(f"{shown_path(result.path)}: {_said(vars(result.found)) if result.found else 'the topics'}")
        elif result.found:
            print(_said(vars(result.found)))
        topic, limit = getattr(config, "topic", None), getattr(config, "limit", None)
        limit = limit or (SHOWN_TOPICS if result.found else None)
        if topic is not None:
            show_topic(result.table.topics[0], result.snippets.__getitem__ if result.snippets else None)
        else:
            show_topics(result.table, (config.order,), limit, result.num_topics)
        if result.groups:
            print()
            if config.group_by and len(result.groups.groups) > MANY_GROUPS:
                show_classes(result.groups, limit)
            else:
                show_groups(result.groups, result.table, limit)
        if result.page:
            largest = f", the {result.page_topics:,} largest" if result.page_topics < result.num_topics else ""
            print(f"{shown_path(Path(result.page))}: a page of {many(result.num_topics, 'topic')}{largest}")
        if result.export:
            print(f"{result.export}: topics.csv, words.txt, counts.npy, probabilities.npy, alpha.npy")
        if result.found:
            print(f"{result.wall_seconds:.2f} s on {where(result)}: {result.tokens_per_second:,.0f} tokens/s")
            show_seconds(result.seconds)
            show_transport(result)

    def show_plan(self, plan: dict[str, Any]) -> None:
        work = f"topics of {many(plan['inputs'], 'input')} of {plan['input_bytes']:,} bytes"
        print(
            f"{plan['job']}: {work if plan['inputs'] else 'the topics alone'}, by {plan['model']}; "
            f"{where_planned(plan)}"
        )

    def show_info(self, path: str, described: dict[str, Any]) -> None:
        found = described["documents"]
        print(f"{path}: {_said(found) if found else 'the topics'}, by {described['model']['path']}")
        for row in described["table"]["topics"][:SHOWN_TOPICS]:
            print(f"topic {row['topic']} ({row['share']:.2%}): {' '.join(row['words'])}")
        if described["topics"] > SHOWN_TOPICS:
            print(f"{many(described['topics'] - SHOWN_TOPICS, 'smaller topic')} not shown")


STAGE = TopicsStage()


def _said(found: Mapping[str, int]) -> str:
    """Return the totals of documents for people."""
    tokens = found["tokens"] + found["unknown"]
    share = f" ({found['unknown'] / tokens:.1%})" if tokens else ""
    empty = f", {many(found['empty'], 'document')} without a known word" if found["empty"] else ""
    return f"{many(found['documents'], 'document')}, {tokens:,} tokens, {found['unknown']:,} unknown{share}{empty}"
