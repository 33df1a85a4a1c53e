"""The first bytes of a model file, read once: which kind of model it is, and its identity.

Functions that open a model, choose an index or estimate a time take the result of `read_head`. `info` and comparisons
take the description of a file from `file_kind`.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.inputs.files import check_path
from mgpu_ngram.core.kenlm.binary_file import Header, read_header
from mgpu_ngram.core.kenlm.intermediate import identify_intermediate
from mgpu_ngram.core.storage.file_heads import (
    HEAD_BYTES,
    INTERMEDIATE,
    KENLM,
    SAFETENSORS,
    compression,
    is_safetensors,
    refuse_as_arpa,
    what_begins,
)
from mgpu_ngram.core.storage.safetensors import load_arrays


@dataclass(frozen=True)
class ModelHead:
    """The first bytes of a model file and the facts they tell.

    path         as given
    head         first HEAD_BYTES, as stored; b"" for a path that is not a readable local file
    size_bytes   as stored
    modified_ns  modification time
    error        why the path cannot be read
    """

    path: str | Path
    head: bytes = b""
    size_bytes: int = 0
    modified_ns: int = 0
    error: OSError | None = None

    @cached_property
    def kind(self) -> str:
        """SAFETENSORS, KENLM, INTERMEDIATE, or another result of `what_begins`. Only its head is known to be sound."""
        return SAFETENSORS if is_safetensors(self.head) else what_begins(self.head)

    @property
    def is_model_file(self) -> bool:
        """Whether the file starts like a safetensors file: a header length and a JSON brace."""
        return self.kind == SAFETENSORS

    @cached_property
    def kenlm(self) -> Header | None:
        """The header of a KenLM binary model, else None. Raises InputError for a damaged header."""
        return read_header(str(self.path), self.head) if self.kind == KENLM else None

    @property
    def is_probing(self) -> bool:
        """Whether the file is a probing model of KenLM. Raises InputError for a damaged header."""
        return self.kenlm is not None and not self.kenlm.is_trie

    @cached_property
    def identity(self) -> str:
        """The fingerprint of a model file; for a file of another format its size and modification time.

        Raises InputError if the file is missing or is not a model.
        """
        if "://" in str(self.path):
            raise InputError(f"{self.path}: is a URL, but commands read models from local files; download it")
        if self.error:
            inside = next(iter(sorted(Path(self.path).glob("model.*"))), None)  # of the folder that a job writes
            way_out = f"the model in it, {inside}" if inside else "a model file, an ARPA file or a KenLM binary model"
            raise InputError(f"{self.path}: cannot be read ({self.error.strerror}); give {way_out}")
        if self.is_model_file:
            return str(load_arrays(self.path, verify=False)[1].get("fingerprint"))
        if self.kind == INTERMEDIATE:
            return identify_intermediate(self.path, self.head)
        if not self.kenlm and not compression(self.head):
            refuse_as_arpa(str(self.path), self.head)
        return f"{self.size_bytes:,} bytes of {self.modified_ns}"


def read_head(file: str | Path | ModelHead) -> ModelHead:
    """Return the head of a file; a head that was read already is returned as it is. ~ is the user's folder.

    Raises InputError only for a value that cannot be a path: `ModelHead.error` has the reason of an unreadable path.
    """
    if isinstance(file, ModelHead):
        return file
    check_path(file, "path")
    file = os.path.expanduser(file) if isinstance(file, str) else file.expanduser()
    try:
        found = os.stat(file)
        if stat.S_ISFIFO(found.st_mode):  # bytes read from a pipe would be missing when the model is read
            return ModelHead(file, b"", found.st_size, found.st_mtime_ns)
        with open(file, "rb") as stream:
            return ModelHead(file, stream.read(HEAD_BYTES), found.st_size, found.st_mtime_ns)
    except OSError as error:
        return ModelHead(file, error=error)


def identify(path: str | Path) -> str:
    """Return the identity of a model file, as `ModelHead.identity`."""
    return read_head(path).identity


def check_models(paths: Iterable[str], made: Collection[str] = ()) -> None:
    """Raise InputError for a path that is not a model, except the paths `made`, which an earlier job writes."""
    for path in paths:
        if path not in made:
            identify(path)
