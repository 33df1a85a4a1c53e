"""`mgpu-ngram info`: describe an output, a model file or another file."""

from __future__ import annotations

import argparse
import os

from mgpu_ngram.commands.standard_streams import stdout
from mgpu_ngram.core.errors import InputError, RunError
from mgpu_ngram.core.json_text import to_json
from mgpu_ngram.core.storage.output import MANIFEST, find_manifest
from mgpu_ngram.stages.registry import STAGES, stage_of_format
from mgpu_ngram.stages.report import show_file, show_model, show_topic_model, show_translation_model

EXAMPLES = """examples:
  mgpu-ngram info counts
  mgpu-ngram info counts --json | jq .orders
  mgpu-ngram info model.safetensors
  mgpu-ngram info topics.lda
  mgpu-ngram info model.npz
  mgpu-ngram info runs/scores/score
  mgpu-ngram info distributions
  mgpu-ngram info counts --verify"""


def add(parser: argparse.ArgumentParser, verb: str) -> None:
    parser.epilog = EXAMPLES
    parser.add_argument(
        "path", metavar="PATH",
        help="output folder, or a file: model file, ARPA file, KenLM binary, topic model, translation model, Parquet, "
        "JSON lines or text",
    )  # fmt: skip
    parser.add_argument(
        "--verify", action="store_true", help="check whether the inputs of an output still have the recorded checksums"
    )
    parser.set_defaults(verb=_info)


def _info(arguments: argparse.Namespace) -> None:
    path = arguments.path
    if os.path.isfile(path):
        _show_file(path, arguments.json)
        return
    if not os.path.lexists(path):
        raise InputError(f"{path!r} does not exist; give a file, or the folder that a job wrote")
    if not os.path.lexists(os.path.join(path, MANIFEST)):
        raise InputError(
            f"{path!r} is not an output of mgpu-ngram: it has no {MANIFEST}; give the folder that a job wrote"
        )
    manifest = find_manifest(path) or {}
    stage = stage_of_format(manifest.get("format"))
    if stage is None:
        from mgpu_ngram.core.counts.counts import read_counts

        stage, manifest = STAGES["count"], read_counts(path).manifest  # raises InputError with the reason
    if arguments.verify:
        _verify(path, manifest)
        return
    described = stage.describe(path, manifest)
    with stdout():
        if arguments.json:
            print(to_json(described, indent=2))
        else:
            stage.show_info(path, described)


def _verify(path: str, manifest: dict[str, object]) -> None:
    """Compare the inputs that a manifest names with the files that are there now."""
    from mgpu_ngram.core.inputs.verify import verify_inputs

    differences = verify_inputs(manifest)
    if differences:
        raise RunError(f"{len(differences)} inputs of {path} differ: {'; '.join(differences)}; make the output again")
    with stdout():
        print(f"{path}: all inputs are those that it was made from")


def _show_file(path: str, as_json: bool) -> None:
    from mgpu_ngram.core.bags.topic_model import FORMAT as TOPIC_MODEL
    from mgpu_ngram.core.models.file_kind import identify_file
    from mgpu_ngram.core.nmt.files import TRANSLATION_MODEL
    from mgpu_ngram.core.storage.model_layout import FORMAT

    described = identify_file(path)
    with stdout():
        if as_json:
            print(to_json(described, indent=2))
        elif described["format"] == FORMAT:
            show_model(path, described)
        elif described["format"] == TOPIC_MODEL:
            show_topic_model(path, described)
        elif described["format"] == TRANSLATION_MODEL:
            show_translation_model(path, described)
        else:
            show_file(path, described)
