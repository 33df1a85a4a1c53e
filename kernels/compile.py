"""Compile functions with Numba at their first call, and keep the machine code in the user's cache folder.

Numba takes 0.2 s to import, so this module imports it when a compiled function is first called, and not before. The
cache folder is $NUMBA_CACHE_DIR, else mgpu_ngram/numba in $XDG_CACHE_HOME or ~/.cache, else a private folder in the
temporary directory. All processes of a user share it. Where no folder can be written, every process compiles anew.
"""

from __future__ import annotations

import functools
import hashlib
import multiprocessing
import os
import stat
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from mgpu_ngram.core.version import VERSION

PACKAGE = __name__.partition(".")[0]
COMPILING = "compiling CPU kernels, once per machine (about 12 s)"

_building = threading.RLock()
_sources: dict[int, frozenset[str]] = {}  # source files of each Numba object, by its id; these objects are never freed


class Lazy:
    """A Python function that becomes an object of Numba when it is first used."""

    def __init__(self, fn: Callable, build: Callable[[frozenset[str]], Any]):
        """`build` makes the object of Numba, given the source files that its machine code depends on."""
        functools.update_wrapper(self, fn)
        self._fn, self._build = fn, build
        self._built: Any = None

    def built(self) -> Any:
        """Return the object of Numba. Those that the function calls are built first and replace their `Lazy`."""
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


def njit(cache: bool = False, **options: Any) -> Callable[[Callable], Any]:
    """Return a decorator as `numba.njit` with these options is, which imports Numba and compiles at the first call."""

    def decorate(fn: Callable) -> Any:
        return Lazy(fn, lambda sources: _dispatcher(fn, sources, cache, options))

    return decorate


def import_early() -> None:
    """Import Numba in a thread while the caller reads files. Ignores errors, which the first call reports."""

    def load() -> None:
        with suppress(ImportError), _building:  # Numba's circular imports fail in two threads at once
            import numba  # noqa: F401

    threading.Thread(target=load, daemon=True).start()


def intrinsic(fn: Callable) -> Any:
    """As `numba.extending.intrinsic`, which is imported when a compiled function first needs this one."""

    def build(_: frozenset[str]) -> Any:
        from numba.extending import intrinsic

        return intrinsic(fn)

    return Lazy(fn, build)


def _dispatcher(fn: Callable, sources: frozenset[str], cache: bool, options: dict[str, Any]) -> Any:
    import numba

    _announce_compilations()
    folder = cache_folder() if cache else None
    if not folder:
        return numba.njit(**options)(fn)
    # Numba itself looks at the source of `fn` alone, not at the sources of what it calls from other files.
    settings = vars(numba.config)
    theirs = settings["CACHE_DIR"]
    try:
        settings["CACHE_DIR"] = str(folder / _digest(sources))
        dispatcher = numba.njit(cache=True, **options)(fn)
    finally:
        settings["CACHE_DIR"] = theirs
    _load_without_registries(dispatcher._cache)
    return dispatcher


def _load_without_registries(cache: Any) -> None:
    """Let a cache of Numba load machine code without the modules that only compilation needs, which take 0.3 s.

    It then loads code for the types that are asked for, and no other.

    Numba refreshes the context of its target before it looks into a cache, and once more before it compiles.
    """
    from numba.core.runtime import rtsys
    from numba.core.sigutils import normalize_signature

    load = cache.load_overload

    def load_overload(signature: Any, context: Any) -> Any:
        rtsys.initialize(context)  # the runtime that machine code calls
        context.refresh = lambda: None  # Numba holds its lock here
        try:
            found = load(signature, context)
        finally:
            del context.refresh
        # Two processes that compile one function for different types at once may give their files one name.
        return found if found and found.signature.args == tuple(normalize_signature(signature)[0]) else None

    cache.load_overload = load_overload


@functools.cache
def cache_folder() -> Path | None:
    """Return the folder of compiled CPU kernels; None where none can be written."""
    import numba

    theirs = vars(numba.config)["CACHE_DIR"]
    if theirs and is_writable(Path(theirs)):
        return Path(theirs)
    return user_folder("numba")


@functools.cache
def user_folder(name: str) -> Path | None:
    """Return a folder in the user's cache, else a private one in the temporary directory; None where none is writable.

    name  of the folder in mgpu_ngram
    """
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    user = os.getuid() if hasattr(os, "getuid") else os.environ.get("USERNAME", "user")
    if os.path.isabs(home) and is_writable(Path(home, PACKAGE, name)):
        return Path(home, PACKAGE, name)
    try:
        private = Path(tempfile.gettempdir(), f"{PACKAGE}-cache-{user}")
    except OSError:  # no temporary directory can be written
        return None
    return private / name if _is_private(private) and is_writable(private / name) else None


def is_writable(folder: Path) -> bool:
    """Make a folder, and return whether files can be written there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        return False
    return True


def _is_private(folder: Path) -> bool:
    """Make a folder that only this user can write: compiled code of others must not be run."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = os.lstat(folder)
    except OSError:
        return False
    if not hasattr(os, "getuid"):
        return True
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022


def _digest(sources: frozenset[str]) -> str:
    """Return a short name of this version and of the contents of source files."""
    contents = b"".join(_file_digest(source) for source in sorted(sources))
    return hashlib.sha256(VERSION.encode() + contents).hexdigest()[:16]


@functools.cache
def _file_digest(source: str) -> bytes:
    return hashlib.sha256(Path(source).read_bytes()).digest()


@functools.cache
def _announce_compilations() -> None:
    """Make Numba announce the first compilation of a function of this package."""
    from numba.core import event

    class Announcer(event.Listener):
        def on_start(self, event: Any) -> None:
            if str(event.data["dispatcher"].py_func.__module__).startswith(f"{PACKAGE}."):
                announce(COMPILING)

        def on_end(self, event: Any) -> None:
            pass

    event.register("numba:compile", Announcer())


@functools.cache
def announce(message: str) -> None:
    """Say something once on the terminal of stderr; not in a log, as progress bars, and not from each worker."""
    if sys.stderr and sys.stderr.isatty() and multiprocessing.parent_process() is None:
        print(f"mgpu-ngram: {message}", file=sys.stderr, flush=True)
