"""Encode histories from users as codes and positions for `find_histories`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import numpy as np

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.ngrams.words import Words, line_of
from mgpu_ngram.engine.memory.copies import move_to, to_device_fast
from mgpu_ngram.engine.memory.device import to_device
from mgpu_ngram.engine.torch.arrays import as_integers, check_dense
from mgpu_ngram.kernels.common.find_tokens import find_tokens
from mgpu_ngram.kernels.dispatch import array_module, on_gpu
from mgpu_ngram.kernels.score.find_codes import find_codes

MAX_HISTORIES_BYTES = (1 << 32) - 1  # bytes of histories that are encoded together


class Encoder:
    """Encodes histories as codes and positions for `find_histories`.

    words  words of the model
    order  order of the model; the last order - 1 words of a history are kept
    """

    def __init__(self, words: Words, order: int, device: str):
        self.words, self.order, self.device = words, order, device
        offsets_V, data, slots_C = words.table
        self._table = [to_device_fast(array, device) for array in (slots_C, offsets_V, data)]

    def text(self, text_B: Any, bos: bool, positions: str = "every") -> tuple[Any, Any]:
        """Return (codes_T, positions_H) of lines of text.

        text_B     (B,) uint8 on the device, words separated by the white space of C's isspace; a newline ends each line
        positions  "every": the words before each word and, with bos, before the end of its line; "last": whole lines
        """
        codes_T = find_codes(text_B, find_tokens(text_B, isspace=True), *self._table)
        xp = array_module(codes_T)
        if positions == "last":
            return codes_T, xp.flatnonzero(codes_T == 0)
        return codes_T, xp.arange(len(codes_T)) if bos else xp.flatnonzero(codes_T)

    def histories(self, histories: Any) -> tuple[Any, Any]:
        """Return (codes_T, positions_H) of histories: strings, lists of words, arrays or tensors of ids, or one
        matrix of ids.

        Raises InputError for other types, and for ids outside the vocabulary.
        """
        if hasattr(histories, "ndim"):
            return self._of_ids(as_integers("histories", histories))
        histories = list(histories)
        if all(isinstance(history, (str, bytes)) for history in histories):
            text = bytearray().join(line_of(history, f"history {i}") for i, history in enumerate(histories))
            if len(text) > MAX_HISTORIES_BYTES:
                raise InputError(
                    f"the histories have {len(text):,} bytes but may have {MAX_HISTORIES_BYTES:,} together; give fewer "
                    "of them at once"
                )
            return self.text(to_device_fast(np.frombuffer(text, np.uint8), self.device), False, "last")
        codes: list[int] = []
        positions_H = np.empty(len(histories), np.int64)
        known: dict[str | bytes, int] = {}
        for i, history in enumerate(histories):
            codes += self._codes(history, i, known)
            positions_H[i] = len(codes)
            codes.append(0)
        return to_device(np.array(codes, np.uint32), self.device), to_device(positions_H, self.device)

    def _of_ids(self, ids_HK: Any) -> tuple[Any, Any]:
        """Return (codes_T, positions_H) of a matrix of ids."""
        if not _is_of_ids(ids_HK, 2):
            raise InputError(
                f"histories are {ids_HK.dtype} of shape {tuple(ids_HK.shape)} but must be a list of histories, or a "
                "matrix of ids, a row each"
            )
        kept_HK = ids_HK[:, max(0, ids_HK.shape[1] - self.order + 1) :]
        ids_HK = move_to(array_module(ids_HK).ascontiguousarray(kept_HK), self.device)
        xp, (H, K) = array_module(ids_HK), ids_HK.shape
        if ids_HK.size:
            self._check_ids(int(ids_HK.min()), int(ids_HK.max()))
        codes_HK = xp.zeros((H, K + 1), np.uint32)
        codes_HK[:, :K] = ids_HK.astype(np.uint32) + np.uint32(1)
        return codes_HK.reshape(-1), xp.arange(1, H + 1) * (K + 1) - 1

    def _codes(self, history: Any, i: int, known: dict[str | bytes, int]) -> list[int]:
        """Return the codes of one history; `known` caches the ids of words."""
        if isinstance(history, (str, bytes)):
            history = line_of(history, f"history {i}").split()
        history = as_integers(f"history {i}", history)
        if _is_of_ids(history, 1):
            ids = move_to(history[max(0, len(history) - self.order + 1) :], "cpu").tolist()
            if ids:
                self._check_ids(min(ids), max(ids))
            return [id + 1 for id in ids]
        words = list(history) if isinstance(history, Iterable) else [history]
        wrong = next((word for word in words if not isinstance(word, (str, bytes))), None)
        if wrong is not None:
            what = f"{wrong!r} in it" if isinstance(history, Iterable) else repr(history)
            raise InputError(f"history {i} has {what} but must be a string, a list of words or an array of ids")
        words = words[max(0, len(words) - self.order + 1) :]
        for word in words:
            if word not in known:
                known[word] = self.words.id(word)
        return [known[word] + 1 for word in words]

    def _check_ids(self, least: int, most: int) -> None:
        if not 0 <= least <= most < len(self.words):
            raise InputError(f"ids are {least} to {most} but must be 0 to {len(self.words) - 1}")


def _is_of_ids(array: Any, ndim: int) -> bool:
    """Return whether it is a NumPy or CuPy array of integers."""
    is_array = isinstance(array, np.ndarray) or on_gpu(array)
    return is_array and array.ndim == ndim and getattr(array.dtype, "kind", "") in ("i", "u")


def several(histories: Any) -> Any:
    """Return histories as a sequence; a string is one history. Raises InputError for other single values."""
    if isinstance(histories, (str, bytes)):
        return [histories]
    check_dense(histories)
    is_several = histories.ndim > 0 if hasattr(histories, "ndim") else isinstance(histories, Iterable)
    if not is_several:
        raise InputError(
            f"histories are {histories!r:.60} but must be a list of histories, or a matrix of ids, a row each"
        )
    return histories


def shortened(codes_T: np.ndarray, positions_H: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Return whole sentences in host memory as histories of at most their last `most` words."""
    lengths_H = np.minimum(np.diff(positions_H, prepend=-1), most + 1)  # with the 0
    ends_H = np.cumsum(lengths_H)
    kept_T = np.repeat(positions_H + 1 - ends_H, lengths_H) + np.arange(lengths_H.sum())
    return codes_T[kept_T], ends_H - 1


def batches(histories: Any, rows: int) -> Iterator[Any]:
    """Yield histories in batches of `rows`."""
    histories = several(histories)
    if hasattr(histories, "ndim"):
        yield from (histories[i : i + rows] for i in range(0, len(histories), rows))
        return
    waiting = iter(histories)
    while batch := list(islice(waiting, rows)):
        yield batch
