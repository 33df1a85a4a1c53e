"""mgpu_ngram: n-gram counts and language models on GPUs, clusters and laptops.

The public names are imported when they are first used, so `import mgpu_ngram` takes a few milliseconds.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mgpu_ngram.core.version import VERSION

if TYPE_CHECKING:
    from mgpu_ngram import compact
    from mgpu_ngram import torch as torch
    from mgpu_ngram.api.beam_search import BeamSearch
    from mgpu_ngram.api.functions import count, filter, open_distributions, score
    from mgpu_ngram.api.lda import LDA
    from mgpu_ngram.api.model import Model, estimate
    from mgpu_ngram.api.translator import Translated, Translator
    from mgpu_ngram.core.counts.counts import Counts, read_counts
    from mgpu_ngram.core.counts.srilm_counts import SrilmCounts
    from mgpu_ngram.core.errors import InputError, RunError
    from mgpu_ngram.core.inputs.in_memory import Lines
    from mgpu_ngram.torch_allocator import use_torch_allocator

__all__ = [
    "LDA",
    "BeamSearch",
    "Counts",
    "InputError",
    "Lines",
    "Model",
    "RunError",
    "SrilmCounts",
    "Translated",
    "Translator",
    "compact",
    "count",
    "estimate",
    "filter",
    "open_distributions",
    "read_counts",
    "score",
    "use_torch_allocator",
]
__version__ = VERSION
_MODULES = {  # public names by the module that defines them
    "mgpu_ngram.api.functions": ("count", "filter", "open_distributions", "score"),
    "mgpu_ngram.api.beam_search": ("BeamSearch",),
    "mgpu_ngram.core.counts.counts": ("Counts", "read_counts"),
    "mgpu_ngram.core.errors": ("InputError", "RunError"),
    "mgpu_ngram.core.inputs.in_memory": ("Lines",),
    "mgpu_ngram.core.counts.srilm_counts": ("SrilmCounts",),
    "mgpu_ngram.api.lda": ("LDA",),
    "mgpu_ngram.api.model": ("Model", "estimate"),
    "mgpu_ngram.torch_allocator": ("use_torch_allocator",),
    "mgpu_ngram.api.translator": ("Translated", "Translator"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


if not TYPE_CHECKING:  # so that type checkers report names that do not exist

    def __getattr__(name: str) -> Any:
        """Import a public name, or a module such as `mgpu_ngram.kenlm`, when it is first used (PEP 562)."""
        if name in _MODULE_OF:
            value = getattr(import_module(_MODULE_OF[name]), name)
        elif name in ("compact", "torch"):
            value = import_module(f"mgpu_ngram.{name}")
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
