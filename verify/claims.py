"""Sharing out work so that a thread does the same part of it in every layer.

What a thread wrote is in the cache of its core, and on many processors it takes longer to fetch from another
core's than to compute with. So each thread has a home, a stretch of the tasks, and begins there; whoever is
done helps the others.
"""
# mypy: allow-untyped-defs

from __future__ import annotations

import threading

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from groundspeed.datastores.views import view
from groundspeed.jit import kernel
from groundspeed.verify.vectors import LINE, fetch_add

__all__ = ["Claims", "claim", "home"]

# What a kernel is handed, int64; behind it, a line each, how many tasks were taken of each stretch.
THREADS = 0
MET = 1  # threads that came so far; their pointers follow
FIRST = 2


class Claims:
    """The tasks of one kernel call after the other, for the team of the calling thread."""

    _teams = threading.local()

    def __init__(self, threads: int) -> None:
        """Get ready.

        Args:
            threads: Of the team.
        """
        self._table = self._team(threads)
        self._taken = self._table[-threads * LINE // 8 :]
        self.address = self._table.ctypes.data

    def renew(self) -> None:
        """Let all tasks be taken once more."""
        self._taken[:] = 0

    @classmethod
    def _team(cls, threads: int) -> NDArray[np.int64]:
        """The table of the calling thread's team, which is kept: its threads are known again by it."""
        table: NDArray[np.int64] | None = getattr(cls._teams, "table", None)
        # More than there should be: the team was given back, and another one has come.
        if table is None or table[THREADS] != threads or table[MET] > threads:
            table = np.zeros(FIRST + 2 * threads + threads * LINE // 8, np.int64)
            table[THREADS] = threads
            cls._teams.table = table
        return table


@intrinsic
def _thread_pointer(typing_context):  # pragma: no cover - runs in the compiler
    """What tells a thread from all others that live, int64."""

    def generate(context, builder, signature, arguments):
        pointer = ir.FunctionType(ir.IntType(8).as_pointer(), [])
        function = builder.module.declare_intrinsic("llvm.thread.pointer", [], pointer)
        return builder.ptrtoint(builder.call(function, []), ir.IntType(64))

    return types.int64(), generate


@kernel
def home(claims):
    """The number of the calling thread in its team, the same in every call.

    Args:
        claims: Address of a table of ``Claims``.
    """
    threads = view(claims, FIRST, np.int64)[THREADS]
    table = view(claims, FIRST + 2 * threads, np.int64)
    own = _thread_pointer()
    for i in range(min(table[MET], 2 * threads)):
        if table[FIRST + i] == own:
            return i % threads
    i = fetch_add(claims + 8 * MET)
    if i < 2 * threads:
        table[FIRST + i] = own
    return i % threads


@kernel
def claim(claims, tasks, own):
    """Take a task that nobody has, first of the thread's own stretch; ``tasks`` when none is left.

    Args:
        claims: Address of a table of ``Claims``.
        tasks: How many there are.
        own: What ``home`` gave.
    """
    threads = view(claims, FIRST, np.int64)[THREADS]
    taken = claims + 8 * (FIRST + 2 * threads)
    for k in range(threads):
        stretch = (own + k) % threads
        task = stretch * tasks // threads + fetch_add(taken + LINE * stretch)
        if task < (stretch + 1) * tasks // threads:
            return task
    return tasks
