"""Arguments that the commands of several stages share."""

from __future__ import annotations

import argparse
from pathlib import Path

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.stages.contract import STDOUT


def add_text(
    parser: argparse.ArgumentParser, setting: str, metavar: str = "TEXT", required: bool = True, stdin: bool = True
) -> None:
    """Add the inputs, which may precede and follow flags."""
    inputs = "file, glob, directory, URL, or - for stdin" if stdin else "file, glob, directory or URL"
    parser.add_argument(setting, nargs="+" if required else "*", metavar=metavar, help=inputs)
    parser.set_defaults(many=setting)


def add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="model file, ARPA file (plain or compressed) or KenLM binary")


def add_overwrite(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--overwrite", action="store_true", help="replace an existing output of the same kind")


def add_no_verify(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--no-verify", action="store_true", help="do not verify the checksums of a model file")


def add_text_flags(
    parser: argparse.ArgumentParser,
    chunk_example: str,
    text_column: str = "Parquet column or JSON key (default text, or the only text column)",
) -> None:
    """Add the flags of commands that read text.

    chunk_example  an example of a size
    text_column    help of --text-column
    """
    parser.add_argument("--text-column", metavar="NAME", help=text_column)
    parser.add_argument("--chunk-bytes", metavar="SIZE", help=f"bytes of text for each task, such as '{chunk_example}'")


def add_model_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-o",
        "--output",
        required=True,
        metavar="OUT",
        help="OUT.arpa, or compressed OUT.arpa.gz, .bz2, .xz, .zst: write an ARPA file; -: write it to stdout; "
        "OUT.safetensors: write a model file",
    )
    add_overwrite(parser)


def model_format(output: str) -> str:
    """Return the format of a model by the name of its file. Raises InputError for a name of no format."""
    if is_arpa_name(output):
        return "arpa"
    if Path(output).suffix != ".safetensors":
        raise InputError(f"output {output!r} must end with .arpa (ARPA file) or .safetensors (model file)")
    return "safetensors"


def is_arpa_name(output: str) -> bool:
    """Return whether a model of this name is an ARPA file: - is standard output; a file may be compressed."""
    from mgpu_ngram.core.inputs.compress import without_compression

    return output == STDOUT or without_compression(output).suffix.lower() == ".arpa"
