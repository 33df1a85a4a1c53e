"""Products of rows and a matrix on a CPU: the bits of a row do not depend on the other rows.

BLAS chooses its algorithm by the number of rows, and the algorithms add in different orders. Here each number is a
chain of multiply-adds by rising column of the row. The matrix is stored in panels of PANEL columns, so that few rows
cost no more than reading the matrix once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..compile_cpu import intrinsic, njit

PANEL = 64
ROWS = 6  # rows of a tile; its sums fill the registers of AVX-512, and with a quarter of a panel those of AVX2
BLOCK = 96  # rows that stay in a core's cache while all panels are read


@dataclass(frozen=True, eq=False)
class Panels:
    """A matrix of X rows and `columns` columns: panels_PXC (P, X, PANEL) float32, 0 after the last column."""

    panels_PXC: np.ndarray
    columns: int

    @property
    def shape(self) -> tuple[int, int]:
        """(X, columns)."""
        return self.panels_PXC.shape[1], self.columns


def to_panels(weight_XY: np.ndarray) -> Panels:
    """Return a matrix of float32 in panels."""
    X, Y = weight_XY.shape
    panels_PXC = np.zeros((-(-Y // PANEL), X, PANEL), np.float32)
    for p, panel_XC in enumerate(panels_PXC):
        part = weight_XY[:, p * PANEL : (p + 1) * PANEL]
        panel_XC[:, : part.shape[1]] = part
    return Panels(panels_PXC, Y)


def row_products(x_RX: np.ndarray, weight: Panels, bias_Y: np.ndarray | None = None) -> np.ndarray:
    """Return x W + bias, (R, Y) float32 for float32 x_RX; X is at least 1."""
    out_RY = np.empty((len(x_RX), weight.columns), np.float32)
    if bias_Y is None:
        bias_Y = np.zeros(weight.columns, np.float32)
    _multiply(np.ascontiguousarray(x_RX), weight.panels_PXC, np.ascontiguousarray(bias_Y), out_RY)
    return out_RY


def _tile(rows: int) -> Callable[..., Any]:
    """Return a compiled function that sets tile_RC to the products of `rows` rows from r on, or fewer, and a panel.

    Its loop is written in LLVM's language, because Numba does not keep sums in registers.
    """

    def tile(typing: Any, x_RX: Any, r: Any, panels_PXC: Any, p: Any, tile_RC: Any) -> Any:
        from numba import types

        return types.void(x_RX, types.int64, panels_PXC, types.int64, tile_RC), _code_of_tile(rows)

    return intrinsic(tile)


def _code_of_tile(rows: int) -> Callable[..., Any]:
    """Return the function that writes the code of `_tile`."""
    from llvmlite import binding, ir

    from ..numba_private import array_argument

    lanes, vectors = (16, 4) if binding.get_host_cpu_features().get("avx512f") else (8, {1: 8, 3: 4, 6: 2}[rows])
    single, size = ir.FloatType(), ir.IntType(64)
    vector = ir.VectorType(single, lanes)
    undefined, zero = ir.Constant(vector, ir.Undefined), ir.Constant(vector, [0.0] * lanes)
    first_lane = ir.Constant(ir.VectorType(ir.IntType(32), lanes), [0] * lanes)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        form, fma = ir.FunctionType(vector, [vector] * 3), f"llvm.fma.v{lanes}f32"
        multiply_add = builder.module.globals.get(fma) or ir.Function(builder.module, form, fma)
        x, panels, tile = (array_argument(i, context, builder, signature, arguments) for i in (0, 2, 4))
        R, X = builder.extract_value(x.shape, 0), builder.extract_value(x.shape, 1)
        row = []
        for i in range(rows):
            r = builder.add(arguments[1], size(i))
            r = builder.select(
                builder.icmp_signed("<", r, R), r, arguments[1]
            )  # past the last row, the first one again
            row.append(builder.gep(x.data, [builder.mul(r, X)]))
        panel = builder.gep(panels.data, [builder.mul(arguments[3], builder.mul(X, size(PANEL)))])

        def at(base: Any, index: Any) -> Any:
            return builder.bitcast(builder.gep(base, [index]), vector.as_pointer())

        for column in range(0, PANEL, lanes * vectors):
            before, loop, done = builder.block, builder.append_basic_block(), builder.append_basic_block()
            builder.branch(loop)
            builder.position_at_end(loop)
            k = builder.phi(size)
            k.add_incoming(size(0), before)
            sums = [[builder.phi(vector) for _ in range(vectors)] for _ in range(rows)]
            start = builder.add(builder.mul(k, size(PANEL)), size(column))
            weights = [builder.load(at(panel, builder.add(start, size(v * lanes))), align=4) for v in range(vectors)]
            for i in range(rows):
                number = builder.insert_element(undefined, builder.load(builder.gep(row[i], [k])), ir.IntType(32)(0))
                numbers = builder.shuffle_vector(number, undefined, first_lane)
                for v in range(vectors):
                    new = builder.call(multiply_add, [numbers, weights[v], sums[i][v]])
                    sums[i][v].add_incoming(zero, before)
                    sums[i][v].add_incoming(new, loop)
                    sums[i][v] = new
            following = builder.add(k, size(1))
            k.add_incoming(following, loop)
            builder.cbranch(builder.icmp_signed("<", following, X), loop, done)
            builder.position_at_end(done)
            for i in range(rows):
                for v in range(vectors):
                    builder.store(sums[i][v], at(tile.data, size(i * PANEL + column + v * lanes)), align=4)
        return context.get_dummy_value()

    return generate


_tile_of_6, _tile_of_3, _tile_of_1 = _tile(6), _tile(3), _tile(1)


@njit(nogil=True, cache=True)
def _multiply(x_RX, panels_PXC, bias_Y, out_RY):
    R = len(x_RX)
    tile_RC = np.empty((ROWS, PANEL), np.float32)
    for block in range(0, R, BLOCK):
        end = min(block + BLOCK, R)
        for p in range(len(panels_PXC)):
            first = p * PANEL
            bias_C = bias_Y[first : first + PANEL]
            for r in range(block, end, ROWS):
                rows = min(ROWS, end - r)
                if rows > 3:
                    _tile_of_6(x_RX, r, panels_PXC, p, tile_RC)
                elif rows > 1:
                    _tile_of_3(x_RX, r, panels_PXC, p, tile_RC)
                else:
                    _tile_of_1(x_RX, r, panels_PXC, p, tile_RC)
                for i in range(rows):
                    out_C = out_RY[r + i, first : first + PANEL]
                    for c in range(len(out_C)):
                        out_C[c] = tile_RC[i, c] + bias_C[c]
