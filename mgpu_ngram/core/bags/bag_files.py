"""Bags of words as files of arrays, which readers map into memory."""

from __future__ import annotations

from pathlib import Path

from mgpu_ngram.core.bags.bags import Bags
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.storage.file_heads import is_safetensors
from mgpu_ngram.core.storage.safetensors import load_arrays, save_arrays

FORMAT = "bags of words"
BAG_ARRAYS = ("starts_D1", "words_P", "counts_P")


def is_bag_file(head: bytes) -> bool:
    """Return whether the first bytes of a file are those of a file of bags of words."""
    return is_safetensors(head) and FORMAT.encode() in head and b"counts_P" in head


def save_bags(path: str | Path, bags: Bags, durable: bool = True) -> int:
    """Write bags of words to one file; return its bytes. Arguments and errors are those of `save_arrays`."""
    arrays = {name: getattr(bags, name) for name in BAG_ARRAYS}
    return save_arrays(path, arrays, {"format": FORMAT, "num_words": bags.num_words}, durable)


def load_bags(path: str | Path, verify: bool = True) -> Bags:
    """Return the bags of a file as views of one memory map; reading executes nothing.

    verify  compare checksums and check every pair, which reads all of the file

    Raises InputError if the file is missing or damaged, or holds something else.
    """
    arrays, metadata = load_arrays(path, verify)
    num_words = metadata.get("num_words") if isinstance(metadata, dict) else None
    if metadata.get("format") != FORMAT or set(arrays) != set(BAG_ARRAYS) or type(num_words) is not int:
        raise InputError(f"{path} holds no bags of words; give a file that save_bags wrote")
    kinds = [arrays[name].dtype.name for name in BAG_ARRAYS]
    if kinds != ["int64", "uint32", "uint32"]:
        raise InputError(f"{path} holds arrays of {', '.join(kinds)}, not int64, uint32, uint32; make it again")
    bags = Bags(arrays["starts_D1"], arrays["words_P"], arrays["counts_P"], num_words)
    return bags.check(str(path)) if verify else bags
