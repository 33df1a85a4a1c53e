"""float32 numbers in text: read with correct rounding, written as the shortest text that reads back the same.

`read_float32` reads 48 MB with 4.8 M numbers in 0.10 s (one thread of an AMD EPYC), between the words of a line and
without the GIL. Python's `float` takes 1.3 s for them, and rounds twice when its result becomes float32. A cast by
PyArrow rounds once and takes 0.18 s, after the numbers were cut out of the lines. native/arpa.h has a reader of its own
for the drop-in `kenlm` module, which loads a model in less time than the import of Numba takes.
"""

# mypy: allow-untyped-defs

from __future__ import annotations

import math

import numpy as np
from numpy import int64, uint32, uint64

from mgpu_ngram.kernels.compile_cpu import njit
from mgpu_ngram.kernels.intrinsics import leading_zeros, multiply_high, store_u64

MAX_DIGITS = 18  # digits of a whole number: int64 holds all numbers of 18 digits
MAX_NUMBER_BYTES = 22  # the longest number that `write_float32` writes is "-999999950000000000000"

_FULL = 10**17  # one more digit still fits an int64
_MIDDLE = 1 << 28  # the low bits of a double halfway between two float32
_REST = (1 << 29) - 1
_NEAR = 16  # in doubles: the estimate is less than 3 off
_TENS = np.array([10**e for e in range(10)])
_EIGHT = 10**8
_LOW_BITS = uint64(0x0F0F0F0F0F0F0F0F)
_ZERO_POINT, _POINT = (uint64(int.from_bytes(text, "little")) for text in (b"0.000000", b"\0."))
_MIN_SHORT, _TEN = (np.float32(x).view(np.uint32) for x in (1e-6, 10.0))
_MIN_EXPONENT, _MAX_EXPONENT = -64, 38  # powers of ten; beyond them 18 digits round to 0 or infinity
_POWERS = np.array([float(f"1e{e}") for e in range(65)])
_DIGITS = 150  # digits that a comparison keeps; a midpoint of two float32 has 113 at most
_LIMBS = 32  # of 32 bits: (2**25 + 1) * 10**196 * 2**104 fits
_MIN_POWER = -31


def _power(e: int) -> int:
    """Return the 64 leading bits of 10**e, rounded up."""
    shift = 63 - (e * 1741647 >> 19)  # 63 - floor(log2(10**e))
    numerator = (10**e if e > 0 else 1) << max(shift, 0)
    denominator = (1 if e > 0 else 10**-e) << max(-shift, 0)
    return -(-numerator // denominator)


_POWER_BITS = np.array([_power(e) for e in range(_MIN_POWER, 46)], np.uint64)


@njit(nogil=True, cache=True)
def read_float32(text, at):
    """Return (value, end) of the number at the start of text[at:]; end is `at` if there is no number.

    text  uint8, with a byte after the number that cannot belong to it, such as a newline

    A number is what KenLM accepts: digits with or without a point and a sign, optionally followed by e or E and an
    exponent; or inf. Values above the largest float32 become infinity.
    """
    i = at
    if text[i] == 45 or text[i] == 43:  # - +
        i += 1
    sign = np.float32(-1.0) if text[at] == 45 else np.float32(1.0)
    if text[i] == 105 and text[i + 1] == 110 and text[i + 2] == 102:
        return sign * np.float32(np.inf), i + 3
    first = i
    digits = int64(0)
    exponent = 0  # the value is digits * 10**exponent, up to omitted digits
    while 48 <= text[i] <= 57:
        if digits < _FULL:
            digits = digits * 10 + (text[i] - 48)
        else:
            exponent += 1
        i += 1
    count = i - first
    if text[i] == 46:
        i += 1
        fraction = i
        while 48 <= text[i] <= 57:
            if digits < _FULL:
                digits = digits * 10 + (text[i] - 48)
                exponent -= 1
            i += 1
        count += i - fraction
    if count == 0:
        return np.float32(0.0), at
    written = 0
    if text[i] == 101 or text[i] == 69:  # e E
        e = i + 1
        if text[e] == 45 or text[e] == 43:
            e += 1
        if 48 <= text[e] <= 57:
            down = text[e - 1] == 45
            while 48 <= text[e] <= 57:
                written = min(written * 10 + (text[e] - 48), _FULL)
                e += 1
            if down:
                written = -written
            i = e
    exponent += written
    if digits == 0 or exponent < _MIN_EXPONENT:
        return sign * np.float32(0.0), i
    if exponent > _MAX_EXPONENT:
        return sign * np.float32(np.inf), i
    estimate = digits * _POWERS[exponent] if exponent >= 0 else digits / _POWERS[-exponent]
    rest = np.float64(estimate).view(np.int64) & _REST
    if abs(rest - _MIDDLE) > _NEAR and 1.2e-38 < estimate < 3.4e38:  # the nearest float32 is normal and certain
        return sign * np.float32(estimate), i
    return sign * _round_exactly(text, first, written, estimate), i


@njit(nogil=True, cache=True)
def _round_exactly(text, at, written, estimate):
    """Return the float32 nearest to the digits at text[at:] times 10**written; `estimate` is within `_NEAR` of it."""
    unit = max(math.frexp(estimate)[1] - 24, -149)  # neighbouring float32 are 2**unit apart
    below = np.int64(math.ldexp(estimate, -unit))
    digits = np.zeros(_LIMBS, np.uint32)
    middle = np.zeros(_LIMBS, np.uint32)
    middle[0] = 2 * below + 1  # times 2**(unit - 1)
    exponent, kept, more, after_point, i = written, 0, False, False, at
    while 48 <= text[i] <= 57 or (text[i] == 46 and not after_point):
        if text[i] == 46:
            after_point = True
        elif kept < _DIGITS:
            _multiply(digits, 10, 1, text[i] - 48)
            kept += kept > 0 or text[i] != 48
            exponent -= after_point
        else:
            more = more or text[i] != 48
            exponent += not after_point
        i += 1
    _multiply(digits if exponent >= 0 else middle, 10, abs(exponent), 0)
    _multiply(middle if unit >= 1 else digits, 2, abs(unit - 1), 0)
    up = more or (below & 1) == 1  # ties go to the even one
    for limb in range(_LIMBS - 1, -1, -1):
        if digits[limb] != middle[limb]:
            up = digits[limb] > middle[limb]
            break
    return np.float32(math.ldexp(np.float64(below + up), unit))


@njit(nogil=True, cache=True)
def _multiply(limbs, factor, times, carry):
    """Compute limbs * factor**times, plus `carry` if times is 1."""
    for _ in range(times):
        rest = uint64(carry)
        for limb in range(len(limbs)):
            rest += uint64(limbs[limb]) * uint64(factor)
            limbs[limb] = uint32(rest & uint64(0xFFFFFFFF))
            rest >>= uint64(32)


@njit(nogil=True, cache=True)
def write_float32(value, out, at):
    """Write the shortest text that reads back as `value` to out[at:], up to MAX_NUMBER_BYTES; return its end.

    Of several shortest texts, it writes the nearest. As in lmplz, values below 1e-6 and from 1e21 on get an exponent.
    Bytes after the text, up to MAX_NUMBER_BYTES, may be written, too.
    """
    sign, low, high, length = short_text(value)
    if length == 0:
        return _write_long(value, out, at)
    out[at] = 45
    at += sign
    store_u64(out, at, low)
    store_u64(out, at + 8, high)
    return at + length


@njit(nogil=True, cache=True)
def short_text(value):
    """Return the text of a float32 if it is 0 or its size is from 1e-6 to 10, as numbers: whether it begins with a
    minus, two little-endian uint64 with the rest, and the length of the rest; else length 0.

    Numba counts references to arrays that a function takes, by atomic additions. They take as long as the rest.
    """
    signed = np.float32(value).view(np.uint32)
    bits, sign = signed & uint32(0x7FFFFFFF), int64(signed >> 31)
    if bits == 0:
        return sign, uint64(48), uint64(0), 1
    if bits < _MIN_SHORT or bits >= _TEN:
        return sign, uint64(0), uint64(0), 0
    digits, exponent = _shortest(int64(bits & 0x7FFFFF), int64(bits >> 23))
    length = 6 + (digits >= 1_000_000) + (digits >= 10_000_000) + (digits >= 100_000_000)
    zeros = uint64(max(0, 1 - length - exponent))  # before the first digit that is not 0
    # All numbers get 9 digits: the first one, and 8 whose text is one chunk. Zeros at their end are not written.
    rest = digits * _TENS[9 - length]
    first = rest // _EIGHT
    chunk = _eight_digits(uint64(rest - first * _EIGHT))
    used = chunk & _LOW_BITS
    length = 9 - (leading_zeros(used) >> 3) if used else 1
    digit, shift = uint64(48 + first), uint64(8) * zeros
    if zeros:
        low = _ZERO_POINT & ((uint64(256) << shift) - uint64(1)) | digit << (shift + uint64(8))
    else:
        low = digit | _POINT
    low |= chunk << (shift + uint64(8)) << uint64(8)  # in two steps: together up to 64
    return sign, low, chunk >> (uint64(48) - shift), int64(zeros) + length + ((zeros > 0) | (length > 1))


@njit(nogil=True, cache=True)
def _write_long(value, out, at):
    """Write a number whose text may be long, infinite or NaN; return its end."""
    bits = np.float32(value).view(np.uint32)
    fraction, scale = int64(bits & 0x7FFFFF), int64(bits >> 23 & 0xFF)
    if scale == 0xFF and fraction != 0:
        out[at], out[at + 1], out[at + 2] = 78, 97, 78  # NaN
        return at + 3
    if bits >> 31:
        out[at] = 45
        at += 1
    if scale == 0xFF:
        out[at], out[at + 1], out[at + 2] = 105, 110, 102  # inf
        return at + 3
    digits, exponent = _shortest(fraction, scale)
    while digits % 10 == 0:
        digits, exponent = digits // 10, exponent + 1
    length = _length(digits)
    point = length + exponent  # digits before the point
    if 0 < point <= 21:
        at = _write_digits(digits, length, min(point, length), out, at)
        for _ in range(point - length):
            out[at] = 48
            at += 1
        return at
    at = _write_digits(digits, length, 1, out, at)
    out[at] = 101
    at += 1
    exponent = point - 1
    if exponent < 0:
        out[at] = 45
        at += 1
        exponent = -exponent
    return _write_digits(exponent, 2, 2, out, at) if exponent > 9 else _write_digits(exponent, 1, 1, out, at)


@njit(nogil=True, cache=True)
def _length(digits):
    """Return the number of decimal digits of a number from 1 to 999,999,999."""
    length = 1
    for i in range(1, 9):
        length += digits >= _TENS[i]
    return length


@njit(nogil=True, cache=True)
def _eight_digits(number):
    """Return the text of a number below 10**8 as a little-endian uint64: 8 digits, the first one in the lowest byte.

    Halves of 4, then of 2 and of 1 digit are divided side by side; quotients are products that are cut off.
    """
    high = number // uint64(10000)
    fours = high | (number - high * uint64(10000)) << uint64(32)
    high = (fours * uint64(10486)) >> uint64(20) & uint64(0x0000007F0000007F)
    twos = high | (fours - high * uint64(100)) << uint64(16)
    high = (twos * uint64(103)) >> uint64(10) & uint64(0x000F000F000F000F)
    return (high | (twos - high * uint64(10)) << uint64(8)) + uint64(0x3030303030303030)


@njit(nogil=True, cache=True)
def _write_digits(digits, length, point, out, at):
    """Write `length` digits, with a point after the first `point` if more follow."""
    end = at + length + (point < length)
    i = end - 1
    for k in range(length - 1, -1, -1):
        out[i] = 48 + digits % 10
        digits //= 10
        i -= 1
        if k == point:
            out[i] = 46
            i -= 1
    return end


@njit(nogil=True, cache=True)
def _shortest(fraction, scale):
    """Return (digits, exponent) of the shortest decimal that reads back as a float32 with these bits.

    Giulietti 2020, "The Schubfach way to render doubles". All numbers below are four times the value over
    10**exponent: the bounds of the interval that rounds to it, and candidates.
    """
    significand = fraction | 0x800000 if scale else fraction
    q = max(scale, 1) - 150
    lopsided = fraction == 0 and scale > 1  # a power of two: the float32 below is nearer
    k = (q * 1262611 - (524031 if lopsided else 0)) >> 22  # floor(log10(2**q)), or of 3/4 of it
    shift = q + (-k * 1741647 >> 19) + 1
    power = _POWER_BITS[-k - _MIN_POWER]
    low = _scaled(power, (4 * significand - (1 if lopsided else 2)) << shift)
    value = _scaled(power, (4 * significand) << shift)
    high = _scaled(power, (4 * significand + 2) << shift)
    if significand & 1:  # bounds round to their even neighbours
        low, high = low + 1, high - 1
    s = value >> 2
    ten = int64(uint64(s) // uint64(10))
    down, up, middle = low <= 40 * ten, 40 * ten + 40 <= high, 4 * s + 2
    is_shorter = (s >= 10) & (down != up)
    nearest = s + (value + (s & 1) > middle)
    down_s, up_s = low <= 4 * s, middle + 2 <= high
    digits = s + up_s if down_s != up_s else nearest
    return (ten + up, k + 1) if is_shorter else (digits, k)


@njit(nogil=True, cache=True)
def _scaled(power, factor):
    """Return the upper 64 bits of a product of 64 and 32 bits; the last bit is set if bits were cut off."""
    low = power * uint64(factor)
    return int64(multiply_high(power, uint64(factor)) | uint64(low >= uint64(1 << 33)))
