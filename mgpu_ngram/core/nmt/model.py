"""Translation models of recurrent networks: one class for all file formats and cells."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")


@dataclass(frozen=True)
class Affine:
    """x W + bias; with a scale, then normalised and times scale; plus shift.

    weight_XY        (X, Y) float32
    bias_Y, shift_Y  (Y,) or None
    scale_Y          (Y,) or None for no normalisation
    segments         widths of the groups of columns that are normalised separately
    epsilon          added to the variance
    """

    weight_XY: Any
    bias_Y: Any = None
    scale_Y: Any = None
    shift_Y: Any = None
    segments: tuple[int, ...] = ()
    epsilon: float = 0.0


@dataclass(frozen=True)
class Gru:
    """A gated recurrent unit: columns of reset gates, update gates and proposals, H each.

    input     of (X, 3H); None for a transition, which has no input
    constant  (3H,), stands for the input of a transition
    state     of (H, 3H)
    """

    input: Affine | None
    state: Affine
    constant: Any = None


@dataclass(frozen=True)
class Lstm:
    """Long short-term memory: columns of forget, input and output gates and proposals, H each.

    mix_input, mix_state  of a multiplicative LSTM, whose state is (h Um + bmu) * (x Wm + bm); else None
    """

    input: Affine
    state: Affine
    mix_input: Affine | None = None
    mix_state: Affine | None = None


Cell = Gru | Lstm


@dataclass(frozen=True)
class Attention:
    """Energies tanh(memory + query) . energy_A, their softmax and the weighted mean of the contexts."""

    memory: Affine
    query: Affine
    energy_A: Any


@dataclass(frozen=True)
class Stacks:
    """Layers on the states of the previous layer, as in Marian's s2s.

    forward, backward  layers of each direction of the encoder
    context            layers on the contexts of both directions, forward; their output replaces the contexts
    decoder            layers after `conditional`
    skip               whether the input of a layer is added to its states, except in the first layer of `context`
    alternating        whether the first layer of `forward` and `backward`, the third, and so on run the other way
    """

    forward: tuple[tuple[Cell, ...], ...] = ()
    backward: tuple[tuple[Cell, ...], ...] = ()
    context: tuple[tuple[Cell, ...], ...] = ()
    decoder: tuple[tuple[Cell, ...], ...] = ()
    skip: bool = False
    alternating: bool = False


@dataclass(frozen=True)
class NmtModel:
    """A translation model. A layer is a tuple of cells: one with an input, then transitions.

    name               name of the file
    kind               "nematus" or "gru_seq2seq"
    source_embeddings  one (V, E) for each factor
    forward, backward  layers of the encoder; `backward` is () for an encoder of one direction
    initial            first state from the mean context; None: the last state of the encoder
    decoder            layer on the previous word
    attention          None: the model has no context, and `conditional` and `hidden` are ()
    conditional        layer on the context
    hidden             transformations of the state, the previous word and the context, which are summed; or ()
    output             output layer, (E, V) or (H, V)
    start              previous word of the first word; -1: none, the embedding is 0
    stacks             further layers
    """

    name: str
    kind: str
    source_embeddings: tuple[Any, ...]
    target_embedding: Any
    forward: tuple[Cell, ...]
    backward: tuple[Cell, ...]
    initial: Affine | None
    decoder: tuple[Cell, ...]
    attention: Attention | None
    conditional: tuple[Cell, ...]
    hidden: tuple[Affine, ...]
    output: Affine
    source_eos: int = 0
    eos: int = 0
    unk: int = 1
    start: int = -1
    stacks: Stacks = Stacks()

    @property
    def vocab_size(self) -> int:
        """V of the target."""
        return int(self.output.weight_XY.shape[1])

    @property
    def parameters(self) -> int:
        """Number of parameters; tied parameters count twice."""
        sizes: list[int] = []
        self.map_arrays(lambda array: sizes.append(array.size))
        return sum(sizes)

    def map_arrays(self, fn: Callable[[Any], Any]) -> NmtModel:
        """Return the model with `fn` of each array: a copy on another device or in another dtype."""
        return map_fields(self, fn)


def map_fields(value: T, fn: Callable[[Any], Any]) -> T:
    """Return a copy of nested dataclasses and tuples with `fn` of each array."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: map_fields(getattr(value, f.name), fn) for f in dataclasses.fields(value)}
        return type(value)(**fields)
    if isinstance(value, tuple):
        return tuple(map_fields(item, fn) for item in value)  # type: ignore[return-value]  # a tuple in, a tuple out
    return fn(value) if hasattr(value, "dtype") and not isinstance(value, np.generic) else value
