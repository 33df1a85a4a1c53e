"""Where compiled CPU kernels are kept, when they are compiled again, and what a user is told."""

import os
import pty
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from mgpu_ngram.kernels import compile_cpu as compiled
from mgpu_ngram.kernels import launch


def run(script, folder, stderr=subprocess.PIPE, **environment):
    """Run a script in a process whose only cache folders are those in `folder`."""
    kept = {name: value for name, value in os.environ.items() if name not in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME")}
    environment = kept | {"HOME": str(folder / "home"), "TMPDIR": str(folder)} | environment
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=stderr, text=True, env=environment, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done


def compiled_files(folder):
    return sorted(folder.rglob("*.nbc"))


@pytest.fixture
def kernel(tmp_path):
    """A script that calls a compiled function of one file, which calls one of another file."""
    (tmp_path / "inner.py").write_text(
        "from mgpu_ngram.kernels.compile_cpu import njit\n@njit(cache=True)\ndef inner(x):\n    return x + 1\n"
    )
    (tmp_path / "outer.py").write_text(
        "from inner import inner\nfrom mgpu_ngram.kernels.compile_cpu import njit\n"
        "@njit(cache=True)\ndef outer(x):\n    return inner(x) * 2\n"
    )
    return "import sys; sys.path.insert(0, '.'); from outer import outer; print(outer(3))"


def test_machine_code_is_kept_in_the_cache_folder_of_the_user(kernel, tmp_path):
    assert run(kernel, tmp_path).stdout == "8\n"
    assert compiled_files(tmp_path) == compiled_files(tmp_path / "home" / ".cache" / "mgpu_ngram" / "numba") != []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["XDG_CACHE_HOME", "NUMBA_CACHE_DIR"])
def test_a_folder_of_the_environment_comes_first(name, kernel, tmp_path):
    run(kernel, tmp_path, **{name: str(tmp_path / "mine")})
    assert compiled_files(tmp_path) == compiled_files(tmp_path / "mine") != []


@pytest.mark.slow
def test_an_unwritable_home_leaves_a_private_folder_in_the_temporary_directory(kernel, tmp_path):
    assert run(kernel, tmp_path, HOME="/dev/null", NUMBA_CACHE_DIR="/dev/null/x").stdout == "8\n"
    [private] = tmp_path.glob("mgpu_ngram-cache-*")
    assert compiled_files(tmp_path) == compiled_files(private) != []
    assert private.stat().st_mode & 0o777 == 0o700


@pytest.mark.slow
def test_a_temporary_folder_that_others_can_write_is_not_used(kernel, tmp_path):
    shared = tmp_path / f"mgpu_ngram-cache-{os.getuid()}"
    shared.mkdir()
    shared.chmod(0o777)
    assert run(kernel, tmp_path, HOME="/dev/null").stdout == "8\n"
    assert compiled_files(tmp_path) == []


@pytest.mark.slow
def test_the_package_imports_and_runs_from_a_read_only_folder_with_an_unwritable_home(tmp_path):
    script = (
        "import tempfile, numpy as np, mgpu_ngram\n"
        "from mgpu_ngram.kernels import compile_cpu as compile\n"
        "tempfile.tempdir = '/dev/null'\n"
        "assert compile.cache_folder() is None\n"
        "from mgpu_ngram.kernels.score.sum_sentences import sum_sentences\n"
        "arrays = np.array([2, 0], np.uint32), np.array([-1, -2], np.float32), np.array([2])\n"
        "print(sum_sentences(*arrays)[0])"
    )
    assert run(script, tmp_path, HOME="/dev/null").stdout == "[-3.]\n"
    assert compiled_files(tmp_path) == []


@pytest.mark.slow
def test_a_change_in_a_called_function_of_another_file_compiles_again(kernel, tmp_path):
    assert run(kernel, tmp_path).stdout == "8\n"
    inner = tmp_path / "inner.py"
    inner.write_text(inner.read_text().replace("x + 1", "x + 20"))  # Python does not see a change of the same size
    assert run(kernel, tmp_path).stdout == "46\n"


@pytest.mark.slow
def test_machine_code_is_loaded_without_what_compiles_and_other_types_are_compiled(kernel, tmp_path):
    script = (
        f"{kernel}; print('numba.np.arraymath' in sys.modules); print(outer(1.5), 'numba.np.arraymath' in sys.modules)"
    )
    assert run(script, tmp_path).stdout == "8\nTrue\n5.0 True\n"
    assert run(script.replace("1.5", "1.5j"), tmp_path).stdout == "8\nFalse\n(2+3j) True\n"


@pytest.mark.slow
def test_functions_of_numba_are_loaded_without_their_modules(kernel, tmp_path):
    """`np.empty` and `np.searchsorted` are functions of Numba that it compiles; an error of one is the same.

    Nor is the runtime compiled; a function that calls itself is loaded, too.
    """
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "spare.py").write_text(
        "import numpy as np\n"
        "from mgpu_ngram.kernels.compile_cpu import njit\n"
        "@njit(cache=True)\n"
        "def place(values, x, size):\n"
        "    return np.searchsorted(values, x) + len(np.empty(size))\n"
        "@njit(cache=True)\n"
        "def fibonacci(n):\n"
        "    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)\n"
    )
    script = (
        "import sys; import numpy as np\n"
        f"sys.path.insert(0, {str(tmp_path / 'code')!r}); from spare import fibonacci, place\n"
        "print(place(np.arange(9), 4, 2), [name in sys.modules for name in ('numba.np.arrayobj', 'scipy.linalg')])\n"
        "from numba.core.runtime import rtsys\n"
        "print(fibonacci(10), rtsys._init)\n"
        "try:\n"
        "    place(np.arange(9), 4, -1)\n"
        "except ValueError as error:\n"
        "    print(error)\n"
        "print(place(np.arange(9.0), 4, 2))"
    )
    first, again = (run(script, tmp_path).stdout for _ in range(2))
    assert first == "6 [True, True]\n55 True\nnegative dimensions not allowed\n6\n"
    assert again == first.replace("True", "False")


@pytest.mark.slow
def test_machine_code_for_other_types_is_not_run(kernel, tmp_path):
    """As two processes leave it that compile a function for two types at once, and give both files the same name."""
    script = f"{kernel}; print(outer(1.5))"
    assert run(script, tmp_path).stdout == "8\n5.0\n"
    one, two = (path for path in compiled_files(tmp_path) if path.name.startswith("outer.outer"))
    kept = one.read_bytes()
    one.write_bytes(two.read_bytes())
    two.write_bytes(kept)
    assert run(script, tmp_path).stdout == "8\n5.0\n"


def test_numba_is_imported_early_in_a_thread(tmp_path):
    script = (
        "import sys, threading; from mgpu_ngram.kernels.compile_cpu import import_early; import_early()\n"
        "[thread.join() for thread in threading.enumerate() if thread is not threading.main_thread()]\n"
        "print('numba' in sys.modules)"
    )
    assert run(script, tmp_path).stdout == "True\n"
    done = run(f"import sys; sys.modules['numba'] = None; {script}", tmp_path)
    assert done.stderr == ""


@pytest.mark.slow
def test_a_compilation_is_announced_once_and_a_warm_cache_is_silent(tmp_path):
    script = (
        "import numpy as np\n"
        "from mgpu_ngram.kernels.score.sum_sentences import _cpu\n"
        "for dtype in (np.int64, np.int32):\n"
        "    _cpu(np.array([2, 0], np.uint32), np.array([-1, -2], np.float32), np.array([2], dtype))\n"
    )
    assert run(script, tmp_path / "silent").stderr == ""  # no terminal

    def on_a_terminal():
        ours, theirs = pty.openpty()
        run(script, tmp_path, theirs)
        os.close(theirs)
        shown = b""
        with suppress(OSError):  # the end of a terminal
            while part := os.read(ours, 1000):
                shown += part
        os.close(ours)
        return shown.decode()

    assert on_a_terminal() == f"mgpu-ngram: {compiled.COMPILING_CPU}\r\n"
    assert on_a_terminal() == ""


def test_imports_leave_numba_out(tmp_path):
    engine = ("score.score_chunk", "count.count_chunk", "estimate.probabilities", "distribution.next_word")
    modules = (*(f"engine.{name}" for name in engine), "jobs.count.run", "core.models.model_file")
    names = ", ".join(f"mgpu_ngram.{name}" for name in modules)
    assert run(f"import sys, {names}; print('numba' in sys.modules)", tmp_path).stdout == "False\n"


def test_a_call_replaces_the_lazy_functions_that_it_needs(monkeypatch, tmp_path):
    monkeypatch.setattr(compiled, "cache_folder", lambda: None)
    scope = {"njit": compiled.njit}
    exec("@njit()\ndef f(x):\n    return x + 1\n@njit()\ndef g(x):\n    return f(x) + f(x)\n", scope)
    g = scope["g"]
    assert isinstance(scope["f"], compiled.Lazy)
    assert g(1) == 4
    assert not isinstance(scope["f"], compiled.Lazy)
    assert g.__name__ == "g" and g.signatures and Path(g.py_func.__code__.co_filename).name == "<string>"


def test_the_kernel_cache_of_cupy_moves_where_its_own_cannot_be_written(tmp_path):
    """As soon as a GPU is chosen: CuPy makes the folder when it is imported."""
    script = (
        "import importlib.util, os; from mgpu_ngram.cluster import devices\n"
        "devices.visible_gpus, devices.importlib.util.find_spec = lambda: 1, lambda name: name\n"
        "print(devices.resolve_device('auto'), os.environ.get('CUPY_CACHE_DIR'))"
    )
    moved = f"{tmp_path}/home/.cache/mgpu_ngram/cupy"
    assert run(script, tmp_path, CUPY_CACHE_DIR="/dev/null/x").stdout == f"gpu {moved}\n"
    assert run(script, tmp_path, CUPY_CACHE_DIR=str(tmp_path / "mine")).stdout == f"gpu {tmp_path}/mine\n"
    assert (tmp_path / "mine").is_dir()


@pytest.mark.gpu
def test_cupy_compiles_where_its_own_cache_cannot_be_written(tmp_path):
    script = (
        "from mgpu_ngram.cluster.devices import resolve_device; resolve_device('gpu')\n"
        "import cupy; print(int(cupy.arange(3).sum()))"
    )
    assert run(script, tmp_path, CUPY_CACHE_DIR="/dev/null/x").stdout == "3\n"
    assert any((tmp_path / "home/.cache/mgpu_ngram/cupy").iterdir())


def test_cuda_kernels_are_announced_when_their_cache_is_empty(tmp_path, monkeypatch):
    said = []
    monkeypatch.setattr(launch, "announce", said.append)
    monkeypatch.setattr(launch, "cupy_folder", lambda: tmp_path)
    launch.announce_compilation.__wrapped__()
    assert said == [launch.COMPILING_CUDA]
    (tmp_path / "a.cubin").touch()
    launch.announce_compilation.__wrapped__()
    assert said == [launch.COMPILING_CUDA]


def test_a_read_only_view_shares_the_data():
    array = np.arange(3)
    view = compiled.read_only(array)
    array[0] = 7
    assert view.tolist() == [7, 1, 2] and array.flags.writeable and not view.flags.writeable
