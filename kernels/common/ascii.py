"""ASCII bytes that compiled functions search, one by one or in 8 bytes at once."""

from numpy import uint64

NEWLINE, SPACE, QUOTE, COMMA, COLON, BACKSLASH = b'\n ",:\\'
ONES = uint64(0x0101010101010101)  # times a byte: 8 copies of the byte
HIGH_BITS = uint64(0x8080808080808080)  # the high bit of each byte, 0 in ASCII
