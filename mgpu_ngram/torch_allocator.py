"""One pool of GPU memory for PyTorch and the n-gram engine."""

from __future__ import annotations

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.engine.torch_memory import block_allocator


def use_torch_allocator() -> None:
    """Let all of CuPy in this process take its memory from PyTorch's caching allocator, on every GPU.

    Otherwise each keeps what it has freed, and the other cannot take it. Unused memory of CuPy's pool goes back to the
    current GPU; arrays that exist stay there until they are freed. Later calls change nothing.

    The limits of `memory=` and the peaks that runs report are those of CuPy's own pool, so they do not count this
    memory; `torch.cuda.set_per_process_memory_fraction` limits it. Raises InputError without PyTorch, CuPy or a GPU
    that both can use.
    """
    try:
        import torch
    except ImportError:
        raise InputError("use_torch_allocator needs PyTorch, which is not installed; pip install torch") from None
    if not torch.cuda.is_available():
        built = "finds no GPU" if torch.backends.cuda.is_built() else "was built without CUDA"
        raise InputError(f"PyTorch {torch.__version__} {built}, so it has no GPU memory to share; leave the call out")
    try:
        import cupy
    except ImportError:
        raise InputError("CuPy is not installed, so it has no pool to share; pip install '.[cuda13]'") from None
    torch.cuda.init()
    cupy.cuda.set_allocator(block_allocator())
    cupy.get_default_memory_pool().free_all_blocks()
