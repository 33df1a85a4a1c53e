"""Hosts of a Dask cluster lose their link, without an answer: the run goes on with the others, or ends with one line.

Each host is a network namespace. A short lost_seconds stands for the 5 minutes of the default.
"""

import re

import pytest

from tests.support.cut_hosts import MARKS, MOMENTS, OTHER_MOMENTS, check_output, cut_in

pytestmark = MARKS


@pytest.mark.parametrize("names", [["two"], ["one", "two"]], ids=["one", "all"])
def test_workers_are_cut_off_before_the_first_task(hosts, tmp_path, names):
    """The run asks each worker that has joined, so it ends."""
    status, err = cut_in(hosts, tmp_path, "count", "", names)
    assert status == 2 and "Traceback" not in err, err
    assert re.match(r"mgpu-ngram: worker (one|two) \(tcp://10.77.0.1[12]:\d+\) does not answer", err.splitlines()[-1])


@pytest.mark.parametrize(("stage", "task"), MOMENTS + OTHER_MOMENTS)
def test_one_worker_is_cut_off(hosts, tmp_path, stage, task):
    status, err = cut_in(hosts, tmp_path, stage, task, ["two"])
    assert status == 0 and "Traceback" not in err, err
    check_output(tmp_path, stage)
