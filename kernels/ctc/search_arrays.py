"""Arguments and results of a beam search over the outputs of CTC, as groups of arrays."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..score.step_states import StateTable
from ..trie.edges import EdgeTable

BLANK, SPACE, STARTS, CLOSES = 1, 2, 4, 8  # kinds of tokens
NAN, POSITIVE = 1, 2  # what is wrong with the log-probabilities of an utterance
MAX_BEAMS, MAX_TOKENS = 1 << 10, 1 << 22


class Utterances(NamedTuple):
    """The outputs of an acoustic model.

    log_probs_BTV  (B, T, V) float32, natural logarithms
    lengths_B      (B,) int32: frames of each utterance, 0 to T
    starts_B       (B,) int32: states of the n-gram model before each utterance
    """

    log_probs_BTV: Any
    lengths_B: Any
    starts_B: Any


class Tokens(NamedTuple):
    """The V tokens of an acoustic model, as strings of symbols.

    kind_V     (V,) uint8: BLANK; SPACE: ends a word and adds no symbols; STARTS: a word begins with it; CLOSES: a word
               ends with it; or a sum of these
    first_V1   (V + 1,) int32: token v has the symbols symbols_S[first_V1[v]:first_V1[v + 1]]
    symbols_S  (S,) int32
    hash_V2    (V, 2) uint64: the hash of the symbols, and the factor of a hash of preceding symbols; see `hashes`
    """

    kind_V: Any
    first_V1: Any
    symbols_S: Any
    hash_V2: Any


class LexiconTrie(NamedTuple):
    """A trie of words as strings of symbols.

    table   an edge table; the "probability" of a node is 1 if it begins a known word, else 0
    word_G  (G,) int32: the word of the n-gram model that ends at a node; ~word if it counts as unknown
    """

    table: EdgeTable
    word_G: Any


class HotWords(NamedTuple):
    """A trie of hot words.

    table    an edge table; the "probability" of a node is 1 if it begins a hot word, else 0
    score_G  (G,) float64: the score of a word that is unfinished at a node
    whole_G  (G,) uint8: 1 where a hot word ends
    weight   the score of a hot word
    """

    table: EdgeTable
    score_G: Any
    whole_G: Any
    weight: float


class NGrams(NamedTuple):
    """An n-gram model of words, in the form of `step_states`; `end` is its word </s>, or -1 to leave ends unscored."""

    table: EdgeTable
    order: int
    states: StateTable
    end: int


class CTCOptions(NamedTuple):
    """Settings of a search.

    beam_width        K, beams that are kept, at most MAX_BEAMS
    n_best            N, results of an utterance, at most K
    alpha, beta       the score of a word is alpha * ln P + beta
    unknown           amount that is added to the log10 probability of unknown words; also the score of unknown prefixes
    beam_prune_logp   beams are dropped if their score minus the best score is below this; at most 0
    token_min_logp    less likely tokens are skipped, unless they are the best of their frame
    history           number of last words: of beams with the same last words, the best is kept; 0: all beams are kept
    has_model         whether a model scores words; if not, the lexicon and the n-grams are not read
    """

    beam_width: int
    n_best: int
    alpha: float
    beta: float
    unknown: float
    beam_prune_logp: float
    token_min_logp: float
    history: int
    has_model: bool


class UtteranceResults(NamedTuple):
    """Results of utterances, the best first.

    scores_BN2  (B, N, 2) float64: ln P of the acoustic model, then the score; 0 without a result
    states_BN   (B, N) int32: the state of the n-gram model after the last word; EMPTY without a result
    found_B     (B,) int32: number of results of each utterance
    paths_BNT   (B, N, T) int32: the token of each frame on the path that gives the times of a result; -1 after its
                frames
    errors_B    (B,) int32: NAN, POSITIVE or their sum if log-probabilities are NaN or above 0; else 0
    """

    scores_BN2: Any
    states_BN: Any
    found_B: Any
    paths_BNT: Any
    errors_B: Any
