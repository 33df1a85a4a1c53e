"""Send values between workers: the result of a task is sent as a `Parcel`.

Arrays in memory-mapped files are not copied between processes of the same host: both map the same file. CuPy arrays
are sent in one of three ways:

ipc   between processes of one host that can read each other's memory: the receiver copies the sender's memory
ucx   if the protocol of the cluster is ucx: arrays are sent from device memory as frames
tcp   otherwise: arrays are sent as NumPy arrays, and a GPU worker makes CuPy arrays of them
"""

from __future__ import annotations

import dataclasses
import io
import os
import pickle
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
from dask.sizeof import sizeof
from distributed.protocol.cuda import cuda_deserialize, cuda_serialize
from distributed.protocol.serialize import dask_deserialize, dask_serialize

from mgpu_ngram.cluster import dask_private, lent_arrays
from mgpu_ngram.core.errors import RunError
from mgpu_ngram.core.storage.scratch import is_running
from mgpu_ngram.core.storage.shared_maps import FileHandle, file_place_of

MESSAGES = 32  # messages that are read and written at once: more than a host has peers
LONG_MESSAGE_BYTES = 32 << 10  # longer messages are read and written in threads, which costs a short one 1 ms
OFFER = "mgpu-ngram-ipc"  # key in the handshake of workers: this worker can read its peers' GPU memory
FILES = "mgpu-ngram-files"  # key in the handshake of workers: this worker can map its peers' files


@dataclass(eq=False)
class Parcel:
    """The result of a task.

    loan    copies of its arrays for peers to read, kept as long as the value
    failed  the error that kept the value from arriving; raised when the value is used
    """

    value: Any
    loan: Any = None
    failed: Exception | None = None

    def open(self) -> Any:
        if self.failed:
            raise self.failed
        return self.value


@dataclass
class _Worker:
    """The offers of this process to others. The plugin sets them on workers."""

    has_gpu: bool = False
    offer: dict[str, Any] = field(default_factory=dict)  # the dict object that new connections send; empty: no offer
    die: Callable[[str], None] | None = None


_here = _Worker()


def announce_offers(worker: Any, has_gpu: bool, may_lend: Sequence[str], die: Callable[[str], None] | None) -> None:
    """Announce in all future connections that this worker can map files of other processes of its host, and, if it
    is in `may_lend`, that it can read its peers' memory.
    """
    me, lends = {"host": host_identity(), "pid": os.getpid()}, process_identity() in may_lend
    offer = ({FILES: me} if me["host"] else {}) | ({OFFER: me} if lends else {})
    _here.has_gpu, _here.offer, _here.die = has_gpu, offer, die
    dask_private.offer_in_handshakes(worker, offer)
    if lends:
        dask_private.messages_in_threads(LONG_MESSAGE_BYTES, _threads)


_threads = ThreadPoolExecutor(MESSAGES, "mgpu-ngram-message")


def stop(worker: Any) -> None:
    dask_private.messages_as_usual()
    _here.has_gpu, _here.offer, _here.die = False, {}, None
    dask_private.offer_in_handshakes(worker, {})


def host_identity() -> str:
    """Return a name that is equal for processes that see each other's memory and process ids: one host or container."""
    try:
        spaces = [os.readlink(f"/proc/self/ns/{space}") for space in ("ipc", "pid")]
        return " ".join([Path("/proc/sys/kernel/random/boot_id").read_text().strip(), *spaces])
    except OSError:  # not Linux
        return ""


def process_identity() -> str:
    """Return a name that is equal for workers with the same host and GPUs, even after a restart."""
    gpus = sorted(os.environ.get("CUDA_VISIBLE_DEVICES", "all").split(","))
    return f"{host_identity()} {','.join(gpus)}"


# On the wire


@dataclass(frozen=True)
class _InFile:
    """An array as a view of a file: its first byte is byte `offset`."""

    file: FileHandle
    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype
    strides: tuple[int, ...]


class _Pickler(cloudpickle.Pickler):
    """Pickles a value without its device arrays, which it numbers; an array that occurs twice stays one.

    as_files  pickle handles of memory-mapped arrays instead of their bytes
    """

    def __init__(self, file: io.BytesIO, buffers: list[Any], as_files: bool):
        super().__init__(file, protocol=5, buffer_callback=buffers.append)
        self.arrays: list[Any] = []
        self.numbers: dict[int, int] = {}
        self.as_files = as_files

    def reducer_override(self, value: Any) -> Any:
        """Send a view as a contiguous copy of its own: pickle would write it into its own buffer."""
        if isinstance(value, np.ndarray) and not value.flags.forc and value.dtype.kind != "O":
            return np.ascontiguousarray(value).__reduce_ex__(5)
        return super().reducer_override(value)

    def persistent_id(self, value: Any) -> int | _InFile | None:
        if self.as_files and isinstance(value, np.ndarray):
            place = file_place_of(value)
            return _InFile(*place, value.shape, value.dtype, value.strides) if place else None
        if not lent_arrays.is_array(value):
            return None
        number = self.numbers.setdefault(id(value), len(self.arrays))
        if number == len(self.arrays):
            self.arrays.append(value)
        return number


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, buffers: list[Any], arrays: list[Any]):
        super().__init__(file, buffers=buffers)
        self.arrays = arrays
        self.files: dict[FileHandle, np.ndarray] = {}

    def persistent_load(self, found: int | _InFile) -> Any:
        if isinstance(found, int):
            return self.arrays[found]
        if found.file not in self.files:
            try:
                self.files[found.file] = found.file.map()
            except OSError as error:
                raise _NotMapped(found.file.pid, error) from None
        return np.ndarray(found.shape, found.dtype, self.files[found.file], found.offset, found.strides)


class _NotMapped(Exception):
    """A file of another process of this host cannot be mapped: its id, and the error."""

    def __init__(self, pid: int, error: OSError):
        self.pid, self.error = pid, error


def _pack(parcel: Parcel, as_files: bool = False) -> tuple[list[Any], list[Any]]:
    """Return (frames of everything but device arrays, device arrays); `as_files` as in `_Pickler`."""
    file = io.BytesIO()
    buffers: list[pickle.PickleBuffer] = []
    pickler = _Pickler(file, buffers, as_files)
    pickler.dump((parcel.value, parcel.failed))
    return [file.getbuffer(), *[buffer.raw() for buffer in buffers]], pickler.arrays


def _unpack(frames: Sequence[Any], arrays: list[Any]) -> Parcel:
    views = [memoryview(f) for f in frames]
    # Arrays must arrive writable, as they left, or compiled functions would be compiled again for them.
    buffers = [bytearray(v) if v.readonly else v for v in views[1:]]
    try:
        value, failed = _Unpickler(io.BytesIO(views[0]), buffers, arrays).load()
    except _NotMapped as error:
        raise _unreachable(error.error, error.pid, FILES, "files") from error
    except Exception as error:  # or Dask would wait for it forever
        return Parcel(None, failed=RunError(f"a task's result cannot be read by another process: {error!r}"))
    return Parcel(value, failed=failed)


def _shapes(arrays: Sequence[Any]) -> list[dict[str, Any]]:
    return [{"shape": a.shape, "dtype": a.dtype.str} for a in arrays]


_lending = threading.Lock()  # two peers may ask for a value at once; a second loan would end the first


@dask_serialize.register(Parcel)
def _send(parcel: Parcel, context: dict[str, Any] | None = None) -> tuple[dict[str, Any], list[Any]]:
    recipient = dask_private.recipient_of(context)
    to_peer, as_files = (_peers(key, recipient) for key in (OFFER, FILES))
    try:
        return _wrap(parcel, to_peer, as_files)
    except Exception as error:
        # Dask would wait forever for a value that cannot be sent: send the reason instead.
        _die_if_lost()
        return _wrap(Parcel(None, failed=RunError(f"a task's result cannot be sent to another process: {error!r}")))


def _wrap(parcel: Parcel, to_peer: bool = False, as_files: bool = False) -> tuple[dict[str, Any], list[Any]]:
    frames, arrays = _pack(parcel, as_files)
    # The receiver copies device arrays while it reads the message: in a thread, if the message is long.
    padding = [bytes(LONG_MESSAGE_BYTES)] if arrays else []
    if to_peer and arrays:
        with _lending:
            if parcel.loan is None:
                parcel.loan = lent_arrays.lend(arrays)
        return {"ipc": parcel.loan.records, "sender": os.getpid(), "pickled": len(frames)}, frames + padding
    header = {"host": _shapes(arrays), "pickled": len(frames)}
    sent = (lent_arrays.copy_to_host(lent_arrays.as_contiguous(a)).reshape(-1).view("u1") for a in arrays if a.nbytes)
    return header, frames + [memoryview(a.data) for a in sent] + padding


def _die_if_lost() -> None:
    """Exit a worker whose GPU no longer works; its nanny starts it again."""
    if _here.die and (why := lent_arrays.why_lost()):
        _here.die(why)


def _peers(key: str, recipient: dict[str, Any]) -> bool:
    """Return whether the receiver of a connection can read our memory (`key` is OFFER) or map our files (FILES).

    A process cannot open its own memory.
    """
    mine, theirs = _here.offer.get(key), recipient.get(key)
    return bool(mine and theirs and mine["host"] == theirs["host"] and mine["pid"] != theirs["pid"])


@dask_deserialize.register(Parcel)
def _receive(header: dict[str, Any], frames: list[Any]) -> Parcel:
    first = header["pickled"]
    if "ipc" in header:
        try:
            arrays = _where_there_is_room(lambda on_host: lent_arrays.import_arrays(header["ipc"], on_host))
        except Exception as error:
            return _not_received(error, header["sender"])
        return _unpack(frames[:first], arrays)
    sent, arrays = iter(frames[first:]), []
    for shape in header["host"]:
        size = int(np.prod(shape["shape"])) * np.dtype(shape["dtype"]).itemsize
        flat = np.frombuffer(next(sent) if size else b"", shape["dtype"])
        arrays.append(flat.reshape(shape["shape"]))
    if _here.has_gpu:
        try:
            arrays = _where_there_is_room(
                lambda on_host: arrays if on_host else [lent_arrays.copy_from_host(a) for a in arrays]
            )
        except Exception as error:
            return _not_received(error)
    return _unpack(frames[:first], arrays)


def _where_there_is_room(receive: Callable[[bool], list[Any]]) -> list[Any]:
    """Return arrays on the device, or all of them in host memory if it is full."""
    try:
        return receive(False)
    except MemoryError:
        return receive(True)


def _not_received(error: Exception, sender: int | None = None) -> Parcel:
    """Raise for a failed copy: either our GPU is gone, or the peer is, which Dask repairs by itself."""
    _die_if_lost()
    if sender is None:
        return Parcel(None, failed=error)
    raise _unreachable(error, sender, OFFER, "memory") from error


def _unreachable(error: Exception, sender: int, key: str, what: str) -> OSError:
    """Return the error for unreadable memory or files of another process; if that process runs, withdraw the offer."""
    if not is_running(sender):
        return OSError(f"the sender was lost while its {what} was read: {error}")
    _here.offer.pop(key, None)  # reading does not work here: future connections use host memory
    return OSError(f"{what} of process {sender} of this host cannot be read: {error}")


@cuda_serialize.register(Parcel)
def _send_ucx(parcel: Parcel) -> tuple[dict[str, Any], list[Any]]:
    frames, arrays = _pack(parcel)
    if not arrays:
        # A serialiser that does not apply must raise this error; then Dask asks the next one.
        raise NotImplementedError("no arrays on a device")
    header = {"device": _shapes(arrays), "pickled": len(frames)}
    return header, frames + [lent_arrays.as_bytes(lent_arrays.as_contiguous(a)) for a in arrays if a.nbytes]


@cuda_deserialize.register(Parcel)
def _receive_ucx(header: dict[str, Any], frames: list[Any]) -> Parcel:
    import cupy

    first = header["pickled"]
    sent = iter(frames[first:])
    arrays = [
        lent_arrays.from_bytes(next(sent), **shape) if np.prod(shape["shape"]) else cupy.empty(**shape)
        for shape in header["device"]
    ]
    return _unpack(frames[:first], arrays)


@sizeof.register(Parcel)
def size_bytes(parcel: Parcel) -> int:
    """Return the bytes of all arrays inside, so that Dask runs tasks near their large arguments.

    On a worker with a GPU the result is always that of a long message: arrays may have to wait for the device before
    they are sent, which Dask does in a thread only for long messages.
    """
    return 64 + LONG_MESSAGE_BYTES * _here.has_gpu + _bytes_of(parcel.value, set())


def _bytes_of(value: Any, seen: set[int]) -> int:
    if isinstance(value, str | int | float | type(None)) or id(value) in seen:
        return 0
    seen.add(id(value))
    if isinstance(value, bytes | bytearray):
        return len(value)
    if isinstance(nbytes := getattr(value, "nbytes", None), int):
        return nbytes
    if isinstance(value, dict):
        return sum(_bytes_of(v, seen) for v in value.values())
    if isinstance(value, list | tuple | set):
        return sum(_bytes_of(v, seen) for v in value)
    if dataclasses.is_dataclass(value):
        return sum(_bytes_of(getattr(value, f.name), seen) for f in dataclasses.fields(value))
    return 0
