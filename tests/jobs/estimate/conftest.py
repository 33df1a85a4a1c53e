"""Fixtures of estimates."""

import pytest

from mgpu_ngram.jobs.estimate import plan


@pytest.fixture
def part_tokens(monkeypatch):
    """Return part_tokens(tokens): estimates then divide their n-grams into parts of so many tokens, whatever memory."""

    def limit(tokens):
        for name in "_part_tokens", "_lone_part_tokens":
            monkeypatch.setattr(plan, name, lambda *_: tokens)

    return limit
