"""The numbers of edges by Python's integers, from the definition in kernels/trie/edges.py."""


def scrambled(x, bits):
    """Return a key of `bits` bits, scrambled."""
    for factor in 0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93:
        x = (x ^ x >> bits // 2) * factor % 2**bits
    return x ^ x >> bits // 2
