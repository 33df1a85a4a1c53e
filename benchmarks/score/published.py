"""Published figures of gLM (Bogoychev and Lopez, 2016), and those of the peers' programs on one H200."""

from __future__ import annotations

# Bogoychev and Lopez (2016): a GTX Titan X, KenLM in one thread.
GLM, PROBING, KENLM_TRIE = "gLM, as published", "KenLM probing, as published", "KenLM trie, as published"
PUBLISHED = {GLM: 65.5e6, PROBING: 10.3e6, KENLM_TRIE: 4.5e6}
GLM_BEST_FANOUT = 33
PUBLISHED_ORDERS = {
    GLM: {5: 65.5e6, 4: 71.9e6, 3: 93.7e6},
    PROBING: {5: 10.2e6, 4: 9.8e6, 3: 11.5e6},
    KENLM_TRIE: {5: 4.5e6, 4: 4.5e6, 3: 5.2e6},
}
PUBLISHED_SIZES = {  # n-grams of the model
    GLM: {88.7e6: 65.5e6, 423e6: 55e6},
    PROBING: {88.7e6: 10.2e6, 423e6: 8.2e6},
    KENLM_TRIE: {88.7e6: 4.5e6, 423e6: 3.0e6},
}
# The peers' programs on one H200 and its host, a model of 23 M n-grams.
MEASURED = {
    "gLM on an H200": 609e6,
    "KenLM probing, 16 threads": 176e6,
    "KenLM trie, 16 threads": 87e6,
    "KenLM probing, 1 thread": 9.9e6,
    "KenLM trie, 1 thread": 4.1e6,
}
GLM_STUMPS = {2: 0.97, 3: 0.994, 4: 0.999, 5: 0.9999}  # its trie of that model
