"""Products of a pass's rows with a weight on the CPU, from bfloat16: memory is waited for while multiplying.

A pass of few rows takes as long as its weights take to come from memory, and a row more only what is left of
that time for multiplying, if the two overlap. So each thread goes through the weight in the order in which it
lies there, and fetches the block after the one that it multiplies by.

Each sum is taken in order of its terms, two by two, whatever rows are computed beside it: a row comes out the
same to the bit in a pass of one row and in one of a thousand.

What a decoder layer does with a product next is done while it is near: adding it to the residual stream, or
multiplying it as a gate (Shazeer 2020, "GLU Variants Improve Transformer"). Each step is rounded to bfloat16
as the layer's own operations round it.
"""
# mypy: allow-untyped-defs

from __future__ import annotations

from functools import cache
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from groundspeed.datastores.views import build_prefetch, view
from groundspeed.jit import c_kernel, kernel
from groundspeed.verify.vectors import HAS_PAIRS, HAS_TILES, LINE, exp, fetch_add, narrow, widen

__all__ = ["BLOCK", "HAS_PRODUCTS", "multiply"]

HAS_PRODUCTS = HAS_PAIRS and not HAS_TILES
"""Whether these products are the quicker ones; where the processor multiplies tiles (AMX), oneDNN's are."""

BLOCK = 64
"""Outputs that are computed together; a weight lies as [outputs / BLOCK, terms / 2, BLOCK, 2]."""

_TILE_ROWS = 6  # with as many registers of sums as a processor with AVX512 has, less those for factors
_VECTORS = BLOCK // 16
_STEP = BLOCK * 4  # bytes of a block's weights for two terms

# What a call is handed, int64 [CALL_COLUMNS].
NEXT_SHARE, SHARES = 0, 1  # so far, and in how many the work is cut, one a thread
ROWS, OUTPUTS, TERMS = 2, 3, 4
INPUTS = 5  # address of bfloat16 [ROWS, TERMS]
WEIGHT = 6  # address of bfloat16 [blocks, TERMS / 2, BLOCK, 2]
BIAS = 7  # address of bfloat16 [OUTPUTS], or 0
FACTOR = 8  # address of a second weight, as WEIGHT; silu of the first product times the second, or 0
ADDED = 9  # address of bfloat16 [ROWS, OUTPUTS] that the product is added to, or 0
OUT = 10  # address of bfloat16 [ROWS, OUTPUTS]
CALL_COLUMNS = 11


@cache
def multiply() -> int:
    """Compile the product.

    Returns:
        Address of a C function of one pointer, to int64 [CALL_COLUMNS]; it takes shares until none is left.
    """

    def multiply_shares(pointer):  # pragma: no cover - runs as machine code
        run_shares(numba.carray(pointer, (CALL_COLUMNS,)))

    return c_kernel(multiply_shares)


def _make_tile(rows: int) -> Any:
    """An intrinsic that makes the sums of so many rows and a block, all of them held in registers."""
    number, vector = ir.IntType(64), ir.VectorType(ir.FloatType(), 16)
    address = ir.IntType(8).as_pointer()
    # Two terms of a row, at an address, times those of the block. As one piece, or the compiler loads the
    # terms of all rows first, and has no registers left.
    sums = range(_VECTORS)
    code = f"vbroadcastss (${_VECTORS + 1}), ${_VECTORS}\n" + "\n".join(
        f"vdpbf16ps ${_VECTORS + 2 + v}, ${_VECTORS}, ${v}" for v in sums
    )
    constraints = ["=v" for _ in sums] + ["=&v", "r"] + ["v" for _ in sums] + [str(v) for v in sums]
    made = ir.LiteralStructType([vector] * (_VECTORS + 1))
    add = ir.InlineAsm(
        ir.FunctionType(made, [address] + [vector] * (2 * _VECTORS)), code, ",".join(constraints)
    )

    @intrinsic
    def tile(typing_context, inputs, stride, weight, steps, out, ahead, spacing, second):  # pragma: no cover
        def generate(context, builder, signature, arguments):
            inputs, stride, weight, steps, out, ahead, spacing, second = arguments

            def pointer(base: Any, offset: Any, type_: Any = address) -> Any:
                return builder.inttoptr(builder.add(base, offset), type_)

            before = builder.block
            loop, after = builder.append_basic_block("steps"), builder.append_basic_block("summed")
            builder.branch(loop)

            builder.position_at_end(loop)
            i = builder.phi(number)
            i.add_incoming(number(0), before)
            starts = [builder.phi(vector) for _ in range(rows * _VECTORS)]
            at = builder.mul(i, number(_STEP))
            factors = [
                builder.load(pointer(weight, builder.add(at, number(64 * v)), vector.as_pointer()), align=4)
                for v in sums
            ]
            line = builder.add(ahead, builder.mul(i, spacing))
            build_prefetch(builder, line, 2)
            build_prefetch(builder, builder.add(line, second), 2)
            results = []
            for row in range(rows):
                terms = builder.add(builder.mul(number(row), stride), builder.shl(i, number(2)))
                before_row = starts[row * _VECTORS : (row + 1) * _VECTORS]
                added = builder.call(add, [pointer(inputs, terms), *factors, *before_row])
                results += [builder.extract_value(added, v) for v in sums]
            following = builder.add(i, number(1))
            i.add_incoming(following, loop)
            for start, result in zip(starts, results, strict=True):
                start.add_incoming(ir.Constant(vector, None), before)
                start.add_incoming(result, loop)
            builder.cbranch(builder.icmp_signed("<", following, steps), loop, after)

            builder.position_at_end(after)
            for n, result in enumerate(results):
                builder.store(result, pointer(out, number(64 * n), vector.as_pointer()), align=4)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 8), generate

    return tile


_tile_1, _tile_2, _tile_3, _tile_4, _tile_5, _tile_6 = (_make_tile(rows + 1) for rows in range(_TILE_ROWS))


@kernel
def run_shares(call):
    """Compute shares of a product until none is left, see ``multiply``.

    Args:
        call: int64 [CALL_COLUMNS].
    """
    like, wide = np.uint16, np.float32
    rows, outputs, terms = call[ROWS], call[OUTPUTS], call[TERMS]
    second = call[FACTOR] - call[WEIGHT]
    sums = np.empty(_TILE_ROWS * BLOCK, np.float32)
    factors = np.empty(_TILE_ROWS * BLOCK, np.float32)
    steps = terms // 2
    blocks = (outputs + BLOCK - 1) // BLOCK
    tiles = (rows + _TILE_ROWS - 1) // _TILE_ROWS
    pieces = blocks * tiles
    while True:
        share = fetch_add(call.ctypes.data)
        if share >= call[SHARES]:
            break
        for piece in range(share * pieces // call[SHARES], (share + 1) * pieces // call[SHARES]):
            block, tile = piece // tiles, piece % tiles
            first = tile * rows // tiles
            count = (tile + 1) * rows // tiles - first
            # The tiles of a block fetch the next one together. A single one leaves three lines of four to the
            # processor, which sees that they follow one another, and has no time for more.
            ahead = call[WEIGHT] + (min(block + 1, blocks - 1) * steps + tile * steps // tiles) * _STEP
            spacing, after = _STEP // tiles, LINE if tiles > 1 else 0
            inputs, weight = call[INPUTS] + first * terms * 2, call[WEIGHT] + block * steps * _STEP
            run_tile(count, inputs, terms * 2, weight, steps, sums.ctypes.data, ahead, spacing, after)
            if call[FACTOR]:
                run_tile(
                    count, inputs, terms * 2, weight + second, steps,
                    factors.ctypes.data, ahead + second, spacing, after,
                )  # fmt: skip
            begin = block * BLOCK
            wanted = min(BLOCK, outputs - begin)
            for row in range(count):
                place = ((first + row) * outputs + begin) * 2
                own = sums.ctypes.data + row * BLOCK * 4
                if call[BIAS]:
                    add_bias(view(own, wanted, wide), view(call[BIAS] + begin * 2, wanted, like))
                target = view(call[OUT] + place, wanted, like)
                if call[FACTOR]:
                    other = view(factors.ctypes.data + row * BLOCK * 4, wanted, wide)
                    finish_gate(view(own, wanted, wide), other, target)
                elif call[ADDED]:
                    finish_sum(view(own, wanted, wide), view(call[ADDED] + place, wanted, like), target)
                else:
                    finish(view(own, wanted, wide), target)


# What is done with the sums of a row and a block, float32 [n], each step rounded as PyTorch rounds it; the
# others are bfloat16 [n].


@kernel
def add_bias(sums, bias):
    for i in range(len(sums)):
        sums[i] += widen(bias[i])


@kernel
def finish(sums, target):
    for i in range(len(sums)):
        target[i] = narrow(sums[i], target)


@kernel
def finish_sum(sums, added, target):
    for i in range(len(sums)):
        target[i] = narrow(widen(added[i]) + widen(narrow(sums[i], target)), target)


@kernel
def finish_gate(sums, factors, target):
    for i in range(len(sums)):
        gate = widen(narrow(silu(widen(narrow(sums[i], target))), target))
        target[i] = narrow(gate * widen(narrow(factors[i], target)), target)


@kernel
def silu(x):
    """A float32 times its sigmoid (Hendrycks & Gimpel 2016)."""
    e = exp(-abs(x))
    return x * (np.float32(1) if x >= 0 else e) / (np.float32(1) + e)


@kernel
def run_tile(count, inputs, stride, weight, steps, out, ahead, spacing, second):
    """Sum ``count`` rows times a block.

    Args:
        count: 1 to _TILE_ROWS.
        inputs: Address of the rows.
        stride: Bytes from one of them to the next.
        weight: Address of the block.
        steps: Pairs of terms.
        out: Address of float32 [count, BLOCK], filled.
        ahead: Address from which on memory is fetched.
        spacing: By how many bytes that moves on with each step.
        second: And how many bytes after it memory is fetched as well.
    """
    if count == 1:
        _tile_1(inputs, stride, weight, steps, out, ahead, spacing, second)
    elif count == 2:
        _tile_2(inputs, stride, weight, steps, out, ahead, spacing, second)
    elif count == 3:
        _tile_3(inputs, stride, weight, steps, out, ahead, spacing, second)
    elif count == 4:
        _tile_4(inputs, stride, weight, steps, out, ahead, spacing, second)
    elif count == 5:
        _tile_5(inputs, stride, weight, steps, out, ahead, spacing, second)
    else:
        _tile_6(inputs, stride, weight, steps, out, ahead, spacing, second)
