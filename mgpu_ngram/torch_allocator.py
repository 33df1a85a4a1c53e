"""One pool of GPU memory for PyTorch and the n-gram engine."""

from __future__ import annotations

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.engine.memory.torch_pool import block_allocator


def use_torch_allocator() -> None:
    """Let CuPy allocate all memory of this process from PyTorch's caching allocator, on every GPU.

    Otherwise each library keeps freed memory, which the other cannot use. Unused memory of CuPy's pool is returned to
    the current GPU; existing arrays stay in the pool until they are freed. Later calls have no effect.

    The limits of `memory=` and the peaks that runs report are for CuPy's own pool, so they do not include this
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
