"""Turn documents into bags of words: split texts by kernels or a regular expression; take lists of tokens unchanged."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mgpu_ngram.core.bags.bags import Bags, make_bags
from mgpu_ngram.core.bags.text_options import TextOptions
from mgpu_ngram.core.bags.word_list import make_words
from mgpu_ngram.core.counts.arrow_numbers import numbers_from_arrow
from mgpu_ngram.core.counts.vocabulary import HashCollision, words_from_arrow, words_to_arrow
from mgpu_ngram.core.documents.damage import Damage
from mgpu_ngram.core.documents.documents import JoinedTexts, TextDocuments, TokenLists, read_documents
from mgpu_ngram.core.errors import warn
from mgpu_ngram.core.inputs.corpus import Chunk
from mgpu_ngram.core.ngrams.words import Words
from mgpu_ngram.core.storage.file_heads import is_utf8
from mgpu_ngram.core.utf8 import to_bytes, to_text
from mgpu_ngram.engine.bags.local_bags import LocalBags, join_local
from mgpu_ngram.engine.memory.device import to_device
from mgpu_ngram.kernels.common.bag_words import bag_words
from mgpu_ngram.kernels.common.find_tokens import find_tokens
from mgpu_ngram.kernels.compile_cpu import read_only
from mgpu_ngram.kernels.count.count_mismatches import count_mismatches
from mgpu_ngram.kernels.count.gather_words import gather_words
from mgpu_ngram.kernels.count.hash_words import hash_words
from mgpu_ngram.kernels.count.intern import WordTable, intern
from mgpu_ngram.kernels.dispatch import to_host
from mgpu_ngram.kernels.lda.keep_words import Letters, keep_words, make_letters

BLOCK_BYTES = 32 << 20  # text that is tokenised at once
NOT_UTF8 = re.compile("[\ud800-\udfff]")  # characters of `to_text` for bytes that are not UTF-8
CUT_WORDS = (
    "words are cut at bytes of the text that are not UTF-8; if it has another encoding, convert it, for example: "
    "iconv -f LATIN1 -t UTF-8 FILE"
)
NO_BAGS = LocalBags(Bags(np.zeros(1, np.int64), np.empty(0, np.uint32), np.empty(0, np.uint32), 0), make_words([]))


def read_local_bags(chunk: Chunk, options: TextOptions, device: str = "cpu") -> LocalBags:
    """Return the documents of a chunk of `open_documents` as bags over the words of the chunk."""
    damage = Damage()
    blocks = read_documents(chunk, BLOCK_BYTES, not options.has_default_pattern, damage.add)
    found = join_local([NO_BAGS, *(local_bags(documents, options, device) for documents in blocks)])
    return replace(found, damage=damage)


def local_bags(documents: TextDocuments, options: TextOptions, device: str = "cpu") -> LocalBags:
    """Return documents as bags of words with a local vocabulary.

    documents  a list of str if the pattern is not the default one, else `JoinedTexts`

    Stop words and limits do not apply yet: `choose_words` applies them.
    """
    if isinstance(documents, TokenLists):
        return _of_token_lists(documents)
    if isinstance(documents, JoinedTexts):
        return _of_texts(documents, options.lowercase, device)
    find = re.compile(options.token_pattern).findall
    cut = [0]

    def tokens_of(text: str) -> list[str]:
        tokens = find(text.lower() if options.lowercase else text)
        if not text.isascii() and (odd := len(NOT_UTF8.findall(text))):
            cut[0] += odd - sum(len(NOT_UTF8.findall(token)) for token in tokens)
        return tokens

    found = replace(count_tokens(map(tokens_of, documents)), is_text=True)
    if cut[0] > 0:
        warn(CUT_WORDS)
    return found


def count_tokens(token_lists: Iterable[Sequence[str]]) -> LocalBags:
    """Return documents that are sequences of tokens in Python."""
    table: defaultdict[str, int] = defaultdict()
    table.default_factory = table.__len__
    ids: list[int] = []
    starts = [0]
    for tokens in token_lists:
        ids.extend(map(table.__getitem__, tokens))
        starts.append(len(ids))
    return _bags_of_ids(np.array(starts), np.array(ids, np.uint32), _make_words(table))


def _make_words(table: Iterable[str]) -> Words:
    return make_words(list(table))


def _bags_of_ids(starts_D1: np.ndarray, ids_T: np.ndarray, words: Words) -> LocalBags:
    return LocalBags(make_bags(starts_D1, ids_T, np.ones(len(ids_T), np.uint32), len(words)), words)


def _of_token_lists(lists: TokenLists) -> LocalBags:
    tokens = words_to_arrow(lists.offsets_T1, lists.data).dictionary_encode()
    words = Words(*words_from_arrow(tokens.dictionary))
    return _bags_of_ids(lists.starts_D1, numbers_from_arrow(tokens.indices).astype(np.uint32), words)


def _of_texts(texts: JoinedTexts, lowercase: bool, device: str) -> LocalBags:
    if not is_utf8(texts.data.tobytes()):
        warn(CUT_WORDS)
    text_B = _kept(texts.data, lowercase, device)
    positions_T = find_tokens(text_B)
    seed = 0
    while True:
        try:
            tokens_T, words = _intern(text_B, positions_T, seed, device)
            break
        except HashCollision:
            seed += 1
    starts_D1, words_P, counts_P = (to_host(array) for array in bag_words(tokens_T, len(words)))
    return LocalBags(Bags(starts_D1, words_P, counts_P, len(words)), words, is_text=True)


def _intern(text_B: Any, positions_T: Any, seed: int, device: str) -> tuple[Any, Words]:
    """Return (tokens as word + 1, 0 after each document; the words). Raises HashCollision."""
    table = WordTable(to_device(np.empty(0), device))
    tokens_T, new_N = intern(hash_words(text_B, positions_T, seed), table)
    offsets_V, data = gather_words(text_B, positions_T[new_N])
    if count_mismatches(text_B, positions_T, tokens_T, offsets_V, data):
        raise HashCollision(seed)
    return tokens_T, Words(to_host(offsets_V), to_host(data))


def _kept(data: np.ndarray, lowercase: bool, device: str) -> Any:
    """Return the text on the device, lowercased, with spaces in place of all bytes outside words."""
    kept_B, longer = keep_words(to_device(read_only(data), device), _letters(lowercase, device))
    if longer:  # letters whose lowercase has another length
        text = to_bytes(to_text(data.tobytes()).lower())
        kept_B, _ = keep_words(to_device(np.frombuffer(text, np.uint8), device), _letters(False, device))
    return kept_B


def _letters(lowercase: bool, device: str) -> Letters:
    return Letters(*(to_device(array, device) for array in make_letters(lowercase)))
