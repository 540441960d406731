"""Linear layers for the CPU, with weights laid out once as the matrix kernels want them.

PyTorch's own linear layer lays the weight out again on every call, which costs more than the product itself
when a pass carries a few tokens. In bfloat16, where the processor multiplies pairs, a kernel of our own takes
two thirds of the time of oneDNN's for a few tokens, nearly as long for many, and gives a row the same bits
whatever the others are (``linear_kernel``). Elsewhere the products are oneDNN's, over the packed-weight
operators that ``torch.compile`` emits when it freezes a model; where those are missing nothing is packed.
Measured in docs/verification.md.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from groundspeed.verify import linear_kernel as kernels
from groundspeed.verify.kernel_calls import half_rows, run_shares

__all__ = ["PackedLinear", "PairedLinear", "joined", "pack_linears", "packed"]

_ROWS = 64
"""Tokens per pass that oneDNN's layout is made for: good for a draft tree and for a prompt alike."""

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


class PairedLinear(nn.Module):
    """The same by our own kernel, in bfloat16."""

    def __init__(self, linear: nn.Linear) -> None:
        """Lay out the weight of ``linear``, which keeps its own."""
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self._bias: torch.Tensor | None = None if linear.bias is None else linear.bias.detach()
        weight = linear.weight.detach()
        padded = functional.pad(weight, (0, 0, 0, -self.out_features % kernels.BLOCK))
        pairs = padded.view(torch.int32)  # moved as one: some five times as fast
        self._packed = pairs.view(-1, kernels.BLOCK, pairs.shape[1]).transpose(1, 2).contiguous()

    @staticmethod
    def takes(linear: nn.Linear) -> bool:
        """Whether the kernel computes with a weight like this one, and is the quicker way."""
        return kernels.HAS_PRODUCTS and linear.weight.dtype == torch.bfloat16 and linear.in_features % 2 == 0

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """[..., in_features] -> [..., out_features], both bfloat16.

        Raises:
            TypeError: Inputs of another dtype, or not on the CPU.
            ValueError: Inputs of another width.
        """
        return self.product(inputs)

    def product(
        self,
        inputs: torch.Tensor,
        *,
        factor: PairedLinear | None = None,
        added: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The product, and what a decoder layer does with it next, in one call.

        Args:
            inputs: bfloat16 [..., in_features].
            factor: A layer of the same sizes without a bias: ``silu(self(inputs)) * factor(inputs)``.
            added: bfloat16 [..., out_features], in one piece: ``added + self(inputs)``.

        Returns:
            bfloat16 [..., out_features].

        Raises:
            TypeError: Inputs of another dtype, or not on the CPU.
            ValueError: Inputs of another width.
        """
        rows = half_rows(inputs, self.in_features)
        out = torch.empty(*rows.shape[:-1], self.out_features, dtype=torch.bfloat16)
        run_shares(
            kernels.multiply(), torch.get_num_threads(),
            rows.numel() // self.in_features, self.out_features, self.in_features, rows.data_ptr(),
            self._packed.data_ptr(), 0 if self._bias is None else self._bias.data_ptr(),
            0 if factor is None else factor._packed.data_ptr(), 0 if added is None else added.data_ptr(),
            out.data_ptr(),
        )  # fmt: skip
        return out

    @property
    def has_bias(self) -> bool:
        """Whether something is added to the products."""
        return self._bias is not None


def joined(layers: Sequence[PairedLinear]) -> PairedLinear | None:
    """A layer that gives the outputs of several one behind the other, as one product.

    They share its weight from then on, so nothing is held twice. None where they do not fit together.
    """
    first, biased = layers[0], {layer.has_bias for layer in layers}
    whole = all(layer.out_features % kernels.BLOCK == 0 for layer in layers)
    if not whole or len(biased) > 1 or any(layer.in_features != first.in_features for layer in layers):
        return None
    joint = copy.copy(first)
    joint.out_features = sum(layer.out_features for layer in layers)
    joint._packed = torch.cat([layer._packed for layer in layers])
    biases = [layer._bias for layer in layers if layer._bias is not None]
    joint._bias = torch.cat(biases) if biases else None
    parts = torch.split(joint._packed, [len(layer._packed) for layer in layers])
    for layer, part in zip(layers, parts, strict=True):
        layer._packed = part
    return joint


def packed(linear: nn.Linear) -> PackedLinear | PairedLinear:
    """A layer with its weight packed, by whichever kernel is the quicker one."""
    return PairedLinear(linear) if PairedLinear.takes(linear) else PackedLinear(linear)


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
        setattr(parent, name, packed(child))
    return len(linears)


def _plain(weight: torch.Tensor) -> bool:
    """Whether a weight is numbers in memory; torchao's stand for quantised ones and give another dtype."""
    return type(weight) is nn.Parameter and weight.device.type == "cpu" and weight.dtype in _DTYPES


@torch.inference_mode()
def _same_products(linear: nn.Linear) -> bool:
    """Try one layer: the operators are there, take this dtype and multiply rightly."""
    inputs = torch.randn(3, linear.in_features).to(linear.weight.dtype)
    try:
        product = packed(linear)(inputs)
    except (AttributeError, NotImplementedError, RuntimeError):
        return False
    return torch.allclose(product.float(), linear(inputs).float(), rtol=2e-2, atol=2e-2)
