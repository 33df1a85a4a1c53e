"""Fixtures of all tests: available devices, the folder of shared data, and keys packed by hand."""

import errno
import functools
import gc
import io
import itertools
import lzma
import multiprocessing
import os
import signal
import tarfile
import time
from collections import Counter
from multiprocessing import forkserver
from pathlib import Path

import dask
import numpy as np
import pytest
from hypothesis import settings

from mgpu_ngram import cli
from mgpu_ngram.cluster.devices import visible_gpus
from mgpu_ngram.core.storage import output
from mgpu_ngram.engine.memory import copies
from tests.support import kenlm_binaries, nmt_models, planted_topics
from tests.support.plain_backoff import PlainBackoff
from tests.support.plain_ctc import PlainSearch
from tests.support.plain_model import PlainModel
from tests.support.plain_texts import PlainTexts
from tests.support.slowness import scaled

SHARED_DATA = Path(__file__).resolve().parents[1].parent / "shared" / "data"

settings.register_profile("mgpu_ngram", deadline=None)  # the first call of a kernel compiles it
settings.load_profile("mgpu_ngram")


@functools.cache
def gpus_or_reason():
    """Return (number of GPUs that CuPy can use, why there are no more)."""
    try:
        import cupy

        count = cupy.cuda.runtime.getDeviceCount()
    except ImportError:
        return 0, "CuPy is not installed"
    except Exception as error:
        return 0, f"CuPy finds no NVIDIA GPU: {error}"
    return count, f"CuPy finds {count} NVIDIA GPU{'s' * (count != 1)}"


START_METHOD = "distributed.worker.multiprocessing-method"
WORKER_MODULES = ["distributed.nanny", "numba", "mgpu_ngram.cluster.dask"]  # no module that tests replace


def pytest_configure():
    """Undo an ignored SIGINT, as background jobs have it: processes that tests start would inherit it.

    Fork the workers of the clusters of this process from one process that has imported their modules: a worker starts
    in 0.05 s of CPU time, not in 0.5 s. It gets variables of the environment from Dask's settings only. Workers of
    commands are started as users start them. GPUs are left alone: CUDA does not survive a fork.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if not visible_gpus():
        dask.config.set({START_METHOD: "forkserver"})
        multiprocessing.set_forkserver_preload(WORKER_MODULES)
        forkserver.ensure_running()


def pytest_make_parametrize_id(config, val, argname):
    """Name binary arguments by their place: gzip data hold the time, and all processes must name a test alike."""
    return argname if isinstance(val, bytes) and not val.isascii() else None


FIRST = [
    "test_real_slurm.py",
    "test_cut_links.py",
    "test_cut_links_of_all.py",  # these three almost only wait, for minutes
    "test_wheel.py",
    "test_docs.py",
    "test_slurm.py",
    "test_faults.py",
    "test_resume.py",
    "test_next_words.py",
]  # long files of few tests


def pytest_collection_modifyitems(config, items):
    """Run long files first, scale the time limits of tests, and skip tests that need more GPUs than the machine has.

    The last file of a run has one process; the others then have nothing to do.

    A limit ends a test that hangs. Limits are set for an idle machine.
    """
    items.sort(key=lambda item: FIRST.index(item.path.name) if item.path.name in FIRST else len(FIRST))
    for item in items:
        mark = item.get_closest_marker("timeout")
        seconds = mark.args[0] if mark else float(config.getini("timeout"))
        item.add_marker(pytest.mark.timeout(scaled(seconds)), append=False)
    for mark, least in ("gpu", 1), ("multigpu", 2):
        for item in items:
            if item.get_closest_marker(mark):
                count, reason = gpus_or_reason()
                if count < least:
                    item.add_marker(pytest.mark.skip(reason=f"needs {least} or more GPUs: {reason}"))


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Exclude the collected tests and their modules from garbage collection, which otherwise takes 0.4 s each time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def leave_earlier_tests_out():
    """Exclude the reports and modules of earlier files from garbage collection, too."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish():
    """Let Python free all objects at its end, or libraries report leaks."""
    gc.unfreeze()


def pytest_terminal_summary(terminalreporter):
    """Report why tests were skipped: one line per reason."""
    reasons = Counter(str(report.longrepr[2]) for report in terminalreporter.stats.get("skipped", []))
    for reason, times in reasons.most_common():
        terminalreporter.write_line(f"{times} skipped: {reason.removeprefix('Skipped: ')}")


@pytest.fixture(scope="session", params=["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])
def device(request):
    """Run the test once on "cpu" and, if the machine has a GPU, once on "gpu"."""
    return request.param


@pytest.fixture(scope="session")
def to_device(device):
    """Return a function that copies NumPy arrays to `device`; each copy is writable."""
    if device == "cpu":
        return np.array
    import cupy

    return cupy.array


@pytest.fixture
def copy_slices(monkeypatch):
    """Return copy_slices(size): copies between host and device then take slices of `size` bytes."""

    def set_size(size):
        monkeypatch.setattr(copies, "COPY_SLICE_BYTES", size)
        for way in copies._to_device, copies._to_host:
            monkeypatch.setattr(way, "buffers", {})  # kept for the next copy

    return set_size


class FullDisk:
    """A file on a disk that has room for `room` more bytes."""

    def __init__(self, file, room):
        self.file, self.room = file, room

    def take(self, data):
        if len(data) > self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.room -= len(data)

    def write(self, data):
        self.take(data)
        return self.file.write(data)

    def __getattr__(self, name):
        return getattr(self.file, name)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.file.close()


@pytest.fixture
def full_disk(monkeypatch):
    """Return full_disk(room, of, after): new files whose path holds `of` then get at most `room` bytes each; the first
    `after` of these files get all bytes.
    """
    real, real_write_at, real_write_together = output.open_file, output.write_at, output.write_together
    files = {}

    def fill(room=0, of="", after=0):
        numbers = itertools.count()

        def open_file(path):
            file = real(path)
            is_full = of in str(path) and next(numbers) >= after
            files[file.fileno()] = FullDisk(file, room) if is_full else file
            return files[file.fileno()]

        def write_at(descriptor, data, offset):
            if isinstance(file := files[descriptor], FullDisk):
                file.take(data)
            return real_write_at(descriptor, data, offset)

        def write_together(descriptor, parts):
            if isinstance(file := files[descriptor], FullDisk):
                file.take(b"".join(parts))
            return real_write_together(descriptor, parts)

        monkeypatch.setattr(output, "open_file", open_file)
        monkeypatch.setattr(output, "write_at", write_at)
        monkeypatch.setattr(output, "write_together", write_together)

    return fill


@pytest.fixture(scope="session")
def shared_data():
    """Return the folder `shared/data` beside the checkout."""
    if not SHARED_DATA.is_dir():
        pytest.skip("the folder shared/data is not beside this checkout")
    return SHARED_DATA


@pytest.fixture(scope="session")
def kenlm_files(shared_data):
    """Return the contents of the golden binary models of KenLM and their ARPA files, by name."""
    packed = shared_data / "golden" / "tools" / "kenlm_bin" / "bin.tar.xz"
    with tarfile.open(fileobj=io.BytesIO(lzma.decompress(packed.read_bytes()))) as tar:
        return {member.name: tar.extractfile(member).read() for member in tar if member.isfile()}


@pytest.fixture(scope="session")
def golden_filter(shared_data, tmp_path_factory):
    """Return the folder of golden outputs of KenLM's filter, with the model a.arpa that it read."""
    golden, folder = shared_data / "golden" / "tools", tmp_path_factory.mktemp("filter")
    if not golden.is_dir():
        pytest.skip("shared/data beside this checkout has no golden outputs of tools")
    with tarfile.open(golden / "filter" / "filter.tar.xz") as tar:
        tar.extractall(folder, filter="data")
    (folder / "filter" / "a.arpa").write_bytes(lzma.decompress((golden / "mix" / "a.arpa.xz").read_bytes()))
    return folder / "filter"


@pytest.fixture(scope="session")
def pack_keys():
    """Return pack_keys(ngrams, order, bits): (C, G) uint64 keys of tuples of codes, packed with Python integers."""

    def pack(ngrams, order, bits):
        columns = -(-order * bits // 64)
        keys = []
        for ngram in ngrams:
            padded = [*ngram, *[0] * (order - len(ngram))]
            number = functools.reduce(lambda key, code: key << bits | code, padded, 0)
            keys.append(number << (64 * columns - order * bits))
        rows = [[key >> 64 * (columns - 1 - c) & (2**64 - 1) for key in keys] for c in range(columns)]
        return np.array(rows, np.uint64).reshape(columns, len(ngrams))

    return pack


@pytest.fixture(scope="session")
def unpack_keys():
    """Return unpack_keys(keys, order, bits): the tuples of codes of (C, G) uint64 host keys, without pads."""

    def unpack(keys, order, bits):
        ngrams = []
        for row in keys.T.tolist():
            number = functools.reduce(lambda key, column: key << 64 | column, row, 0)
            assert number % 2 ** (64 * len(row) - order * bits) == 0, "bits past the key are set"
            number >>= 64 * len(row) - order * bits
            codes = [number >> bits * (order - 1 - i) & (2**bits - 1) for i in range(order)]
            ngrams.append(tuple(c for c in codes if c))
        return ngrams

    return unpack


ARPA = """\\data\\
ngram 1=5
ngram 2=4
ngram 3=1

\\1-grams:
-2\t<unk>\t0
0\t<s>\t-0.5
-1\t</s>
-0.75\ta\t-0.25
-1.25\tb\t-0.125

\\2-grams:
-0.5\t<s> a\t-0.0625
-0.375\ta b\t-0.03125
-0.625\tb </s>
-0.875\ta </s>

\\3-grams:
-0.25\t<s> a b

\\end\\
"""


OTHER_ARPA = """\\data\\
ngram 1=5
ngram 2=1

\\1-grams:
-99\t<unk>
-99\t<s>\t0
-0.30103\t</s>
-0.60206\ta\t-0.1
-0.60206\tz

\\2-grams:
-0.2\ta z

\\end\\
"""


@pytest.fixture(scope="session")
def arpa_text():
    """Return a trigram model with exact sums: "a b" has -0.5 - 0.25 - (0.03125 + 0.625), "c" has -(0.5 + 2) - 1."""
    return ARPA


@pytest.fixture(scope="session")
def other_arpa_text():
    """Return a bigram model that lacks b and has z, a word of its own."""
    return OTHER_ARPA


@pytest.fixture
def arpa(arpa_text, tmp_path):
    """Return the path of a file of that model."""
    path = tmp_path / "model.arpa"
    path.write_text(arpa_text)
    return path


def status_of(words):
    """Run a command in this process; return its exit code."""
    try:
        return cli.main([str(word) for word in words])
    except SystemExit as error:  # argparse
        return error.code


@pytest.fixture
def mgpu_ngram(capsys):
    """Return mgpu_ngram(*words), which runs a command in this process: (status, stdout, stderr)."""
    return lambda *words: (status_of(words), *capsys.readouterr())


@pytest.fixture
def command(capfdbinary):
    """Return command(*words), as `mgpu_ngram`, for commands that write bytes to the file of stdout."""

    def run(*words):
        status = status_of(words)
        out, err = capfdbinary.readouterr()
        return status, out.decode("utf-8", "surrogateescape"), err.decode()

    return run


class OutOfMemoryError(Exception):
    """Named like CuPy's error."""


@pytest.fixture(params=[OutOfMemoryError("Out of memory allocating 512 bytes"), MemoryError()], ids=["gpu", "host"])
def run_out_of_memory(request):
    """Return a function that raises the error of a full GPU or host, for any arguments."""

    def fail(*_):
        raise request.param

    return fail


@pytest.fixture(scope="session")
def planted():
    """Return the module planted_topics.py."""
    return planted_topics


@pytest.fixture(scope="session")
def binaries():
    """Return the module kenlm_binaries.py: a model as the files that KenLM wrote, and its scores."""
    return kenlm_binaries


@pytest.fixture(
    params=[
        "probing", "probing with rest costs", "trie", "quantised trie", "trie with array pointers",
        "quantised trie with array pointers",
    ]
)  # fmt: skip
def binary_type(request):
    """Return each type of KenLM's binary files in turn, as `binaries` names it."""
    return request.param


@pytest.fixture
def put(tmp_path):
    """Return put(content, name), which writes the bytes of a model and returns the path."""

    def write(content, name="model.binary"):
        (tmp_path / name).write_bytes(content)
        return tmp_path / name

    return write


@pytest.fixture(scope="session")
def plain_model():
    """Return the class PlainModel: a random model of a seed, and a plain scorer of its words."""
    return PlainModel


@pytest.fixture(scope="session")
def plain_texts():
    """Return the class PlainTexts: the score of a text whose last word may be partial, from KenLM's module."""
    return PlainTexts


@pytest.fixture(scope="session")
def plain_ctc():
    """Return the class PlainSearch: a slow search over the outputs of CTC."""
    return PlainSearch


@pytest.fixture
def spawned():
    """Start workers as users do: they inherit blocked signals and standard error from this process."""
    with dask.config.set({START_METHOD: "spawn"}):
        yield


@pytest.fixture(scope="session")
def wait_for_workers():
    """Return wait_for_workers(client, workers): until so many run. It asks the scheduler.

    The client's own method looks at a copy of the scheduler's state that may lack restarted workers for ever.
    """

    def running(dask_scheduler):
        return sum(worker.status.name == "running" for worker in dask_scheduler.workers.values())

    def wait(client, workers):
        while client.run_on_scheduler(running) < workers:
            time.sleep(0.01)

    return wait


@pytest.fixture(scope="session")
def plain_backoff():
    """Return the class of plain_backoff.py: models whose rows sum to 1, as dictionaries."""
    return PlainBackoff


@pytest.fixture(scope="session")
def random_tensors():
    """Return random_tensors(seed, scale, **kind): {name: array} of a small translation model."""
    return nmt_models.random_tensors


@pytest.fixture(scope="session")
def tensors_without_attention():
    """Return tensors_without_attention(seed): {name: array} of two GRUs, with the words of the other models."""
    return nmt_models.tensors_without_attention


@pytest.fixture
def save_model(tmp_path):
    """Return save_model(tensors, name): the path of a .npz file."""

    def save(tensors, name="model"):
        path = str(tmp_path / f"{name}.npz")
        np.savez(path, **tensors)
        return path

    return save
