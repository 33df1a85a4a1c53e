"""Gangs: tasks that run at once, one on each worker, and sum and exchange arrays while they run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol

from mgpu_ngram.core.errors import RunError

LOST_SECONDS = 5.0  # after an error of one rank: if a worker was lost, the driver aborts the gang within this time
SUMMED = ("int32", "uint32", "int64", "uint64", "float32", "float64")


class GangError(RunError):
    """A gang ended early, although no rank failed by itself: it lost a worker, was aborted, or could not start.

    lost  names of the workers that were lost
    """

    def __init__(self, message: str, lost: Sequence[str] = ()):
        super().__init__(message)
        self.lost = tuple(lost)


class Pending(Protocol):
    """A collective that has begun. Do not change or read its arrays before it ends."""

    def wait(self) -> Any:
        """Wait for the result and return it; raise GangError if the gang ends first."""

    def hold_stream(self) -> Any:
        """Return the result at once: later kernels on the current stream start when it is complete."""


class Communicator(ABC):
    """Connects the ranks of a gang, each of which must call the same collectives in the same order.

    rank  number of this task, from 0
    size  tasks in the gang

    Arrays are C-contiguous and equal in shape and type on all ranks. CuPy arrays go from GPU to GPU, NumPy arrays
    through host memory. Sums support the types in SUMMED. Sums of integers wrap around and do not depend on the order,
    so they are the same for any number of ranks. Sums of floats may differ in the last bits.
    """

    rank: int
    size: int

    @abstractmethod
    def all_reduce_async(self, array: Any, out: Any = None) -> Pending:
        """Begin `all_reduce`, after the kernels of the current stream and beside later ones.

        out  another array of the same shape and type to fill; then `array` does not change
        """

    @abstractmethod
    def reduce_scatter_async(self, array: Any) -> Pending:
        """Begin `reduce_scatter`, as `all_reduce_async` does."""

    @abstractmethod
    def all_gather_async(self, array: Any) -> Pending:
        """Begin `all_gather`, as `all_reduce_async` does."""

    @abstractmethod
    def barrier(self) -> None:
        """Return when all ranks have called it; on GPUs, also when the kernels of the current stream have ended."""

    @abstractmethod
    def check(self) -> None:
        """Raise GangError if the gang was aborted. Call it now and then in work without collectives."""

    def close(self) -> None:  # noqa: B027
        """Free the resources of the communicator; the gang does this when the rank ends."""

    def all_reduce(self, array: Any) -> Any:
        """Replace the array by its sum over all ranks, in place; return it."""
        return self.all_reduce_async(array).wait()

    def reduce_scatter(self, array: Any) -> Any:
        """Return the sum over all ranks of array[rank]; the array has shape (size, ...)."""
        return self.reduce_scatter_async(array).wait()

    def all_gather(self, array: Any) -> Any:
        """Return the arrays of all ranks, of equal shape, as one of shape (size, ...)."""
        return self.all_gather_async(array).wait()


def check_array(array: Any, size: int, operation: str) -> None:
    """Raise ValueError unless an array is valid for a collective."""
    if not array.flags.c_contiguous:
        raise ValueError(f"{operation} got an array with strides {array.strides}; make it C-contiguous first")
    if operation != "all_gather" and array.dtype.name not in SUMMED:
        raise ValueError(f"{operation} got an array of {array.dtype}; convert it to one of {', '.join(SUMMED)}")
    if operation == "reduce_scatter" and (array.ndim == 0 or len(array) != size):
        raise ValueError(f"reduce_scatter got an array of shape {array.shape}; reshape it to ({size}, ...)")


def checked_target(array: Any, out: Any, size: int) -> Any:
    """Return the array that `all_reduce` fills; raise ValueError if it is not valid."""
    check_array(array, size, "all_reduce")
    if out is None:
        return array
    check_array(out, size, "all_reduce")
    if (out.shape, out.dtype) != (array.shape, array.dtype):
        raise ValueError(
            f"all_reduce got out of {out.dtype} and shape {out.shape}; give an array of {array.dtype} and {array.shape}"
        )
    return out


def check_size(ranks: int, workers: int, label: str) -> None:
    """Raise GangError unless a gang of `ranks` ranks can run on `workers` workers."""
    if not 1 <= ranks <= workers:
        raise GangError(
            f"{label and f'{label}: '}{ranks} ranks were requested but {workers} can run at once; "
            f"use 1 to {workers} ranks, or start more workers"
        )
