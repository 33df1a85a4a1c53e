"""The module kenlm, by mgpu_ngram."""

from mgpu_ngram.kenlm import *  # noqa: F403
