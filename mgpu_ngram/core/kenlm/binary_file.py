"""KenLM's binary models: header, sections and words. `core.kenlm.trie` and `core.kenlm.probing` read the n-grams.

The layouts are those of KenLM's lm/binary_format.cc, lm/vocab.cc, lm/search_hashed.hh, lm/trie.cc, lm/quantize.cc and
lm/bhiksha.cc.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.ngrams.words import UNKNOWN, HashedWords, Words
from mgpu_ngram.core.storage.file_heads import KENLM_MAGIC
from mgpu_ngram.kernels.common.murmur import murmur_hash, murmur_hashes
from mgpu_ngram.kernels.common.word_table import index_words

INCOMPLETE = KENLM_MAGIC + b" incomplete\n"
VERSION_LINE = KENLM_MAGIC + b" format version "
SANITY = (VERSION_LINE + b"5\n\0").ljust(56, b"\0") + struct.pack("<3f3IQ", 0, 1, -0.5, 1, 2**32 - 1, 0, 1)
FIXED = struct.Struct("<B3xfI?3xI")  # order, probing multiplier, type, whether it has words, search version
MODEL_TYPES = (
    "probing", "probing with rest costs", "trie", "quantised trie", "trie with array pointers",
    "quantised trie with array pointers",
)  # fmt: skip
PROBING, REST, TRIE, QUANTIZED, ARRAY = 0, 1, 2, 1, 2  # the last two are added to TRIE
SLOT_V = np.dtype([("hash", "<u8"), ("id", "<u4")])  # slot of the word table of a probing model
UNIGRAM_V = np.dtype([("prob", "<f4"), ("backoff", "<f4"), ("next", "<u8")])  # unigram of a trie; `next`: first child


@dataclass(frozen=True)
class Header:
    """The header of a KenLM binary model.

    kind        index in MODEL_TYPES
    counts      n-grams of each order; in a probing model, without n-grams that KenLM filled in
    multiplier  slots per n-gram of hash tables
    has_words   whether the file ends with the words
    """

    kind: int
    counts: tuple[int, ...]
    multiplier: float
    has_words: bool

    @property
    def order(self) -> int:
        return len(self.counts)

    @property
    def size_bytes(self) -> int:
        return -(-(len(SANITY) + FIXED.size + 8 * self.order) // 8) * 8

    @property
    def is_trie(self) -> bool:
        return self.kind >= TRIE

    @property
    def quantized(self) -> bool:
        return self.is_trie and bool((self.kind - TRIE) & QUANTIZED)

    @property
    def has_arrays(self) -> bool:
        return self.is_trie and bool((self.kind - TRIE) & ARRAY)

    def pack(self) -> bytes:
        """Return the bytes of the header."""
        fixed = FIXED.pack(self.order, self.multiplier, self.kind, self.has_words, self.is_trie)
        return (SANITY + fixed + struct.pack(f"<{self.order}Q", *self.counts)).ljust(self.size_bytes, b"\0")


def read_header(name: str, head: bytes) -> Header:
    """Return the header of a file from its first bytes. Raises InputError for a header that KenLM refuses, too."""
    if head.startswith(INCOMPLETE):
        raise InputError(f"{name!r} is a KenLM binary model that build_binary did not finish; build it again")
    version = head[len(VERSION_LINE) :].split(b"\n")[0]
    if head.startswith(VERSION_LINE) and version.isdigit() and version != b"5":
        raise InputError(
            f"{name!r} is a KenLM binary model of version {version.decode()} but must be of version 5; build it again"
        )
    if len(head) >= len(SANITY) and head[: len(SANITY)] != SANITY:
        raise InputError(
            f"{name!r} is a KenLM binary model of a machine with another byte order or word size, or damaged; build it "
            "again on this machine"
        )
    try:
        order, multiplier, kind, has_words, search = FIXED.unpack_from(head, len(SANITY))
        counts = struct.unpack_from(f"<{order}Q", head, len(SANITY) + FIXED.size)
        MODEL_TYPES[kind]
    except (struct.error, IndexError):
        raise InputError(f"{name!r} is a KenLM binary model with a damaged header; build it again") from None
    if order < 2 or not 1 <= multiplier < np.inf or search != (kind >= TRIE):
        raise InputError(
            f"{name!r} is a KenLM binary model with a damaged header: order {order}, {multiplier:g} slots per n-gram, "
            f"search version {search} of a {MODEL_TYPES[kind]} model; build it again"
        )
    return Header(kind, counts, multiplier, has_words)


def slots_of(ngrams: int, multiplier: float) -> int:
    """Return the number of slots of a hash table."""
    return max(ngrams + 1, int(np.float32(multiplier) * np.float32(ngrams)))


def plain_backoffs(backoff_G: np.ndarray) -> np.ndarray:
    """Return backoffs with 0 in place of -0; KenLM marks n-grams that are not a history by -0."""
    return backoff_G + np.float32(0)


class KenlmFile:
    """A KenLM binary model in a file that is memory-mapped: do not change it while it is read.

    name    for messages
    data    uint8, the whole file
    header  its header
    hash_V  (V,) uint64, the hashes of the words by their ids; <unk> has id 0 and no hash
    search  the offset of the n-grams
    """

    def __init__(self, path: str | Path, head: bytes):
        """Read the hashes of words; `head` has the first bytes of the file. Raises InputError for a damaged file."""
        self.name = str(path)
        self.header = read_header(self.name, head)
        self.data = np.memmap(path, np.uint8, "r").view(np.ndarray)
        at = self.header.size_bytes
        if self.header.is_trie:
            self.search, self.hash_V = self._sorted_hashes(at)
        else:
            self.search, self.hash_V = self._hash_table(at)

    def array(self, at: int, dtype: np.dtype, count: int) -> np.ndarray:
        """Return `count` values from an offset on, which may be unaligned. Raises InputError beyond the file's end."""
        self.check_size(at + count * dtype.itemsize)
        return np.ndarray(count, dtype, self.data, at)

    def check_size(self, size_bytes: int) -> None:
        """Raise InputError if the file has fewer bytes."""
        if len(self.data) < size_bytes:
            raise InputError(
                f"{self.name!r} has {len(self.data):,} bytes, but its header asks for {size_bytes:,} or more; it is "
                "truncated or damaged: copy it again"
            )

    def damaged(self, why: str) -> InputError:
        """Return the error of a file that contradicts itself."""
        return InputError(f"{self.name!r} is a damaged KenLM binary model: {why}; copy it or build it again")

    def read_words(self, at: int) -> Words:
        """Return the words, which are at the end of the file from offset `at` on; or their hashes if it has no words.

        Raises InputError for words that do not have these hashes.
        """
        words = self._spelled(at) if self.header.has_words else HashedWords(self.hash_V, self.name)
        for marker in ("<s>", "</s>"):
            if words.id(marker) == 0:
                raise InputError(f"{self.name!r} lacks the word {marker}, which a model needs; build it with {marker}")
        return words

    def _spelled(self, at: int) -> Words:
        data, V = self.data[at:], len(self.hash_V)
        end_V = np.flatnonzero(data == 0)
        if len(end_V) < V or data[: end_V[0]].tobytes() != UNKNOWN:
            raise self.damaged(f"it ends with {len(end_V):,} words but has the hashes of {V:,}")
        words = _cut(data, end_V[:V])  # KenLM ignores bytes after the last word
        hash_V = murmur_hashes(words.offsets_V, words.data)
        if (hash_V[1:] != self.hash_V[1:]).any():
            words = _cut(data, self._ends(data, end_V))
        words.slots_C, _ = index_words(words.offsets_V, words.data)  # finds the first of equal words
        return words

    def _ends(self, data: np.ndarray, zeros: np.ndarray) -> np.ndarray:
        """Return (V,) the end of each word, found by its hash: a word may contain NUL bytes.

        zeros  where the NUL bytes are
        """
        ends, start, z = [zeros[0]], zeros[0] + 1, 1
        spare = len(zeros) - len(self.hash_V)  # NUL bytes inside words or after the last word
        for v, wanted in enumerate(self.hash_V[1:].tolist(), 1):
            first, last = z, z + spare
            while z <= last and murmur_hash(data, start, zeros[z]) != wanted:
                z += 1
            if z > last:
                word = data[start : zeros[first]].tobytes()
                raise self.damaged(f"word {v}, {word.decode('utf-8', 'backslashreplace')!r}, does not have its hash")
            spare -= z - first
            ends.append(zeros[z])
            start, z = zeros[z] + 1, z + 1
        return np.array(ends)

    @cached_property
    def id_V(self) -> np.ndarray:
        """(V,) int64, the id that KenLM finds for each word: its own, except for words with the same hash."""
        hash_V, id_V = self.hash_V, np.arange(len(self.hash_V))
        order_V = np.argsort(hash_V[1:], kind="stable") + 1
        found, first, size = np.unique(hash_V[order_V], return_index=True, return_counts=True)
        for g in np.flatnonzero(size > 1):
            same = order_V[first[g] : first[g] + size[g]]  # rising
            id_V[same] = _searched(hash_V, found[g]) if self.header.is_trie else same[0]  # the first inserted
        return id_V

    def _sorted_hashes(self, at: int) -> tuple[int, np.ndarray]:
        """Return (the offset after the words of a trie, (V,) uint64 their hashes).

        The header counts each line of <unk> and <UNK> of the ARPA file, but these have no hash.
        """
        unigrams = self.header.counts[0]
        section = self.array(at, np.dtype("<u8"), 1 + unigrams)
        if section[0] + 1 > unigrams:
            raise self.damaged(f"it has {unigrams:,} 1-grams but {section[0]:,} words besides <unk>")
        hash_V = np.concatenate([np.zeros(1, np.uint64), section[1 : 1 + int(section[0])]])
        return at + 8 * len(section), hash_V

    def _hash_table(self, at: int) -> tuple[int, np.ndarray]:
        """As `_sorted_hashes`, for a probing model."""
        unigrams = self.header.counts[0]
        version, V = self.array(at, np.dtype("<u4"), 2).tolist()
        if version or not 1 <= V <= unigrams + 1:  # fewer than 1-grams: these count <unk> and <UNK>, too
            raise self.damaged(f"it has {unigrams:,} 1-grams but {V:,} words, in a table of version {version}")
        slots = self.array(at + 8, SLOT_V, slots_of(unigrams, self.header.multiplier))
        used = slots[slots["hash"] != 0]
        hash_V = np.zeros(V, np.uint64)
        if len(used) != V - 1:
            raise self.damaged(f"its table has {len(used):,} words but needs {V - 1:,}")
        if (greatest := used["id"].max(initial=0)) >= V:
            raise self.damaged(f"its table has the id {greatest:,} but {V:,} words, whose ids are less")
        hash_V[used["id"]] = used["hash"]
        if np.count_nonzero(hash_V[1:]) != V - 1:
            raise self.damaged("its table gives an id to two words")
        return at + 8 + slots.nbytes, hash_V


def _cut(data: np.ndarray, end_V: np.ndarray) -> Words:
    """Return the words of a text in which each word ends before one byte."""
    kept_B = np.ones(end_V[-1] + 1, bool)
    kept_B[end_V] = False
    return Words(np.concatenate([[0], end_V - np.arange(len(end_V))]), data[: len(kept_B)][kept_B])


def _searched(hash_V: np.ndarray, wanted: int) -> int:
    """Return the id that KenLM finds for the hash of several words, by interpolation (util/sorted_uniform.hh).

    hash_V  (V,) uint64, rising from id 1 on
    """
    before, after, low, high = 0, len(hash_V), 0, 2**64 - 1
    while True:
        width = after - before - 1
        share = np.float32(int(wanted) - low) / np.float32(high - low) * np.float32(width)
        at = before + 1 + min(int(share), width - 1)
        found = int(hash_V[at])
        if found == wanted:
            return at
        if found < wanted:
            before, low = at, found
        else:
            after, high = at, found
