"""What numba lacks for arithmetic on the CPU: bfloat16, fused multiply-add, products held in registers.

All of it is exact in order: a sum is taken term by term, whatever the width of the machine's registers, so a
number comes out the same to the bit however many others are computed beside it.
"""
# mypy: allow-untyped-defs

from __future__ import annotations

from typing import Any

import llvmlite.binding as llvm
import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from groundspeed.datastores.views import build_prefetch
from groundspeed.jit import kernel

__all__ = [
    "HAS_PAIRS",
    "HAS_TILES",
    "LINE",
    "TILE_LANES",
    "TILE_ROWS",
    "add_tile_row",
    "exp",
    "fetch_add",
    "fma",
    "narrow",
    "scale",
    "tile",
    "total",
    "widen",
]

TILE_ROWS = 4
llvm.initialize_native_asmparser()  # for the one instruction that is named
_FEATURES = llvm.get_host_cpu_features()
HAS_PAIRS = bool(_FEATURES.get("avx512bf16"))
"""Whether the processor multiplies pairs of bfloat16."""

HAS_TILES = bool(_FEATURES.get("amx-bf16"))
"""Whether it multiplies whole tiles of them."""

_LANES = 16 if _FEATURES.get("avx512f") else 8  # floats of a register
_VECTORS = 2  # registers of a row of a tile
TILE_LANES = _LANES * _VECTORS
LINE = 64
"""Bytes that come from memory at once."""


_FLOAT, _I16, _I32, _I64 = ir.FloatType(), ir.IntType(16), ir.IntType(32), ir.IntType(64)
_VECTOR = ir.VectorType(_FLOAT, _LANES)


@intrinsic
def fma(typing_context, a, b, c):  # pragma: no cover - runs in the compiler
    """``a * b + c``, float32, rounded once."""

    def generate(context, builder, signature, arguments):
        return builder.fma(*arguments)

    return types.float32(types.float32, types.float32, types.float32), generate


@intrinsic
def fetch_add(typing_context, address):  # pragma: no cover - runs in the compiler
    """Add one to the int64 at an address; the value before. No two threads get the same."""

    def generate(context, builder, signature, arguments):
        pointer = builder.inttoptr(arguments[0], _I64.as_pointer())
        return builder.atomic_rmw("add", pointer, _I64(1), "monotonic")

    return types.int64(types.int64), generate


@intrinsic
def widen(typing_context, value):  # pragma: no cover - runs in the compiler
    """float32 as it is; the bits of a bfloat16, uint16, as float32."""

    def generate(context, builder, signature, arguments):
        if value == types.float32:
            return arguments[0]
        bits = builder.shl(builder.zext(arguments[0], _I32), _I32(16))
        return builder.bitcast(bits, _FLOAT)

    return types.float32(value), generate


@intrinsic
def narrow(typing_context, value, like):  # pragma: no cover - runs in the compiler
    """A float32 as what an array ``like`` holds: itself, or the bits of the nearest bfloat16."""

    def generate(context, builder, signature, arguments):
        if like.dtype == types.float32:
            return arguments[0]
        bits = builder.bitcast(arguments[0], _I32)
        odd = builder.and_(builder.lshr(bits, _I32(16)), _I32(1))
        rounded = builder.add(builder.add(bits, _I32(0x7FFF)), odd)
        return builder.trunc(builder.lshr(rounded, _I32(16)), _I16)

    return like.dtype(value, like), generate


@intrinsic
def _as_float(typing_context, bits):  # pragma: no cover - runs in the compiler
    def generate(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], _FLOAT)

    return types.float32(types.uint32), generate


@intrinsic
def _as_bits(typing_context, value):  # pragma: no cover - runs in the compiler
    def generate(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], _I32)

    return types.uint32(types.float32), generate


@intrinsic
def _rank(typing_context, value):  # pragma: no cover - runs in the compiler
    """A float32 as an int32 of the same order, or back."""

    def generate(context, builder, signature, arguments):
        bits = builder.bitcast(arguments[0], _I32)
        magnitude = builder.and_(builder.ashr(bits, _I32(31)), _I32(0x7FFFFFFF))
        ranked = builder.xor(bits, magnitude)
        return ranked if value == types.float32 else builder.bitcast(ranked, _FLOAT)

    return (types.int32 if value == types.float32 else types.float32)(value), generate


@kernel
def scale(values, factor):
    """Multiply float32 values, at least one, in place; the largest, found as whole numbers: as vectors."""
    best = _rank(values[0] * factor)
    for i in range(len(values)):  # numba's own iteration does not become vectors
        values[i] *= factor
        best = max(best, _rank(values[i]))
    return _rank(best)


@numba.njit(cache=True, nogil=True, fastmath={"reassoc", "nsz"})
def total(values):
    """The sum of float32 values; in an order that depends on nothing but how many there are."""
    result = np.float32(0)
    for i in range(len(values)):
        result += values[i]
    return result


@kernel
def exp(x):
    """E to the x for x <= 0, float32, to about two units in the last place; below -87 it is that of -87.

    Range reduction by the logarithm of two in two parts and a polynomial (Cody & Waite 1980, chapter 6), free
    of branches so that loops over it become vectors.
    """
    x = max(x, np.float32(-87.0))
    shifted = fma(x, np.float32(1.4426950408889634), np.float32(12582912.0))
    n = shifted - np.float32(12582912.0)  # the nearest whole number, now in the low bits of `shifted`
    r = fma(n, np.float32(-0.693359375), x)
    r = fma(n, np.float32(2.12194440e-4), r)
    p = fma(np.float32(1.0 / 5040), r, np.float32(1.0 / 720))
    p = fma(p, r, np.float32(1.0 / 120))
    p = fma(p, r, np.float32(1.0 / 24))
    p = fma(p, r, np.float32(1.0 / 6))
    p = fma(p, r, np.float32(0.5))
    p = fma(p * r, r, r) + np.float32(1.0)
    return _as_float(_as_bits(p) + (_as_bits(shifted) << np.uint32(23)))


def _multiply_add(builder: Any, entry: Any) -> Any:
    """What adds the product of two vectors of entries to a third one of floats."""
    if entry == types.float32:
        fused = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(_VECTOR, [_VECTOR] * 3), f"llvm.fma.v{_LANES}f32"
        )
        return lambda a, b, c: builder.call(fused, [a, b, c])
    # The instruction has no name that all versions of LLVM share.
    product = ir.InlineAsm(ir.FunctionType(_VECTOR, [_VECTOR] * 3), "vdpbf16ps $2, $1, $0", "=v,v,v,0")
    return lambda a, b, c: builder.call(product, [a, b, c])


def _make_tile(rows: int, *, adds: bool) -> Any:
    """An intrinsic that makes a product of ``rows`` rows, or adds it, with sums in registers."""

    @intrinsic
    def multiply(
        typing_context, a, a_stride, b, b_stride, terms, c, c_stride, ahead, like
    ):  # pragma: no cover
        def generate(context, builder, signature, arguments):
            a, a_stride, b, b_stride, terms, c, c_stride, ahead, _ = arguments

            def pointer(base: Any, offset: Any, type_: Any) -> Any:
                address = builder.add(base, builder.shl(offset, _I64(2)))
                return builder.inttoptr(address, type_.as_pointer())

            product = _multiply_add(builder, signature.args[-1].dtype)
            places = [
                pointer(c, builder.add(builder.mul(_I64(row), c_stride), _I64(v * _LANES)), _VECTOR)
                for row in range(rows)
                for v in range(_VECTORS)
            ]
            before = builder.block
            loop, after = builder.append_basic_block("terms"), builder.append_basic_block("stored")
            starts = [
                builder.load(place, align=4) if adds else ir.Constant(_VECTOR, None) for place in places
            ]
            builder.cbranch(builder.icmp_signed(">", terms, _I64(0)), loop, after)

            builder.position_at_end(loop)
            i = builder.phi(_I64)
            i.add_incoming(_I64(0), before)
            sums = []
            for start in starts:
                sums.append(builder.phi(_VECTOR))
                sums[-1].add_incoming(start, before)
            row_of_b = builder.mul(i, b_stride)
            factors = [
                builder.load(pointer(b, builder.add(row_of_b, _I64(v * _LANES)), _VECTOR), align=4)
                for v in range(_VECTORS)
            ]
            for line in range(0 if adds else 4 * TILE_LANES // LINE):
                offset = builder.add(builder.mul(i, _I64(4 * TILE_LANES)), _I64(line * LINE))
                build_prefetch(builder, builder.add(ahead, offset), 2)
            results = []
            for row in range(rows):
                at = builder.add(builder.mul(_I64(row), a_stride), i)
                scalar = builder.load(pointer(a, at, _FLOAT), align=4)
                first = builder.insert_element(ir.Constant(_VECTOR, ir.Undefined), scalar, _I32(0))
                zeros = ir.Constant(ir.VectorType(_I32, _LANES), None)
                every = builder.shuffle_vector(first, ir.Constant(_VECTOR, ir.Undefined), zeros)
                for v in range(_VECTORS):
                    results.append(product(every, factors[v], sums[row * _VECTORS + v]))
            following = builder.add(i, _I64(1))
            i.add_incoming(following, loop)
            for total, result in zip(sums, results, strict=True):
                total.add_incoming(result, loop)
            builder.cbranch(builder.icmp_signed("<", following, terms), loop, after)

            builder.position_at_end(after)
            finals = [builder.phi(_VECTOR) for _ in places]
            for final, place, start, result in zip(finals, places, starts, results, strict=True):
                final.add_incoming(start, before)
                final.add_incoming(result, loop)
                builder.store(final, place, align=4)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 8, like), generate

    return multiply


tile = _make_tile(TILE_ROWS, adds=False)
"""``tile(a, a_stride, b, b_stride, terms, c, c_stride, ahead, like)``: C = A B by addresses, and strides in
entries. A is [TILE_ROWS, terms], B is [terms, TILE_LANES], C is float32 [TILE_ROWS, TILE_LANES]; each sum is
taken in order of the terms. Entries have 4 bytes: a float32, whose product is fused, or, where ``like`` is an
array of uint32, a pair of bfloat16, whose two products are added. Meanwhile as many bytes as B has are
fetched from ``ahead`` on, any address being harmless: memory is waited for while multiplying.
"""

add_tile_row = _make_tile(1, adds=True)
"""The same for one row, added to C; nothing is fetched."""
