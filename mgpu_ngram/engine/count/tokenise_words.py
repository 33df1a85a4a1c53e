"""Pass 1 of text: words between white space, found by hash and verified byte for byte."""

from __future__ import annotations

import functools
import operator
from typing import Any

import numpy as np

from mgpu_ngram.core.counts.vocabulary import SPECIALS, HashCollision
from mgpu_ngram.core.inputs.corpus import Chunk
from mgpu_ngram.core.inputs.read_text import TextBlock
from mgpu_ngram.core.storage.crc import PartCrc
from mgpu_ngram.engine.count.sentence_markers import special_hashes
from mgpu_ngram.engine.count.token_streams import (
    ChunkSymbols,
    Streams,
    TokenisedChunk,
    TokeniseOptions,
    blocks_of,
    lower_ascii,
)
from mgpu_ngram.engine.memory.stopwatch import Stopwatch
from mgpu_ngram.kernels.common.find_tokens import find_tokens
from mgpu_ngram.kernels.count.count_mismatches import count_mismatches
from mgpu_ngram.kernels.count.gather_words import gather_words
from mgpu_ngram.kernels.count.hash_words import hash_words
from mgpu_ngram.kernels.count.intern import intern
from mgpu_ngram.kernels.dispatch import array_module


def tokenise_words(chunk: Chunk, options: TokeniseOptions) -> TokenisedChunk:
    watch = Stopwatch(options.device)
    checksums: list[PartCrc] = []
    symbols, streams, size = ChunkSymbols(options.device), Streams(), 0
    special_hash = np.empty(0, np.uint64)
    if options.lmplz:
        special_hash = special_hashes("word", options.seed, symbols.xp)[len(SPECIALS) - options.refused :]
    unfinished: list[tuple[Any, Any]] = []  # tokens of a block, and positions in them of line ends without </s>
    for block, text_B in blocks_of(chunk, options, 0, checksums, watch):
        if options.lowercase:
            lower_ascii(text_B)
        positions_T = find_tokens(text_B)
        hash_T = hash_words(text_B, positions_T, options.seed)
        tokens_T, new_N = intern(hash_T, symbols.table)
        new_positions_N = positions_T[new_N]
        symbols.add_words(*gather_words(text_B, new_positions_N))
        symbols.add_places(block, new_positions_N)
        if count_mismatches(text_B, positions_T, tokens_T, symbols.offsets_V, symbols.data):
            raise HashCollision(options.seed)
        if options.lmplz:
            tokens_T, end_U = _lmplz_lines(block, positions_T, hash_T, tokens_T, special_hash)
            if not options.ends_lines:
                unfinished.append((tokens_T, end_U))
        symbols.add_counts(tokens_T)
        streams.add(tokens_T, len(tokens_T))
        size += len(block.data)
        watch.lap("tokenise")
    tokens = int(symbols.counts_V.sum())
    found = streams.finish()
    lines = sum(s.owned for s in found) - tokens
    for tokens_T, end_U in unfinished:
        tokens_T[end_U] = len(symbols.table) + 1
    vocabulary = symbols.finish(
        tokens=tokens, lines=lines, unfinished_lines=sum(len(end_U) for _, end_U in unfinished),
        size_bytes=size, checksums=checksums, seconds=watch.seconds,
    )  # fmt: skip
    return TokenisedChunk(found, vocabulary)


def _lmplz_lines(
    block: TextBlock, positions_T: Any, hash_T: Any, tokens_T: Any, special_hash: np.ndarray
) -> tuple[Any, Any]:
    """Return (tokens of a block as `LmplzText` describes, 0 at line ends; positions of line ends without </s>)."""
    xp = array_module(tokens_T)
    newline_U = (block.starts_S + block.owned_S)[block.owned_S < block.lengths_S]
    end_U = xp.searchsorted(positions_T, xp.asarray(newline_U.astype(np.uint32)))
    special_D = xp.flatnonzero(functools.reduce(operator.or_, (hash_T == h for h in special_hash)))
    tokens_T = xp.delete(tokens_T, special_D)
    end_U = end_U - xp.searchsorted(special_D, end_U)
    empty_U = tokens_T[end_U - 1] == 0  # index -1 is the last token of the block: 0, too
    tokens_T = xp.delete(tokens_T, end_U[empty_U])
    return tokens_T, (end_U - xp.cumsum(empty_U))[~empty_U]
