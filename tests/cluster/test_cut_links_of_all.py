"""As test_cut_links: all workers are cut off, links come back, and encrypted links are cut."""

import pytest

from tests.support.certificates import make_certificate
from tests.support.cut_hosts import MARKS, MOMENTS, SWEEPS, check_output, cut_in

pytestmark = MARKS


@pytest.mark.parametrize(("stage", "task"), MOMENTS)
def test_all_workers_are_cut_off(hosts, tmp_path, stage, task):
    status, err = cut_in(hosts, tmp_path, stage, task, ["one", "two"])
    assert status == 1 and "Traceback" not in err, err
    assert err.splitlines()[-1].startswith("mgpu-ngram: all workers of the Dask cluster"), err


@pytest.mark.parametrize(
    ("stage", "task", "names", "seconds"),
    [("count", "text_ids", ["one", "two"], 4), ("lda", SWEEPS, ["two"], 4), ("estimate", "adjust_parts", ["two"], 60)],
)
def test_a_link_comes_back(hosts, tmp_path, stage, task, names, seconds):
    """Before the worker is taken for lost, or after that.

    After 4 s, TCP sends again 6 s after the first loss, before a connection ends (TCP_SECONDS); after 8 s it might wait
    until 12.6 s.
    """
    status, err = cut_in(hosts, tmp_path, stage, task, names, seconds)
    assert status == 0 and "Traceback" not in err, err
    check_output(tmp_path, stage)


def test_an_encrypted_link_is_cut(hosts, tmp_path):
    cert, key = make_certificate(tmp_path)
    tls = {"CA_FILE": cert} | {
        f"{role}__{name}": value
        for role in ("CLIENT", "SCHEDULER", "WORKER")
        for name, value in (("CERT", cert), ("KEY", key))
    }
    variables = {f"DASK_DISTRIBUTED__COMM__TLS__{name}": value for name, value in tls.items()}
    status, err = cut_in(hosts, tmp_path, "count", "text_ids", ["two"], protocol="tls", **variables)
    assert status == 0 and "Traceback" not in err, err
    check_output(tmp_path, "count")
