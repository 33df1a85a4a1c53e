"""Every CUDA source compiles for every supported GPU, without a GPU: with NVRTC from its wheel, else with nvcc."""

import ctypes
import functools
import importlib
import importlib.util
import itertools
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import mgpu_ngram.kernels
from mgpu_ngram.kernels.launch import INCLUDE, OPTIONS, source

FOLDER = Path(mgpu_ngram.kernels.__file__).parent
OLDEST, *NEWER = "sm_80", "sm_90", "sm_100"  # A100; H100 and H200, B200
HASTE = ("--Ofast-compile=max",)  # few optimisations, a fifth of the time: for the many variants
STEMS = sorted(path.relative_to(FOLDER).with_suffix("").as_posix() for path in FOLDER.glob("*/*.cu"))


def variants(stem):
    module = importlib.import_module("mgpu_ngram.kernels." + stem.replace("/", "."))
    return getattr(module, "VARIANTS", ({},))


def cases():
    """Yield (source, defines) of every variant; `make test` compiles the last one of each source."""
    for stem in STEMS:
        *others, last = variants(stem)
        for defines in (*others, last):
            name = "-".join([stem, *(f"{k}={v}" for k, v in defines.items())])
            yield pytest.param(stem, defines, id=name, marks=() if defines is last else pytest.mark.slow)


@functools.cache
def nvrtc():
    """Return the library of the wheel nvidia-cuda-nvrtc, or None."""
    spec = importlib.util.find_spec("nvidia")
    folders = spec.submodule_search_locations if spec else []
    found = [path for folder in folders for path in Path(folder).glob("*/lib/libnvrtc.so.*")]
    if not found:
        return None
    library = max(found)
    for builtins in library.parent.glob("libnvrtc-builtins.so.*"):  # it would look for them on the system's path
        ctypes.CDLL(str(builtins))
    return ctypes.CDLL(str(library))


def compile_with_nvrtc(library, text, architecture, options=()):
    """(succeeded, log). See NVIDIA's NVRTC manual, "Basic usage"."""
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    assert library.nvrtcCreateProgram(ctypes.byref(program), text.encode(), b"kernel.cu", 0, None, None) == 0
    options = [o.encode() for o in (f"--gpu-architecture={architecture}", *OPTIONS, *options)]
    status = library.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
    assert library.nvrtcGetProgramLogSize(program, ctypes.byref(size)) == 0
    log = ctypes.create_string_buffer(size.value)
    assert library.nvrtcGetProgramLog(program, log) == 0
    assert library.nvrtcDestroyProgram(ctypes.byref(program)) == 0
    return status == 0, log.value.decode()


def compile_with_nvcc(nvcc, text, architecture):
    """(succeeded, log)."""
    command = [nvcc, *OPTIONS, f"-arch={architecture}", "-cubin", "-x", "cu", "-o", "/dev/null", "-"]
    done = subprocess.run(command, input=text, capture_output=True, text=True)
    return done.returncode == 0, done.stdout + done.stderr


def compile_cuda(text, architecture, options=()):
    """(succeeded, log). `options` are NVRTC's."""
    if nvrtc():
        return compile_with_nvrtc(nvrtc(), text, architecture, options)
    if nvcc := shutil.which("nvcc"):
        return compile_with_nvcc(nvcc, text, architecture)
    pytest.skip(f"no CUDA compiler: pip install nvidia-cuda-nvrtc ({sys.platform}), or put nvcc on PATH")


def test_sources_are_found():
    assert {"count/ngram_keys", "common/radix_sort", "count/count_prefixes"} <= set(STEMS)


@pytest.mark.parametrize(("stem", "defines"), list(cases()))
def test_every_variant_compiles(stem, defines):
    """For the GPU with the fewest features; no source asks for the architecture."""
    text = source(stem, defines)
    assert "__CUDA_ARCH__" not in text
    succeeded, log = compile_cuda(text, OLDEST, HASTE)
    assert succeeded, log


@pytest.mark.slow
@pytest.mark.parametrize("architecture", NEWER)
@pytest.mark.parametrize("stem", STEMS)
def test_every_source_compiles_for_newer_gpus(stem, architecture):
    succeeded, log = compile_cuda(source(stem, variants(stem)[-1]), architecture)
    assert succeeded, log


@pytest.mark.slow
@pytest.mark.parametrize(("order", "token_bytes"), list(itertools.product(range(1, 10), (1, 4))))
@pytest.mark.parametrize("stem", ["count/histogram_global", "count/histogram_private"])
def test_histograms_compile_for_every_order(stem, order, token_bytes):
    text = source(stem, {"TOKEN_BYTES": token_bytes, "ORDER": order})
    succeeded, log = compile_cuda(text, "sm_90", HASTE)
    assert succeeded, log


def test_a_broken_source_is_refused():
    succeeded, log = compile_cuda(source("count/ngram_keys", {"TOKEN_BYTES": 4}) + "\nint x = missing;", "sm_90")
    assert not succeeded and "missing" in log


def test_nvcc_is_a_way_out():
    nvcc = shutil.which("nvcc")
    if not nvcc:
        pytest.skip("nvcc is not on PATH")
    assert compile_with_nvcc(nvcc, source("count/gather_words"), "sm_90") == (True, "")
    assert "missing" in compile_with_nvcc(nvcc, "int x = missing;", "sm_90")[1]


@pytest.mark.parametrize("stem", STEMS)
def test_headers_are_pasted(stem):
    plain = (FOLDER / f"{stem}.cu").read_text()
    text = source(stem)
    assert "#include" not in text
    headers = INCLUDE.findall(plain)
    assert "grid.cuh" in headers
    for header in headers:
        assert text.count((FOLDER / "include" / header).read_text()) == 1


def test_defines_come_first():
    text = source("count/hash_count", {"TOKEN_BYTES": 1, "B": 2})
    assert text.startswith("#define TOKEN_BYTES 1\n#define B 2\n")
    assert text.endswith(source("count/hash_count"))
