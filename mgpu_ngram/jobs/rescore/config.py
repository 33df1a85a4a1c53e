"""The settings of a rescore job."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from typing import Any, Literal

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.storage.file_heads import KENLM_SUFFIXES
from mgpu_ngram.core.typed_config import Bytes, check_at_least, check_name

LATTICE_FEATURES: dict[str, tuple[str, ...]] = {
    "kaldi": ("graph", "ac"),
    "slf": ("lm", "ac"),
}  # in the order of a lattice's scores
TOTAL = "total"  # name of the old total among the weights
MODEL_SUFFIXES = (".gz", ".bz2", ".xz", ".zst", ".arpa", ".safetensors", *KENLM_SUFFIXES)


@dataclass(frozen=True)
class ListsConfig:
    """Settings of jobs that read n-best lists and score them; the keys of their YAML."""

    text: list[str]  # n-best lists: paths, globs, directories or fsspec URLs
    lm: list[str] = field(default_factory=list)  # n-gram models, of any format, or names of earlier jobs
    names: list[str] = field(default_factory=list)  # names of the models' features; empty: the names of their files or
    # jobs
    weights: Any = field(default_factory=dict)  # weights of features by name: a number, or a list for a feature with
    # several values. The old total has the name total; its weight is 1 unless a feature of the lists has a weight. Or a
    # YAML file of weights, or the name of an earlier job that tunes them
    kaldi: bool = False  # the lists are Kaldi archives: lines "ID-N word word"
    costs: dict[str, Any] = field(default_factory=dict)  # Kaldi archives of costs, by the names of their features
    lattices: Literal["no", "kaldi", "slf"] = "no"  # the inputs are lattices: kaldi (text of Kaldi or OpenFst), or slf
    # (HTK)
    n_best: int = 1  # maximum number of best texts of each lattice
    text_column: str | None = None  # column of Parquet files; auto: text, or the only column of text
    chunk_bytes: Bytes | None = None  # bytes of text for each task; auto: from device, text and workers
    verify: bool = True  # check the checksums of model files

    def __post_init__(self) -> None:
        check_at_least(self, 1, "chunk_bytes", "n_best")
        if not self.lm and not self.weights:
            raise InputError(
                "neither models nor weights are given, so nothing would change; give --lm FILE (in YAML lm)"
            )
        if self.names and len(self.names) != len(self.lm):
            raise InputError(f"there are {len(self.lm)} models but {len(self.names)} names; give one for each model")
        if self.costs and not self.kaldi:
            raise InputError("costs are for archives of Kaldi; give --kaldi (in YAML kaldi: true), or leave them out")
        if self.kaldi and self.lattices != "no":
            raise InputError(f"lattices are {self.lattices}, but kaldi is for n-best archives; leave one of them out")
        if self.n_best > 1 and self.lattices == "no":
            raise InputError(f"n_best is {self.n_best} but the texts are lists; leave it out, or give --lattices kaldi")
        for name, path in self.costs.items():
            if not isinstance(path, str) or not path:
                raise InputError(f"the costs {name} are {path!r} but must be the path of an archive")
        for name in (*self.feature_names, *self.costs):
            if not isinstance(name, str) or name == TOTAL or not name or any(c.isspace() or c in "=:|" for c in name):
                raise InputError(f"{name!r} cannot be the name of a feature; give another name")
        for name in self.feature_names:
            if (*self.feature_names, *self.costs).count(name) > 1:
                raise InputError(f"two features have the name {name}; give the models other names: --names A B")
        if not isinstance(self.weights, (dict, str)):
            raise InputError(
                f"weights are {self.weights!r} but must be a mapping from names to numbers, or a YAML file"
            )
        known = LATTICE_FEATURES.get(self.lattices, ())
        for name in list(self.list_weights)[1:] if known else ():
            if name not in known:
                raise InputError(f"lattices have no feature {name}; their features are {', '.join(known)}")
        for name in self.feature_names:
            if name in known:
                raise InputError(f"lattices already have a feature {name}; give the model another name with --names")
        for name, weight in self._weights.items():
            if not weight or not all(map(is_weight, weight)):
                raise InputError(f"the weight of {name} is {_shown(weight)} but must be a finite number, or a list")
            if len(weight) > 1 and name in (TOTAL, *self.feature_names, *known):
                raise InputError(f"{name} has {len(weight)} weights but one value; give one weight")

    @property
    def of_utterances(self) -> bool:
        """Whether ids name utterances, and texts are written and read as "ID word word"."""
        return self.kaldi or self.lattices != "no"

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The names of the models' features."""
        return tuple(self.names or map(_stem, self.lm))

    @property
    def _weights(self) -> dict[str, tuple[float, ...]]:
        """The weights in the settings; empty if the settings name a file of weights."""
        given = self.weights if isinstance(self.weights, dict) else {}
        return {str(name): tuple(w) if isinstance(w, list) else (w,) for name, w in given.items()}

    @property
    def list_weights(self) -> dict[str, tuple[float, ...]]:
        """The weights of the total, first, and of the features of the lists."""
        own = {name: w for name, w in self._weights.items() if name not in (TOTAL, *self.feature_names)}
        return {TOTAL: self._weights.get(TOTAL, (0.0 if own else 1.0,)), **own}

    @property
    def model_weights(self) -> tuple[float, ...]:
        """The weights of the models' features; 0 for a model without a weight."""
        return tuple(self._weights.get(name, (0.0,))[0] for name in self.feature_names)


@dataclass(frozen=True)
class RescoreConfig(ListsConfig):
    """Settings of a rescore job; the keys of its YAML."""

    best: bool = False  # write only the text of the best line of each list
    name: str = "rescore"  # folder of the result, in the run's output

    def __post_init__(self) -> None:
        check_name(self.name)
        super().__post_init__()


def _shown(values: tuple[Any, ...]) -> str:
    return repr(values[0] if len(values) == 1 else list(values))


def is_weight(value: Any) -> bool:
    """Return whether a value is a finite number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return abs(value) <= sys.float_info.max  # not of infinity, NaN, or a whole number that no float holds


def _stem(path: str) -> str:
    """Return the name of a model's file without its suffixes; of a file called model, as jobs make, its folder's."""
    folder, name = os.path.split(path)
    while name.endswith(MODEL_SUFFIXES):
        name = name.rpartition(".")[0]
    return (os.path.basename(folder) or name) if name == "model" else name
