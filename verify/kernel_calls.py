"""What the modules that stand for layers in bfloat16 share: looking at their inputs, and calling a kernel."""

from __future__ import annotations

import ctypes

import torch

from groundspeed.openmp import run_alone, run_parallel

__all__ = ["agree", "half_rows", "run_shares", "shares_of"]

_SHARED = 1 << 15
"""Numbers from which on the threads share the rows."""

_SAME = 0.99  # of the numbers; sums are taken in another order, so a few may be rounded otherwise


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


def shares_of(states: torch.Tensor) -> int:
    """In how many shares the rows of a tensor are worth being taken, if little is done with each number."""
    return torch.get_num_threads() if states.numel() >= _SHARED else 1


def agree(got: torch.Tensor, want: torch.Tensor) -> bool:
    """Whether two tensors [..., size] are the same but for roundings."""
    if got.shape != want.shape or got.dtype != want.dtype:
        return False
    wide = want.float()
    # A sum of terms of either sign may be small: what it is off by goes by the size of its row.
    allowed = 1e-2 * (wide.abs() + wide.pow(2).mean(-1, keepdim=True).sqrt())
    same = bool((got == want).float().mean() >= _SAME)
    return same and bool(((got.float() - wide).abs() <= allowed).all())
