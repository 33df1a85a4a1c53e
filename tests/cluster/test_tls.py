"""The TLS example of docs/clusters.md: its commands and its YAML, on loopback."""

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from mgpu_ngram.core.counts.counts import read_counts

pytestmark = pytest.mark.slow
PAGE = Path(__file__).resolve().parents[2] / "docs" / "clusters.md"
BIN = Path(sys.executable).parent
ENVIRONMENT = {k: v for k, v in os.environ.items() if not k.startswith("DASK_")}
ENVIRONMENT["PATH"] = os.pathsep.join([str(BIN), os.environ["PATH"]])


def block(title, port):
    """Return the code of the page that begins with the comment `# title`, with loopback for its addresses."""
    (code,) = re.findall(rf"^```\w+\n(# {title}.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    return re.sub(r"10\.0\.0\.\d", "127.0.0.1", code.replace("10.0.0.1:8786", f"127.0.0.1:{port}"))


def free_port():
    """Return a free port below those that the system gives to other processes, which begin at 32768."""
    for port in range(20_000 + os.getpid() % 10_000, 32_768):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("all ports are taken")


def end(process):
    """End a process and the processes that it started."""
    if process.poll() is None:
        for each in [*psutil.Process(process.pid).children(recursive=True), process]:
            each.kill()
        process.wait()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Return (a folder with certificates, tls.yaml and its corpus; the port of a scheduler with two workers)."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    folder = tmp_path_factory.mktemp("tls")
    port = free_port()
    subprocess.run(["bash", "-euc", block("certificates", port)], cwd=folder, check=True, capture_output=True)
    (folder / "runs").mkdir()
    (folder / "runs" / "python_docs.txt").write_text("of the people by the people\n" * 1000)
    (folder / "tls.yaml").write_text(block("tls.yaml", port))
    scheduler, worker = (block(title, port).replace("\\\n", " ") for title in ("scheduler, on", "worker, on"))
    started = []
    try:
        with (folder / "log").open("w") as log:
            for command in [scheduler, worker, worker]:
                words = shlex.split(command, comments=True)
                started.append(subprocess.Popen(words, cwd=folder, env=ENVIRONMENT, stdout=log, stderr=log))
        while (folder / "log").read_text().count("Registered to:") < 2:
            ended = [process for process in started if process.poll() is not None]
            assert not ended, (folder / "log").read_text()
            time.sleep(0.1)
        yield folder, port
    finally:
        for process in started:
            end(process)


def run(folder, *arguments, without=()):
    """Run tls.yaml without some of its lines: (exit status, stderr)."""
    lines = (folder / "tls.yaml").read_text().splitlines(keepends=True)
    assert all(any(word in line for line in lines) for word in without)
    (folder / "run.yaml").write_text("".join(line for line in lines if not any(word in line for word in without)))
    command = [BIN / "mgpu-ngram", "run", "run.yaml", "--overwrite", *arguments]
    done = subprocess.run(command, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True)
    return done.returncode, done.stderr


def test_a_run_with_tls(cluster):
    folder, _ = cluster
    assert run(folder) == (0, "")
    counts = read_counts(folder / "runs" / "tls" / "count")
    assert (counts["the people"], counts["people by the"], counts.manifest["tokens"]) == (2000, 1000, 6000)


TLS = ("distributed.comm.tls.", "require-encryption", "dask:")


@pytest.mark.parametrize(
    ("protocol", "without", "message"),
    [
        ("tls", TLS, r"tls://127.0.0.1:\d+ needs a certificate; give the settings distributed.comm.tls.ca-file, .*"),
        ("tcp", TLS, r"no Dask scheduler answers at tcp://127.0.0.1:\d+ \(.*\); check the address and that it runs.*"),
        ("tcp", (), r"tcp://127.0.0.1:\d+ is not encrypted but distributed.comm.require-encryption is set; .*"),
    ],
)
def test_incomplete_tls_settings_are_refused(cluster, protocol, without, message):
    folder, port = cluster
    status, error = run(folder, "--scheduler", f"{protocol}://127.0.0.1:{port}", without=without)
    assert status == 2 and re.fullmatch(f"mgpu-ngram: {message}\n", error), error


def test_a_certificate_of_another_authority_is_refused(cluster, tmp_path):
    folder, port = cluster
    subprocess.run(["bash", "-euc", block("certificates", port)], cwd=tmp_path, check=True, capture_output=True)
    (tmp_path / "tls.yaml").write_text((folder / "tls.yaml").read_text())
    shutil.copytree(folder / "runs", tmp_path / "runs")
    status, error = run(tmp_path)
    assert status == 2 and re.fullmatch(r"mgpu-ngram: no Dask scheduler answers at tls://.*\n", error), error
