"""Compile functions with Numba at their first call, and keep the machine code in the user's cache folder.

Numba takes 0.2 s to import, so this module imports it only when a compiled function is first called. The cache folder
is $NUMBA_CACHE_DIR, else mgpu_ngram/numba in $XDG_CACHE_HOME or ~/.cache, else a private folder in the temporary
directory. All processes of a user share it. If no folder is writable, every process compiles all functions again.
"""

from __future__ import annotations

import functools
import hashlib
import multiprocessing
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from mgpu_ngram.core.version import VERSION

from .cache_folders import PACKAGE, is_writable, user_folder

COMPILING_CPU = "compiling CPU kernels, once per machine (about 12 s)"

_building = threading.RLock()
_stopped = threading.Event()
_sources: dict[int, frozenset[str]] = {}  # source files of each Numba object, by its id; these objects are never freed


class Lazy:
    """A Python function that becomes an object of Numba when it is first used."""

    def __init__(self, fn: Callable[..., Any], build: Callable[[frozenset[str]], Any]):
        """`build` makes the object of Numba, given the source files that its machine code depends on."""
        functools.update_wrapper(self, fn)
        self._fn, self._build = fn, build
        self._built: Any = None

    def built(self) -> Any:
        """Return the object of Numba.

        Functions that this one calls are built first and replace their `Lazy` objects.
        """
        with _building:
            if self._built is None:
                names = self._fn.__globals__
                sources = {self._fn.__code__.co_filename}
                for name in self._fn.__code__.co_names:
                    if isinstance(names.get(name), Lazy) and names[name] is not self:
                        names[name] = names[name].built()
                    sources |= _sources.get(id(names.get(name)), frozenset())
                self._built = self._build(frozenset(sources))
                _sources[id(self._built)] = frozenset(sources)
                if names.get(self._fn.__name__) is self:
                    names[self._fn.__name__] = self._built
            return self._built

    def __call__(self, *args: Any) -> Any:
        return self.built()(*args)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # pickle and inspect ask for these; none of them is Numba's
            raise AttributeError(name)
        return getattr(self.built(), name)


def njit(cache: bool = False, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Return a decorator like `numba.njit` with these options, which imports Numba and compiles at the first call."""

    def decorate(fn: Callable[..., Any]) -> Any:
        return Lazy(fn, lambda sources: _dispatcher(fn, sources, cache, options))

    return decorate


def read_only(array: Any) -> Any:
    """Return a read-only view of a NumPy array, like a mapped file.

    Numba compiles a function for each combination of writable and read-only arrays. A function that only reads its
    inputs gets read-only views, so it is compiled once.
    """
    view = array.view()
    view.flags.writeable = False
    return view


def import_early() -> None:
    """Import Numba in a thread while the caller reads files. Ignores errors, which the first call reports."""

    def load() -> None:
        with suppress(ImportError), _building:  # Numba's circular imports fail in two threads at once
            import numba  # noqa: F401

    threading.Thread(target=load, daemon=True).start()


def intrinsic(fn: Callable[..., Any]) -> Any:
    """As `numba.extending.intrinsic`, which is imported when a compiled function first needs the intrinsic."""

    def build(_: frozenset[str]) -> Any:
        from numba.extending import intrinsic

        return intrinsic(fn)

    return Lazy(fn, build)


def _dispatcher(fn: Callable[..., Any], sources: frozenset[str], cache: bool, options: dict[str, Any]) -> Any:
    import numba

    from .numba_private import cached_njit

    _follow_compilations()
    folder = cache_folder() if cache else None
    if not folder:
        return numba.njit(**options)(fn)
    # Numba itself looks at the source of `fn` alone, not at the sources of what it calls from other files.
    return cached_njit(fn, folder / _digest(sources), options)


@functools.cache
def cache_folder() -> Path | None:
    """Return the folder of compiled CPU kernels; None if no folder is writable."""
    from .numba_private import configured_folder

    theirs = configured_folder()
    if theirs and is_writable(Path(theirs)):
        return Path(theirs)
    return user_folder("numba")


def _digest(sources: frozenset[str]) -> str:
    """Return a short name of this version and of the contents of source files."""
    contents = b"".join(_file_digest(source) for source in sorted(sources))
    return hashlib.sha256(VERSION.encode() + contents).hexdigest()[:16]


@functools.cache
def _file_digest(source: str) -> bytes:
    return hashlib.sha256(Path(source).read_bytes()).digest()


@functools.cache
def _follow_compilations() -> None:
    """Let Numba announce the first compilation of a function of this package, and look for an interrupt in each."""
    from .numba_private import on_compilation

    def react(fn: Callable[..., Any]) -> None:
        if str(fn.__module__).startswith(f"{PACKAGE}."):
            announce(COMPILING_CPU)

    def step() -> None:
        if _stopped.is_set():
            raise KeyboardInterrupt

    on_compilation(react, step)


def stop_compiling() -> None:
    """End compilations at their next step with a KeyboardInterrupt, also in threads, until `allow_compiling`."""
    _stopped.set()


def allow_compiling() -> None:
    """Let functions be compiled again after `stop_compiling`."""
    _stopped.clear()


@functools.cache
def announce(message: str) -> None:
    """Print a message once if stderr is a terminal, so not in logs, and not from each worker."""
    if sys.stderr and sys.stderr.isatty() and multiprocessing.parent_process() is None:
        print(f"mgpu-ngram: {message}", file=sys.stderr, flush=True)
