"""What a first run on a machine compiles."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

LINES = b"the cat sat on the mat\nthe dog sat on the log\nthe cat ate the dog\n"


INTERRUPT = """
import atexit, os, signal, sys
from mgpu_ngram import entry
from mgpu_ngram.kernels import compile_cpu

begun = []

def announce(message):
    begun.append(message)
    if len(begun) == 3:
        os.kill(os.getpid(), signal.{signal})

compile_cpu.announce = announce  # which is called with each function that is compiled
atexit.register(lambda: print(len(begun)))
sys.exit(entry.main())
"""


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
@pytest.mark.parametrize("words", ["estimate text -o model.arpa", "score model.arpa text"])
def test_an_interrupt_ends_compilations(words, name, arpa, tmp_path):
    """They are in threads, and the command waits for these; a whole first run compiles 9 functions and more."""
    (tmp_path / "text").write_bytes(LINES)
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "kernels")}
    command = [sys.executable, "-c", INTERRUPT.format(signal=name), *words.split(), "--device", "cpu", "--overwrite"]
    if words.startswith("score"):
        del command[-1]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 130
    assert done.stderr.startswith("mgpu-ngram: interrupted; unfinished outputs are removed")
    assert done.stderr.count("\n") == 1 and 3 <= int(done.stdout) <= 6
    assert {path.name for path in tmp_path.iterdir()} == {"kernels", "model.arpa", "text"}


@pytest.mark.gpu
def test_no_stage_compiles_templates_of_cub(tmp_path):
    """CuPy's `any`, `all`, `bincount` and the sum of a mask do, for 3 to 5 s each; see `count_true` and `count_ids`."""
    caches = tmp_path / "kernels"
    environment = os.environ | {"CUPY_CACHE_DIR": str(caches), "CUPY_CACHE_SAVE_CUDA_SOURCE": "1"}
    (tmp_path / "text").write_bytes(LINES)
    for words in (
        "count text -o counts",
        "estimate text -o model.safetensors --order 3 --discount-fallback",
        "prune model.safetensors --max-ngrams 30 -o pruned.safetensors",
        "score model.safetensors text",
        "distribution model.safetensors text -o rows --top-k 3",
        "lda text -o topics.lda --topics 2 --sweeps 3",
    ):
        command = [sys.executable, "-m", "mgpu_ngram", *words.split(), "--device", "gpu"]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        programs = {path: path.read_text() for path in caches.rglob("*.cu")}
        assert programs, "CuPy saves the source of each program"
        assert not [path.name for path, source in programs.items() if "cupy_cub_" in source], words
