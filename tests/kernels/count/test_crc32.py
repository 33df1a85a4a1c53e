"""CRC-32 of segments, against published values, CRC's definition and zlib."""

import re
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mgpu_ngram.kernels.count.crc32 import ROW, SLICE, _constants, crc32, multiply_polynomials, shift
from mgpu_ngram.kernels.dispatch import on_gpu, to_host
from mgpu_ngram.kernels.launch import source

ONE = 1 << 31  # x**0
EDGES = sorted({max(0, n + d) for n in (0, 16, ROW, SLICE, SLICE + ROW, 3 * SLICE) for d in (-17, -16, -1, 0, 1, 16)})


def crcs_of(data, segments, to_device):
    """The CRCs of [(start, length), ...] of a text or array."""
    columns = np.array(segments, np.int64).reshape(-1, 2).T.copy()
    data_B = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else data
    return to_host(crc32(to_device(data_B), *(to_device(column) for column in columns))).tolist()


def by_definition(text):
    """Bit by bit: the remainder of a division by the polynomial 0x04C11DB7, low bits first, of the inverted text."""
    crc = 0xFFFFFFFF
    for byte in text:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0xEDB88320 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def raw(text):
    """The CRC of a text without the initial value and the inversion: it is linear."""
    return zlib.crc32(text) ^ zlib.crc32(bytes(len(text)))


def test_published_values(to_device):
    """The check value of CRC-32 (RFC 1952's), and those of other well-known texts."""
    text = b"..123456789.aThe quick brown fox jumps over the lazy dog"
    segments = [(2, 9), (12, 1), (13, 43), (5, 0)]
    assert crcs_of(text, segments, to_device) == [0xCBF43926, 0xE8B7BE43, 0x414FA339, 0]


def test_no_segments_and_no_bytes(to_device):
    assert crcs_of(b"", [], to_device) == crcs_of(b"of", [], to_device) == []
    assert crcs_of(b"", [(0, 0)], to_device) == [0]
    assert crcs_of(b"of the", [(6, 0), (0, 0), (3, 0)], to_device) == [0, 0, 0]


def test_the_result_lies_where_the_data_lie(device, to_device):
    found = crc32(to_device(np.zeros(4, np.uint8)), to_device(np.array([1])), to_device(np.array([3])))
    assert on_gpu(found) == (device == "gpu") and found.dtype == np.uint32 and found.shape == (1,)
    assert to_host(found).tolist() == [by_definition(b"\0\0\0")]


@given(st.binary(max_size=80), st.lists(st.tuples(st.integers(0, 80), st.integers(0, 80)), max_size=6))
def test_against_the_definition(to_device, text, pairs):
    segments = [(min(a, b, len(text)), min(max(a, b), len(text))) for a, b in pairs]
    expected = [by_definition(text[a:b]) for a, b in segments]
    assert crcs_of(text, [(a, b - a) for a, b in segments], to_device) == expected


@pytest.mark.parametrize("start", [0, 1, 8, 15, 16, 17, 511])
def test_lengths_about_the_borders_of_slices(start, to_device):
    data = np.random.default_rng(start).integers(0, 256, start + EDGES[-1], np.uint8)
    expected = [zlib.crc32(data[start : start + length]) for length in EDGES]
    assert crcs_of(data, [(start, length) for length in EDGES], to_device) == expected


def test_thousands_of_segments(to_device):
    rng = np.random.default_rng(0)
    lengths = rng.integers(0, 300, 5000) * (rng.random(5000) < 0.9)
    ends = np.cumsum(lengths)
    data = rng.integers(0, 256, ends[-1], np.uint8)
    starts = ends - lengths
    expected = [zlib.crc32(data[a:b]) for a, b in zip(starts, ends, strict=True)]
    assert crcs_of(data, np.stack([starts, lengths], 1), to_device) == expected


@pytest.mark.gpu
@pytest.mark.parametrize("start", [0, 5])
def test_a_large_block_on_a_gpu(start):
    """Slices of every size of power, of a block and of a view of it that is not aligned."""
    import cupy

    size = (64 << 20) + 77_777
    data = np.random.default_rng(1).integers(0, 256, size, np.uint8)
    segments = [(0, size - start), (3, size - 3 - start), (1 << 20, 33 << 20), (size - start - 1, 1)]
    expected = [zlib.crc32(data[start + a : start + a + n]) for a, n in segments]
    there = cupy.asarray(data)[start:]
    assert crcs_of(there, segments, cupy.asarray) == expected


@given(st.binary(max_size=60), st.binary(max_size=60))
def test_shift_joins_crcs(first, second):
    assert shift(by_definition(first), len(second)) ^ by_definition(second) == by_definition(first + second)


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1), st.integers(0, 2**40), st.integers(0, 2**40))
def test_products_and_powers(a, b, m, n):
    assert multiply_polynomials(a, ONE) == multiply_polynomials(ONE, a) == a
    assert multiply_polynomials(ONE >> 1, ONE >> 1) == ONE >> 2  # x * x
    assert multiply_polynomials(ONE >> 31, ONE >> 1) == 0xEDB88320  # x**32 leaves the polynomial
    assert multiply_polynomials(a, b) == multiply_polynomials(b, a)
    assert shift(shift(a, m), n) == shift(a, m + n)
    assert shift(a, 2**32 - 1) == a  # the polynomial is primitive


def test_the_constants_of_the_kernel():
    tables, unshift, powers = np.split(_constants(), [16 * 256, 16 * 256 + ROW])
    for i, v in [(0, 1), (0, 255), (3, 128), (7, 77), (15, 1), (15, 200)]:
        assert tables[256 * i + v] == raw(bytes([v]) + bytes(ROW - 1 - i))
    assert not tables[::256].any()
    assert [shift(crc, i) for i, crc in enumerate(unshift.tolist())] == [ONE] * ROW
    assert powers[:2].tolist() == [ONE >> 8, ONE >> 16] and len(powers) == 64
    for i in range(2, 12):  # a byte 128 is x**24, and x**32 once it is divided
        assert powers[i] == raw(b"\x80" + bytes(2**i - 4))


def test_twin_and_kernel_agree_on_sizes():
    defines = dict(re.findall(r"^#define (ROW|SLICE) (\d+)", source("count/crc32"), re.MULTILINE))
    assert defines == {"ROW": str(ROW), "SLICE": str(SLICE)}
