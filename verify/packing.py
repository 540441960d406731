"""Linear layers for the CPU, with weights laid out once as the matrix kernels of oneDNN want them.

PyTorch's own linear layer lays the weight out again on every call, which costs more than the product itself
when a pass carries a few tokens. Measured on two cores: half the time in bfloat16, to the bit the same
products; six tenths in float32, the same but for rounding (see docs/verification.md). Uses the packed-weight
operators that ``torch.compile`` emits when it freezes a model; where they are missing nothing is packed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

__all__ = ["PackedLinear", "pack_linears"]

_ROWS = 64
"""Tokens per pass that the layout is made for: good for a draft tree and for a prompt alike."""

_DTYPES = (torch.float32, torch.bfloat16)


class PackedLinear(nn.Module):
    """``nn.Linear`` for inference over a packed weight."""

    def __init__(self, linear: nn.Linear) -> None:
        """Pack the weight of ``linear``, which keeps its own."""
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.bias = linear.bias
        ops: Any = torch.ops.mkldnn
        self._product = ops._linear_pointwise
        self._packed = ops._reorder_linear_weight(linear.weight.detach(), _ROWS)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """[..., in_features] -> [..., out_features]."""
        product: torch.Tensor = self._product(inputs, self._packed, self.bias, "none", [], "")
        return product


def pack_linears(model: nn.Module) -> int:
    """Replace the linear layers of ``model`` by packed ones, where that is known to give the same products.

    Weights that no other layer shares are freed, so the memory stays about the same.

    Args:
        model: A model on the CPU, in evaluation mode; it is changed in place and good for inference only.

    Returns:
        How many layers were replaced; 0 where this processor or this build of PyTorch has nothing to pack
        with.
    """
    linears = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if type(child) is nn.Linear and _plain(child.weight)
    ]
    if not linears or not _same_products(linears[0][2]):
        return 0
    for parent, name, child in linears:
        setattr(parent, name, PackedLinear(child))
    return len(linears)


def _plain(weight: torch.Tensor) -> bool:
    """Whether a weight is numbers in memory; torchao's stand for quantised ones and give another dtype."""
    return type(weight) is nn.Parameter and weight.device.type == "cpu" and weight.dtype in _DTYPES


@torch.inference_mode()
def _same_products(linear: nn.Linear) -> bool:
    """Try one layer: the operators are there, take this dtype and multiply rightly."""
    inputs = torch.randn(3, linear.in_features).to(linear.weight.dtype)
    try:
        packed = PackedLinear(linear)(inputs)
    except (AttributeError, NotImplementedError, RuntimeError):
        return False
    return torch.allclose(packed.float(), linear(inputs).float(), rtol=2e-2, atol=2e-2)
