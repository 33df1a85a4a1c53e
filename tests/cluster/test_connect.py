"""Clusters that others started: schedulers and workers as separate processes, and faults in them."""

import copy
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

import cloudpickle
import dask
import pytest
from distributed import Client

from mgpu_ngram.cluster import checks
from mgpu_ngram.cluster import dask as opening
from mgpu_ngram.cluster.dask import connect
from mgpu_ngram.core.errors import InputError, RunError
from mgpu_ngram.core.version import VERSION
from tests.support.certificates import make_certificate
from tests.support.slowness import scaled

cloudpickle.register_pickle_by_value(sys.modules[__name__])
pytestmark = pytest.mark.timeout(120)
# Workers must find the functions of this file.
FINDS_TESTS = os.environ | {
    "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
}


def map_tasks(executor, fn, items, *shared):
    """Call fn(item, *shared) for every item."""
    return [executor.call(fn, item, *shared) for item in items]


@pytest.fixture(autouse=True)
def settings_restored():
    before = copy.deepcopy(dask.config.config)
    yield
    dask.config.config.clear()
    dask.config.config.update(before)


@contextmanager
def started(folder, workers=2, scheduler_options=(), worker_options=()):
    """A scheduler and its workers, ended with the block. Has .file, .processes and, once known, .address."""
    file = folder / "scheduler.json"
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    python = [sys.executable, "-m", "dask"]
    here = ["--host", "127.0.0.1", "--scheduler-file", str(file)]
    commands = [[*python, "scheduler", "--port", "0", "--no-dashboard", *here, *scheduler_options]]
    commands += [
        [*python, "worker", *here, "--nthreads", "1", "--no-dashboard", "--name", f"w{i}", "--local-directory",
         str(folder / "scratch"), *worker_options]
        for i in range(workers)
    ]  # fmt: skip
    with ExitStack() as ending:
        processes = []
        for command in commands:
            processes.append(subprocess.Popen(command, cwd=folder, env=FINDS_TESTS, **quiet, start_new_session=True))
            ending.callback(end, processes[-1])
        yield SimpleNamespace(file=file, processes=processes)


def end(process):
    """End a process and the processes that it started, such as a nanny's worker."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    with started(tmp_path_factory.mktemp("cluster")) as made:
        connect(None, str(made.file), "cpu", 2).close()  # waits for the scheduler and both workers
        yield made


def square(x):
    return x * x


def slowly(x):
    time.sleep(0.3)
    return x


def test_through_a_scheduler_file(running):
    executor = connect(None, str(running.file), "auto", 2)
    try:
        assert (executor.device, executor.workers, executor.transport) == ("cpu", 2, "tcp")
        assert executor.gather(map_tasks(executor, square, range(5))) == [0, 1, 4, 9, 16]
        near = [executor.call(square, i, affinity=i) for i in range(2)]
        executor.wait(near)
        assert [executor.worker_of(handle) for handle in near] == ["w0", "w1"]
    finally:
        executor.close()


def left_behind(dask_scheduler):
    """Return (our plugins on the scheduler, our topics that have subscribers)."""
    topics = dask_scheduler._broker._topics.items()
    return (
        [name for name in dask_scheduler.worker_plugins if "mgpu" in name],
        [name for name, topic in topics if "mgpu" in name and topic.subscribers],
    )


def slow_tasks(dask_scheduler):
    return [key for key in dask_scheduler.tasks if key.startswith("slowly")]


def hears_of_lost_workers(dask_worker):
    return getattr(dask_worker.stream_handlers["remove-worker"], "__qualname__", "ours")


def test_through_an_address_and_closing_leaves_nothing_behind(running):
    file_executor = connect(None, str(running.file), "cpu", 2)
    address = file_executor._address
    file_executor.close()
    executor = connect(address.removeprefix("tcp://"), None, "cpu", None)
    pids = set(executor.client.run(os.getpid).values())
    handles = [executor.call(slowly, i) for i in range(100)]
    executor.wait(handles[:1])
    executor.close()
    with Client(address, set_as_default=False) as client:
        assert set(client.run(os.getpid).values()) == pids, "the workers are still running"
        client.submit(square, 2, pure=False).result()
        assert client.run_on_scheduler(slow_tasks) == [], "no plugin or topic of ours remains"
        assert client.run_on_scheduler(left_behind) == ([], [])
        assert set(client.run(hears_of_lost_workers).values()) == {"Worker._handle_remove_worker"}


def test_too_few_workers(running, monkeypatch):
    monkeypatch.setattr(opening, "WORKERS_SECONDS", 1)
    with pytest.raises(InputError, match=r"^2 of 3 workers came to the Dask cluster tcp://.* within 1 s; start more"):
        connect(None, str(running.file), "cpu", 3)


@pytest.mark.slow
def test_late_workers_and_a_late_file(tmp_path):
    """A batch job starts the driver, the scheduler and the workers at the same time."""
    outcome = []

    def drive():
        executor = connect(None, str(tmp_path / "scheduler.json"), "cpu", 2)
        outcome.append(executor.gather(map_tasks(executor, square, range(3))))
        executor.close()

    driver = threading.Thread(target=drive)
    driver.start()
    time.sleep(0.3)
    with started(tmp_path, 2):
        driver.join(scaled(60))
        assert outcome == [[0, 1, 4]]


@pytest.mark.slow
def test_a_worker_that_joins_during_a_run_is_used(tmp_path):
    with started(tmp_path, 1) as cluster:
        executor = connect(None, str(cluster.file), "cpu", 1)
        handles, ran = deque(executor.call(slowly, i, affinity=0) for i in range(8)), Counter()
        with started_worker(cluster, "late"):
            while ran["late"] < 3:  # tasks remain for the worker until it has run some
                handles.append(executor.call(slowly, 0, affinity=0))
                executor.wait([handles[0]])
                ran[executor.worker_of(handles.popleft())] += 1
            executor.wait(handles)
            assert set(ran) == {"w0", "late"}
            executor.close()


ANOTHER_VERSION = """
from mgpu_ngram.cluster import worker
worker.VERSION = "0.0.1"

def dask_setup(worker):  # heartbeats come as often as possible, so that one comes while the worker leaves
    timer = worker.periodic_callbacks["heartbeat"]
    type(timer).callback_time = property(lambda self: 1, lambda self, value: None)
"""


@pytest.mark.slow
@pytest.mark.parametrize("nanny", ["--nanny", "--no-nanny"])
def test_a_worker_of_another_version_that_joins_during_a_run_leaves(tmp_path, nanny):
    """It runs no task, and its log gives the reason; the run continues."""
    preload = tmp_path / "preload.py"
    preload.write_text(ANOTHER_VERSION)
    with started(tmp_path, 1) as cluster:
        executor = connect(None, str(cluster.file), "cpu", 1)
        with started_worker(cluster, "late", nanny, "--preload", str(preload), stderr=subprocess.PIPE) as late:
            handles = []
            while late.poll() is None:  # tasks remain for the worker as long as it is connected
                handles += [executor.call(slowly, len(handles)) for _ in range(3)]
                executor.wait(handles[-3:-2])
            executor.wait(handles)
            assert {executor.worker_of(h) for h in handles} == {"w0"}
            assert executor.gather(handles) == [i // 3 * 3 for i in range(len(handles))]
            log = late.stderr.read().decode()
        executor.close()
    why = f"versions of mgpu-ngram differ: {VERSION} in the run, 0.0.1 here; install the same version everywhere; this"
    assert why in log and "Traceback" not in log and "heartbeat" not in log, log


@contextmanager
def started_worker(cluster, name, *options, stderr=subprocess.DEVNULL):
    command = [sys.executable, "-m", "dask", "worker", "--host", "127.0.0.1", "--scheduler-file", str(cluster.file)]
    command += ["--nthreads", "1", "--no-dashboard", "--name", name, "--local-directory", str(cluster.file.parent)]
    command += options
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=stderr, start_new_session=True)
    try:
        yield process
    finally:
        end(process)


def test_no_scheduler(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(opening, "CONNECT_SECONDS", 1)
    monkeypatch.setattr(opening, "WORKERS_SECONDS", 1)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(InputError, match=rf"^no Dask scheduler answers at tcp://127.0.0.1:{port} \(.*\); check the"):
        connect(f"127.0.0.1:{port}", None, "cpu", 1)
    with pytest.raises(InputError, match=r"scheduler file .*none.json cannot be read \(FileNotFoundError\) after 1 s"):
        connect(None, str(tmp_path / "none.json"), "cpu", 1)
    waiting = f"mgpu-ngram: waiting up to 1 s for scheduler file {tmp_path / 'none.json'}\n"
    assert capsys.readouterr().err == waiting, "printed at once, and once only"
    with pytest.raises(InputError, match="tls://127.0.0.1:1 needs a certificate; give the settings distributed.comm"):
        connect("tls://127.0.0.1:1", None, "cpu", 1)
    with pytest.raises(InputError, match="tcp://127.0.0.1:1 is not encrypted but distributed.comm.require-encryption"):
        connect("127.0.0.1:1", None, "cpu", 1, {"distributed.comm.require-encryption": True})


@pytest.mark.parametrize("address", ["", "host", "http://host:80", "tcp://host", "host:port"])
def test_invalid_addresses(address):
    with pytest.raises(InputError, match=f"address is '{address}' but must be tcp://HOST:PORT, tls://HOST:PORT or"):
        connect(address, None, "cpu", 1)


@pytest.mark.slow
def test_a_lost_scheduler(tmp_path):
    with started(tmp_path, 1) as cluster:
        executor = connect(None, str(cluster.file), "cpu", 1)
        executor.resume_hint = "with --resume"
        handles = [executor.call(slowly, i) for i in range(50)]
        executor.wait(handles[:1])
        cluster.processes[0].kill()
        with pytest.raises(
            RunError, match="^the Dask scheduler tcp://.* was lost; start one, then run again with --resume$"
        ):
            executor.wait(handles)
        for use in (executor.groups, executor.gather, lambda handles: executor.call(square, 1)):
            with pytest.raises(RunError, match="the Dask scheduler tcp://.* was lost"):
                use(handles)
        executor.close()


@pytest.mark.slow
def test_workers_that_are_not_restarted(tmp_path):
    with started(tmp_path, 2, worker_options=["--no-nanny"]) as cluster:
        executor = connect(None, str(cluster.file), "cpu", 2, {"distributed.scheduler.no-workers-timeout": "2s"})
        handles = [executor.call(slowly, i) for i in range(10)]
        cluster.processes[1].kill()
        executor.wait(handles)
        assert executor.gather(handles) == list(range(10)), "the other worker ran all tasks"
        more = [executor.call(slowly, i) for i in range(10)]
        cluster.processes[2].kill()
        with pytest.raises(
            RunError, match="all workers of the Dask cluster .* are gone .* within 2 s; start some, then run again$"
        ):
            executor.wait(more)
        executor.close()


@pytest.mark.slow
def test_a_worker_without_this_package(tmp_path):
    (tmp_path / "blocker.py").write_text(
        "import sys\n"
        "class Blocker:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] == 'mgpu_ngram':\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}')\n"
        "sys.meta_path.insert(0, Blocker())\n"
    )
    with (
        started(tmp_path, 1, worker_options=["--preload", str(tmp_path / "blocker.py")]) as cluster,
        pytest.raises(
            InputError, match=r"^worker w0 \(tcp://.*\) cannot import mgpu_ngram \(No module .*\); install mgpu-ngram"
        ),
    ):
        connect(None, str(cluster.file), "cpu", 1)


@pytest.mark.slow
def test_tls(tmp_path):
    cert, key = make_certificate(tmp_path)
    files = ["--tls-ca-file", cert, "--tls-cert", cert, "--tls-key", key]
    settings = {
        "distributed.comm.tls.ca-file": cert,
        "distributed.comm.tls.client.cert": cert,
        "distributed.comm.tls.client.key": key,
    }
    with started(tmp_path, 1, ["--protocol", "tls", *files], ["--protocol", "tls", *files]) as cluster:
        executor = connect(None, str(cluster.file), "cpu", 1, settings)
        address = executor._address
        assert address.startswith("tls://")
        assert executor.gather(map_tasks(executor, square, range(3))) == [0, 1, 4]
        executor.close()
        executor = connect(address.removeprefix("tls://"), None, "cpu", 1, settings)  # the settings ask for TLS
        assert executor.gather([executor.call(square, 3)]) == [9]
        executor.close()


# Refusals, from facts that workers would report


def answers(**by_worker):
    """A client whose workers report these facts; each case changes one correct fact."""
    right = {"device": "gpu", "cores": set(range(4)), "gpu": "", "host": "h", "identity": "h 0", "pid": 1}
    right["versions"] = checks.worker.facts("cpu")["versions"] | {"cupy": "14.0.0"}
    found = {}
    for i, (name, change) in enumerate(by_worker.items()):
        own = right | {"gpu": f"GPU {i} (GPU-{i}) of host", "pid": i}
        if isinstance(change, dict):
            found[name] = own | change | {"versions": own["versions"] | change.get("versions", {})}
        else:
            found[name] = change
    workers = {name: {"name": name, "nthreads": 1} for name in by_worker}
    return SimpleNamespace(run=lambda *args, **options: found, sync=lambda fn: {"workers": workers}), workers


@pytest.mark.parametrize(
    ("by_worker", "message"),
    [
        (
            {"a": {"gpu": "GPU 0 (GPU-1b2c) of x"}, "b": {"gpu": "GPU 0 (GPU-1b2c) of x"}},
            r"^workers a and b share GPU 0 \(GPU-1b2c\) of x; start them with dask cuda worker, or with one CUDA_VIS",
        ),
        ({"a": {}, "b": {"device": "cpu"}}, "^some workers of the cluster see a GPU and some do not"),
        (
            {"a": {}, "b": {"versions": {"mgpu-ngram": "9.9"}}},
            "^versions of mgpu-ngram differ: .* in this process, 9.9 in worker b; install the same version everywhere",
        ),
        (
            {"a": {}, "b": {"versions": {"cupy": "13.1.0"}}},
            "^versions of cupy differ: 14.0.0 in worker a, 13.1.0 in worker b",
        ),
        ({"a": {"versions": {"python": "2.7.18"}}}, "^versions of python differ: .*2.7.18 in worker a"),
        ({"a": {}, "b": InputError("no GPU is visible; use x")}, r"^worker b \(b\): no GPU is visible; use x$"),
        ({"a": ModuleNotFoundError("No module named 'mgpu_ngram'")}, "^worker a .* cannot import mgpu_ngram"),
    ],
)
def test_refusals(by_worker, message):
    client, workers = answers(**by_worker)
    with pytest.raises(InputError, match=message) as error:
        checks.check_workers(client, workers, "auto")
    assert "\n" not in str(error.value)


def test_identical_workers_pass():
    micro = ".".join([*checks.worker.facts("cpu")["versions"]["python"].split(".")[:2], "99"])
    client, workers = answers(a={}, b={"versions": {"python": micro}})
    assert checks.check_workers(client, workers, "auto")[0] == "gpu"


@pytest.mark.parametrize(
    ("tasks", "cores", "threads"),
    [
        ({"a": 1}, {"a": range(8)}, 8),
        ({"a": 2}, {"a": range(9)}, 4),
        ({"a": 1, "b": 1}, {"a": range(8), "b": range(8)}, 4),  # no worker is bound to its own cores
        ({"a": 1, "b": 1}, {"a": range(8), "b": range(8, 16)}, 8),  # each worker is bound to its own cores
        ({"a": 1, "b": 1, "c": 1}, {"a": range(8), "b": range(8), "c": range(4, 12)}, 3),  # a: 4 / 2 + 4 / 3
        ({"a": 1, "b": 1, "c": 1}, {"a": range(6), "b": range(6), "c": range(6)}, 2),  # 6 x 1/3
        ({"a": 1, "elsewhere": 1}, {"a": range(8), "elsewhere": range(4)}, 4),
        ({"a": 4}, {"a": range(2)}, 1),
    ],
)
def test_threads_follow_the_cores_that_workers_share(tasks, cores, threads):
    facts = {name: {"host": "x" if name == "elsewhere" else "h", "cores": set(cores[name])} for name in tasks}
    assert checks.threads_per_task(tasks, facts) == threads


def test_a_scheduler_that_does_not_answer_is_one_line():
    def fail(fn):
        raise OSError

    client = SimpleNamespace(sync=fail)
    with pytest.raises(RunError, match="does not answer any more; check that it runs, then run again"):
        checks.scheduler_info(client)
