"""Pass 1 of token ids: integers of one width."""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np

from mgpu_ngram.core.inputs.corpus import Chunk
from mgpu_ngram.core.inputs.read_text import TextBlock
from mgpu_ngram.core.storage.crc import PartCrc
from mgpu_ngram.engine.count.lexicon import END_CODE, START_CODE
from mgpu_ngram.engine.count.sentence_markers import special_hashes
from mgpu_ngram.engine.count.token_streams import (
    ChunkSymbols,
    Streams,
    TokenisedChunk,
    TokeniseOptions,
    blocks_of,
    segments_of,
)
from mgpu_ngram.engine.memory.stopwatch import Stopwatch
from mgpu_ngram.kernels.common.count_true import count_true
from mgpu_ngram.kernels.count.hash_words import hash_ids
from mgpu_ngram.kernels.count.intern import intern
from mgpu_ngram.kernels.dispatch import array_module, to_host


def tokenise_ids(chunk: Chunk, options: TokeniseOptions) -> TokenisedChunk:
    watch = Stopwatch(options.device)
    checksums: list[PartCrc] = []
    symbols, streams, size = ChunkSymbols(options.device), Streams(), 0
    itemsize, halo = np.dtype(options.dtype).itemsize, options.order - 1
    if options.lmplz:
        halo = max(halo, 1)  # an empty halo then means that the source ends
        intern(symbols.xp.asarray(special_hashes("id", options.seed, symbols.xp)), symbols.table)
        symbols.add_specials()
    for block, data in blocks_of(chunk, options, halo, checksums, watch):
        for segments in chain.from_iterable(_begun_apart(block, s) for s, _ in segments_of(block, data)):
            xp = array_module(data)
            parts, places = [], []
            for s in segments:
                start, length = int(block.starts_S[s]), int(block.lengths_S[s])
                ids_T = data[start : start + length].copy().view(options.dtype).astype(np.uint64)
                hash_T = hash_ids(ids_T)
                if options.separator_id is not None:
                    hash_T[ids_T == options.separator_id] = 0
                end = xp.zeros(1, np.uint64)
                parts += [hash_T, end]
                places.append(start + itemsize * np.arange(length // itemsize + 1, dtype=np.int64))
            hash_T, place_T = xp.concatenate(parts), np.concatenate(places)
            tokens_T, new_N = intern(hash_T, symbols.table)
            new_positions_N = place_T[to_host(new_N)]
            raw_N = _ids_at(data, new_positions_N, options.dtype)
            symbols.add_words(4 * xp.arange(len(raw_N) + 1, dtype=np.int64), raw_N.view(np.uint8))
            symbols.add_places(block, new_positions_N)
            owned = len(tokens_T) if len(segments) > 1 else int(block.owned_S[segments[0]]) // itemsize
            if options.lmplz:
                tokens_T, owned = _mark_ids(block, segments, tokens_T, options)
            if len(segments) == 1:
                s = segments[0]
                at, owned_bytes = (int(block.sources_S[s]), int(block.offsets_S[s])), int(block.owned_S[s])
                streams.add(tokens_T, owned, at, owned_bytes)
            else:
                streams.add(tokens_T, owned)
            symbols.add_counts(tokens_T[:owned])
        size += int(block.owned_S.sum())
        watch.lap("tokenise")
    tokens = int(symbols.counts_V.sum())
    starts, ends = (int(symbols.counts_V[v]) for v in (1, 2)) if options.lmplz else (0, 0)
    vocabulary = symbols.finish(
        tokens=tokens, lines=starts, unfinished_lines=starts - ends, size_bytes=size, checksums=checksums,
        seconds=watch.seconds,
    )  # fmt: skip
    return TokenisedChunk(streams.finish(), vocabulary)


def _begun_apart(block: TextBlock, segments: list[int]) -> list[list[int]]:
    """Return segments in groups, each of which becomes a stream. The first segment is alone if it does not begin its
    source: the text before it has the windows that end in its first tokens.
    """
    if len(segments) > 1 and block.offsets_S[segments[0]] > 0:
        return [segments[:1], segments[1:]]
    return [segments]


def _mark_ids(block: TextBlock, segments: list[int], tokens_T: Any, options: TokeniseOptions) -> tuple[Any, int]:
    """Return (the tokens of segments, each segment followed by a 0; how many tokens are owned).

    Inserts <s> and </s> as `LmplzText` describes. <s> goes before the first token of a source, and after every
    separator except a source's last token. The owner of a separator owns the <s> after it, so the text before a segment
    does not matter. Without separators, </s> goes after the segment; inside a source, a whole halo keeps it out of
    windows.
    """
    xp, itemsize = array_module(tokens_T), np.dtype(options.dtype).itemsize
    parts, at = [], 0
    for s in segments:
        length, owned = int(block.lengths_S[s]) // itemsize, int(block.owned_S[s]) // itemsize
        begins, one_line = int(block.offsets_S[s] == 0), int(options.separator_id is None)
        part_T = tokens_T[at : at + length]
        at += length + 1
        ends_T = part_T == 0
        place_T = xp.arange(length) + 2 * (xp.cumsum(ends_T) - ends_T) + begins
        marked = xp.zeros(begins + length + 2 * count_true(ends_T) + one_line, np.uint32)
        marked[place_T] = xp.where(ends_T, END_CODE, part_T)
        marked[place_T[ends_T] + 2] = START_CODE
        if begins:
            marked[0] = START_CODE
        if one_line:
            marked[-1] = END_CODE
        owned = len(marked) if owned == length else int(place_T[owned])
        if bool(ends_T[-1]):
            marked[-1] = 0  # no <s>
        parts += [marked, xp.zeros(1, np.uint32)]
    tokens_T = xp.concatenate(parts)
    return tokens_T, len(tokens_T) if len(segments) > 1 else owned


def _ids_at(data: Any, positions_N: np.ndarray, dtype: str) -> Any:
    """Return the token ids at byte positions, as uint32."""
    xp = array_module(data)
    bytes_N = xp.asarray(positions_N)[:, None] + xp.arange(np.dtype(dtype).itemsize)
    return xp.ascontiguousarray(data[bytes_N]).view(dtype)[:, 0].astype(np.uint32)
