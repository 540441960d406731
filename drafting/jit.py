"""Numba's ``njit`` as the kernels of this room use it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba

__all__ = ["kernel"]


def kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile in nopython mode at the first call, without the GIL, and keep the machine code on disk."""
    try:
        compiled: Callable[..., Any] = numba.njit(cache=True, no_cfunc_wrapper=True, nogil=True, error_model="numpy")(function)
    except RuntimeError:  # numba found no folder it may write to: compile in every process instead
        compiled = numba.njit(nogil=True, error_model="numpy")(function)
    return compiled
