"""Results of finished tasks in a checkpoint, so that an interrupted run can be resumed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import numpy as np

from mgpu_ngram.core.errors import RunError
from mgpu_ngram.core.storage.checkpoint import Checkpoint
from mgpu_ngram.core.storage.checkpoint_entries import save_entry
from mgpu_ngram.core.storage.safetensors import load_arrays
from mgpu_ngram.engine.decode.lines import DecodeCounts, DecodedLines

DECODED_ENTRY = "decoded"  # kind of the entries
KEPT_BYTES = 64 << 20  # most bytes of results that wait for the next save


class SavedResults:
    """Results of tasks in a checkpoint; without a checkpoint, nothing is saved."""

    def __init__(self, checkpoint: Checkpoint | None, seconds: float):
        self._checkpoint, self._seconds = checkpoint, seconds
        self._waiting: dict[int, DecodedLines] = {}
        self._place: dict[int, tuple[str, int]] = {}  # file of a task's results, and its position there
        self._last, self._bytes = time.monotonic(), 0  # of the last save, and of what waits for the next one
        self._open: tuple[str, dict[str, np.ndarray]] = "", {}

    @contextmanager
    def kept_after_errors(self) -> Iterator[None]:
        """Save the kept results if the block fails or is interrupted."""
        try:
            yield
        except BaseException:
            with suppress(RunError):  # the first error says more
                self.flush()
            raise

    def found(self) -> set[int]:
        """Return the numbers of the tasks whose results an earlier run saved."""
        if self._checkpoint is not None:
            for entry in self._checkpoint.entries(DECODED_ENTRY):
                self._place |= {item: (entry.path, i) for i, item in enumerate(entry.items)}
        return set(self._place)

    def read(self, number: int) -> DecodedLines:
        """Return the saved results of a task."""
        path, i = self._place[number]
        if self._open[0] != path:
            self._open = path, load_arrays(path)[0]
        arrays = self._open[1]
        end = int(arrays["end"][i])
        begin = int(arrays["end"][i - 1]) if i else 0
        return DecodedLines(arrays["text"][begin:end].tobytes(), DecodeCounts(*arrays["counts"][i].tolist()))

    def add(self, number: int, decoded: DecodedLines) -> None:
        """Keep the results of a task; save all kept results if it is time."""
        if self._checkpoint is not None:
            self._waiting[number] = decoded
            self._bytes += len(decoded.text)
            if time.monotonic() - self._last >= self._seconds or self._bytes >= KEPT_BYTES:
                self.flush()

    def flush(self) -> None:
        """Save the kept results."""
        self._last, self._bytes = time.monotonic(), 0
        waiting, self._waiting = self._waiting, {}
        if self._checkpoint is None or not waiting:
            return
        kept = waiting.values()
        arrays = {
            "text": np.frombuffer(b"".join(decoded.text for decoded in kept), np.uint8),
            "end": np.cumsum([len(decoded.text) for decoded in kept]),
            "counts": np.array([decoded.counts for decoded in kept]),
        }
        save_entry(str(self._checkpoint.entries_folder), DECODED_ENTRY, list(waiting), arrays)
