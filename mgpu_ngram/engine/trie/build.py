"""Build a trie from the n-grams of a backoff model, quantise it, and make its edge table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.ngrams.trie import Ngrams, Trie, node_dtype
from mgpu_ngram.kernels.common.radix_sort import radix_sort
from mgpu_ngram.kernels.dispatch import array_module, to_host
from mgpu_ngram.kernels.score.score_tokens import TrieValues
from mgpu_ngram.kernels.trie.edges import EdgeTable, make_edges
from mgpu_ngram.kernels.trie.find_children import TrieIndex, find_children, sample_every_fanout

FANOUT = 32  # words that a warp reads at once: a line of 128 bytes


class BadNgram(Exception):
    """Row `row` of order `order` is invalid; `what` completes a sentence whose subject is the n-gram."""

    def __init__(self, order: int, row: int, what: str):
        super().__init__(f"row {row:,} of order {order} {what}")
        self.order, self.row, self.what = order, row, what


@dataclass
class Level:
    """One order of a trie. Nodes are numbered within their order, parents and suffixes within the order below.

    `join_levels` needs neither parents nor samples.
    """

    word_G: Any
    prob_G: Any
    backoff_G: Any
    parent_G: Any = None  # None for order 1, as all fields below
    suffix_G: Any = None  # -1 if the trie lacks the suffix
    samples: Any = None
    sample_starts: Any = None
    first_child_M: Any = None  # of the order before: the children of its nodes in this order
    filled_F: Any = None  # filled-in nodes, rising
    repeated: int | None = None  # n-grams left out because an earlier row has the same words; None: none


def build_trie(orders: Iterable[Ngrams], fanout: int = FANOUT, repeated: dict[int, int] | None = None) -> Trie:
    """Return the trie of a backoff model.

    orders    the n-grams of order 1, 2, ..., N, rows in any order, all on one device; order 1 has every word below V
    fanout    words that a search compares in one step, 2 or more
    repeated  receives the number of rows of each order whose n-gram an earlier row has, too: the first is kept. None:
              such rows are errors

    Models pruned by SRILM may lack the suffix (w2 ... wn) of an n-gram. It is filled in as KenLM does: with the
    probability of backing off, and no backoff. `filled_F` lists these nodes. Raises BadNgram, for the first row of the
    lowest order, if the history of an n-gram is missing or an n-gram occurs twice.
    """
    levels: list[Level] = []
    for ngrams in orders:
        levels.append(_add_level(levels, ngrams, len(ngrams), fanout, repeated is not None))
    if repeated is not None:
        repeated.update({n: level.repeated for n, level in enumerate(levels, 1) if level.repeated})
    filled = _missing_suffixes(levels, fanout)
    if any(map(len, filled)):
        sizes = [len(level.word_G) for level in levels]
        whole = [_with_rows(levels, n, ids) for n, ids in enumerate(filled, 1)]
        levels = []
        for ngrams, size in zip(whole, sizes, strict=True):
            levels.append(_add_level(levels, ngrams, size, fanout))
    for level in levels:
        level.prob_G = negative(level.prob_G)
    return join_levels([levels], fanout)


def with_fanout(trie: Trie, fanout: int) -> Trie:
    """Return the trie with an index of another fanout."""
    if fanout == trie.fanout:
        return trie
    samples, sample_starts = sample_every_fanout(trie.word_G, fanout)
    return replace(trie, fanout=fanout, samples=samples, sample_starts=sample_starts)


def index_of(trie: Trie) -> TrieIndex:
    """Return the nodes of a trie and their index, in the form that kernels take."""
    return TrieIndex(trie.word_G, trie.first_child_M, trie.samples, trie.sample_starts, trie.fanout)


def values_of(trie: Trie) -> TrieValues:
    """Return the values of a trie's nodes, in the form that `score_tokens` takes."""
    return TrieValues(trie.prob_G, trie.backoff_M, trie.words_V2, trie.centers)


def edges_of(trie: Trie) -> EdgeTable:
    """Return the edge table of a trie; for a quantised one, with decoded values.

    Raises InputError if the trie has too many histories and words.
    """
    trie = trie.decoded()
    try:
        return make_edges(trie.word_G, trie.first_child_M, trie.prob_G, trie.backoff_M)
    except OverflowError as error:
        raise InputError(f"the model has {error}; use the index btree (--index btree)") from None


def _add_level(levels: Sequence[Level], ngrams: Ngrams, given: int, fanout: int, may_repeat: bool = False) -> Level:
    """Return the next order of a trie; the first `given` rows have probabilities, others get them by backing off.

    may_repeat  keep the first of equal n-grams; False: they are errors
    """
    xp, n = array_module(ngrams.prob), len(levels) + 1
    if n == 1:
        row_G = xp.argsort(ngrams.ids[:, 0])
        backoff_G = None if ngrams.backoff is None else ngrams.backoff[row_G]
        return Level(xp.arange(len(ngrams), dtype=np.uint32), ngrams.prob[row_G], backoff_G)
    parent_R = _walk(levels, ngrams.ids[:, :-1], fanout)
    orphans = xp.flatnonzero(parent_R < 0)
    _refuse(n, orphans, f"lacks its history, its first {n - 1} words as a {n - 1}-gram; add that, or drop the n-gram")
    key_R, bits, used = _keys(parent_R, ngrams.ids[:, -1], len(levels[-1].word_G), len(levels[0].word_G))
    key_G, row_G = radix_sort(xp.stack([key_R, xp.arange(len(ngrams), dtype=np.uint64)]), used)
    row_G = row_G.view(np.int64)
    again = 1 + xp.flatnonzero(key_G[1:] == key_G[:-1])  # rows of equal keys rise
    if len(again):
        if not may_repeat:
            _refuse(n, row_G[again], "occurs twice; drop one of them")
        first_G = xp.ones(len(key_G), bool)
        first_G[again] = False
        key_G, row_G = key_G[first_G], row_G[first_G]
    parent_G, word_G = _unpacked(key_G, bits, used)
    level = Level(word_G, ngrams.prob[row_G], None, parent_G, repeated=len(again) or None)
    if ngrams.backoff is not None:
        level.backoff_G = ngrams.backoff[row_G]
    level.samples, level.sample_starts = sample_every_fanout(level.word_G, fanout)
    level.first_child_M = xp.searchsorted(level.parent_G, xp.arange(len(levels[-1].word_G) + 1))
    if n == 2:
        level.suffix_G = level.word_G.astype(np.int64)
    else:
        level.suffix_G = _children(levels[-1], levels[-1].suffix_G[level.parent_G], level.word_G, fanout)
    new = xp.flatnonzero(row_G >= given)
    level.prob_G[new] = levels[-1].prob_G[level.suffix_G[new]] + levels[-1].backoff_G[level.parent_G[new]]
    level.filled_F = new
    return level


def _keys(parent_R: Any, word_R: Any, parents: int, words: int) -> tuple[Any, int, int]:
    """Return (key_R (R,) uint64, bits of a word, bits of a key). Left-aligned keys compare like (parent, word)."""
    bits = max(1, (words - 1).bit_length())
    used = bits + max(1, (parents - 1).bit_length())
    if used > 64:
        raise OverflowError(f"{parents:,} nodes by {words:,} words exceed 64 bits")
    return (parent_R.view(np.uint64) << np.uint64(bits) | word_R) << np.uint64(64 - used), bits, used


def _unpacked(key_R: Any, bits: int, used: int) -> tuple[Any, Any]:
    """Return (parent_R int64, word_R uint32) of `_keys`."""
    key_R = key_R >> np.uint64(64 - used)
    return (key_R >> np.uint64(bits)).view(np.int64), (key_R & np.uint64((1 << bits) - 1)).astype(np.uint32)


def _children(level: Level, nodes_Q: Any, words_Q: Any, fanout: int) -> Any:
    """Return nodes of a level by their parents and words; -1 for missing ones."""
    return find_children(
        level.word_G, level.first_child_M, level.samples, level.sample_starts, fanout, nodes_Q,
        array_module(words_Q).ascontiguousarray(words_Q),
    )  # fmt: skip


def _walk(levels: Sequence[Level], ids: Any, fanout: int) -> Any:
    """Return (R,) int64: nodes of the n-grams `ids` (R, n), or -1."""
    nodes_R = ids[:, 0].astype(np.int64)
    for k in range(1, ids.shape[1]):
        nodes_R = _children(levels[k], nodes_R, ids[:, k], fanout)
    return nodes_R


def _refuse(order: int, rows: Any, what: str) -> None:
    if len(rows):
        raise BadNgram(order, int(rows.min()), what)


def _missing_suffixes(levels: Sequence[Level], fanout: int) -> list[Any]:
    """Return, for each order, the ids (R, n) of missing suffixes, and of missing suffixes of these."""
    xp = array_module(levels[0].word_G)
    filled = [xp.empty((0, n), np.uint32) for n in range(1, len(levels) + 1)]
    for n in range(len(levels), 2, -1):
        longer = filled[n - 1][:, 1:]
        longer = longer[_walk(levels, longer, fanout) < 0]
        ids = xp.concatenate([_ids_of(levels, n, xp.flatnonzero(levels[n - 1].suffix_G < 0))[:, 1:], longer])
        filled[n - 2] = xp.asarray(np.unique(to_host(ids), axis=0))
    return filled


def _ids_of(levels: Sequence[Level], n: int, nodes: Any) -> Any:
    """Return (R, n) uint32: the words of nodes of order n."""
    columns = []
    for level in reversed(levels[:n]):
        columns.append(level.word_G[nodes])
        nodes = nodes if level.parent_G is None else level.parent_G[nodes]
    return array_module(nodes).stack(columns[::-1], axis=1)


def _with_rows(levels: Sequence[Level], n: int, ids: Any) -> Ngrams:
    """Return order n of a trie as n-grams, with rows of `ids` after them."""
    xp, level = array_module(ids), levels[n - 1]
    nothing = xp.zeros(len(ids), np.float32)
    all_ids = xp.concatenate([_ids_of(levels, n, xp.arange(len(level.word_G))), ids])
    backoff = None if level.backoff_G is None else xp.concatenate([level.backoff_G, nothing])
    return Ngrams(all_ids, xp.concatenate([level.prob_G, nothing]), backoff)


def negative(array: Any) -> Any:
    """Return -|x| of float32 values by setting sign bits, because GPU arithmetic may round subnormals to 0."""
    return (array.view(np.uint32) | np.uint32(1 << 31)).view(np.float32)


def join_levels(
    stretches: Sequence[Sequence[Level]], fanout: int, move: Callable[[Any], Any] = lambda array: array
) -> Trie:
    """Return the trie of levels, renumbered. Consumes the levels: each array is freed when it has been copied.

    stretches  each one has levels of all orders; in each order, its nodes follow those of the previous stretch.
               Children are numbered within a stretch, suffixes within an order
    move       copies arrays, one at a time, to the device of the trie
    """
    S, levels = len(stretches), [level for order in zip(*stretches, strict=True) for level in order]
    xp = array_module(move(levels[0].word_G[:1]))
    begins = np.cumsum([0, *(len(level.word_G) for level in levels)]).tolist()
    starts = begins[::S]
    G, node = starts[-1], node_dtype(starts[-1])

    def joined(name: str, levels: Sequence[Level], dtype: Any, added: Sequence[int] = ()) -> Any:
        """Return one attribute of all levels, concatenated; adds `added[i]` to the node numbers of level i."""
        whole, at = xp.empty(sum(len(getattr(level, name)) for level in levels), dtype), 0
        for i, level in enumerate(levels):
            array = move(getattr(level, name))
            target = whole[at : at + len(array)]
            if added:
                xp.add(array, np.int64(added[i]), out=target, casting="unsafe")
            else:
                target[:] = array
            at += len(array)
            setattr(level, name, None)
        return whole

    deeper, linked = levels[S:], levels[2 * S : -S]
    for level in deeper[:-1]:
        level.first_child_M = level.first_child_M[:-1]  # the children of one stretch end where those of the next begin
    found = [(level.filled_F, begin) for level, begin in zip(levels, begins, strict=False)]
    filled = [(move(f) + begin).astype(node) for f, begin in found if f is not None]
    filled_F = xp.concatenate([xp.empty(0, node), *filled])
    word_G = joined("word_G", levels, np.uint32)
    samples, sample_starts = sample_every_fanout(word_G, fanout)
    return Trie(
        starts=tuple(starts),
        word_G=word_G,
        prob_G=joined("prob_G", levels, np.float32),
        backoff_M=joined("backoff_G", levels[:-S], np.float32),
        first_child_M=joined("first_child_M", deeper, node, begins[S:-1]) if deeper else xp.full(1, G, node),
        suffix_L=joined("suffix_G", linked, node, np.repeat(starts[1:-1], S).tolist()),
        fanout=fanout,
        samples=samples,
        sample_starts=sample_starts,
        filled_F=filled_F if len(filled_F) else None,
    )
