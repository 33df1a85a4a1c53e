"""Pass 1: turn the bytes of a chunk into token streams and the chunk's own vocabulary."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

from mgpu_ngram.core.corpus import Chunk
from mgpu_ngram.core.vocabulary import ARRAYS
from mgpu_ngram.engine.budget import Budget, device_alone, hold
from mgpu_ngram.engine.device import memory_guard, out_of_memory, to_host_fast
from mgpu_ngram.engine.token_streams import Stream, TokenisedChunk, TokeniseOptions
from mgpu_ngram.engine.tokenise_bytes import tokenise_bytes
from mgpu_ngram.engine.tokenise_ids import tokenise_ids
from mgpu_ngram.engine.tokenise_words import tokenise_words
from mgpu_ngram.engine.vocabulary import spill_vocabulary
from mgpu_ngram.kernels.dispatch import on_gpu


def tokenise(chunk: Chunk, options: TokeniseOptions) -> TokenisedChunk:
    """Read a chunk, find its tokens, number its distinct symbols in order of appearance, and count them.

    Raises HashCollision if two words of the chunk share a 64-bit hash.
    """
    with device_alone(options.budget) if options.budget else nullcontext():
        with memory_guard("tokenising", options.device):
            tokenised = _where_it_fits(chunk, options)
        return _keep(tokenised, options.budget, options.spill_folder) if options.budget else tokenised


def _where_it_fits(chunk: Chunk, options: TokeniseOptions) -> TokenisedChunk:
    """Tokenise on the device; if a GPU is full, in host memory, which takes longer."""
    by_unit = {"word": tokenise_words, "byte": tokenise_bytes, "id": tokenise_ids}[options.unit]
    try:
        return by_unit(chunk, options)
    except Exception as error:
        if options.device == "cpu" or not out_of_memory(error):
            raise
    return by_unit(chunk, replace(options, device="cpu"))  # outside the handler: the error keeps arrays on the GPU


def _keep(tokenised: TokenisedChunk, budget: Budget, folder: str) -> TokenisedChunk:
    """Keep streams and vocabulary on their device if there is room, else on the host; else drop the streams."""
    streams = tokenised.streams or []
    nbytes = sum(s.tokens_T.nbytes for s in streams)
    place = budget.place(nbytes)
    if place == "device" and not all(on_gpu(s.tokens_T) for s in streams):  # the device was full
        place = "host" if budget.fits_host(nbytes) else "disk"
    if place == "host":
        tokenised.streams = [Stream(to_host_fast(s.tokens_T), s.owned) for s in streams]
        hold(tokenised)
    elif place == "disk":
        tokenised.streams = None  # reading the text again costs no more than writing and reading streams
    tokenised.vocabulary = spill_vocabulary(tokenised.vocabulary, budget, folder)
    return tokenised


def without_words(tokenised: TokenisedChunk) -> TokenisedChunk | None:
    """Return what pass 2 needs of a chunk, its streams and symbol hashes; None if no streams were kept."""
    if tokenised.streams is None:
        return None
    words = tokenised.vocabulary
    nothing = {name: getattr(words, name)[:0].copy() for name in ARRAYS if name != "hash_V"}
    return hold(TokenisedChunk(tokenised.streams, replace(words, **nothing)))
