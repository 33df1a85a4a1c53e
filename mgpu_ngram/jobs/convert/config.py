"""The settings of a convert job."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.typed_config import check_name


@dataclass(frozen=True)
class ConvertConfig:
    """Settings of a convert job; the keys of its YAML."""

    model: str  # an ARPA file, plain or compressed, a KenLM binary model, or a model file
    index: Literal["btree", "edge", "both"] | None = None  # edge, both: add the edge table, which is faster and larger;
    # btree: the trie alone. auto: as in the input if it is a model file, else btree
    fanout: int | None = None  # words that a search of the trie compares in one step; auto: as in the input if it is a
    # model file, else 32
    format: Literal["safetensors", "arpa", "kenlm-probing", "kenlm-trie"] = "safetensors"  # model file, ARPA file, or
    # KenLM binary; the last three have backoffs, and none of our indexes
    quantize: int | None = None  # bits of the codes for log10 probabilities and backoffs, from order 2 up; auto: floats
    quantize_backoff: int | None = None  # bits of the codes for backoffs in a KenLM trie; auto: as quantize
    pointer_bits: int | None = None  # maximum high bits of a trie's pointers that KenLM stores in a table (255: as many
    # as save memory); auto: whole pointers
    multiplier: float = 1.5  # slots for each n-gram in the tables of a KenLM probing model
    rest: list[str] = field(default_factory=list)  # models of orders 1 to N - 1, whose probabilities become the rest
    # costs of a KenLM probing model; default: no rest costs
    words: bool = True  # false: leave the words out of a KenLM binary model, which then has only their hashes
    unk_log10: float = -100  # log10 probability of <unk> if an ARPA file lacks it
    need_markers: bool = True  # false: also convert an ARPA file without <s> or </s> to a KenLM binary model
    positive_to_zero: bool = False  # true: replace log10 probabilities above 0 in an ARPA file, as IRSTLM writes them,
    # by 0
    backoff: bool = True  # false: leave out backoffs; the model then serves only stored distributions
    name: str = "convert"  # folder of the result, in the run's output

    def __post_init__(self) -> None:
        if self.fanout is not None and not 4 <= self.fanout <= 128:
            raise InputError(f"fanout is {self.fanout} but must be 4 to 128")
        kenlm, trie = self.format.startswith("kenlm"), self.format == "kenlm-trie"
        least, most = (1, 25) if trie else (2, 16)
        if self.quantize is not None and not least <= self.quantize <= most:
            raise InputError(f"quantize is {self.quantize} bits but must be {least} to {most}; leave it out for floats")
        if not self.backoff and self.index in ("edge", "both"):
            raise InputError(
                f"index {self.index} holds backoffs but backoff is false; make index btree, or leave backoff out"
            )
        if self.format != "safetensors":
            codes = None if trie else self.quantize
            for name, value in {"index": self.index, "fanout": self.fanout, "quantize": codes}.items():
                if value is not None:
                    raise InputError(f"{name} is {value} but format {self.format} has no such option; leave it out")
            if not self.backoff:
                raise InputError(f"backoff is false but format {self.format} needs backoffs; leave it out")
        if self.quantize_backoff is not None and not (trie and self.quantize):
            raise InputError(
                f"quantize_backoff is {self.quantize_backoff} but needs format kenlm-trie and quantize; leave it out"
            )
        if trie and self.quantize and not 2 <= self.backoff_bits <= 25:
            raise InputError(
                f"quantize_backoff is {self.backoff_bits} bits but must be 2 to 25, because KenLM reserves two codes "
                "for zeros"
            )
        if self.pointer_bits is not None and not (trie and 0 <= self.pointer_bits <= 255):
            raise InputError(f"pointer_bits is {self.pointer_bits} but must be 0 to 255, with format kenlm-trie")
        if self.rest and self.format != "kenlm-probing":
            raise InputError(f"rest is given but format {self.format} has no rest costs; make format kenlm-probing")
        if not kenlm and not self.words:
            raise InputError(f"words is false but format {self.format} needs words; leave it out")
        if not kenlm and not self.need_markers:
            raise InputError(f"need_markers is false but format {self.format} needs <s> and </s>; leave it out")
        if not 1 < self.multiplier < math.inf:
            raise InputError(f"multiplier is {self.multiplier:g} but must be a number above 1")
        if not kenlm and self.multiplier != 1.5:
            raise InputError(f"multiplier is {self.multiplier:g} but format {self.format} has no tables; leave it out")
        if not -math.inf <= self.unk_log10 <= 0:
            raise InputError(f"unk_log10 is {self.unk_log10:g} but must be 0 or less, a log10 probability")
        check_name(self.name)

    @property
    def backoff_bits(self) -> int:
        """Bits of the codes for backoffs in a KenLM trie; 0: floats."""
        return self.quantize_backoff if self.quantize_backoff is not None else self.quantize or 0
