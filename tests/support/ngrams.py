"""Plain Python over tries of n-grams."""


def ngrams_in(trie):
    """Return {n-gram: node}, found by walking down the trie."""
    nodes = {(word,): word for word in range(trie.symbols)}
    for ngram, node in (found := list(nodes.items())):
        if node < trie.histories:
            children = range(int(trie.first_child_M[node]), int(trie.first_child_M[node + 1]))
            found += [((*ngram, int(trie.word_G[child])), child) for child in children]
    return dict(found)
