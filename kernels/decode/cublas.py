"""Products of rows and a matrix by cuBLAS: the bits of a row do not depend on the number of rows.

cuBLAS chooses an algorithm by the sizes. Here it chooses once for each matrix, as for ROWS rows, among algorithms that
do not split the sum of a number over blocks of threads; cublasLt then runs this algorithm for any number of rows.
"""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import check

ROWS = 1024
# Numbers of cublasLt.h and cublas_api.h
REAL = {np.dtype(np.float32): 0, np.dtype(np.float16): 2, np.dtype(np.uint16): 14}  # CUDA_R_32F, _16F, _16BF
COMPUTE_32F, COMPUTE_32F_FAST_TF32 = 68, 77
EPILOGUE, BIAS_POINTER, EPILOGUE_BIAS = 7, 8, 4
WORKSPACE_BYTES, REDUCTION_SCHEMES, ALIGNMENTS = 1, 3, (5, 6, 7, 8)
NOT_SUPPORTED = 15  # a status
ALIGNED = 16  # bytes; all arrays start at multiples of this


class _Found(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = (
        ("algorithm", ctypes.c_uint64 * 8),
        ("workspace_bytes", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


@dataclass(frozen=True, eq=False)
class DeviceMatrix:
    """A matrix on a GPU.

    weight_XY  float32, float16, or uint16: the bits of bfloat16; contiguous
    tf32       products of float32 are rounded to TF32 (10 bits) before they are added
    """

    weight_XY: Any
    tf32: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        """(X, Y)."""
        return self.weight_XY.shape


def cublas_products(x_RX: Any, matrix: DeviceMatrix, bias_Y: Any = None) -> Any:
    """Return x W + bias, (R, Y) of the dtype of the matrix, which x_RX and bias_Y have, too; sums are float32."""
    import cupy

    weight = matrix.weight_XY
    for array in (x_RX, bias_Y):
        if array is not None:
            check.dtype(array, weight.dtype)
    check.contiguous(weight_XY=weight)
    R, (X, Y) = len(x_RX), weight.shape
    out_RY = cupy.empty((R, Y), weight.dtype)
    if R:
        x_RX = check.aligned(x_RX)
        bias = None if bias_Y is None else check.aligned(bias_Y)
        handle = cupy.cuda.device.get_cublas_handle()
        library = _library()
        sizes = X, Y, REAL[weight.dtype], COMPUTE_32F_FAST_TF32 if matrix.tf32 else COMPUTE_32F
        algorithm = _algorithm(*sizes, bias is not None, cupy.cuda.Device().id)
        with _Descriptors(library, R, *sizes, bias) as (operation, w, x, out):
            one, zero = ctypes.c_float(1), ctypes.c_float(0)
            pointers = [ctypes.c_void_p(array.data.ptr) for array in (weight, x_RX, out_RY)]
            stream = ctypes.c_void_p(cupy.cuda.get_current_stream().ptr)
            status = library.cublasLtMatmul(
                ctypes.c_void_p(handle), operation, ctypes.byref(one), pointers[0], w, pointers[1], x,
                ctypes.byref(zero), pointers[2], out, pointers[2], out, ctypes.byref(algorithm), None,
                ctypes.c_size_t(0), stream,
            )  # fmt: skip
        if status == NOT_SUPPORTED and R < ROWS:  # few rows of a narrow matrix
            padded_RX = cupy.zeros((ROWS, X), x_RX.dtype)
            padded_RX[:R] = x_RX
            return cublas_products(padded_RX, matrix, bias_Y)[:R]
        _check(status, f"({R}, {X}) by ({X}, {Y})")
    return out_RY


class _Descriptors:
    """Descriptors of a product: the operation, the matrix, the rows and the result, as columns of columns."""

    def __init__(self, library: Any, R: int, X: int, Y: int, real: int, compute: int, bias: Any):
        self._library = library
        self._operation = ctypes.c_void_p()
        _check(library.cublasLtMatmulDescCreate(ctypes.byref(self._operation), compute, REAL[np.dtype(np.float32)]))
        if bias is not None:
            self._set(EPILOGUE, ctypes.c_uint32(EPILOGUE_BIAS))
            self._set(BIAS_POINTER, ctypes.c_void_p(bias.data.ptr))
        self._layouts = []
        for rows, columns in ((Y, X), (X, R), (Y, R)):  # of the transposed arrays
            layout = ctypes.c_void_p()
            sizes = ctypes.c_uint64(rows), ctypes.c_uint64(columns), ctypes.c_int64(rows)
            _check(library.cublasLtMatrixLayoutCreate(ctypes.byref(layout), real, *sizes))
            self._layouts.append(layout)

    def _set(self, attribute: int, value: Any) -> None:
        size = ctypes.c_size_t(ctypes.sizeof(value))
        _check(self._library.cublasLtMatmulDescSetAttribute(self._operation, attribute, ctypes.byref(value), size))

    def __enter__(self) -> tuple[Any, ...]:
        return self._operation, *self._layouts

    def __exit__(self, *_: object) -> None:
        for layout in self._layouts:
            self._library.cublasLtMatrixLayoutDestroy(layout)
        self._library.cublasLtMatmulDescDestroy(self._operation)


@functools.cache
def _library() -> Any:
    """Return the library of cublasLt that CuPy's cuBLAS has loaded."""
    import cupy

    version = cupy.cuda.cublas.getVersion(cupy.cuda.device.get_cublas_handle()) // 10_000
    return ctypes.CDLL(f"libcublasLt.so.{version}")


@functools.cache
def _algorithm(X: int, Y: int, real: int, compute: int, with_bias: bool, device: int) -> Any:
    """Return cublasLt's best algorithm for ROWS rows that does not split sums and needs no memory of its own."""
    import cupy

    library, found, count = _library(), _Found(), ctypes.c_int()
    bias = cupy.empty(Y, np.float32) if with_bias else None
    preference = ctypes.c_void_p()
    _check(library.cublasLtMatmulPreferenceCreate(ctypes.byref(preference)))
    limits = [(WORKSPACE_BYTES, ctypes.c_uint64(0)), (REDUCTION_SCHEMES, ctypes.c_uint32(0))]
    for attribute, value in (*limits, *((alignment, ctypes.c_uint32(ALIGNED)) for alignment in ALIGNMENTS)):
        size = ctypes.c_size_t(ctypes.sizeof(value))
        _check(library.cublasLtMatmulPreferenceSetAttribute(preference, attribute, ctypes.byref(value), size))
    with _Descriptors(library, ROWS, X, Y, real, compute, bias) as (operation, w, x, out):
        handle = ctypes.c_void_p(cupy.cuda.device.get_cublas_handle())
        status = library.cublasLtMatmulAlgoGetHeuristic(
            handle, operation, w, x, out, out, preference, 1, ctypes.byref(found), ctypes.byref(count)
        )
    library.cublasLtMatmulPreferenceDestroy(preference)
    _check(status or found.state or int(count.value == 0), f"rows by ({X}, {Y})")
    return found.algorithm


def _check(status: int, sizes: str = "") -> None:
    if status:
        raise RuntimeError(f"cuBLAS refuses a product {sizes} with status {status}; decode on the CPU")
