"""CRC-32 of the segments of a block, and the arithmetic that joins CRCs.

Manifests hold the CRC-32 of every input, and `core.inputs.verify` compares inputs with it. The text is already on the
GPU when it is counted there; zlib would halve the speed of the reading threads.
"""

from __future__ import annotations

import functools
import zlib
from typing import Any

import numpy as np

from .. import check
from ..compile_cpu import njit
from ..dispatch import pick
from ..launch import grid_for, kernel, launch

POLYNOMIAL = 0xEDB88320  # zlib's, and bit 31 is x**0
ROW, SLICE = 512, 16384  # as in crc32.cu


def crc32(data_B: Any, starts_S: Any, lengths_S: Any) -> Any:
    """Return the CRC-32 of each segment of a block, as zlib computes it.

    data_B     (B,) uint8
    starts_S   (S,) int64, where each segment begins in data_B, and
    lengths_S  (S,) int64, the bytes of each segment, all within data_B

    Returns crcs_S (S,) uint32; 0 for an empty segment.
    """
    check.dtype(data_B, np.uint8)
    check.dtype(starts_S, np.int64)
    check.dtype(lengths_S, np.int64)
    run = pick(cpu=_cpu, cuda=_cuda, data_B=data_B, starts_S=starts_S, lengths_S=lengths_S)
    return run(data_B, starts_S, lengths_S)


def multiply_polynomials(a: int, b: int) -> int:
    """Return the product of two polynomials over GF(2), modulo the polynomial of zlib."""
    product = 0
    while a:
        if a >> 31:
            product ^= b
        a = a << 1 & 0xFFFFFFFF
        b = b >> 1 ^ (POLYNOMIAL if b & 1 else 0)
    return product


def shift(crc: int, num_bytes: int) -> int:
    """Return crc * x**(8 * num_bytes): the part of `crc` in the CRC of a text with `num_bytes` further bytes."""
    return int(_shift(np.uint32(crc), np.int64(num_bytes), _powers()))


@njit(cache=True)
def _shift(crc, num_bytes, powers):
    """Multiply by powers as `multiply_polynomials` does, in compiled code."""
    one, i = np.uint32(1), 0
    while num_bytes:
        if num_bytes & 1:
            a, b, product = crc, powers[i], np.uint32(0)
            while a:
                if a >> np.uint32(31):
                    product ^= b
                a = np.uint32(a << one)
                b = np.uint32(b >> one) ^ (np.uint32(POLYNOMIAL) if b & one else np.uint32(0))
            crc = product
        num_bytes >>= 1
        i += 1
    return crc


@functools.cache
def _powers() -> np.ndarray:
    return np.array([*map(_power, range(63))], np.uint32)


@functools.cache
def _power(i: int) -> int:
    """x**(8 * 2**i)."""
    return multiply_polynomials(_power(i - 1), _power(i - 1)) if i else 1 << 23


def _cpu(data_B, starts_S, lengths_S):
    ends_S = starts_S + lengths_S
    crcs = [zlib.crc32(data_B[a:b]) for a, b in zip(starts_S.tolist(), ends_S.tolist(), strict=True)]
    return np.array(crcs, np.uint32)


@functools.cache
def _constants() -> np.ndarray:
    """tables (16, 256), unshift (ROW,) and powers (64,) of crc32.cu, one after the other."""
    back = functools.reduce(multiply_polynomials, map(_power, range(1, 32)))  # x**-8, because x**(2**32 - 1) is 1
    unshift = [1 << 31]
    while len(unshift) < ROW:
        unshift.append(multiply_polynomials(unshift[-1], back))
    factors = [multiply_polynomials(_power(9), unshift[i]) for i in range(16)]  # ROW is 2**9
    tables = [multiply_polynomials(v, factor) for factor in factors for v in range(256)]
    return np.array([*tables, *unshift, *map(_power, range(64))], np.uint32)


@functools.cache
def _constants_on(device_id: int) -> Any:
    """Return tables, unshift and powers on a device, which is the current one, for any stream."""
    import cupy

    constants = cupy.asarray(_constants())
    cupy.cuda.get_current_stream().synchronize()
    return cupy.split(constants, [16 * 256, 16 * 256 + ROW])


def _cuda(data_B, starts_S, lengths_S):
    import cupy

    S = len(starts_S)
    crcs_S = cupy.zeros(S, np.uint32)
    if S:
        data_B = check.aligned(data_B)
        ends_S = cupy.cumsum((lengths_S + (15 + SLICE - 1)) // SLICE)  # up to 15 bytes of padding
        tables, unshift, powers = _constants_on(cupy.cuda.runtime.getDevice())
        blocks = grid_for(len(data_B) // SLICE + 2 * S, 16)  # about a warp a slice
        args = (data_B, starts_S, lengths_S, ends_S, S, tables, unshift, powers, crcs_S)
        launch(kernel("count/crc32", "crc32"), blocks, 512, args)
    return crcs_S


def example(rng: np.random.Generator, size: int = 10_000) -> dict[str, Any]:
    """Return a block of up to 6 segments, cut anywhere."""
    cuts = np.sort(rng.integers(0, size + 1, min(size, 5)))
    starts_S, ends_S = np.array([0, *cuts]), np.array([*cuts, size])
    return {"data_B": rng.integers(0, 256, size, np.uint8), "starts_S": starts_S, "lengths_S": ends_S - starts_S}
