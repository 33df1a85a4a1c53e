"""The tasks of both passes over the text. A task takes a range of chunks, so that a large corpus has few tasks."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from mgpu_ngram.core.counts.vocabulary import LocalVocabulary
from mgpu_ngram.core.inputs.corpus import Chunk
from mgpu_ngram.engine.count.count_chunk import CountOptions, count_chunk
from mgpu_ngram.engine.count.lexicon import Lexicon
from mgpu_ngram.engine.count.merge_vocabularies import merge_where_it_fits
from mgpu_ngram.engine.count.sorted_runs import SortedRun, bundle_runs
from mgpu_ngram.engine.count.text_ids import TextIds, bundle_ids, text_ids
from mgpu_ngram.engine.count.token_streams import TokenisedChunk, TokeniseOptions
from mgpu_ngram.engine.count.tokenise import tokenise, without_words
from mgpu_ngram.engine.memory.budget import Budget
from mgpu_ngram.engine.memory.spill import spill
from mgpu_ngram.jobs.count.numbering import MERGE_ARITY

MOST_RANGES = 4096  # ranges of a pass: Dask's scheduler takes 1 to 2 ms for a task, and a pass has 1 to 3 for a range
RANGES_PER_WORKER = 8  # the most if that is more: the last range of a worker is an eighth of its work


@dataclass(frozen=True)
class ChunkRange:
    """The chunks of one task, by rising index. A resumed run leaves out the chunks between them that are done.

    number  number of the range among all of the run; its tasks prefer worker `number % workers`
    """

    number: int
    chunks: tuple[Chunk, ...]

    @property
    def items(self) -> tuple[int, ...]:
        """Return the numbers of the chunks."""
        return tuple(chunk.index for chunk in self.chunks)

    @property
    def size_bytes(self) -> int:
        """Bytes of text, as of `Chunk`."""
        return sum(chunk.size_bytes for chunk in self.chunks)

    def __str__(self) -> str:
        """Return the name for messages: that of the chunk, or "chunks 3 to 14, first chunk 3: books.txt, bytes ..."."""
        first, last = self.chunks[0], self.chunks[-1]
        return str(first) if len(self.chunks) == 1 else f"chunks {first.index} to {last.index}, first {first}"

    def without(self, done: Collection[int]) -> ChunkRange:
        """Return the range without the chunks whose numbers are in `done`."""
        return replace(self, chunks=tuple(chunk for chunk in self.chunks if chunk.index not in done))


def ranges_of(chunks: Sequence[Chunk], workers: int, first: int = 0) -> list[ChunkRange]:
    """Return all chunks in ranges with about equally many: one chunk each, unless that makes too many ranges.

    first  number of the first range

    Text in memory travels with its task, so each of its chunks stays alone.
    """
    n = len(chunks)
    if not any(piece.source.format == "memory" for chunk in chunks for piece in chunk.pieces):
        n = min(n, max(MOST_RANGES, RANGES_PER_WORKER * workers))
    limits = [i * len(chunks) // max(1, n) for i in range(n + 1)]
    return [ChunkRange(first + i, tuple(chunks[limits[i] : limits[i + 1]])) for i in range(n)]


Streams = dict[int, TokenisedChunk | None]  # the result of `without_words` of each chunk, by its number


@dataclass
class TokenisedRange:
    """The result of pass 1: what pass 2 needs of each chunk, and the words of all."""

    streams: Streams
    vocabulary: LocalVocabulary


def tokenise_range(chunks: ChunkRange, reading: TokeniseOptions, budget: Budget) -> TokenisedRange:
    """Tokenise the chunks of a range one after another, and merge their vocabularies."""
    streams, vocabularies = Streams(), list[LocalVocabulary]()
    for chunk in chunks.chunks:
        tokenised = tokenise(chunk, reading)
        streams[chunk.index] = without_words(tokenised)
        vocabularies.append(tokenised.vocabulary)
        del tokenised  # or its words would stay during the merge
        if len(vocabularies) == MERGE_ARITY or (len(vocabularies) > 1 and chunk is chunks.chunks[-1]):
            merged = merge_where_it_fits(vocabularies, budget, reading.spill_folder)
            vocabularies = [spill(merged, budget, reading.spill_folder)]
            del merged
    return TokenisedRange(streams, vocabularies[0])


def streams_of(tokenised: TokenisedRange) -> Streams:
    """Return the streams without the words, which are freed earlier."""
    return tokenised.streams


def ids_of_range(
    chunks: ChunkRange, streams: Streams | None, lexicon: Lexicon, reading: TokeniseOptions, options: CountOptions
) -> TextIds:
    """Return the tokens of all chunks of a range.

    streams  the result of `streams_of`; None: the text is read again
    """
    found = [text_ids(c, (streams or {}).get(c.index), lexicon, reading, options) for c in chunks.chunks]
    return found[0] if len(found) == 1 else bundle_ids(*found)


def count_range(
    chunks: ChunkRange, streams: Streams | None, lexicon: Lexicon, reading: TokeniseOptions, options: CountOptions
) -> SortedRun:
    """Return the counts of all chunks of a range; parameters as for `ids_of_range`."""
    found = [count_chunk(c, (streams or {}).get(c.index), lexicon, reading, options) for c in chunks.chunks]
    return found[0] if len(found) == 1 else bundle_runs(*found)
