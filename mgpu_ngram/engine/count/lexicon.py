"""The lexicon of pass 2: from hashes of symbols to ids and codes. Spellings stay in the `Vocabulary`."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from mgpu_ngram.engine.memory.budget import Budget
from mgpu_ngram.engine.memory.copies import move_to
from mgpu_ngram.engine.memory.spill import result_to_device, spill
from mgpu_ngram.kernels.common.sorted_search import buckets_of, find_in_buckets
from mgpu_ngram.kernels.compile_cpu import read_only
from mgpu_ngram.kernels.dispatch import array_module, on_gpu

LEXICON_SHARE = 0.05  # most of a GPU's memory that a lexicon may take while chunks are counted
START_CODE, END_CODE = np.uint32(2), np.uint32(3)  # codes of <s> and </s>
UNFINISHED_CODE = np.uint32(0xFFFFFFFF)  # code of the end of a line that gets no </s>


@dataclass(frozen=True)
class Lexicon:
    """The symbols of a corpus, as workers need them to count n-grams; NumPy or CuPy arrays.

    unit        "word", "byte" or "id"
    symbols     V, the number of ids
    tokens      number of tokens of the corpus, including sentence markers
    hash_H      (H,) uint64, ascending: the symbols; for bytes, their values
    ids_H       (H,) int32
    num_shards  number of shards of the corpus
    shard_V     (V,) uint16, the shard of n-grams with this last context word
    split       words too heavy for a shard (core.shards.split_words)
    """

    unit: str
    symbols: int
    tokens: int
    hash_H: Any
    ids_H: Any
    num_shards: int
    shard_V: Any
    split: tuple[int, ...] = ()
    _copies: dict[tuple[str, str], Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def place(self, budget: Budget) -> str:
        """Return the device that computes the codes of tokens: "cpu" if the lexicon would take too much of a GPU."""
        crowds = sum(a.nbytes for a in self.arrays().values()) > LEXICON_SHARE * budget.device_bytes
        return "cpu" if crowds else budget.device

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_copies": {}}

    def codes(self, hash_V: Any, device: str) -> Any:
        """Return (V + 2,) uint32: 0, the code (id + 1) of each local token, and UNFINISHED_CODE."""
        hash_V = move_to(hash_V, device)
        xp = array_module(hash_V)
        codes = xp.zeros(len(hash_V) + 2, np.uint32)
        codes[-1] = UNFINISHED_CODE
        if len(hash_V):
            codes[1:-1] = self._on("ids_H", device)[self._rows(hash_V, device)] + 1
        return codes

    def _rows(self, hash_V: Any, device: str) -> Any:
        """Return the rows of hashes, which the lexicon has."""
        hash_H = self._on("hash_H", device)
        if device == "gpu":
            return array_module(hash_H).searchsorted(hash_H, hash_V)
        hash_H, key = read_only(hash_H), ("buckets", device)
        if key not in self._copies:
            self._copies[key] = buckets_of(hash_H)
        return find_in_buckets(hash_H, self._copies[key], read_only(hash_V))

    def byte_codes(self) -> np.ndarray:
        """Return (257,) uint32: the code of byte b at b + 1, and 0 at 0; for unit "byte"."""
        codes = np.zeros(257, np.uint32)
        codes[self._on("hash_H", "cpu").astype(np.int64) + 1] = self._on("ids_H", "cpu") + 1
        return codes

    def shards_on(self, device: str) -> Any:
        """Return shard_V on the device."""
        return self._on("shard_V", device)

    def arrays(self) -> dict[str, Any]:
        """Return its arrays by name."""
        return {name: getattr(self, name) for name in ("hash_H", "ids_H", "shard_V")}

    def with_arrays(self, named: dict[str, Any]) -> Lexicon:
        """Return the lexicon with other arrays, such as of another device."""
        return replace(self, **named)

    def _on(self, name: str, device: str) -> Any:
        """Return an array on the device, copied there once."""
        array = getattr(self, name)
        if on_gpu(array) == (device == "gpu"):
            return array
        if (name, device) not in self._copies:
            self._copies[name, device] = move_to(array, device)
        return self._copies[name, device]


def place_lexicon(lexicon: Lexicon, budget: Budget, folder: str) -> Lexicon:
    """Return the lexicon where it is; in host memory if it would fill too much of a GPU; in a file of `folder` if host
    memory has no room.
    """
    if lexicon.place(budget) == "gpu":
        return lexicon
    return spill(result_to_device(lexicon, "cpu"), budget, folder)
