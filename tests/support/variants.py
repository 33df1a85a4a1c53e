"""Cases of which `make test` runs the first ones."""

import pytest


def first_fast(cases, fast=1):
    """Return the cases of a parametrised test; all but the first `fast` are marked slow."""
    slow = [case if hasattr(case, "marks") else pytest.param(case) for case in cases]
    slow = [pytest.param(*case.values, id=case.id, marks=(*case.marks, pytest.mark.slow)) for case in slow]
    return [*list(cases)[:fast], *slow[fast:]]


def slow_cases(*cases):
    """Return cases of several arguments, marked slow."""
    return [pytest.param(*case, marks=pytest.mark.slow) for case in cases]
