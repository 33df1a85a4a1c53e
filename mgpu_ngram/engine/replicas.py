"""The model that tasks of this process work with: one replica at a time, kept for the next task."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from mgpu_ngram.core.errors import RunError
from mgpu_ngram.core.model_file import BackoffModel, identify
from mgpu_ngram.engine.device import memory_guard
from mgpu_ngram.engine.open_model import open_model

LESS_MEMORY = "use a quantised model (mgpu-ngram trie --quantize 8), or fewer workers"

R = TypeVar("R")
_held: dict[tuple, Any] = {}
_loading = threading.Lock()


def held_replica(
    kind: Hashable,
    make: Callable[[BackoffModel], R],
    path: str,
    identity: str,
    device: str,
    threads: int,
    verify: bool,
    way_out: str = LESS_MEMORY,
) -> R:
    """This process's replica of a model file; one of another kind or of another file makes way for it.

    kind      what `make` makes of a model
    identity  what `identify` said of the file before; RunError when it says otherwise now
    threads   that parse an ARPA file
    verify    compare the checksums of a model file
    way_out   said to those whose memory is too small
    """
    key = kind, path, identity, device, verify
    with _loading:
        if key not in _held:
            _held.clear()
            found = identify(path)
            if found != identity:
                raise RunError(f"{path} is {found} here but was {identity}; run again with one file")
            with memory_guard("loading a model", device, way_out):
                _held[key] = make(open_model(path, device, threads, verify=verify))
        return _held[key]
