"""Translation models prepared for a device: weights in the layout of the products, and tables of word products."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.nmt.model import Affine, Gru, Lstm, NmtModel
from mgpu_ngram.engine.decode.nmt_cells import apply
from mgpu_ngram.kernels.decode.activations import singles
from mgpu_ngram.kernels.decode.cublas import to_device_matrix
from mgpu_ngram.kernels.decode.panels import to_panels
from mgpu_ngram.kernels.dispatch import array_module, on_gpu

MAX_TABLE_BYTES = 64 << 20
T = TypeVar("T")


@dataclass(frozen=True)
class ReadyModel(NmtModel):
    """A model whose layers can be applied.

    word_inputs    (V + 1, 3H), inputs of the decoder's first cell for each target word, and for no word, in row V;
                   None: they are computed
    word_hidden    (V + 1, E), the part of each word in the hidden layer; None: it is computed, or there is no attention
    source_inputs  (V, 3H) of each source word for each direction of the encoder; (): they are computed
    """

    word_inputs: Any = None
    word_hidden: Any = None
    source_inputs: tuple[Any, ...] = ()


def ready(model: NmtModel, tf32: bool = False, table_bytes: int = MAX_TABLE_BYTES) -> ReadyModel:
    """Return a model on its device, ready to be applied. A CPU computes in float32; uint16 holds the bits of bfloat16.

    tf32         a GPU rounds the factors of float32 products to TF32; False: products have single precision
    table_bytes  memory for tables of products of words: first for target words, then for source words if these fit

    Raises InputError for a model with LSTM cells in bfloat16.
    """
    embedding = model.target_embedding
    layers = (*model.forward, *model.backward, *model.decoder, *model.conditional)
    if embedding.dtype == np.uint16 and any(isinstance(cell, Lstm) for cell in layers):
        raise InputError(f"{model.name!r} has LSTM cells, which cannot be bfloat16; use dtype float16 or float32")
    if not on_gpu(embedding):
        model = model.map_arrays(singles)
    fields = {f.name: _with_products(getattr(model, f.name), tf32) for f in dataclasses.fields(NmtModel)}
    return _with_tables(ReadyModel(**fields), table_bytes)


def _with_products(value: T, tf32: bool) -> T:
    """Return a copy of a part of a model with the matrices of its layers as products need them."""
    if isinstance(value, Affine):
        weight = value.weight_XY
        matrix = to_device_matrix(weight, tf32) if on_gpu(weight) else to_panels(weight)
        return dataclasses.replace(value, weight_XY=matrix)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: _with_products(getattr(value, f.name), tf32) for f in dataclasses.fields(value)}
        return type(value)(**fields)
    if isinstance(value, tuple):
        return tuple(_with_products(item, tf32) for item in value)  # type: ignore[return-value]  # a tuple in, a tuple out
    return value


def _with_tables(m: ReadyModel, table_bytes: int) -> ReadyModel:
    """Return the model with the tables that fit in so many bytes."""
    first = m.decoder[0]
    if isinstance(first, Gru) and first.input is not None:
        layers = [first.input, *m.hidden[1:2]]
        (V, E), itemsize = m.target_embedding.shape, m.target_embedding.itemsize
        needed = (V + 1) * sum(layer.weight_XY.shape[1] for layer in layers) * itemsize
        if needed <= table_bytes:
            table_bytes -= needed
            none = array_module(m.target_embedding).zeros((1, E), m.target_embedding.dtype)
            words = array_module(none).concatenate([m.target_embedding, none])
            inputs, *hidden = (apply(layer, words) for layer in layers)
            m = dataclasses.replace(m, word_inputs=inputs, word_hidden=hidden[0] if hidden else None)
    cells = [layer[0] for layer in (m.forward, m.backward) if layer]
    inputs = [cell.input for cell in cells if isinstance(cell, Gru) and cell.input is not None]
    if len(m.source_embeddings) == 1 and len(inputs) == len(cells):
        (embedding,) = m.source_embeddings
        if sum(len(embedding) * layer.weight_XY.shape[1] * embedding.itemsize for layer in inputs) <= table_bytes:
            m = dataclasses.replace(m, source_inputs=tuple(apply(layer, embedding) for layer in inputs))
    return m
