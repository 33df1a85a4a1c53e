"""Last words of texts of tokens: by hand, and against the splitting of Python's bytes."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mgpu_ngram.kernels.dispatch import to_host
from mgpu_ngram.kernels.trie.last_words import TokenPieces, last_words
from mgpu_ngram.kernels.trie.walk_spellings import SpellingTrie

BYTES = st.lists(st.sampled_from([*b"ab", 0xC3, *b"  \t\n\r\v\f\0"]), max_size=4).map(bytes)


def find(trie, pieces, begins, rows, lengths, words, to_device):
    offsets_P = np.cumsum([0, *map(len, pieces)], dtype=np.int64)
    of_tokens = offsets_P, np.frombuffer(b"".join(pieces), np.uint8), np.array(begins, np.int64)
    arrays = np.array(rows, np.int64), np.array(lengths, np.int64)
    trie, of_tokens = SpellingTrie(*map(to_device, trie)), TokenPieces(*map(to_device, of_tokens))
    return to_host(last_words(trie, of_tokens, *map(to_device, arrays), words)).tolist()


def test_by_hand(to_device):
    # 0: "", 1: "a", 2: "c", 3: "ab", 4: "ad", 5: "c\xff"; 6 is not a node
    trie = np.frombuffer(b"\0acbd\xff", np.uint8), np.array([1, 3, 5, 6, 6, 6, 6], np.int32)
    pieces = [b" a", b"b", b" c\xff ad", b"\n", b"", b" ? "]  # the last one of tokens 5, -1, 9
    rows = [[9, 0, 1, 2], [0, 4, 1, 3], [0, 2, 7, 1], [0, 9, 1, 0], [1, 1, 0, 1], [0, 0, 3, 4]]
    wanted = [
        [6, 3, 5, 4],  # ?, ab, c\xff, ad-
        [0, 0, 3, 0],  # ab and white space
        [0, 0, 0, 6],  # after token 7, a text begins with b-
        [1, 6, 6, 1],  # a, ?, b, a-
        [0, 0, 0, 3],  # two tokens alone: ab-
        [0, 0, 0, 0],  # none
    ]
    assert find(trie, pieces, [7, 8], rows, [4, 4, 4, 4, 2, 0], 3, to_device) == wanted
    assert find(trie, pieces, [], rows[:3], [4, 4, 4], 0, to_device) == [[4], [0], [6]]
    assert find(trie, pieces, [], np.zeros((2, 0)), [0, 0], 1, to_device) == [[0, 0], [0, 0]]


@given(data=st.data(), pieces=st.lists(BYTES, min_size=1, max_size=6), words=st.integers(0, 3))
def test_words_are_those_of_bytes(to_device, data, pieces, words):
    P, tokens = len(pieces), st.lists(st.integers(-1, len(pieces) + 1), min_size=9, max_size=9)
    rows = data.draw(st.lists(tokens, min_size=1, max_size=4))
    lengths = [data.draw(st.integers(0, 9)) for _ in rows]
    begins = data.draw(st.lists(st.integers(0, P), max_size=2))
    texts = []
    for row, length in zip(rows, lengths, strict=True):
        kept = row[9 - length :]
        first = max((i + 1 for i, token in enumerate(kept) if token in begins), default=0)
        texts.append(b"".join(pieces[token if 0 <= token < P - 1 else P - 1] for token in kept[first:]))
    known = {word for text in texts[::2] for word in text.split()}
    beginnings = sorted({word[:i] for word in known for i in range(len(word) + 1)} | {b""}, key=lambda b: (len(b), b))
    M, children = len(beginnings), [sum(b[:-1] == begin for b in beginnings if b) for begin in beginnings]
    trie = np.array([0] + [b[-1] for b in beginnings[1:]], np.uint8), np.cumsum([1, *children], dtype=np.int32)
    number, wanted = {begin: m for m, begin in enumerate(beginnings)}, []
    for text in texts:
        whole = text.split()
        partial = [whole.pop()] if whole and not text[-1:].isspace() else [b""]
        last = [*[b""] * words, *whole][len(whole) :] + partial
        wanted.append([number.get(word, M) for word in last])
    assert find(trie, pieces, begins, rows, lengths, words, to_device) == wanted
