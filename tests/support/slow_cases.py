"""Cases of parametrised tests that `make test` leaves out."""

import pytest


def slow_cases(*cases):
    """Return cases marked slow; a case is a pytest.param, a tuple of several arguments, or one argument."""
    params = [c if hasattr(c, "marks") else pytest.param(*(c if isinstance(c, tuple) else (c,))) for c in cases]
    return [pytest.param(*p.values, id=p.id, marks=(*p.marks, pytest.mark.slow)) for p in params]


def first_fast(cases, fast=1):
    """Return the cases of a parametrised test; all but the first `fast` are marked slow."""
    cases = list(cases)
    return [*cases[:fast], *slow_cases(*cases[fast:])]


def only_fast(cases, *names):
    """Return the cases of a parametrised test; all but those of these ids are marked slow. A text is its own id."""
    cases = list(cases)
    is_fast = [(case.id if hasattr(case, "marks") else case) in names for case in cases]
    return [case if fast else slow_cases(case)[0] for case, fast in zip(cases, is_fast, strict=True)]
