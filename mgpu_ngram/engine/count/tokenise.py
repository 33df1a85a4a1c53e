"""Pass 1: turn the bytes of a chunk into token streams and the chunk's own vocabulary."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

from mgpu_ngram.core.counts.vocabulary import SYMBOL_ARRAYS
from mgpu_ngram.core.inputs.corpus import Chunk
from mgpu_ngram.engine.count.token_streams import TokenisedChunk, TokeniseOptions
from mgpu_ngram.engine.count.tokenise_bytes import tokenise_bytes
from mgpu_ngram.engine.count.tokenise_ids import tokenise_ids
from mgpu_ngram.engine.count.tokenise_words import tokenise_words
from mgpu_ngram.engine.memory.budget import Budget, device_alone, hold
from mgpu_ngram.engine.memory.out_of_memory import memory_guard, on_device_or_host
from mgpu_ngram.engine.memory.spill import spill


def tokenise(chunk: Chunk, options: TokeniseOptions) -> TokenisedChunk:
    """Read a chunk, find its tokens, number its distinct symbols in order of appearance, and count them.

    Raises HashCollision if two words of the chunk share a 64-bit hash.
    """
    by_unit = {"word": tokenise_words, "byte": tokenise_bytes, "id": tokenise_ids}[options.unit]
    with device_alone(options.budget) if options.budget else nullcontext():
        with memory_guard("tokenising", options.device):
            tokenised = on_device_or_host(
                lambda device: by_unit(chunk, replace(options, device=device)), options.device
            )
        return _spilled(tokenised, options.budget, options.spill_folder) if options.budget else tokenised


def _spilled(tokenised: TokenisedChunk, budget: Budget, folder: str) -> TokenisedChunk:
    """Spill streams and vocabulary. Streams of a GPU that do not fit memory are dropped: to read the text again costs
    no more than to write and read streams. A core needs ten times as long to find tokens as to write them.
    """
    drop = None if budget.device == "cpu" else lambda tokenised, folder: replace(tokenised, streams=None)
    tokenised = spill(tokenised, budget, folder, drop)
    tokenised.vocabulary = spill(tokenised.vocabulary, budget, folder)
    return tokenised


def without_words(tokenised: TokenisedChunk) -> TokenisedChunk | None:
    """Return the arrays of a chunk that pass 2 needs, its streams and symbol hashes; None if no streams were kept."""
    if tokenised.streams is None:
        return None
    words = tokenised.vocabulary
    nothing = {name: getattr(words, name)[:0].copy() for name in SYMBOL_ARRAYS if name != "hash_V"}
    return hold(TokenisedChunk(tokenised.streams, replace(words, **nothing)))
