"""Products of rows and a matrix by cuBLAS: the bits of a row do not depend on the number of rows.

cuBLAS chooses an algorithm by the sizes. Here it chooses once for each matrix, for ROWS rows, among algorithms that
do not split the sum of a number over blocks of threads; cublasLt then runs this algorithm for any number of rows.
Tensor cores compute all products; float32 numbers are sums of two TF32 numbers, see tf32_parts.py.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import check
from .tf32_parts import tf32_columns, tf32_parts

ROWS = 1024
# Numbers of cublasLt.h and cublas_api.h
REAL = {np.dtype(np.float32): 0, np.dtype(np.float16): 2, np.dtype(np.uint16): 14}  # CUDA_R_32F, _16F, _16BF
COMPUTE_32F, COMPUTE_32F_FAST_TF32 = 68, 77
TRANSPOSE_FIRST, EPILOGUE, BIAS_POINTER, EPILOGUE_BIAS = 3, 7, 8, 4
COLUMNS = 3  # columns of a layout
WORKSPACE_BYTES, REDUCTION_SCHEMES, ALIGNMENTS = 1, 3, (5, 6, 7, 8)
WORKSPACE_LIMIT = 32 << 20  # bytes for all products of a stream; kernels of Hopper need some
NOT_SUPPORTED = 15  # a status
ALIGNED = 16  # bytes; all arrays start at multiples of this


class _HeuristicResult(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t: the kernel that cublasLt chooses."""

    _fields_ = (
        ("algorithm", ctypes.c_uint64 * 8),
        ("workspace_bytes", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


@dataclass(frozen=True, eq=False)
class DeviceMatrix:
    """A matrix on a GPU; see `to_device_matrix`.

    weight_YW  the factor for cuBLAS, contiguous: columns of the matrix, or of its TF32 parts. Tensor cores of Hopper
               take TF32 numbers only if the numbers of one sum are adjacent
    shape      (X, Y) of the matrix
    """

    weight_YW: Any
    shape: tuple[int, int]


def to_device_matrix(weight_XY: Any, tf32: bool = False) -> DeviceMatrix:
    """Return a matrix in the layout of the products.

    weight_XY  float32, float16, or uint16: the bits of bfloat16
    tf32       round float32 factors to TF32 (10 bits) before products; else products have single precision and take
               three times as long
    """
    import cupy

    shape = weight_XY.shape
    if weight_XY.dtype == np.float32 and not tf32:
        weight_XY = tf32_columns(weight_XY)
    return DeviceMatrix(cupy.ascontiguousarray(weight_XY.T), shape)


def cublas_products(x_RX: Any, matrix: DeviceMatrix, bias_Y: Any = None) -> Any:
    """Return x W + bias, (R, Y) of the dtype of the matrix, which x_RX and bias_Y have, too; sums are float32."""
    import cupy

    weight, (X, Y), R = matrix.weight_YW, matrix.shape, len(x_RX)
    for array in (x_RX, bias_Y):
        if array is not None:
            check.dtype(array, weight.dtype)
    out_RY = cupy.empty((R, Y), weight.dtype)
    if R:
        x = check.aligned(x_RX) if weight.shape[1] == X else tf32_parts(x_RX)
        bias = None if bias_Y is None else check.aligned(bias_Y)
        where = cupy.cuda.Device().id, threading.get_ident()
        status = _product(*weight.shape[::-1], weight.dtype, bias is not None, *where).run(x, weight, bias, out_RY)
        if status == NOT_SUPPORTED and R < ROWS:  # few rows of a narrow matrix
            padded_RX = cupy.zeros((ROWS, X), x_RX.dtype)
            padded_RX[:R] = x_RX
            return cublas_products(padded_RX, matrix, bias_Y)[:R]
        _check(status, f"({R}, {X}) by ({X}, {Y})")
    return out_RY


class _Product:
    """Products with matrices of one shape, by one kernel of cublasLt. Its descriptors change with the rows, so each
    thread has its own. To cuBLAS, arrays are lists of columns: it multiplies the transposed weight_YW by the rows.
    """

    def __init__(self, X: int, Y: int, dtype: np.dtype, with_bias: bool):

        self._library = _library()
        self._operation = ctypes.c_void_p()
        compute = COMPUTE_32F_FAST_TF32 if dtype == np.float32 else COMPUTE_32F
        single = REAL[np.dtype(np.float32)]
        _check(self._library.cublasLtMatmulDescCreate(ctypes.byref(self._operation), compute, single))
        if with_bias:
            self._set_operation(EPILOGUE, ctypes.c_uint32(EPILOGUE_BIAS))
        self._set_operation(TRANSPOSE_FIRST, ctypes.c_int32(1))
        self._weight, self._x, self._out = (
            self._layout(REAL[dtype], *sizes) for sizes in ((X, Y), (X, ROWS), (Y, ROWS))
        )
        self._one, self._zero = ctypes.c_float(1), ctypes.c_float(0)
        self._sizes, self._rows = (X, Y), ROWS
        self._algorithm = self._choose(with_bias)

    def run(self, x: Any, weight: Any, bias: Any, out: Any) -> int:
        """Write a product into `out`; return the status."""
        import cupy

        if self._rows != len(x):
            self._rows, value = len(x), ctypes.c_uint64(len(x))
            set_attribute = self._library.cublasLtMatrixLayoutSetAttribute
            for layout in (self._x, self._out):
                _check(set_attribute(layout, COLUMNS, ctypes.byref(value), ctypes.c_size_t(8)))
        if bias is not None:
            self._set_operation(BIAS_POINTER, ctypes.c_void_p(bias.data.ptr))
        stream = cupy.cuda.get_current_stream().ptr
        workspace = _workspace(cupy.cuda.Device().id, threading.get_ident(), stream)
        at_weight, at_x, at_out = (ctypes.c_void_p(array.data.ptr) for array in (weight, x, out))
        return self._library.cublasLtMatmul(
            ctypes.c_void_p(cupy.cuda.device.get_cublas_handle()), self._operation, ctypes.byref(self._one),
            at_weight, self._weight, at_x, self._x, ctypes.byref(self._zero), at_out, self._out, at_out, self._out,
            ctypes.byref(self._algorithm), ctypes.c_void_p(workspace.data.ptr),
            ctypes.c_size_t(workspace.nbytes), ctypes.c_void_p(stream),
        )  # fmt: skip

    def _set_operation(self, attribute: int, value: Any) -> None:
        size = ctypes.c_size_t(ctypes.sizeof(value))
        _check(self._library.cublasLtMatmulDescSetAttribute(self._operation, attribute, ctypes.byref(value), size))

    def _layout(self, real: int, rows: int, columns: int) -> Any:
        layout = ctypes.c_void_p()
        sizes = ctypes.c_uint64(rows), ctypes.c_uint64(columns), ctypes.c_int64(rows)
        _check(self._library.cublasLtMatrixLayoutCreate(ctypes.byref(layout), real, *sizes))
        return layout

    def _choose(self, with_bias: bool) -> Any:
        """Return cublasLt's best algorithm for ROWS rows that does not split sums."""
        import cupy

        library, found, count = self._library, _HeuristicResult(), ctypes.c_int()
        X, Y = self._sizes
        bias = cupy.empty(Y, np.float32)
        if with_bias:
            self._set_operation(BIAS_POINTER, ctypes.c_void_p(bias.data.ptr))
        preference = ctypes.c_void_p()
        _check(library.cublasLtMatmulPreferenceCreate(ctypes.byref(preference)))
        limits = [(WORKSPACE_BYTES, ctypes.c_uint64(WORKSPACE_LIMIT)), (REDUCTION_SCHEMES, ctypes.c_uint32(0))]
        for attribute, value in (*limits, *((alignment, ctypes.c_uint32(ALIGNED)) for alignment in ALIGNMENTS)):
            size = ctypes.c_size_t(ctypes.sizeof(value))
            _check(library.cublasLtMatmulPreferenceSetAttribute(preference, attribute, ctypes.byref(value), size))
        status = library.cublasLtMatmulAlgoGetHeuristic(
            ctypes.c_void_p(cupy.cuda.device.get_cublas_handle()), self._operation, self._weight, self._x, self._out,
            self._out, preference, 1, ctypes.byref(found), ctypes.byref(count),
        )  # fmt: skip
        library.cublasLtMatmulPreferenceDestroy(preference)
        _check(status or found.state or int(count.value == 0), f"rows by ({X}, {Y})")
        return found.algorithm


@functools.cache
def _library() -> Any:
    """Return the library of cublasLt that CuPy's cuBLAS has loaded."""
    import cupy

    version = cupy.cuda.cublas.getVersion(cupy.cuda.device.get_cublas_handle()) // 10_000
    return ctypes.CDLL(f"libcublasLt.so.{version}")


@functools.cache
def _workspace(device: int, thread: int, stream: int) -> Any:
    """Return memory that products of a stream share, because they follow each other. It is in no pool: it is kept."""
    import cupy

    memory = cupy.cuda.MemoryPointer(cupy.cuda.Memory(WORKSPACE_LIMIT), 0)
    return cupy.ndarray(WORKSPACE_LIMIT, np.uint8, memory)


@functools.cache
def _product(X: int, Y: int, dtype: np.dtype, with_bias: bool, device: int, thread: int) -> _Product:
    """Return the product for matrices of a shape on a device, for one thread."""
    return _Product(X, Y, dtype, with_bias)


def _check(status: int, sizes: str = "") -> None:
    if status:
        raise RuntimeError(f"cuBLAS refuses a product {sizes} with status {status}; decode on the CPU")
