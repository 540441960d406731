"""A decoder layer of Llama's kind in a few calls, for bfloat16 on the CPU.

In a pass of a few tokens a fifth of the time goes to what transformers does around the products: some fifty
small operations a layer, each of which takes longer to begin than to compute. While a pass of ours runs, a
layer takes eight calls instead: norm, one product for queries, keys and values, rotation, attention, the
product that is added to the residual stream, norm, gate, and again a product that is added. For anybody else
who calls the model the layer is what it was.

Whether a layer is of that kind is found out by trying it: its numbers must come out as its own code makes
them. Measured in docs/verification.md.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from groundspeed.verify import rotary_kernel
from groundspeed.verify.kernel_calls import agree, run_shares, shares_of
from groundspeed.verify.norms import FusedNorm
from groundspeed.verify.packing import PairedLinear, joined
from groundspeed.verify.pattern import Pattern, active_pattern
from groundspeed.verify.step_attention import Scoring

__all__ = ["FusedLayer", "fuse_layers"]

_TRIED_ROWS = 16


class FusedLayer:
    """Stands for the ``forward`` of a decoder layer.

    Args:
        layer: With parts of the names that Llama's have, packed and fused themselves.

    Raises:
        AttributeError: A part is missing or of another kind.
    """

    def __init__(self, layer: Any) -> None:
        self._layer = layer
        attention, mlp = layer.self_attn, layer.mlp
        self._index = int(attention.layer_idx)
        self._size = int(attention.head_dim)
        self._norm, self._second_norm = _norm(layer.input_layernorm), _norm(layer.post_attention_layernorm)
        linears = [_linear(part) for part in (attention.q_proj, attention.k_proj, attention.v_proj)]
        self._heads, self._groups = (linear.out_features // self._size for linear in linears[:2])
        # Qwen 3 has a norm of each head before the rotation.
        self._head_norms = [
            _norm(norm)
            for name in ("q_norm", "k_norm")
            if (norm := getattr(attention, name, None)) is not None
        ]
        self._output = _linear(attention.o_proj)
        self._gate, self._up, self._down = (
            _linear(mlp.gate_proj),
            _linear(mlp.up_proj),
            _linear(mlp.down_proj),
        )
        if self._gate.has_bias or self._up.has_bias:
            raise AttributeError("its gate adds a bias")
        parts = [part for part in layer.modules() if part is not layer]
        self._hooks = [hooks for part in parts for hooks in (part._forward_hooks, part._forward_pre_hooks)]
        self.scoring = Scoring(self._size**-0.5)
        joint = joined(linears)
        if joint is None:
            raise AttributeError("its weights cannot be joined")
        self._project = joint

    def __call__(
        self,
        hidden_states: torch.Tensor,
        *args: Any,
        position_embeddings: tuple[torch.Tensor, torch.Tensor] | None = None,
        **kwargs: Any,
    ) -> Any:
        """bfloat16 [1, rows, width] -> the same shape; what else it is given only matters to others."""
        pattern = active_pattern()
        if pattern is None or position_embeddings is None or args or self._is_watched():
            kwargs["position_embeddings"] = position_embeddings
            return type(self._layer).forward(self._layer, hidden_states, *args, **kwargs)
        projected = self._project.product(self._norm(hidden_states))
        query, key, value = self._heads_of(projected, *position_embeddings)
        pattern.windows[self._index] = self.scoring.window
        pattern.note(self._index, key, value)
        attended = pattern.attend(query, key, value, self.scoring)
        states = self._output.product(attended.flatten(2), added=hidden_states.contiguous())
        gated = self._gate.product(self._second_norm(states), factor=self._up)
        return self._down.product(gated, added=states)

    def _heads_of(
        self, projected: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """[1, rows, (H + 2 G) size] -> turned queries [1, H, rows, size], turned keys and values."""
        heads, groups = self._heads, self._groups
        rows = projected.view(1, projected.shape[1], -1, self._size)
        query, key, value = torch.split(rows, [heads, groups, groups], 2)
        if self._head_norms:
            query, key = (norm(part) for norm, part in zip(self._head_norms, (query, key), strict=True))
            _rotate(query, cosines, sines)
            _rotate(key, cosines, sines)
        else:
            _rotate(rows[:, :, : heads + groups], cosines, sines)
        return query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)

    def _is_watched(self) -> bool:
        """Whether somebody wants to see or change what a part takes or gives."""
        return any(map(len, self._hooks))


def fuse_layers(model: nn.Module) -> int:
    """Give the decoder layers of ``model`` whose formula is known a shorter way through a pass of ours.

    Args:
        model: On the CPU, its linear layers packed and its norms fused; it is changed in place.

    Returns:
        How many layers it was.
    """
    config: Any = model.config
    layers = [module for module in model.modules() if hasattr(module, "self_attn") and hasattr(module, "mlp")]
    fused = 0
    for layer in layers:
        if (short := _fused(layer, config.get_text_config())) is not None:
            layer.forward = short
            fused += 1
    return fused


@torch.inference_mode()
def _fused(layer: nn.Module, config: Any) -> FusedLayer | None:
    """The same in fewer calls; None where that does not give what the layer gives."""
    if "forward" in vars(layer):  # somebody else stands for it
        return None
    try:
        short = FusedLayer(layer)
        # Small states, beside which what is added to them shows, and large ones.
        states = torch.randn(1, _TRIED_ROWS, short._project.in_features, generator=_seeded())
        states = (states * torch.logspace(-2, 1, _TRIED_ROWS)[:, None]).bfloat16()
        angles = torch.rand(1, _TRIED_ROWS, short._size // 2, generator=_seeded()).repeat(1, 1, 2) * 6
        turns = angles.cos().bfloat16(), angles.sin().bfloat16()
        results = []
        for forward in (layer, short):
            trial = _Trial(short._index + 1)
            with trial.active(config):
                results.append(forward(states, position_embeddings=turns, cache=trial, use_cache=True))
            short.scoring = trial.scoring
    except Exception:  # whatever a model's own code raises, it means the same: not this way
        return None
    want, got = results
    return short if isinstance(want, torch.Tensor) and agree(got, want) else None


class _Trial(Pattern):
    """Each token sees those before it; how a layer asks for that is kept."""

    scoring: Scoring

    @property
    def prefix(self) -> int:
        """See ``Pattern``."""
        return 0

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scoring: Scoring
    ) -> torch.Tensor:
        """See ``Pattern``."""
        self.scoring = scoring
        each = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(each, 1), value.repeat_interleave(each, 1)
        out = scaled_dot_product_attention(query, key, value, is_causal=True, scale=scoring.scaling)
        return out.transpose(1, 2).contiguous()


def _seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def _norm(part: Any) -> FusedNorm:
    if not isinstance(part, FusedNorm):
        raise AttributeError(f"a {type(part).__name__} is no norm that is known")
    return part


def _linear(part: Any) -> PairedLinear:
    if not isinstance(part, PairedLinear):
        raise AttributeError(f"a {type(part).__name__} is no linear layer of ours")
    return part


def _rotate(states: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> None:
    """Turn states [1, rows, heads, size] in place, by cosines and sines [1, rows, size]."""
    _, rows, heads, size = states.shape
    if cosines.shape != (1, rows, size) or cosines.dtype != torch.bfloat16:
        raise ValueError(
            f"states of {size} dimensions are turned by {tuple(cosines.shape)} in {cosines.dtype}"
        )
    run_shares(
        rotary_kernel.rotate(), shares_of(states),
        rows, heads, size, states.stride(1), states.data_ptr(),
        cosines.contiguous().data_ptr(), sines.contiguous().data_ptr(),
    )  # fmt: skip
