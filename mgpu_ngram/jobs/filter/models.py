"""The models of a filter job: one for all documents, or one for each language, named by a path or a table."""

from __future__ import annotations

import csv
import glob
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.typed_config import suggest
from mgpu_ngram.core.yaml_file import read_yaml
from mgpu_ngram.jobs.filter.config import PLACE, FilterConfig

MAPPING = "a mapping from languages to models, such as en: {model: en.binary, tokenizer: en.sp.model}"
TABLE_WAY_OUT = "give a CSV file with the columns language, model, tokenizer, contrast_model"


@dataclass(frozen=True)
class ModelPaths:
    """The files of the model of a language."""

    model: str
    tokenizer: str | None = None
    contrast_model: str | None = None


def model_paths(config: FilterConfig) -> dict[str, ModelPaths]:
    """Return the files of the model of each language; the key "" is for all documents.

    Raises InputError if no file matches the path with a language in place of {language}, and for a table that cannot be
    used.
    """
    if config.has_table:
        return read_table(config.model)
    if PLACE not in config.model:
        return {"": ModelPaths(config.model, config.tokenizer, config.contrast_model)}
    before, _, after = config.model.partition(PLACE)
    found = sorted(glob.glob(f"{glob.escape(before)}*{glob.escape(after)}"))
    names = {path[len(before) : len(path) - len(after)]: path for path in found}
    if not names:
        raise InputError(f"the model {config.model!r} matches no file; correct the path around {PLACE}")
    others = config.tokenizer, config.contrast_model
    return {name: ModelPaths(path, *(o and o.replace(PLACE, name) for o in others)) for name, path in names.items()}


def read_table(path: str) -> dict[str, ModelPaths]:
    """Return the models of a table, by language; relative paths start at the folder of the table.

    path  a CSV file with the columns language, model, tokenizer, contrast_model, the last two optional; or a YAML file
          that maps a language to the path of its model, or to a mapping with these keys

    Raises InputError, which names the place, for a file in another form.
    """
    rows = _csv_rows(path) if path.lower().endswith(".csv") else _yaml_rows(path)
    names = [field.name for field in fields(ModelPaths)]
    found: dict[str, ModelPaths] = {}
    for where, language, row in rows:
        if not isinstance(language, str) or not language:
            raise InputError(f"{path}: {where} has the language {language!r}, which is not a name; write it in quotes")
        if language in found:
            raise InputError(f"{path}: {where} gives the language {language!r} a second model; leave one of them out")
        for key, value in row.items():
            if key not in names:
                raise InputError(f"{path}: {where} has the unknown key {key!r}; {suggest(str(key), names)}")
            if not isinstance(value, str) or "\0" in value:
                raise InputError(f"{path}: {where} has {value!r} as {key}, which is not a path; give a path")
        if "model" not in row:
            raise InputError(f"{path}: {where} has no model; give the path of one")
        folder = Path(path).parent
        found[language] = ModelPaths(**{key: str(folder / value) for key, value in row.items()})
    if not found:
        raise InputError(f"{path}: the table has no models; {TABLE_WAY_OUT}")
    if len({paths.contrast_model is None for paths in found.values()}) > 1:
        lacking = next(name for name, paths in found.items() if paths.contrast_model is None)
        raise InputError(
            f"{path}: {lacking!r} has no contrast_model but other languages have; give one to all languages or to none"
        )
    return found


def _csv_rows(path: str) -> list[tuple[str, Any, dict[str, Any]]]:
    """Return (where, language, the other columns that are not empty) of each row."""
    try:
        lines = Path(path).read_text("utf-8-sig").splitlines()
        rows = [(i, row) for i, row in enumerate(csv.reader(lines), 1) if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or "it is not CSV in UTF-8"
        raise InputError(f"{path}: cannot be read ({reason}); {TABLE_WAY_OUT}") from None
    header = [name.strip() for name in rows[0][1]] if rows else []
    if "language" not in header or "model" not in header:
        raise InputError(f"{path}: its first line is not the names of columns; {TABLE_WAY_OUT}")
    found = []
    for i, row in rows[1:]:
        if len(row) > len(header):
            raise InputError(f"{path}: line {i} has {len(row)} values but there are {len(header)} columns; correct it")
        values = {name: value.strip() for name, value in zip(header, row, strict=False) if value.strip()}
        found.append((f"line {i}", values.pop("language", ""), values))
    return found


def _yaml_rows(path: str) -> list[tuple[str, Any, dict[str, Any]]]:
    rows = [
        (f"the entry {language!r}", language, {"model": value} if isinstance(value, str) else value)
        for language, value in read_yaml(path, MAPPING).items()
    ]
    for where, _, row in rows:
        if not isinstance(row, dict):
            raise InputError(
                f"{path}: {where} is {row!r} but must be a path, or a mapping such as {{model: en.binary}}"
            )
    return rows
