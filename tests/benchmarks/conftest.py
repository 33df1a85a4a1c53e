"""Fixtures of the benches' tests."""

import csv

import pytest


@pytest.fixture
def stored_rows():
    """Return a function: the rows of the only CSV file of a folder, which must be of the same work as `found`."""

    def stored_rows(folder, found):
        [path] = folder.glob("*.csv")
        with open(path, newline="") as file:
            kept = list(csv.DictReader(file))
        assert {(row["kernel"], row["sizes"]) for row in kept} == {(row["kernel"], row["sizes"]) for row in found}
        return kept

    return stored_rows
