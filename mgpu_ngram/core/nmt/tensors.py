"""Named tensors of a translation model's .npz file, taken one by one; each error is one line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
import yaml

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.inputs.files import find_files
from mgpu_ngram.core.inputs.npz import open_npz
from mgpu_ngram.core.inputs.sources import Source

WAY_OUT = "copy the model again or save it again with numpy.savez"
IGNORED_TENSORS = ("history_errs", "uidx", "zipped_params", "decoder_c_tt")  # c_tt is added to all energies
IGNORED_PREFIXES = ("adam_", "special:")
MARIAN_OPTIONS = "special:model.yml"
WEIGHT_NORM_EPSILON = 1e-5  # epsilon of Nematus


def read_tensors(path: str) -> Tensors:
    """Return the tensors of a .npz file, read without pickle. Raises InputError for a file that holds other data."""
    ((name, location),) = find_files([path])[:1]
    arrays: dict[str, np.ndarray] = {}
    with open_npz(Source(name, "plain", 0, location), WAY_OUT) as archive:
        for what in archive.files:
            if what in IGNORED_TENSORS or what.startswith(IGNORED_PREFIXES):
                continue
            values = archive.array(what, dimensions=2)
            if values.dtype.kind != "f":
                raise InputError(
                    f"tensor {what!r} of {name!r} is {values.dtype} but weights are floating-point numbers; {WAY_OUT}"
                )
            if not values.size:
                raise InputError(f"tensor {what!r} of {name!r} has shape {values.shape}, so it is empty; {WAY_OUT}")
            with np.errstate(over="ignore"):  # float64 beyond float32 becomes infinity, which is refused
                arrays[what] = np.ascontiguousarray(values, np.float32)
            if not np.isfinite(arrays[what]).all():
                raise InputError(f"tensor {what!r} {values.shape} of {name!r} holds NaN or infinity; {WAY_OUT}")
    return Tensors(arrays, name)


def marian_options(path: str) -> dict[str, str]:
    """Return the options that Marian writes into its .npz files, without lists; {} for a file without options."""
    name, location = find_files([path])[0]
    with open_npz(Source(name, "plain", 0, location), WAY_OUT) as archive:
        if MARIAN_OPTIONS not in archive.files:
            return {}
        text = archive.array(MARIAN_OPTIONS, dimensions=2).tobytes().rstrip(b"\0")
    try:
        options = yaml.load(text, yaml.BaseLoader)
    except (yaml.YAMLError, RecursionError) as error:
        raise InputError(
            f"tensor {MARIAN_OPTIONS!r} of {name!r} is damaged YAML ({' '.join(str(error).split())}); {WAY_OUT}"
        ) from None
    return {key: value for key, value in options.items() if isinstance(value, str)} if isinstance(options, dict) else {}


def tensor_names(path: str) -> list[str]:
    """Return the names of the tensors of a .npz file; reads no tensor."""
    name, location = find_files([path])[0]
    with open_npz(Source(name, "plain", 0, location), WAY_OUT) as archive:
        return list(archive.files)


class Tensors:
    """Tensors by name. Each is taken with its required shape.

    in_file  other names of tensors in the file, for errors
    """

    def __init__(self, arrays: dict[str, np.ndarray], name: str, in_file: dict[str, str] | None = None):
        self._arrays, self.name, self._taken = arrays, name, set[str]()
        self._in_file = in_file or {}

    def __contains__(self, what: str) -> bool:
        return what in self._arrays

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def renamed(self, names: dict[str, str]) -> Tensors:
        """Return the tensors with other names; errors still use the names in the file."""
        in_file = {new: old for old, new in names.items()}
        return Tensors({names.get(what, what): array for what, array in self._arrays.items()}, self.name, in_file)

    def matrix(self, what: str, rows: int, columns: int) -> np.ndarray:
        """Return a matrix, with its weight normalisation applied.

        Nematus divides each column by its norm times `_wns`.
        """
        array = self._take(what, (rows, columns))
        if array.shape != (rows, columns):
            raise self._wrong(what, (rows, columns))
        if f"{what}_wns" in self:
            norm = np.sqrt((array * array).sum(axis=0) + np.float32(WEIGHT_NORM_EPSILON))
            array = array / (norm * self.vector(f"{what}_wns", columns))
        return array

    def vector(self, what: str, size: int) -> np.ndarray:
        """Return a vector; the file may hold it as a matrix of one row or one column."""
        array = self._take(what, (size,))
        if array.size != size or (array.ndim == 2 and 1 not in array.shape):
            raise self._wrong(what, (size,))
        return array.reshape(size)

    def common(self, *axes: tuple[str, int]) -> int:
        """Return the most frequent axis size, so that an error names the tensor that deviates."""
        shapes = [(self._arrays[name].shape, axis) for name, axis in axes if name in self]
        found = Counter(shape[axis] for shape, axis in shapes if -len(shape) <= axis < len(shape))
        if not found:
            first = axes[0][0]
            raise (self._wrong if first in self else self.missing)(first, ("rows", "columns"))
        return int(found.most_common(1)[0][0])

    def shape(self, what: str) -> tuple[int, ...]:
        """Return the shape of a required tensor."""
        return self._take(what, ("rows", "columns")).shape

    def check_all_taken(self, formats: str) -> None:
        """Raise InputError for a tensor that was not taken."""
        left = sorted(set(self._arrays) - self._taken)
        if left:
            raise InputError(
                f"tensor {self._shown(left[0])} {self._arrays[left[0]].shape} of {self.name!r} has no place "
                f"({len(left)} such); models that can be read: {formats}"
            )

    def _take(self, what: str, shape: tuple[int | str, ...]) -> np.ndarray:
        if what not in self:
            raise self.missing(what, shape)
        self._taken.add(what)
        return self._arrays[what]

    def missing(self, what: str, shape: tuple[int | str, ...]) -> InputError:
        """Return the error for a required tensor that the file lacks."""
        return InputError(f"{self.name!r} lacks tensor {self._shown(what)} of shape {_shown(shape)}; {WAY_OUT}")

    def _shown(self, what: str) -> str:
        return repr(self._in_file.get(what, what))

    def _wrong(self, what: str, shape: tuple[int | str, ...]) -> InputError:
        found = self._arrays[what].shape
        return InputError(
            f"tensor {self._shown(what)} of {self.name!r} has shape {found} but the other tensors need "
            f"{_shown(shape)}; {WAY_OUT}"
        )


def _shown(shape: tuple[int | str, ...]) -> str:
    return f"({', '.join(map(str, shape))}{',' * (len(shape) == 1)})"
