"""The settings of an lda job."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from mgpu_ngram.core.bags.seed_words import seeds_of_topics
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.typed_config import check_at_least, check_files, check_name, number_or_share
from mgpu_ngram.kernels.lda.limits import MAX_ALPHA_SUM, MAX_TOPICS

SAMPLED_PER_SECOND = 20e6  # tokens a second that 2 CPU cores sample with few topics, rounded down
ALPHA_SUM = 50.0  # sum of the default priors of topics: Griffiths and Steyvers, "Finding scientific topics" (2004)
PART_TOKENS = 1 << 20  # tokens of a part of the corpus: few, because workers divide whole parts
HALF_RATE_TOPICS = 256  # topics with which 2 CPU cores sample half as many tokens; KOS, 16 to 4,096 topics


@dataclass(frozen=True)
class LdaConfig:
    """Settings of an lda job; the keys of its YAML."""

    corpus: list[str]  # UCI docword files, sparse .npz matrices, or documents: plain text with a document a line, JSON
    # lines, Parquet; paths, globs, directories or fsspec URLs
    vocabulary: str | None = None  # file with the words of the columns of a matrix, one a line; not needed for
    # documents
    text_column: str | None = None  # Parquet column (auto: text, or the only one of text) or JSON key (auto: text)
    lowercase: bool = True  # change the text to lower case first
    token_pattern: str | None = None  # regular expression of a token; auto: words of two letters or digits and more
    stop_words: str | None = None  # words to leave out: english, or a file with a word a line
    min_df: int | float = 1  # leave out words in fewer documents: a number, or a share with a point (0.01). 1 is one
    # document, 1.0 all documents
    max_df: int | float | None = None  # leave out words in more documents, in the same way; auto: no limit, as 1.0
    max_features: int | None = None  # keep this many words, those with most tokens; auto: all
    topics: int = 100  # number of topics, 1 to 65,536
    sweeps: int = 200  # number of sweeps over all tokens
    alpha: float | list[float] | None = None  # prior of topics in a document: one number, or a list with one for each
    # topic; auto: 50 / topics, as Griffiths and Steyvers (2004)
    beta: float = 0.01  # prior of words in a topic; 0.01 as Xie et al. (2018)
    seeds: dict[Any, Any] | None = None  # words for given topics: topic -> a word, a list of words, or word -> weight.
    # A weight is the number of tokens of the word that the topic has from the start; default 100
    optimise_every: int = 0  # number of sweeps between estimates of the priors; 0: the priors stay as given
    exclude_self: bool = True  # exclude the token's own count, as collapsed Gibbs sampling does; false: as in CuLDA_CGS
    seed: int = 1  # seed of the random numbers, 0 to 2^64 - 1; the same seed gives the same topics on any device
    evaluate_every: int = 10  # number of sweeps between evaluations; 0: only after the last sweep
    held_out: float = 0.0  # share of the documents that are held out of training, to measure the perplexity on them
    tolerance: float = 0.0  # stop when the perplexity falls by less than this share between two evaluations; 0: never
    coherence: bool = False  # also compute the coherence of the topics: u_mass, c_npmi, c_uci, c_v; means over topics
    block_tokens: int | None = None  # tokens in each part of the corpus, which workers share out; auto: 1,048,576
    name: str = "lda"  # folder of the result, in the run's output

    def __post_init__(self) -> None:
        check_name(self.name)
        check_files(self.corpus)
        check_at_least(self, 1, "topics", "sweeps", "max_features", "block_tokens")
        check_at_least(self, 0, "seed", "evaluate_every", "optimise_every")
        if self.topics > MAX_TOPICS:
            raise InputError(f"topics is {self.topics:,} but must be at most {MAX_TOPICS:,}")
        if self.seed >= 2**64:
            raise InputError(f"seed is {self.seed} but must be below 2^64")
        for name in ("alpha", "beta"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, list) and not 1e-6 <= value <= 1e6:
                raise InputError(f"{name} is {value} but must be 0.000001 to 1,000,000")
        if isinstance(self.alpha, list):
            _check_alphas(self.alpha, self.topics)
        elif self.alphas[0] * self.topics > MAX_ALPHA_SUM:
            raise InputError(
                f"alpha is {self.alpha:,.9g} for each of {self.topics:,} topics but must be at most "
                f"{MAX_ALPHA_SUM / self.topics:,.9g}: {MAX_ALPHA_SUM:,} in sum"
            )
        seeds_of_topics(self.seeds or {}, self.topics)
        for name in ("held_out", "tolerance"):
            value = getattr(self, name)
            if not 0 <= value < 1:
                raise InputError(f"{name} is {value} but must be a share of at least 0 and below 1")
        for name in ("min_df", "max_df"):
            if getattr(self, name) is not None:
                number_or_share(getattr(self, name), name)

    def cpu_seconds(self, tokens: float) -> float:
        """Return the approximate seconds that 2 CPU cores take to train on this number of tokens."""
        return tokens * self.sweeps * (1 + self.topics / HALF_RATE_TOPICS) / SAMPLED_PER_SECOND

    @property
    def part_tokens(self) -> int:
        """Return the tokens of a part of the corpus, at most."""
        return self.block_tokens or PART_TOKENS

    @property
    def model_settings(self) -> dict[str, Any]:
        """Return the settings that a model keeps. Its priors hold the seed words."""
        return {name: value for name, value in asdict(self).items() if name not in ("corpus", "name", "seeds")}

    @property
    def alphas(self) -> list[float]:
        """Return the prior of each topic in a document, `topics` numbers."""
        if isinstance(self.alpha, list):
            return self.alpha
        return [ALPHA_SUM / self.topics if self.alpha is None else self.alpha] * self.topics


def _check_alphas(alphas: list[float], topics: int) -> None:
    """Raise InputError for priors that are not one for each topic, not above 0, or too large."""
    if len(alphas) != topics:
        raise InputError(f"alpha is a list of length {len(alphas):,} but must be one number, or a list of {topics:,}")
    wrong = next((k for k, alpha in enumerate(alphas) if not alpha > 0), None)
    if wrong is not None:
        raise InputError(f"alpha is {alphas[wrong]} for topic {wrong:,} but must be above 0")
    if not sum(alphas) <= MAX_ALPHA_SUM:
        raise InputError(f"alpha sums to {sum(alphas):,.9g} but must sum to {MAX_ALPHA_SUM:,} at most")
