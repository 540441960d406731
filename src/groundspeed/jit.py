"""Numba's ``njit`` as all kernels use it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba

__all__ = ["c_kernel", "inlined", "kernel"]

_OF_A_POINTER = numba.void(numba.types.CPointer(numba.int64))


def kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile in nopython mode at the first call, without the GIL, and keep the machine code on disk."""
    try:
        return _compile(function, cache=True)
    except RuntimeError:  # numba found no folder it may write to: compile in every process instead
        return _compile(function, cache=False)


def c_kernel(function: Callable[..., Any]) -> int:
    """Compile a function that C code can call, now; its address.

    Args:
        function: Of one pointer, to int64; must not raise.
    """
    try:
        compiled = numba.cfunc(_OF_A_POINTER, nopython=True, cache=True)(function)
    except RuntimeError:
        compiled = numba.cfunc(_OF_A_POINTER, nopython=True)(function)
    _kept.append(compiled)
    address: int = compiled.address
    return address


_kept: list[Any] = []  # machine code lives as long as what holds it


def inlined(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile into each kernel that calls it: handing on an array counts a reference, twice 5 ns."""
    compiled: Callable[..., Any] = numba.njit(inline="always", nogil=True, error_model="numpy")(function)
    return compiled


def _compile(function: Callable[..., Any], *, cache: bool) -> Callable[..., Any]:
    compiled: Callable[..., Any] = numba.njit(cache=cache, nogil=True, error_model="numpy")(function)
    return compiled
