"""Fixtures of estimates."""

import pytest

from mgpu_ngram.jobs.estimate import run as estimate


@pytest.fixture
def part_tokens(monkeypatch):
    """Return part_tokens(tokens): estimates then divide their n-grams into parts of so many tokens, whatever memory."""
    return lambda tokens: monkeypatch.setattr(estimate, "_part_tokens", lambda budget: tokens)
