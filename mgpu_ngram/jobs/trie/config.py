"""The settings of a trie job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.typed_config import check_name


@dataclass(frozen=True)
class TrieConfig:
    """Settings of a trie job; the keys of its YAML."""

    model: str  # an ARPA file, plain or compressed, or a model file
    index: Literal["btree", "edge", "both"] | None = None  # edge adds the edge table: faster to score with, and larger.
    # The trie, which has the other index in it, is always there, so both says the same as edge. auto: as the model
    # file has it; btree of an ARPA file
    fanout: int | None = None  # words that a search of the trie looks at in one step; auto: as the model file has it;
    # 32 of an ARPA file
    quantize: int | None = None  # bits of a code for each log10 probability and backoff from order 2 on; auto: floats
    backoff: bool = True  # false leaves the backoffs out, for what never reads them: stored distributions
    name: str = "trie"  # folder of the result under the run's output

    def __post_init__(self) -> None:
        if self.fanout is not None and not 4 <= self.fanout <= 128:
            raise InputError(f"fanout is {self.fanout} but must be 4 to 128")
        if self.quantize is not None and not 2 <= self.quantize <= 16:
            raise InputError(f"quantize is {self.quantize} bits but must be 2 to 16; leave it out for floats")
        if not self.backoff and self.index in ("edge", "both"):
            raise InputError(f"index {self.index} holds backoffs but backoff is false; make index btree, or keep them")
        check_name(self.name)
