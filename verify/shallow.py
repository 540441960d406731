"""The first layers of a model as a model of its own, which shares all weights with it."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

from torch import nn

from groundspeed.errors import ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["shallow_twin"]


def shallow_twin(model: PreTrainedModel, layers: int) -> PreTrainedModel:
    """A model that goes from its first layers straight to its final norm and head (early exit).

    The modules on the way to the list of layers are copied, without what they hold, and everything else is
    the model's own. So whatever a family does before, between and behind its layers is done here too.

    Args:
        model: Any causal language model of transformers.
        layers: How many of its layers.

    Raises:
        ModelError: It keeps its layers where they are not found.
    """
    depth = model.config.get_text_config().num_hidden_layers
    decoder = model.get_decoder()
    found = next(
        (
            f"{path}.{name}".lstrip(".")
            for path, module in decoder.named_modules()
            for name, child in module.named_children()
            if isinstance(child, nn.ModuleList) and len(child) == depth
        ),
        None,
    )
    outer = next((path for path, module in model.named_modules() if module is decoder), None)
    if found is None or outer is None:
        raise ModelError(
            f"{type(model).__name__} has no list of {depth} layers that could be cut short; draft in a way "
            "that does not need the target's first layers"
        )
    twin = at = _without_children(model)
    *way, last = f"{outer}.{found}".lstrip(".").split(".")
    for name in way:
        child = _without_children(at._modules[name])
        at._modules[name] = child
        at = child
    at._modules[last] = nn.ModuleList(list(getattr(at, last))[:layers])
    return twin


def _without_children(module: nn.Module | None) -> nn.Module:
    """A copy that may be given other children; those that it has are the same."""
    twin = copy.copy(module)
    assert twin is not None
    twin._modules = dict(twin._modules)
    return twin
