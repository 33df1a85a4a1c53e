"""All undocumented names of Numba that are used, with the reason and the public call that each one replaces.

No other file uses undocumented names, so a new Numba release can break only this file;
tests/kernels/test_numba_private.py then fails. If a name is missing, functions are still compiled, but the cache is
loaded more slowly or not at all.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numba

_settings = vars(numba.config)


def configured_folder() -> str:
    """Return the cache folder that the user has set for Numba; empty if none is set.

    Replaces os.environ["NUMBA_CACHE_DIR"], which lacks the settings of .numba_config.yaml.
    """
    return _settings.get("CACHE_DIR") or ""


def cached_njit(fn: Callable[..., Any], folder: Path, options: dict[str, Any]) -> Any:
    """Return `numba.njit(**options)(fn)` with its machine code kept in `folder`.

    Replaces numba.njit(cache=True), which has one folder for all functions. That also imports modules that only
    compilation needs, which takes 0.3 to 0.5 s, when it looks into its cache. If two processes compile a function for
    different types at once, they may give their files the same name, and then run code for the wrong types.
    """
    theirs = _settings.get("CACHE_DIR")
    try:
        _settings["CACHE_DIR"] = str(folder)
        dispatcher = numba.njit(cache=True, **options)(fn)
    finally:
        _settings["CACHE_DIR"] = theirs
    cache: Any = getattr(dispatcher, "_cache", None)
    load = getattr(cache, "load_overload", None)
    if not load or not Path(cache.cache_path).is_relative_to(folder):
        return numba.njit(**options)(fn)

    def load_overload(signature: Any, context: Any) -> Any:
        with _no_imports(context):
            found = load(signature, context)
        return found if found and found.signature.args == tuple(getattr(signature, "args", signature)) else None

    cache.load_overload = load_overload
    return dispatcher


@contextmanager
def _no_imports(context: Any) -> Iterator[None]:
    """Let a cache load machine code without imports that only compilation needs.

    `context.refresh`, which a cache calls, does nothing: Numba calls it again before it compiles. Functions of Numba
    that machine code holds find empty modules in place of their own, unless these are imported. The caller holds
    Numba's lock.
    """
    try:
        from numba.core import environment

        _name_runtime()
        names: Any = environment
        theirs = names.importlib
    except (ImportError, AttributeError):
        yield
        return
    context.refresh = lambda: None
    names.importlib = SimpleNamespace(import_module=_module)
    try:
        yield
    finally:
        del context.refresh
        names.importlib = theirs


@functools.cache
def _name_runtime() -> None:
    """Let LLVM find the functions in C of Numba's runtime, which machine code calls.

    Replaces what `context.refresh` does first: it also compiles the functions of the runtime that are not in C, which
    takes 0.02 s. Machine code that a cache holds has its own copies of these.
    """
    from llvmlite.binding import add_symbol

    runtime: Any = importlib.import_module("numba.core.runtime._nrt_python")
    for name, address in runtime.c_helpers.items():
        add_symbol(name if name.startswith("_") else f"NRT_{name}", address)


def _module(name: str) -> ModuleType:
    if name.startswith("numba.") and name not in sys.modules:
        return ModuleType(name)
    return importlib.import_module(name)


def on_compilation(react: Callable[[Callable[..., Any]], None], step: Callable[[], None]) -> None:
    """Call `react` with each Python function that Numba starts to compile, and `step` before each step of compilations.
    An exception of `step` ends the compilation. If Numba lacks these events, neither is called.

    Replaces no public call: Numba has none for these events.
    """
    try:
        from numba.core import event
    except ImportError:
        return

    class Listener(event.Listener):
        def on_start(self, event: Any) -> None:
            if event.kind == "numba:compile":
                react(event.data["dispatcher"].py_func)
            else:
                step()

        def on_end(self, event: Any) -> None:
            pass

    for kind in "numba:compile", "numba:run_pass":
        event.register(kind, Listener())


def array_argument(i: int, context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    """Return argument i of an intrinsic, an array, with its address `data` and its `shape` in LLVM's language.

    Replaces no public call: the documentation of intrinsics does not cover arrays.
    """
    return context.make_array(signature.args[i])(context, builder, arguments[i])
