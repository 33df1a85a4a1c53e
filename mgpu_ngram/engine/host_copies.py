"""Asynchronous copies from a device to the host: only a read of the copy waits for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mgpu_ngram.engine.device import pinned_buffer
from mgpu_ngram.engine.step_graphs import rounded_up
from mgpu_ngram.kernels.dispatch import on_gpu

ALIGNMENT = 16  # bytes
SIZES_PER_OCTAVE = 4  # of pinned buffers, which are kept by size


class HostCopies:
    """Copies to the host, under way, of arrays of one device as the current stream has them now.

    arrays  arrays or None; arrays of the host are not copied
    """

    def __init__(self, arrays: Sequence[Any]):
        self._arrays, self._event = list(arrays), None
        on_device = [i for i, array in enumerate(arrays) if on_gpu(array)]
        if not on_device:
            return
        import cupy

        starts = np.cumsum([0, *(-(-arrays[i].nbytes // ALIGNMENT) * ALIGNMENT for i in on_device)]).tolist()
        buffer = pinned_buffer(rounded_up(max(starts[-1], ALIGNMENT), SIZES_PER_OCTAVE))
        for i, start in zip(on_device, starts, strict=False):
            target = buffer[start : start + arrays[i].nbytes].view(arrays[i].dtype).reshape(arrays[i].shape)
            self._arrays[i] = arrays[i].get(out=target, blocking=False)
        self._event = cupy.cuda.get_current_stream().record()

    def wait(self) -> list[Any]:
        """Return the arrays on the host."""
        if self._event is not None:
            self._event.synchronize()
        return self._arrays
