"""The threads that PyTorch computes with on the CPU, and running a kernel of our own on them.

A second pool of threads beside PyTorch's would fight with it for the cores, as both wait busily. So a kernel
is handed to the very OpenMP runtime that PyTorch came with, and runs as one of its parallel regions.

That runtime keeps a team of threads for every thread that ever computed something in parallel. As soon as
all teams together have more threads than there are cores, it lets none of them wait busily any more: every
parallel region, and a forward pass has hundreds, then puts its threads to sleep and wakes them, and a pass of
a small model takes half as long again. So whoever is done with computing in a thread gives its team back.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

import torch

__all__ = ["release_threads", "run_alone", "run_parallel"]

_HARD = 2  # omp_pause_hard: threads end; the next parallel region starts them again, for some 100 us


def run_parallel(address: int, data: int) -> None:
    """Run a C function ``void (*)(void *data)`` on all of PyTorch's threads at once, and wait for it.

    Without an OpenMP runtime of GNU's kind it runs in the calling thread alone; so whoever shares out work
    must not count on the number of threads.

    Args:
        address: Of the function. It must not raise and needs no GIL.
        data: Address of what it is handed.
    """
    runtime = _runtime()
    if runtime is None:
        run_alone(address, data)
    else:
        runtime.GOMP_parallel(address, data, torch.get_num_threads(), 0)


def run_alone(address: int, data: int) -> None:
    """Run such a function in the calling thread only.

    Args:
        address: Of the function, as of ``run_parallel``.
        data: Address of what it is handed.
    """
    _function(address)(data)


def release_threads() -> None:
    """Give back the calling thread's team, so that those of other threads are quick; 0.3 us without one."""
    runtime = _runtime()
    if runtime is not None:
        runtime.omp_pause_resource_all(_HARD)


@cache
def _function(address: int) -> Any:
    return ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address)


@cache
def _runtime() -> Any:
    """PyTorch's OpenMP runtime, None where it is not GNU's."""
    libraries = Path(torch.__file__).parent
    for path in [*libraries.glob("lib/libgomp*"), *libraries.parent.glob("torch.libs/libgomp*")]:
        runtime = ctypes.CDLL(str(path))
        runtime.GOMP_parallel.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
        runtime.GOMP_parallel.restype = None
        return runtime
    return None
