"""An output folder or file that appears under its name only when it is complete."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import socket
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

from mgpu_ngram.core.errors import InputError, RunError
from mgpu_ngram.core.interrupts import end_if_interrupted
from mgpu_ngram.core.json_text import to_json
from mgpu_ngram.core.storage.crc import append_crc32
from mgpu_ngram.core.storage.scratch import is_running

FORMAT_VERSION = 1  # version of the manifests of all stages
MANIFEST = "manifest.json"
SUFFIXES = (  # of file names, by other programs and by ours
    ".arpa", ".arrow", ".bin", ".binary", ".bz2", ".csv", ".feather", ".gz", ".json", ".jsonl", ".klm", ".npy",
    ".npz", ".parquet", ".safetensors", ".tsv", ".txt", ".xz", ".zarr", ".zip", ".zst",
)  # fmt: skip
DISCARD_TRIES = 20
TEMPORARY = ".tmp"  # suffix of an unfinished file
COPY_BYTES = 1 << 20  # bytes of a file that are copied at once
MAX_PARTS = 1024  # parts that Linux accepts in one call
SYNC_BYTES = 32 << 20  # least bytes of a durable file between two calls of fsync


def open_file(path: str | Path) -> BinaryIO:
    """Open a new file for writing. All files of an output are opened here."""
    return open(path, "xb")


def write_together(file: int, parts: Sequence[Any]) -> int:
    """Call os.writev. All pages of an output are written here."""
    return os.writev(file, parts)


def write_at(file: int, data: Any, offset: int) -> int:
    """Call os.pwrite. All arrays of an output are written here."""
    return os.pwrite(file, data, offset)


class Sink:
    """A file that is being written, with its current size and CRC-32.

    pool  for a durable file: one thread, which calls fsync while further bytes are written
    """

    closed = False  # pyarrow reads it

    def __init__(self, file: BinaryIO, pool: ThreadPoolExecutor | None = None):
        self.file = file
        self.size_bytes = 0
        self.crc32 = 0
        self._pool, self._syncing = pool, Future[None]()
        self._syncing.set_result(None)
        self._synced_bytes = 0  # bytes before the last call of fsync
        self._counting = threading.Lock()

    def write(self, data: Any) -> int:
        self.append(data)
        self.crc32 = zlib.crc32(data, self.crc32)
        return len(data)

    def append(self, data: Any) -> None:
        """Write data that has its own checksums; twice as fast as `write`."""
        self.file.write(data)
        self._count(len(data))

    def write_with_crc(self, parts: Sequence[Any], crc: int) -> None:
        """Write parts whose CRC-32, one after the other, is known."""
        self.add_crc(crc, self.append_together(parts))

    def append_together(self, parts: Sequence[Any]) -> int:
        """Write parts that have their own checksums; return their bytes.

        Makes one system call if possible: after each call, a thread waits for the interpreter lock.
        """
        self.flush()
        views = [memoryview(part) for part in parts if len(part)]
        nbytes = sum(map(len, views))
        while views:
            written = write_together(self.file.fileno(), views[:MAX_PARTS])
            while views and written >= len(views[0]):
                written -= len(views.pop(0))
            if written:
                views[0] = views[0][written:]
        self._count(nbytes)
        return nbytes

    def add_crc(self, crc: int, nbytes: int) -> None:
        """Add the CRC-32 of the last bytes, `nbytes` of them, which were appended."""
        self.crc32 = append_crc32(self.crc32, crc, nbytes)

    def sync(self) -> None:
        """Wait until all data is on disk."""
        self._syncing.result()
        self.flush()
        os.fsync(self.file.fileno())

    def write_at(self, offset: int, data: Any) -> None:
        """Write data that has its own checksums at an offset; several threads may do so at once."""
        data = memoryview(data)
        while data:
            written = write_at(self.file.fileno(), data, offset)
            self._count(written)
            data, offset = data[written:], offset + written

    def _count(self, written: int) -> None:
        """Count written bytes; for a durable file, begin the next fsync when the previous one has ended."""
        with self._counting:
            self.size_bytes += written
            if self._pool and self.size_bytes - self._synced_bytes >= SYNC_BYTES and self._syncing.done():
                self._syncing.result()  # raises the error of the previous fsync
                self.flush()
                self._syncing = self._pool.submit(os.fsync, self.file.fileno())
                self._synced_bytes = self.size_bytes

    def flush(self) -> None:
        self.file.flush()

    def close(self) -> None:
        """Do nothing: pyarrow calls it, and `new_file` closes the file."""


@contextmanager
def new_file(path: str | Path, durable: bool = False) -> Iterator[Sink]:
    """Yield a sink whose content appears at `path` when the block ends; after an error or an interrupt no file appears.

    durable  wait until the data is on disk: even after a crash of the host the file is complete or absent. For
             files that outlive an unfinished run; a finished output has many files and is not worth the wait

    Raises RunError when the disk is full or cannot be written.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}{TEMPORARY}")
    size_bytes = 0
    try:
        with open_file(temporary) as file, ThreadPoolExecutor(1) if durable else nullcontext() as pool:
            sink = Sink(file, pool)
            try:
                yield sink
                if durable:
                    sink.sync()
            finally:
                size_bytes = sink.size_bytes
        if not durable:  # a durable file is finished work, which a resumed run uses
            end_if_interrupted()
        os.replace(temporary, path)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise RunError(f"cannot write {path}: {error.strerror}; give a path in a folder that exists") from error
    except OSError as error:
        raise RunError(
            f"cannot write {path} after {size_bytes:,} bytes: {error.strerror or error}; "
            "free space there or give another output path"
        ) from error
    finally:
        with suppress(OSError):
            os.unlink(temporary)


@contextmanager
def no_empty_folders(outputs: Iterable[str | Path]) -> Iterator[None]:
    """When the block ends, remove empty parent folders of the outputs that the block created."""
    above = {folder for path in outputs for folder in Path(os.path.abspath(path)).parents}
    made = [folder for folder in above if not folder.exists()]
    try:
        yield
    finally:
        for folder in sorted(made, key=lambda folder: len(folder.parts), reverse=True):
            with suppress(OSError):  # it is not empty, or does not exist
                folder.rmdir()


def clear_temporaries(path: Path) -> None:
    """Remove temporary files of this path that killed processes left.

    No other process may write this path meanwhile.
    """
    for entry in path.parent.iterdir():
        if re.fullmatch(rf"\.{re.escape(path.name)}\.[0-9a-f]{{8}}{re.escape(TEMPORARY)}", entry.name):
            entry.unlink(missing_ok=True)


class Output:
    """A folder created beside its final place; `commit` renames it.

    path    the final name
    folder  where to write until then: `path`.partial-HOST-PID-RANDOM

    As a context manager it discards the folder after an exception, and if nobody committed.
    """

    def __init__(self, path: Path, folder: Path, overwrite: bool):
        self.path = path
        self.folder = folder
        self.overwrite = overwrite

    @classmethod
    def create(cls, path: str | Path, overwrite: bool = False) -> Output:
        """Create the working folder and its parents; remove folders that dead runs of this host left beside it.

        Raises InputError if `path` exists (with `overwrite`: if it is not an output of mgpu_ngram), or if the
        folder cannot be created.
        """
        check_free(path, overwrite)
        path = Path(os.path.realpath(path))
        mark = run_mark()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            clear_leftovers(path)
            check_free(path, overwrite)  # again: clear_leftovers may have put an old output back
            folder = path.with_name(f"{path.name}.partial-{mark}")
            folder.mkdir()
        except OSError as error:
            raise InputError(
                f"cannot make output folder {path}: {error.strerror or error}; give another output path"
            ) from error
        return cls(path, folder, overwrite)

    def commit(self) -> None:
        """Rename the folder to its final name. With `overwrite` the old output is removed only now."""
        for leftover in self.folder.rglob(f".*{TEMPORARY}"):  # of workers that died while they wrote
            leftover.unlink(missing_ok=True)
        old = self.path.with_name(f"{self.path.name}.old-{run_mark()}")
        try:
            if os.path.lexists(self.path):
                check_free(self.path, self.overwrite)
                os.rename(self.path, old)
            os.rename(self.folder, self.path)
        except BaseException as error:
            if old.exists() and not self.path.exists():
                os.rename(old, self.path)
            if isinstance(error, OSError):
                raise RunError(
                    f"cannot rename {self.folder} to {self.path}: {error.strerror or error}; give another output path"
                ) from error
            raise
        shutil.rmtree(old, ignore_errors=True)

    def discard(self) -> None:
        """Delete the working folder; does nothing after a commit."""
        for _ in range(DISCARD_TRIES):
            shutil.rmtree(self.folder, ignore_errors=True)
            if not self.folder.exists():
                return
            time.sleep(0.1)  # a running task wrote one more file

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.discard()


def _host() -> str:
    return _in_names(socket.gethostname())


def _in_names(host: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.]", "_", host)


def run_mark() -> str:
    """Return HOST-PID-RANDOM, which marks temporary folders of this process."""
    return f"{_host()}-{os.getpid()}-{secrets.token_hex(4)}"


def _is_output(path: str | Path) -> bool:
    try:
        return str(json.loads((Path(path) / MANIFEST).read_bytes())["format"]).startswith("mgpu_ngram ")
    except (OSError, ValueError, KeyError, TypeError):
        return False


def check_kind(path: str | Path, format: str) -> None:
    """Raise InputError if an output of another format is at `path`; `overwrite` does not replace it."""
    try:
        found = json.loads((Path(path) / MANIFEST).read_bytes())["format"]
    except (OSError, ValueError, KeyError, TypeError):
        return
    if found != format:
        raise InputError(f"{path} holds {found}, not {format}; delete it yourself or give another path")


def check_free(
    path: str | Path,
    overwrite: bool,
    kind: str = f"an output of mgpu_ngram (it has no {MANIFEST} of ours)",
    is_kind: Callable[[str | Path], bool] = _is_output,
) -> None:
    """Raise InputError unless `path` is local and free; with `overwrite` it may exist if is_kind(path) is true.

    kind  with its article, such as "a model file"
    """
    if not str(path) or "://" in str(path):
        raise InputError(f"output {str(path)!r} is not a local path; give one that is")
    if not os.path.lexists(path):
        return
    if not overwrite:
        raise InputError(f"output {path} exists; add --overwrite (in Python overwrite=True) or give another path")
    if not is_kind(path):
        raise InputError(f"{path} exists and is not {kind}; delete it yourself or give another path")


def check_suffix(path: str | Path, format: str, suffix: str) -> None:
    """Raise InputError if the name of a file of `format` has the suffix of another format."""
    found = Path(path).suffix.lower()
    if found in SUFFIXES and found != suffix:
        name = Path(path).with_suffix(suffix)
        raise InputError(f"output {path} would be {format}, but its name ends with {found}; name it {name}")


def check_folder_name(path: str | Path) -> None:
    """Raise InputError if an output folder would have the name of a file."""
    found = Path(path).suffix.lower()
    if found in SUFFIXES:
        name = Path(path).with_suffix("")
        raise InputError(f"output {path} would be a folder, but its name ends with {found}; name it {name}")


def check_not_input(path: str | Path, inputs: Iterable[str]) -> None:
    """Raise InputError for an output that is an input of the run, by any name of the file, or a folder that holds one:
    the new output would replace the input.
    """
    output = os.path.realpath(path)
    for given in inputs:
        real = os.path.realpath(os.path.expanduser(given))
        if real == output or (os.path.isfile(real) and os.path.isfile(output) and os.path.samefile(real, output)):
            name = "" if str(path) == given else f" {given},"
            raise InputError(f"output {path} is{name} an input of this run; give another output path")
        if real.startswith(output + os.sep):
            raise InputError(f"output {path} would replace {given}, which this run reads; give another output path")


def check_file(
    path: str | Path, overwrite: bool, kind: str, start: bytes | None = None, suffixes: tuple[str, ...] = ()
) -> None:
    """Raise InputError unless a file may be written to the path.

    kind      with its article, such as "a Parquet file"
    start     first bytes of files of this kind, which alone may be replaced; None: any regular file may be
    suffixes  suffixes of names of this kind, of which the first one is advised; (): any name will do
    """
    folder = os.path.dirname(os.path.abspath(path))
    if os.path.isdir(path) or not os.path.isdir(folder):
        named = kind if suffixes else "a file"
        raise InputError(f"output {path} is not a file in an existing folder; give the path of {named} to write")
    if start is None:
        check_free(path, overwrite, "a regular file", os.path.isfile)
    else:
        check_free(path, overwrite, kind, lambda file: _starts_with(file, start))
    if not os.access(folder, os.W_OK):
        raise InputError(f"cannot write in {folder}: Permission denied; give another output path")
    if suffixes and not str(path).lower().endswith(suffixes):
        check_suffix(path, kind, suffixes[0])


def _starts_with(path: str | Path, start: bytes) -> bool:
    if not os.path.isfile(path):
        return False
    with open(path, "rb") as file:
        return file.read(len(start)) == start


def check_text_file(path: str | Path, overwrite: bool, suffixes: tuple[str, ...] = ()) -> None:
    """Raise InputError unless a text file may be written to the path; `suffixes` may end its name besides .txt."""
    check_file(path, overwrite, "a text file", None, (".txt", *suffixes))


def clear_leftovers(path: Path, ended: Iterable[tuple[str, int]] = ()) -> None:
    """Remove partial folders of dead runs of this host; restore an output that such a run had moved aside.

    Only folders of `path` itself; a checkpoint beside it belongs to another path and stays.

    ended  (host, process) of runs of other hosts that have ended, too
    """
    pattern = re.compile(rf"{re.escape(path.name)}\.(partial|old)-([A-Za-z0-9_.]+)-(\d{{1,9}})-[0-9a-f]{{8}}")
    others = {(_in_names(host), pid) for host, pid in ended}
    for entry in list(path.parent.iterdir()):
        match = pattern.fullmatch(entry.name)
        if not match:
            continue
        owner = match[2], int(match[3])
        if owner not in others and (owner[0] != _host() or is_running(owner[1])):
            continue
        if match[1] == "old" and not os.path.lexists(path):
            os.rename(entry, path)
        else:
            shutil.rmtree(entry, ignore_errors=True)


def write_manifest(folder: str | Path, manifest: dict[str, Any], format: str) -> None:
    """Write manifest.json: `manifest` plus the format's name and version."""
    whole = {**manifest, "format": format, "format_version": FORMAT_VERSION}
    text = to_json(whole, sort_keys=True, indent=2)
    with new_file(Path(folder) / MANIFEST) as sink:
        sink.write(text.encode() + b"\n")


def find_manifest(path: str | Path) -> dict[str, Any] | None:
    """Return the manifest of any output of mgpu_ngram at `path`, or None if it cannot be read."""
    try:
        manifest = json.loads((Path(path) / MANIFEST).read_bytes())
    except (OSError, ValueError):
        return None
    known = isinstance(manifest, dict) and str(manifest.get("format")).startswith("mgpu_ngram ")
    return manifest if known and manifest.get("format_version") == FORMAT_VERSION else None
