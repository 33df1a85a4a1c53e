"""Fixtures of tests of clusters."""

import pytest

from tests.support.cut_hosts import started_hosts


@pytest.fixture
def hosts(tmp_path, monkeypatch):
    """Return a function that starts a Dask cluster of namespaces: see `cut_hosts.started_hosts`."""
    monkeypatch.chdir(tmp_path)
    with started_hosts(tmp_path) as start:
        yield start
