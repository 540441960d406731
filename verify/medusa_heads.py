"""Medusa heads as modules, and the folders that they are kept in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from groundspeed.errors import DraftError, InputError, ModelError
from groundspeed.verify.draft_lm import outlook_of

if TYPE_CHECKING:
    from groundspeed.drafting.base import TargetView
    from groundspeed.drafting.draft_lm import Outlook

__all__ = ["MedusaHeads"]

_CONFIG, _WEIGHTS = "config.json", "medusa_lm_head.safetensors"


class _Block(nn.Module):
    """h + SiLU(W h + b), the identity until it is trained (Cai et al. 2024, section 2.1.1)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden + nn.functional.silu(self.linear(hidden))


class MedusaHeads(nn.Module):
    """Heads that each guess one token further: the first one the token behind the next.

    Parameters are named as in the published heads: ``{head}.{layer}.linear.weight`` and ``.bias``, and
    ``{head}.{layers}.weight`` for an output layer of its own.

    Attributes:
        count: How many heads.
    """

    def __init__(self, width: int, count: int, layers: int = 1, vocab_size: int | None = None) -> None:
        """Make heads that say what the target's own head says.

        Args:
            width: Of the hidden states.
            count: How many heads.
            layers: Residual blocks of each.
            vocab_size: Of their own output layers; without one the target's head serves all of them, which
                is much less to read in a step, and to train.
        """
        super().__init__()
        self.count, self.layers, self.width, self.vocab_size = count, layers, width, vocab_size
        for head in range(count):
            parts: list[nn.Module] = [_Block(width) for _ in range(layers)]
            if vocab_size is not None:
                parts.append(nn.Linear(width, vocab_size, bias=False))
            self.add_module(str(head), nn.Sequential(*parts))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """[..., width] -> [count, ..., vocab], or [count, ..., width] for the target's head."""
        return torch.stack([head(hidden) for head in self.children()])

    @torch.inference_mode()
    def guess(self, target: TargetView, k: int) -> Outlook:
        """The k most probable tokens of each head, by the last row of the hidden states."""
        hidden = target.hidden_states()[-1]
        if hidden.shape[0] != self.width:
            raise DraftError(
                f"the Medusa heads take hidden states of width {self.width} and the target's have "
                f"{hidden.shape[0]}; load the heads that were trained for this model"
            )
        parameter = next(self.parameters())
        if (parameter.dtype, parameter.device) != (hidden.dtype, hidden.device):
            self.to(hidden)
        logits = self(hidden)
        return outlook_of(target.head(logits) if self.vocab_size is None else logits, k)

    def save(self, folder: Path) -> None:
        """Write heads to a folder, which is made if it is missing."""
        from safetensors.torch import save_file

        folder.mkdir(parents=True, exist_ok=True)
        config = {"medusa_num_heads": self.count, "medusa_num_layers": self.layers}
        (folder / _CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        save_file(
            {name: tensor.contiguous() for name, tensor in self.state_dict().items()}, folder / _WEIGHTS
        )

    @classmethod
    def load(cls, folder: Path) -> MedusaHeads:
        """Read heads from a folder with ``config.json`` and ``medusa_lm_head.safetensors``.

        Raises:
            InputError: The folder does not hold them.
            ModelError: The file is damaged, or holds something else.
        """
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        for name in (_CONFIG, _WEIGHTS):
            if not (folder / name).is_file():
                pickled = (folder / _WEIGHTS).with_suffix(".pt").is_file()
                raise InputError(
                    f"{folder} has no {name}; give a folder of Medusa heads"
                    + (", and convert its .pt file by safetensors.torch.save_file" if pickled else "")
                )
        try:
            config: dict[str, Any] = json.loads((folder / _CONFIG).read_text(encoding="utf-8"))
            tensors = load_file(folder / _WEIGHTS)
            layers = int(config.get("medusa_num_layers", 1))
            # The number in published configurations may be of fewer heads than the file has.
            count = 1 + max(int(name.split(".")[0]) for name in tensors)
            width = tensors["0.0.linear.weight"].shape[0]
            output = tensors.get(f"0.{layers}.weight")
            heads = cls(width, count, layers, None if output is None else output.shape[0])
            heads.load_state_dict(tensors)
        except (SafetensorError, json.JSONDecodeError, KeyError, ValueError, RuntimeError) as error:
            raise ModelError(
                f"{folder} holds no Medusa heads that can be read: {str(error).splitlines()[0]}; train them "
                "again, or fetch the folder again"
            ) from error
        heads.requires_grad_(False)
        return heads
