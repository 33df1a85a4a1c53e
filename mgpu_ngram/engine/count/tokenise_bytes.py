"""Pass 1 of bytes: every byte is a token."""

from __future__ import annotations

from typing import Any

import numpy as np

from mgpu_ngram.core.counts.vocabulary import LocalVocabulary
from mgpu_ngram.core.inputs.corpus import Chunk
from mgpu_ngram.core.storage.crc import PartCrc
from mgpu_ngram.engine.count.token_streams import (
    Streams,
    TokenisedChunk,
    TokeniseOptions,
    blocks_of,
    lower_ascii,
    segments_of,
)
from mgpu_ngram.engine.memory.stopwatch import Stopwatch
from mgpu_ngram.kernels.count.histogram_private import count_bytes
from mgpu_ngram.kernels.dispatch import array_module, to_host


def tokenise_bytes(chunk: Chunk, options: TokeniseOptions) -> TokenisedChunk:
    watch = Stopwatch(options.device)
    checksums: list[PartCrc] = []
    streams = Streams()
    counts_A = np.zeros(256, np.int64)
    first: dict[int, tuple[int, int]] = {}
    size = 0
    for block, data in blocks_of(chunk, options, options.order - 1, checksums, watch):
        if options.lowercase:
            lower_ascii(data)
        for segments, part_T in segments_of(block, data):
            xp = array_module(part_T)
            for s in segments:
                start, owned = int(block.starts_S[s]), int(block.owned_S[s])
                at = int(block.sources_S[s]), int(block.offsets_S[s])
                mine_T = data[start : start + owned]
                mine_A = to_host(count_bytes(mine_T))
                for v, place in _first_places(mine_T, (mine_A > 0) & (counts_A == 0)).items():
                    first[v] = at[0], at[1] + place
                counts_A += mine_A
                size += owned
            if len(segments) == 1:
                streams.add(part_T.copy(), owned, at, owned)  # a copy: the ring buffer is reused
                continue
            end = xp.zeros(1, np.uint32)
            parts = []  # byte + 1, and 0 after each file
            for s in segments:
                start = int(block.starts_S[s])
                parts += [data[start : start + int(block.lengths_S[s])].astype(np.uint32) + np.uint32(1), end]
            tokens_T = xp.concatenate(parts)
            streams.add(tokens_T, len(tokens_T))
        watch.lap("tokenise")
    used = np.flatnonzero(counts_A)
    vocabulary = LocalVocabulary(
        used.astype(np.uint64),
        np.arange(len(used) + 1, dtype=np.int64),
        used.astype(np.uint8),
        counts_A[used],
        np.array([first[v][0] for v in used.tolist()], np.int32),
        np.array([first[v][1] for v in used.tolist()], np.int64),
        tokens=int(counts_A.sum()),
        size_bytes=size,
        checksums=checksums,
        seconds=watch.seconds,
    )
    return TokenisedChunk(streams.finish(), vocabulary)


def _first_places(data_T: Any, wanted_A: np.ndarray) -> dict[int, int]:
    """Return the first position of each wanted byte value: most are in the first bytes, others by search."""
    if not wanted_A.any():
        return {}
    values, places = np.unique(to_host(data_T[: 1 << 16]), return_index=True)
    first = dict(zip(values.tolist(), places.tolist(), strict=True))
    return {
        v: first[v] if v in first else int((data_T == np.uint8(v)).argmax()) for v in np.flatnonzero(wanted_A).tolist()
    }
