"""Compiled C++: `_states` behind `mgpu_ngram.kenlm`, which scores one word in less time than a call of Python takes,
and `_files`, which reads files with several threads.

Installing the package compiles both. A checkout that is not installed compiles `_states` at its first import, like its
kernels, and keeps it in the user's cache; it reads files with threads of Python.
"""

from __future__ import annotations

import functools
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

SOURCE_FOLDER = Path(__file__).parent
MODULE_NAME = "mgpu_ngram.native._states"
COMPILER_FLAGS = ("-std=c++17", "-O2", "-fPIC", "-shared")


@functools.cache
def read_into() -> Callable[[int, int, memoryview, int], int] | None:
    """Return `read_into` of the module `_files`; None if the module is not installed."""
    try:
        module = importlib.import_module("mgpu_ngram.native._files")
    except ImportError:
        return None
    function: Callable[[int, int, memoryview, int], int] = module.read_into
    return function


def states() -> ModuleType:
    """Return the module `_states`. Raises ImportError if it is neither installed nor can be compiled."""
    try:
        return importlib.import_module(MODULE_NAME)
    except ModuleNotFoundError:
        path = _compiled()
    spec = importlib.util.spec_from_file_location(MODULE_NAME, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules[MODULE_NAME] = module
    return module


def _compiled() -> Path:
    """Return the library of these sources and this Python from the user's cache; compile it if it is not there."""
    import shlex
    import subprocess
    import sysconfig
    import tempfile
    import zlib

    from mgpu_ngram.kernels.cache_folders import user_folder

    sources = sorted([*SOURCE_FOLDER.glob("*.h"), SOURCE_FOLDER / "module.cpp"])
    key = zlib.crc32(b"".join(path.read_bytes() for path in sources) + sys.version.encode())
    folder = user_folder("native") or Path(tempfile.mkdtemp(prefix="mgpu_ngram-"))
    path = folder / f"_states.{key:08x}{importlib.machinery.EXTENSION_SUFFIXES[0]}"
    if not path.exists():
        compiler = shlex.split(os.environ.get("CXX") or "c++")
        made = path.with_name(f"{path.name}.{os.getpid()}")
        includes, source = f"-I{sysconfig.get_path('include')}", str(SOURCE_FOLDER / "module.cpp")
        command = [*compiler, *COMPILER_FLAGS, includes, source, "-o", str(made)]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True)
        except (OSError, subprocess.CalledProcessError) as error:
            why = next(iter((getattr(error, "stderr", None) or str(error)).splitlines()), "")
            raise ImportError(
                f"mgpu_ngram.kenlm needs its C++ part, which is not installed and cannot be compiled here: {why}; "
                "install mgpu-ngram by pip, or install a C++ compiler and Python's headers"
            ) from None
        made.replace(path)
    return path
