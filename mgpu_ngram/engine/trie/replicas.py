"""Replicas of models that a process keeps for later tasks as long as memory suffices."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, TypeVar

from mgpu_ngram.core.errors import RunError
from mgpu_ngram.core.models.model_file import BackoffModel
from mgpu_ngram.core.models.model_head import ModelHead, read_head
from mgpu_ngram.engine.memory.device import free_bytes
from mgpu_ngram.engine.memory.out_of_memory import memory_guard, out_of_memory
from mgpu_ngram.engine.trie.open_model import open_model

LESS_MEMORY = "use a quantised model (mgpu-ngram convert --quantize 8), or fewer workers"
BYTES_PER_FILE_BYTE = 4  # at most, of a replica: a trie takes 16 bytes per n-gram, with an edge table 47

R = TypeVar("R")


@dataclass(frozen=True)
class _Held:
    replica: Any
    identity: str  # of the file that it was loaded from
    verified: bool


_held: OrderedDict[tuple[Hashable, str, str], _Held] = OrderedDict()  # by kind, path, device; last used last
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
    """As `held_object`, with the object that `make` returns for the model of a file.

    threads   threads that parse an ARPA file
    """

    def load(head: ModelHead) -> R:
        return make(open_model(head, device, threads, verify=verify))

    return held_object(kind, load, path, identity, device, verify, way_out)


def held_object(
    kind: Hashable,
    load: Callable[[ModelHead], R],
    path: str,
    identity: str,
    device: str,
    verify: bool,
    way_out: str = LESS_MEMORY,
) -> R:
    """Return this process's replica of a model file; `load` makes it from the head of the file at first use.

    kind      name of the kind of objects that `load` returns
    identity  `ModelHead.identity` of the file; RunError if the file has changed
    verify    compare the checksums of a model file
    way_out   advice for the error if memory is too small

    Several models may be held. The least recently used ones are dropped if a new one does not fit beside them. All
    replicas of a file are dropped when the file changes.
    """
    key = kind, path, device
    with _loading:
        held = _held.get(key)
        if held and held.identity == identity and (held.verified or not verify):
            _held.move_to_end(key)
            return held.replica
        head = read_head(path)
        if head.identity != identity:
            raise RunError(
                f"{path} is {head.identity} on this worker but was {identity} at the start; "
                "run again with the same file on all workers"
            )
        _held.pop(key, None)
        for other in [k for k, h in _held.items() if k[1] == path and h.identity != identity]:
            del _held[other]
        del held  # the only reference to a dropped replica
        with memory_guard("loading a model", device, way_out):
            replica = _loaded(lambda: load(head), path, device)
        _held[key] = _Held(replica, identity, verify)
        return replica


def _loaded(load: Callable[[], R], path: str, device: str) -> R:
    """Return load(); drops as many of the least recently used replicas as needed."""
    need = BYTES_PER_FILE_BYTE * os.path.getsize(path)
    while _held and min(free_bytes("cpu"), free_bytes(device)) < need:
        _held.popitem(last=False)
    while True:
        try:
            return load()
        except Exception as error:
            if not _held or not out_of_memory(error):
                raise
        _held.popitem(last=False)  # outside the handler: the error keeps arrays of the failed attempt
