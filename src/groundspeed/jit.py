"""Numba's ``njit`` as all kernels use it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba

__all__ = ["kernel"]


def kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile in nopython mode at the first call, without the GIL, and keep the machine code on disk."""
    try:
        return _compile(function, cache=True)
    except RuntimeError:  # numba found no folder it may write to: compile in every process instead
        return _compile(function, cache=False)


def _compile(function: Callable[..., Any], *, cache: bool) -> Callable[..., Any]:
    compiled: Callable[..., Any] = numba.njit(cache=cache, nogil=True, error_model="numpy")(function)
    return compiled
