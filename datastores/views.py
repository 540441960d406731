"""Memory as kernels see it: arrays at addresses, and fetching ahead."""
# mypy: allow-untyped-defs

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from groundspeed.jit import kernel

__all__ = ["build_prefetch", "prefetch", "view"]


@intrinsic
def _pointer(typing_context, address, like):  # pragma: no cover - runs in the compiler
    pointer = types.CPointer(like.dtype)

    def generate(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], context.get_value_type(pointer))

    return pointer(address, like), generate


@kernel
def view(address, size, like):
    """The array [size] at an address, of a dtype (``np.float32``) or of that of an array ``like``."""
    return numba.carray(_pointer(address, like), (size,))


def build_prefetch(builder: Any, address: Any, nearness: int) -> None:
    """Build what begins to load the line of the cache at an address, any being harmless.

    Args:
        builder: Of LLVM's code.
        address: int64.
        nearness: 3 to load it into the first cache, 2 into the second.
    """
    pointer = builder.inttoptr(address, ir.IntType(8).as_pointer())
    flag = ir.IntType(32)
    function = builder.module.declare_intrinsic(
        "llvm.prefetch", [pointer.type], ir.FunctionType(ir.VoidType(), [pointer.type, flag, flag, flag])
    )
    builder.call(function, [pointer, flag(0), flag(nearness), flag(1)])  # to read, data


@intrinsic
def _prefetch(typing_context, address):  # pragma: no cover - runs in the compiler
    def generate(context, builder, signature, arguments):
        build_prefetch(builder, arguments[0], 3)
        return context.get_dummy_value()

    return types.void(address), generate


@kernel
def prefetch(array, index):
    """Begin to load an entry, so that waiting for memory overlaps; any index is harmless."""
    _prefetch(array.ctypes.data + np.int64(index) * array.itemsize)
