"""Memory-mapped files without names: other processes of the host open them through the process that made them."""

from __future__ import annotations

import mmap
import os
import weakref
from dataclasses import dataclass
from typing import Any

import numpy as np


class _Map(mmap.mmap):
    """A map of a file, whose descriptor stays open while the map lives."""

    descriptor: int
    address: int  # of its first byte in this process


_received: weakref.WeakValueDictionary[tuple[int, int], Any] = weakref.WeakValueDictionary()  # by device and inode


@dataclass(frozen=True)
class FileHandle:
    """The handle by which a process opens a file that process `pid` of the same host and user has open; Linux only.

    device, inode, size_bytes  identify the file: the descriptor may belong to another file by now
    """

    pid: int
    descriptor: int
    device: int
    inode: int
    size_bytes: int

    def map(self) -> np.ndarray:
        """Return (size_bytes,) uint8, read-only. Raises OSError if the process has ended or has closed the file.

        This process maps a file once, so a thousand slices of it take one descriptor.
        """
        if (known := _received.get((self.device, self.inode))) is not None:
            return _bytes_of(known)
        descriptor = os.open(f"/proc/{self.pid}/fd/{self.descriptor}", os.O_RDONLY | os.O_CLOEXEC)
        if _identity(descriptor) != (self.device, self.inode, self.size_bytes):
            os.close(descriptor)
            raise OSError(f"descriptor {self.descriptor} of process {self.pid} is another file by now")
        array = map_file(descriptor)
        _received[self.device, self.inode] = array.base
        return array


def map_file(descriptor: int, writable: bool = False) -> np.ndarray:
    """Return the bytes of an open file, as an array (n,) uint8. Views keep the mapping, even if the file is unlinked.

    writable  writes to the array go to the file, which must be open for reading and writing

    Takes over the descriptor, and closes it with the last view. Raises OSError, and ValueError for an empty file.
    """
    try:
        mapped = _Map(descriptor, 0, access=mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ)
    except BaseException:
        os.close(descriptor)
        raise
    weakref.finalize(mapped, os.close, descriptor).atexit = False
    array = _bytes_of(mapped)
    mapped.descriptor, mapped.address = descriptor, array.ctypes.data
    return array


def _bytes_of(mapped: _Map) -> np.ndarray:
    return np.ndarray(len(mapped), np.uint8, mapped)


def file_place_of(array: np.ndarray) -> tuple[FileHandle, int] | None:
    """Return (handle of the file that an array views, offset of its first byte); None for any other array."""
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    if not isinstance(base, _Map):
        return None
    handle = FileHandle(os.getpid(), base.descriptor, *_identity(base.descriptor))
    return handle, array.ctypes.data - base.address


def _identity(descriptor: int) -> tuple[int, int, int]:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino, status.st_size
