"""Open files as bags of words: UCI docword, sparse .npz, our own bag files, or documents as text or lists of tokens."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from mgpu_ngram.core.ahead import map_ahead
from mgpu_ngram.core.bags.bag_files import is_bag_file, load_bags
from mgpu_ngram.core.bags.bags import Bags
from mgpu_ngram.core.bags.csr_npz import csr_npz_words, is_csr_npz, read_csr_npz
from mgpu_ngram.core.bags.text_options import TextOptions
from mgpu_ngram.core.bags.uci import PARSE_THREADS, is_uci, read_uci, read_uci_header
from mgpu_ngram.core.bags.word_list import as_words
from mgpu_ngram.core.documents.documents import open_documents
from mgpu_ngram.core.errors import DamagedInput, InputError
from mgpu_ngram.core.inputs.corpus import Chunk, Corpus
from mgpu_ngram.core.inputs.file_sources import head_text, open_files, refuse_column, stored_source
from mgpu_ngram.core.inputs.files import find_files
from mgpu_ngram.core.inputs.sources import Source
from mgpu_ngram.core.ngrams.words import Words
from mgpu_ngram.engine.bags.bag_corpus import BagCorpus, corpus_of_documents
from mgpu_ngram.engine.bags.local_bags import LocalBags, refuse_duplicates
from mgpu_ngram.engine.bags.text_bags import read_local_bags

CHUNK_BYTES = 32 << 20  # text that one thread or worker turns into bags of words
Spread = Callable[[Callable[[Chunk], LocalBags], Sequence[Chunk]], Iterable[LocalBags]]
COMPRESSED = (".gz", ".bz2", ".xz", ".zst")


def open_bags(
    inputs: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    vocabulary: Any = None,
    options: TextOptions | None = None,
    text_column: str | None = None,
    device: str = "cpu",
    spread: Spread | None = None,
) -> BagCorpus:
    """Return the corpus of files.

    inputs       files, globs, directories or fsspec URLs. UCI docword files, sparse matrices of scipy.sparse.save_npz,
                 files of save_bags; or documents: plain text, a document a line; JSON lines; Parquet. Text, JSON lines
                 and docword files may be compressed. The first bytes determine the format, not the name; but text with
                 the name docword.NAME or NAME.npz is a damaged file of counts
    vocabulary   see `as_words`. Optional for bags; for docword.NAME.txt, the default is vocab.NAME.txt beside it. For
                 documents, the default is made from all documents, which are read for it
    options      options for making bags of words from text; not for other files
    text_column  column of Parquet files, or key of JSON lines, with a text or a list of tokens
    device       "cpu" or "gpu", the device that makes bags of words from text
    spread       spread(fn, chunks) returns fn of each chunk in order, for example from the workers of a cluster; both
                 are picklable. None: use threads of this process, or one thread for a token_pattern, which holds the
                 GIL

    Raises InputError for files that cannot be used, such as docword.NAME with a damaged header; for a mix of
    documents and of bags; for options or a text column of bags; for a text column of plain text; and for a
    vocabulary that has a word twice.
    """
    files, sources, formats = _look(inputs)
    name = repr(sources[0].name) + (f" and {len(sources) - 1:,} more" if len(sources) > 1 else "")
    words = None if vocabulary is None else as_words(vocabulary)
    if formats[0] != "documents":
        if options:
            options.refuse_for(repr(sources[0].name))
        refuse_column_of_counts(text_column, sources[0].name)
        return _corpus_of_bags(name, sources, formats, words)
    corpus = open_documents(files, text_column)
    refuse_column(text_column, corpus.sources)
    options = options or TextOptions()
    threads = PARSE_THREADS if options.has_default_pattern and device == "cpu" else 1
    parts = partial(_local_parts, corpus, options, device, spread or partial(_in_threads, threads))
    return corpus_of_documents(name, parts, words, options, states=tuple(corpus.states))


def open_texts(inputs: Sequence[str | os.PathLike[str]], text_column: str | None = None) -> Corpus | None:
    """Return the corpus of files of documents, for `read_local_bags`; None for files of bags of words.

    Arguments and errors are those of `open_bags`.
    """
    files, _, formats = _look(inputs)
    return open_documents(files, text_column) if formats[0] == "documents" else None


def refuse_column_of_counts(text_column: str | None, matrix: str) -> None:
    """Raise InputError if a text column is given, because `matrix` is a file of bags of words."""
    if text_column is not None:
        raise InputError(
            f"text_column is {text_column!r} but {matrix!r} is a matrix of counts, not text; leave text_column out"
        )


def columns_of(inputs: Sequence[str]) -> int | None:
    """Return the number of words of files of bags, from their headers; None for documents, which are not read."""
    _, sources, formats = _look(inputs)
    return None if formats[0] == "documents" else _num_words(sources[0], formats[0])


def _look(
    inputs: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
) -> tuple[list[tuple[str, str]], list[Source], list[str]]:
    """Return the files of inputs as (name, location), their sources and formats: all documents, or all bags."""
    paths = [inputs] if isinstance(inputs, (str, os.PathLike)) else list(inputs)
    files = find_files([os.fspath(path) for path in paths])
    sources = open_files(stored_source, files)
    formats = open_files(_format, [(source,) for source in sources])
    if other := next((i for i, f in enumerate(formats) if (f == "documents") != (formats[0] == "documents")), 0):
        raise InputError(
            f"{sources[0].name!r} is {_said(formats[0])} but {sources[other].name!r} is {_said(formats[other])}; "
            "give files of one kind"
        )
    return files, sources, formats


def states_of_inputs(inputs: Sequence[str]) -> list[dict[str, Any]]:
    """Return the files of inputs as checkpoints describe them, without reading them."""
    sources = tuple(stored_source(name, location) for name, location in find_files(list(inputs)))
    return list(Corpus(sources, "byte").states)


def _format(source: Source) -> str:
    if source.format == "parquet":
        return "documents"
    try:
        head = head_text(source, of_damaged=True)
    except DamagedInput:
        return "documents"  # which `open_documents` leaves out
    if source.format == "plain" and (is_csr_npz(head) or _file_name(source).endswith(".npz")):
        return "csr"
    if source.format == "plain" and is_bag_file(head):
        if not source.is_local:
            raise InputError(
                f"{source.name!r} is a file of bags of words, which must be a local file, because it is memory-mapped; "
                "download it"
            )
        return "bags"
    is_json = head.lstrip()[:1] in (b"{", b"[")
    return "uci" if is_uci(head) or (_is_named_docword(source) and not is_json) else "documents"


def _is_named_docword(source: Source) -> bool:
    return _file_name(source).startswith("docword.")


def _file_name(source: Source) -> str:
    return os.path.basename(source.location)


def _said(format: str) -> str:
    names = {"uci": "a UCI docword file", "csr": "a sparse matrix", "bags": "a file of bags of words"}
    return names.get(format, "a file of documents")


def _corpus_of_bags(name: str, sources: list[Source], formats: list[str], words: Words | None) -> BagCorpus:
    if words is None and (path := _uci_vocabulary(sources[0], formats[0])):
        words = as_words(path)
    num_words = _num_words(sources[0], formats[0])

    def parts() -> Iterator[Bags]:
        for source, format in zip(sources, formats, strict=True):
            yield from _read(source, format)

    corpus = BagCorpus(name, parts, num_words, words, states=tuple(Corpus(tuple(sources), "byte").states))
    if words is not None:
        refuse_duplicates(words, "the vocabulary")
    return corpus


def _num_words(source: Source, format: str) -> int:
    if format == "uci":
        return read_uci_header(source).words
    return csr_npz_words(source) if format == "csr" else load_bags(source.location, verify=False).num_words


def _read(source: Source, format: str) -> Iterator[Bags]:
    if format == "uci":
        yield from read_uci(source)
    elif format == "csr":
        yield from read_csr_npz(source)
    else:
        yield load_bags(source.location)


def _uci_vocabulary(source: Source, format: str) -> str | None:
    """Return the path of vocab.NAME.txt beside docword.NAME.txt, compressed or not, if there is one."""
    folder, file = os.path.split(source.location)
    if format != "uci" or not source.is_local or not _is_named_docword(source):
        return None
    for suffix in COMPRESSED:
        file = file.removesuffix(suffix)
    path = os.path.join(folder, "vocab." + file.removeprefix("docword."))
    return next((path + suffix for suffix in ("", *COMPRESSED) if os.path.isfile(path + suffix)), None)


def _local_parts(corpus: Corpus, options: TextOptions, device: str, spread: Spread) -> Iterator[LocalBags]:
    """Return the bags of the chunks of documents, in order."""
    fn = partial(read_local_bags, options=options, device=device)
    return iter(spread(fn, corpus.chunks(CHUNK_BYTES)))


def _in_threads(threads: int, fn: Callable[[Chunk], LocalBags], chunks: Sequence[Chunk]) -> Iterator[LocalBags]:
    threads = min(threads, os.cpu_count() or 1, len(chunks))
    if threads < 2:
        yield from map(fn, chunks)
        return
    with ThreadPoolExecutor(threads) as pool:  # Numba and Arrow release the GIL
        yield from map_ahead(pool, fn, chunks, threads)
