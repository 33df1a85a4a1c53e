"""Fixtures of estimates."""

import pytest

from mgpu_ngram.jobs.estimate import run as estimate


@pytest.fixture
def part_tokens(monkeypatch):
    """Return part_tokens(tokens): estimates then divide their n-grams into parts of so many tokens, whatever memory."""

    def limit(tokens):
        for name in "_part_tokens", "_lone_part_tokens":
            monkeypatch.setattr(estimate, name, lambda *_: tokens)

    return limit
