"""Running a kernel on the threads that PyTorch already has.

A second pool of threads beside PyTorch's would fight with it for the cores, as both wait busily. So a kernel
is handed to the very OpenMP runtime that PyTorch came with, and runs as one of its parallel regions.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

import torch

__all__ = ["run_parallel"]


def run_parallel(address: int, data: int) -> None:
    """Run a C function ``void (*)(void *data)`` on all of PyTorch's threads at once, and wait for it.

    Without an OpenMP runtime of GNU's kind it runs in the calling thread alone; so whoever shares out work
    must not count on the number of threads.

    Args:
        address: Of the function. It must not raise and needs no GIL.
        data: Address of what it is handed.
    """
    region = _region()
    if region is None:
        ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address)(data)
    else:
        region(address, data, torch.get_num_threads(), 0)


@cache
def _region() -> Any:
    libraries = Path(torch.__file__).parent
    for path in [*libraries.glob("lib/libgomp*"), *libraries.parent.glob("torch.libs/libgomp*")]:
        region = ctypes.CDLL(str(path)).GOMP_parallel
        region.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
        region.restype = None
        return region
    return None
