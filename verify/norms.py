"""Root mean square norms for the CPU as one call each.

transformers computes such a norm in bfloat16 by seven operations, each of which takes longer to begin than to
compute for a pass of a few tokens. Which formula a module means is found out by trying: Llama's rounds before
the weight, Gemma's adds one to the weight and rounds at the end.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn

from groundspeed.verify import norm_kernel as kernels
from groundspeed.verify.kernel_calls import agree, half_rows, run_shares, shares_of

__all__ = ["FusedNorm", "fuse_norms"]

_TRIED_ROWS = 16


class FusedNorm(nn.Module):
    """A root mean square norm over the last dimension, for inference in bfloat16."""

    def __init__(self, weight: nn.Parameter, factors: torch.Tensor, epsilon: float, *, rounded: bool) -> None:
        """Say what it computes.

        Args:
            weight: Of the norm that it stands for; kept for whoever looks at it.
            factors: float32 [size], what a normalised row is multiplied by.
            epsilon: Added to the mean of the squares.
            rounded: Round to bfloat16 before the factors as well.
        """
        super().__init__()
        self.weight = weight
        self._size = len(factors)
        self._factors = factors.contiguous()
        self._epsilon = torch.tensor(epsilon, dtype=torch.float32)
        self._rounded = int(rounded)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Normalise rows.

        Args:
            states: bfloat16 [..., size].

        Returns:
            The same shape.

        Raises:
            TypeError: States of another dtype, or not on the CPU.
            ValueError: Rows of another size.
        """
        rows = half_rows(states, self._size)
        out = torch.empty_like(rows)
        run_shares(
            kernels.normalize(), shares_of(rows),
            rows.numel() // self._size, self._size, rows.data_ptr(), self._factors.data_ptr(),
            self._epsilon.data_ptr(), self._rounded, out.data_ptr(),
        )  # fmt: skip
        return out


def fuse_norms(model: nn.Module) -> int:
    """Replace the root mean square norms of ``model`` whose formula is known.

    Args:
        model: A model on the CPU, in evaluation mode; it is changed in place and good for inference only.

    Returns:
        How many were replaced.
    """
    replaced = 0
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child).__name__.endswith("RMSNorm") and (fused := _fused(child)) is not None:
                setattr(parent, name, fused)
                replaced += 1
    return replaced


@torch.inference_mode()
def _fused(norm: nn.Module) -> FusedNorm | None:
    """The same in one call; None where no known formula gives what the module gives."""
    weight: Any = getattr(norm, "weight", None)
    epsilon: Any = getattr(norm, "variance_epsilon", getattr(norm, "eps", None))
    if (
        type(weight) is not nn.Parameter
        or weight.device.type != "cpu"
        or weight.dtype != torch.bfloat16
        or weight.dim() != 1
        or not isinstance(epsilon, float)
        or len(inspect.signature(norm.forward).parameters) != 1
    ):
        return None
    generator = torch.Generator().manual_seed(0)
    # From rows that the epsilon matters to, to large ones.
    sizes = torch.logspace(-3, 2, _TRIED_ROWS)[:, None]
    inputs = (torch.randn(_TRIED_ROWS, len(weight), generator=generator) * sizes).bfloat16()
    try:
        want = norm(inputs)
    except Exception:  # whatever a model's own code raises, it means the same: not this way
        return None
    wide = weight.detach().float()
    for factors, rounded in ((wide, True), (1 + wide, False), (wide, False)):
        fused = FusedNorm(weight, factors, epsilon, rounded=rounded)
        if agree(fused(inputs), want):
            return fused
    return None
