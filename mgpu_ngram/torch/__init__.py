"""The n-gram engine for PyTorch: models over token ids for NeMo, models of tokens and of words for
`generate`, mixtures of distributions, and a search over the outputs of CTC.

Imported as `mgpu_ngram.torch`, not with the package, so that the rest of the package does not need PyTorch.
"""

from mgpu_ngram.core.errors import InputError

try:
    import torch as _torch  # noqa: F401
except ImportError:
    raise InputError("mgpu_ngram.torch needs PyTorch, which is not installed; pip install torch") from None

from .ctc import CTCBeamSearch
from .logits_processor import LogitsProcessor
from .mixture import MixtureOfDistributions
from .mixture_loss import mixture_loss
from .ngram_lm import NGramLM
from .pieces_of import pieces_of

__all__ = [
    "CTCBeamSearch",
    "LogitsProcessor",
    "MixtureOfDistributions",
    "NGramLM",
    "mixture_loss",
    "pieces_of",
]
