"""Arrays at addresses, inside kernels."""
# mypy: allow-untyped-defs

from __future__ import annotations

import numba
from numba import types
from numba.extending import intrinsic

from groundspeed.jit import kernel

__all__ = ["view"]


@intrinsic
def _pointer(typing_context, address, like):  # pragma: no cover - runs in the compiler
    pointer = types.CPointer(like.dtype)

    def generate(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], context.get_value_type(pointer))

    return pointer(address, like), generate


@kernel
def view(address, size, like):
    """The array [size] of ``like``'s dtype at an address."""
    return numba.carray(_pointer(address, like), (size,))
