"""The words of a corpus, in the order of their ids."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

SPECIALS = (b"<unk>", b"<s>", b"</s>")  # ids 0, 1, 2 of every word vocabulary


@dataclass(frozen=True)
class Vocabulary:
    """V symbols and what is known of each.

    unit            "word", "byte" or "id"
    offsets_V       (V + 1,) int64 and
    data            uint8: symbol v is data[offsets_V[v]:offsets_V[v + 1]]; a word's bytes, or one
                    byte, or a token id as 4 little-endian bytes
    counts_V        (V,) int64, how often it stands in the corpus
    first_source_V  (V,) int32, input in which it stands first, -1 if it never does
    first_offset_V  (V,) int64, byte offset of that place in the (decompressed) input

    Words: <unk> 0, <s> 1, </s> 2, then by falling count, ties by bytes. Bytes and token ids: only
    those that occur, by rising value.
    """

    unit: str
    offsets_V: np.ndarray
    data: np.ndarray
    counts_V: np.ndarray
    first_source_V: np.ndarray
    first_offset_V: np.ndarray

    def __len__(self) -> int:
        return len(self.counts_V)

    def symbol(self, v: int) -> bytes:
        """The bytes of symbol v."""
        return self.data[self.offsets_V[v] : self.offsets_V[v + 1]].tobytes()
