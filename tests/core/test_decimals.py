"""Numbers in text, compared with exact fractions, NumPy's shortest representation and lmplz's format."""

import struct
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mgpu_ngram.core.decimals import MAX_NUMBER_BYTES, read_float32, write_float32
from mgpu_ngram.kernels.compile_cpu import njit


@njit()
def read_all(text, starts, values, ends):
    for i in range(len(starts)):
        values[i], ends[i] = read_float32(text, starts[i])


@njit()
def write_all(values, out):
    at = 0
    for value in values:
        at = write_float32(value, out, at)
        out[at] = 10
        at += 1
    return at


def read(texts):
    """Return (values, bytes read of each) of a list of texts."""
    lines = [t.encode() + b"\n" for t in texts]
    starts = np.cumsum([0, *map(len, lines)])[:-1]
    values, ends = np.empty(len(texts), np.float32), np.empty(len(texts), np.int64)
    read_all(np.frombuffer(b"".join(lines), np.uint8), starts, values, ends)
    return values, (ends - starts).tolist()


def write(values):
    values = np.asarray(values, np.float32)
    out = np.empty(len(values) * (MAX_NUMBER_BYTES + 1), np.uint8)
    return out[: write_all(values, out)].tobytes().decode().split("\n")[:-1]


def bits(values):
    return np.asarray(values, np.float32).view(np.uint32).tolist()


def nearest(text):
    """Return the bits of the float32 nearest to a decimal, ties to even, by exact fractions."""
    value = abs(Fraction(text))
    low, high = 0, 0x7F800000  # bits of positive floats rise with their values
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if exact(middle) <= value else (low, middle)
    below, above = value - exact(low), exact(high) - value
    found = low if below < above or (below == above and low % 2 == 0) else high
    return found | (text.startswith("-") << 31)


def exact(pattern):
    """Return the number that 32 bits represent; 2**128 for infinity."""
    return Fraction(2**128) if pattern == 0x7F800000 else Fraction(struct.unpack("<f", struct.pack("<I", pattern))[0])


def halfway(pattern):
    """Return the decimal halfway between two floats, with all digits."""
    middle = (exact(pattern) + exact(pattern + 1)) / 2
    shift = next(e for e in range(200) if (middle * 10**e).denominator == 1)
    return f"{int(middle * 10**shift)}e-{shift}"


HARD = [
    "16777217", "16777219", "0.1", "0.30103", "1e-45", "7.006492321624085e-46", "7.006492321624086e-46",
    "1.17549435e-38", "1.1754943e-38", "1.1754942e-38", "3.4028235e38", "3.4028235677973366e38",
    "3.4028235677973367e38", "340282356779733661637539395458142568447", "340282356779733661637539395458142568448",
    "9007199254740993", "9223372036854775807", "9223372036854775808", "99999999999999999999", "0.00000000000000000000",
    "1e-64", "1e-65", "1e38", "1e39", "12345678901234567890123456789012345678901234567890e-60",
    "1e400", "1e-400", "1e99999999999999999999", "1e-99999999999999999999", "0e999999999999", "1.00000005960464477540",
    "1.00000005960464477539", "1." + "0" * 300 + "1", "0." + "0" * 300 + "1e300", "1" + "0" * 300 + "e-300",
    "1.000000059604644775390625", "1.000000059604644775390625" + "0" * 200 + "1", "1.00000017881393432617187500",
    "0." + "0" * 44 + "1401298464324817070923729583289916131280", "0" * 300 + "2.5",
]  # fmt: skip


def test_numbers_by_hand():
    texts = ["-1.5", "+.25", "5.", "1e3", "1E-3", "-0", "0.0", "inf", "-inf", "2e+1"]
    values, lengths = read(texts)
    assert values.tolist() == [-1.5, 0.25, 5, 1000, np.float32(0.001), 0, 0, np.inf, -np.inf, 20]
    assert np.signbit(values).tolist() == [v.startswith("-") for v in texts]
    assert lengths == list(map(len, texts))


@pytest.mark.parametrize(
    ("text", "length"),
    [("", 0), ("-", 0), (".", 0), ("-.e5", 0), ("e5", 0), ("NaN", 0), ("nan", 0), ("in", 0), ("Inf", 0), ("a1", 0),
     ("1e", 1), ("1e+", 1), ("1.5e-x", 3), ("1.2.3", 3), ("infinity", 3), ("0x10", 1), ("1,5", 1), ("--1", 0)],
)  # fmt: skip
def test_a_number_ends_where_kenlm_ends_it(text, length):
    assert read([text])[1] == [length]


@pytest.mark.parametrize("sign", ["", "-"])
def test_hard_numbers_are_rounded_correctly(sign):
    texts = [sign + text for text in HARD if abs(int(text.partition("e")[2] or 0)) < 1000]
    assert bits(read(texts)[0]) == [nearest(text) for text in texts]
    far = [sign + text for text in HARD if sign + text not in texts]
    infinite = [text for text in far if not text.partition("e")[2].startswith("-") and Fraction(text.partition("e")[0])]
    assert [abs(v) for v in read(far)[0].tolist()] == [np.inf if text in infinite else 0 for text in far]
    assert len(far) == 3 and len(infinite) == 1


@given(st.integers(0, 0x7F7FFFFF), st.integers(-3, 3))
@example(0, 0)
@example(0x7F7FFFFF, 0)
@example(0x7F7FFFFF, -1)
@example(0x7FFFFF, 1)
def test_decimals_near_halfway_are_rounded_correctly(pattern, off):
    digits, exponent = halfway(pattern).split("e")
    text = f"{int(digits) * 10**5 + off}e{int(exponent) - 5}"
    assert bits(read([text])[0]) == [nearest(text)]


@given(st.from_regex(r"-?([0-9]{1,40}(\.[0-9]{0,40})?|\.[0-9]{1,40})([eE][-+]?[0-9]{1,2})?", fullmatch=True))
def test_any_decimal_is_rounded_correctly(text):
    values, lengths = read([text])
    assert lengths == [len(text)]
    assert bits(values) == [nearest(text)]


def test_full_doubles_are_rounded_correctly():
    """17 digits, as tools print that compute in double; includes doubles next to a float32."""
    rng = np.random.default_rng(5)
    doubles = -rng.exponential(3, 2_000)
    texts = [repr(float(d)) for d in doubles]
    assert bits(read(texts)[0]) == [nearest(text) for text in texts]
    values = read([repr(float(d)) for d in -rng.exponential(3, 300_000)])[0]
    assert len(np.unique(values)) > 200_000


def random_floats(n):
    patterns = np.random.default_rng(4).integers(0, 1 << 32, n, dtype=np.uint64).astype(np.uint32)
    patterns[:4096] = np.arange(4096)  # the smallest
    patterns[4096:4352] = np.arange(256) << 23  # powers of two
    patterns[4352:4608] = (np.arange(256) << 23) - 1
    patterns[4608] = np.float32(-999999950000000000000.0).view(np.uint32)  # the longest
    values = patterns.view(np.float32)
    return values[np.isfinite(values)]


def test_random_floats_read_back_the_same():
    values = random_floats(2_000_000)
    texts = write(values)
    found, lengths = read(texts)
    assert np.array_equal(found.view(np.uint32), values.view(np.uint32))
    assert lengths == list(map(len, texts))
    assert max(lengths) == MAX_NUMBER_BYTES


def log10_floats():
    """Return numbers from 1e-6 to 10, which are written without a loop, and others near the ends of that range."""
    rng = np.random.default_rng(6)
    ends = np.float32([1e-6, 1e-5, 1e-4, 1e-3, 0.01, 0.1, 1, 2, 5, 9, 10, 100])
    near = [np.nextafter(ends, np.float32(side)) for side in (0, np.inf)]
    short = (rng.integers(1, 10_000, 5_000) / 10.0 ** rng.integers(3, 10, 5_000)).astype(np.float32)  # few digits
    values = (10.0 ** rng.uniform(-6.5, 1.5, 50_000)).astype(np.float32)
    return np.concatenate([ends, *near, short, values])


def test_written_floats_are_the_shortest():
    values = np.concatenate([random_floats(100_000), log10_floats(), -log10_floats()])
    for text, value in zip(write(values), values, strict=True):
        digits, _, exponent = np.format_float_scientific(value, unique=True, trim="-").partition("e")
        assert lmplz_spelling(digits, int(exponent)) == text


def lmplz_spelling(digits, exponent):
    """Return decimals from 1e-6 to below 1e21, otherwise an exponent without a plus."""
    sign, digits = ("-" if digits.startswith("-") else ""), digits.lstrip("-").replace(".", "")
    if digits == "0":
        return sign + "0"
    if not -6 <= exponent < 21:
        return sign + digits[0] + ("." + digits[1:]) * (len(digits) > 1) + f"e{exponent}"
    if exponent < 0:
        return sign + "0." + "0" * (-exponent - 1) + digits
    whole = digits[: exponent + 1].ljust(exponent + 1, "0")
    return sign + whole + ("." + digits[exponent + 1 :]) * (len(digits) > exponent + 1)


def test_spellings_by_hand():
    spelled = {
        0.0: "0", -0.30103: "-0.30103", 1e-6: "0.000001", 9.5e-7: "9.5e-7", 1e-45: "1e-45",
        1e20: "100000000000000000000", 1e21: "1e21", 3.4028235e38: "3.4028235e38", -100.0: "-100", -99.5: "-99.5",
        np.inf: "inf", -np.inf: "-inf", 123456.7: "123456.7", 2.0**24: "16777216",
    }  # fmt: skip
    assert write(list(spelled)) == list(spelled.values())
    assert write([-0.0, np.nan, -999999950000000000000.0]) == ["-0", "NaN", "-999999950000000000000"]
