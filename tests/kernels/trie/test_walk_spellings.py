"""Nodes of texts: by hand, and against a set of beginnings."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mgpu_ngram.kernels.dispatch import to_host
from mgpu_ngram.kernels.trie.walk_spellings import SpellingTrie, walk_spellings


def walk(trie, nodes, texts, to_device):
    offsets_T = np.cumsum([0, *map(len, texts)], dtype=np.int64)
    arrays = np.array(nodes, np.int32), offsets_T, np.frombuffer(b"".join(texts), np.uint8)
    return to_host(walk_spellings(SpellingTrie(*map(to_device, trie)), *map(to_device, arrays))).tolist()


def test_by_hand(to_device):
    # 0: "", 1: "a", 2: "c", 3: "ab", 4: "ad", 5: "c\xff"
    trie = np.frombuffer(b"\0acbd\xff", np.uint8), np.array([1, 3, 5, 6, 6, 6, 6], np.int32)
    texts = [b"", b"a", b"ab", b"d", b"c\xff", b"abc", b"\0", b"b"]
    wanted = [[0, 1, 3, 6, 5, 6, 6, 6], [1, 6, 6, 4, 6, 6, 6, 3], [6] * 8, [6] * 8, [6] * 8]
    assert walk(trie, [0, 1, 6, -1, 99], texts, to_device) == wanted


@given(
    words=st.sets(st.binary(min_size=1, max_size=4), max_size=12),
    texts=st.lists(st.binary(max_size=3), max_size=6),
)
def test_nodes_are_beginnings_of_words(to_device, words, texts):
    beginnings = sorted({word[:i] for word in words for i in range(len(word) + 1)} | {b""}, key=lambda b: (len(b), b))
    texts += [word[i:] for word in words for i in range(3)]
    M, children = len(beginnings), [sum(b[:-1] == begin for b in beginnings if b) for begin in beginnings]
    # The children of a beginning follow each other, in the order of their parents, so sums give the first of each.
    trie = np.array([0] + [b[-1] for b in beginnings[1:]], np.uint8), np.cumsum([1, *children], dtype=np.int32)
    number = {begin: m for m, begin in enumerate(beginnings)}
    wanted = [[number.get(begin + text, M) for text in texts] for begin in beginnings]
    assert walk(trie, range(M), texts, to_device) == wanted
