"""What the modules that stand for layers in bfloat16 share: looking at their inputs, and calling a kernel."""

from __future__ import annotations

import ctypes

import torch

from groundspeed.openmp import run_alone, run_parallel

__all__ = ["half_rows", "run_shares"]


def half_rows(states: torch.Tensor, size: int) -> torch.Tensor:
    """States as a kernel can read them, in one piece.

    Args:
        states: bfloat16 [..., size], on the CPU.
        size: Of a row.

    Raises:
        TypeError: States of another dtype, or not on the CPU.
        ValueError: Rows of another size.
    """
    if states.dtype != torch.bfloat16 or not states.is_cpu:
        raise TypeError(
            f"the layer is in bfloat16 on the CPU, its inputs are {states.dtype} on {states.device}"
        )
    if states.shape[-1] != size:
        raise ValueError(f"the layer takes rows of {size}, and was given {states.shape[-1]}")
    return states.contiguous()


def run_shares(address: int, shares: int, *arguments: int) -> None:
    """Have a kernel do its work in so many shares, on PyTorch's threads, or in this one if it is one share.

    Args:
        address: Of a C function of one pointer, to int64: the next share, ``shares``, and the arguments.
        shares: At least 1.
        arguments: Numbers and addresses.
    """
    call = (ctypes.c_int64 * (2 + len(arguments)))(0, shares, *arguments)
    run = run_alone if shares == 1 else run_parallel
    run(address, ctypes.addressof(call))
