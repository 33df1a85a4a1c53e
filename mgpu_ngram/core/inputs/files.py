"""Find the files behind paths, globs, directories and URLs, and explain why one cannot be read."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.storage.output import MANIFEST, find_manifest

REMOTE = ("http", "https", "s3", "s3a")  # schemes whose drivers the extra "remote" installs


def check_path(path: Any, name: str) -> None:
    """Raise InputError, which names `name`, unless `path` is a str or a path object."""
    if not isinstance(path, (str, os.PathLike)):
        raise InputError(f"{name} is {path!r:.60} but must be a path, as str or pathlib.Path")
    if "\0" in os.fsdecode(path):
        raise InputError(f"{name} is {os.fsdecode(path)!r:.60} but no path has NUL characters; correct it")


def find_files(paths: list[str]) -> list[tuple[str, str]]:
    """Return (name, location) of every file that the paths name."""
    found = [_expand(path) for path in paths]
    if not paths:
        raise InputError("the corpus names no input; give files, globs, directories or URLs")
    for path, files in zip(paths, found, strict=True):
        if not files:
            is_line = any(c.isspace() for c in path) and not any(found)
            hint = "; if it is a line of text, give ng.Lines([...]) in Python" if is_line else ""
            raise InputError(f"input {path!r} {_why_nothing(path)}{hint}")
    return [file for files in found for file in files]


def _why_nothing(path: str) -> str:
    if os.path.isdir(os.path.expanduser(path)):
        return "is a directory without files (hidden ones are passed over); name the files"
    if glob.has_magic(path):
        return "matches no file; correct the pattern"
    return "does not exist or holds no file; correct the path"


def _expand(path: str) -> list[tuple[str, str]]:
    if "://" in path:
        with remote_errors(path):
            fs, root = filesystem(path)
            if "file" not in ((fs.protocol,) if isinstance(fs.protocol, str) else fs.protocol):
                if fs.isfile(root):
                    return [(path, path)]
                if fs.isdir(root):
                    found = [p for p in fs.find(root) if not _is_hidden(p, root)]
                else:
                    found = [p for p in fs.glob(root) if fs.isfile(p)] if glob.has_magic(root) else []
                return [(fs.unstrip_protocol(p), fs.unstrip_protocol(p)) for p in sorted(found)]
        path = root
    path = os.path.expanduser(path)
    if os.path.isdir(path):
        found = []
        for folder, _, names in os.walk(path, onerror=_raise_unreadable):
            if MANIFEST in names and not _is_hidden(folder, path):
                _refuse_output(folder)
            found += [os.path.join(folder, name) for name in names]
        found = [p for p in found if not _is_hidden(p, path) and os.path.isfile(p)]
    elif os.path.exists(path):
        if not os.path.isfile(path):
            raise InputError(
                f"input {path!r} is not a regular file and can be read only once; pipe it to standard input"
            )
        found = [path]
    else:
        found = [p for p in glob.glob(path, recursive=True) if os.path.isfile(p)]
    return [(p, os.path.abspath(p)) for p in sorted(found)]  # absolute: a worker may have another folder


def _refuse_output(folder: str) -> None:
    """Raise InputError if the folder is an output of mgpu_ngram: its manifest would be read as text."""
    if manifest := find_manifest(folder):
        raise InputError(
            f"{folder!r} is an output folder ({manifest['format']}), which has more files than text; name the files to "
            "read"
        )


def unreadable(error: OSError) -> InputError:
    """Return the error for a local file or directory that cannot be opened."""
    return InputError(f"cannot read {error.filename!r}: {error.strerror}; check the path and its permissions")


def _raise_unreadable(error: OSError) -> None:
    raise unreadable(error)


def _is_hidden(path: str, root: str) -> bool:
    return any(part.startswith(".") for part in path[len(root) :].split("/"))


def filesystem(url: str) -> tuple[Any, str]:
    """Return the fsspec file system of a URL, and the path in it."""
    from fsspec.core import url_to_fs

    found: tuple[Any, str] = url_to_fs(url)
    return found


@contextmanager
def remote_errors(name: str, where: str = "") -> Iterator[None]:
    """Turn every error of a file system into an InputError; drivers have their own exception classes.

    name   the URL or path, as the user gave it
    where  the place in the file, for the message
    """
    try:
        yield
    except (InputError, MemoryError):
        raise
    except ImportError as error:
        scheme = name.partition("://")[0].lower()
        way_out = "pip install 'mgpu-ngram[remote]'" if scheme in REMOTE else f"install fsspec's driver of {scheme}"
        raise InputError(f"cannot read {name!r}: a package is missing ({error}); {way_out}") from None
    except Exception as error:
        reason = " ".join(str(error).split()) or "no reason given"
        raise InputError(
            f"cannot read {name!r}{where}: {type(error).__name__}: {reason}; check the URL, its driver and your access"
        ) from None
