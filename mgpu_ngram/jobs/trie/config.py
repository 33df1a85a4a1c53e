"""The settings of a trie job."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.typed_config import check_name

MODELS = {  # names of the model in the folder of a run, by format
    "safetensors": "model.safetensors",
    "arpa": "model.arpa",
    "kenlm-probing": "model.binary",
    "kenlm-trie": "model.binary",
}


@dataclass(frozen=True)
class TrieConfig:
    """Settings of a trie job; the keys of its YAML."""

    model: str  # an ARPA file, plain or compressed, a KenLM binary model, or a model file
    index: Literal["btree", "edge", "both"] | None = None  # edge, both: add the edge table, which is faster and
    # larger; btree: the trie alone. auto: as in the input model file; btree for another file
    fanout: int | None = None  # words that a search of the trie compares in one step; auto: as in the input model
    # file; 32 for another file
    format: Literal["safetensors", "arpa", "kenlm-probing", "kenlm-trie"] = "safetensors"  # model file, ARPA file, or
    # KenLM binary model; the last three have no index of ours, no codes, and backoffs
    quantize: int | None = None  # bits of the codes for log10 probabilities and backoffs, from order 2 up; auto: floats
    multiplier: float = 1.5  # slots for each n-gram in the tables of a probing model of KenLM
    words: bool = True  # false: leave the words out of a KenLM binary model, which then holds their hashes alone
    backoff: bool = True  # false: leave backoffs out; such a model serves stored distributions only
    name: str = "trie"  # folder of the result, in the run's output

    def __post_init__(self) -> None:
        if self.fanout is not None and not 4 <= self.fanout <= 128:
            raise InputError(f"fanout is {self.fanout} but must be 4 to 128")
        if self.quantize is not None and not 2 <= self.quantize <= 16:
            raise InputError(f"quantize is {self.quantize} bits but must be 2 to 16; leave it out for floats")
        if not self.backoff and self.index in ("edge", "both"):
            raise InputError(f"index {self.index} holds backoffs but backoff is false; make index btree, or keep them")
        if self.format != "safetensors":
            for name, value in {"index": self.index, "fanout": self.fanout, "quantize": self.quantize}.items():
                if value is not None:
                    raise InputError(f"{name} is {value} but format {self.format} has none; leave it out")
            if not self.backoff:
                raise InputError(f"backoff is false but format {self.format} needs backoffs; leave it out")
        if not self.format.startswith("kenlm") and not self.words:
            raise InputError(f"words is false but format {self.format} needs words; leave it out")
        if not 1 < self.multiplier < math.inf:
            raise InputError(f"multiplier is {self.multiplier:g} but must be over 1")
        if self.format != "kenlm-probing" and self.multiplier != 1.5:
            raise InputError(f"multiplier is {self.multiplier:g} but format {self.format} has no tables; leave it out")
        check_name(self.name)
