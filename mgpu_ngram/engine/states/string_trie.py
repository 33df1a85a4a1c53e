"""A trie of strings of symbols, which are bytes or numbers: a node for each prefix of a string."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class StringTrie(NamedTuple):
    """G nodes in breadth-first order: prefixes of one symbol, of two, and so on; each level in order of the strings.

    symbol_G  (G,) the last symbol of each node, in the dtype of the strings
    parent_G  (G,) int64, not falling; -1 for single symbols
    depth_G   (G,) int64, number of symbols of each node
    first_G   (G,) int64: strings first_G[g] to end_G[g] - 1 begin with node g
    end_G     (G,) int64
    node_S    (S,) int64: the node of each string
    """

    symbol_G: np.ndarray
    parent_G: np.ndarray
    depth_G: np.ndarray
    first_G: np.ndarray
    end_G: np.ndarray
    node_S: np.ndarray

    def least(self, value_S: np.ndarray, without: int) -> np.ndarray:
        """Return the least value of the strings that begin with each node, (G,) int64; `without` if there are none."""
        least_G = np.full(len(self.symbol_G), without)
        has_G = self.first_G < self.end_G
        bounds = np.stack([self.first_G[has_G], self.end_G[has_G]], axis=1).reshape(-1)
        if len(bounds):
            least_G[has_G] = np.minimum.reduceat(np.append(value_S, without), bounds)[::2]
        return least_G


def make_string_trie(data: np.ndarray, starts_S: np.ndarray, lengths_S: np.ndarray, singles: int = 0) -> StringTrie:
    """Return the trie of sorted, distinct strings.

    data       unsigned integers: string s is data[starts_S[s]:starts_S[s] + lengths_S[s]], one symbol or more
    singles    symbols 0 to singles - 1 are the first nodes, even if no string begins with them; 0: only symbols with
               which strings begin
    """
    node_S, at_S, above_S = np.empty(len(starts_S), np.int64), np.arange(len(starts_S)), np.full(len(starts_S), -1)
    depth, nodes, levels = 1, 0, []
    while len(at_S) or depth == 1:
        symbol_S = data[starts_S[at_S] + depth - 1]
        if depth == 1 and singles:
            symbol_N, node_S[at_S] = np.arange(singles, dtype=data.dtype), symbol_S
            above_N = np.full(singles, -1)
            first_N, end_N = (np.searchsorted(symbol_S, symbol_N, side) for side in ("left", "right"))
        else:
            is_new = np.ones(len(at_S), bool)
            is_new[1:] = (above_S[1:] != above_S[:-1]) | (symbol_S[1:] != symbol_S[:-1])
            new_N = np.flatnonzero(is_new)
            symbol_N, above_N, first_N = symbol_S[new_N], above_S[new_N], at_S[new_N]
            end_N = at_S[np.append(new_N[1:], len(at_S))[: len(new_N)] - 1] + 1
            node_S[at_S] = nodes + np.cumsum(is_new) - 1
        levels.append((symbol_N, above_N, np.full(len(symbol_N), depth), first_N, end_N))
        nodes += len(symbol_N)
        at_S = at_S[lengths_S[at_S] > depth]
        above_S, depth = node_S[at_S], depth + 1
    symbol_G, parent_G, depth_G, first_G, end_G = map(np.concatenate, zip(*levels, strict=True))
    return StringTrie(symbol_G, parent_G, depth_G, first_G, end_G, node_S)
