"""What a drafter is handed of the target model."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from groundspeed.errors import DraftError, ModelError
from groundspeed.verify.cache import CHUNK, KeyValueCache

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from groundspeed.verify.sessions import TreeSession
    from groundspeed.verify.target import TransformersTarget

__all__ = ["SessionView", "check_shown", "head_inputs"]


def check_shown(target: TransformersTarget, what: str) -> None:
    """Refuse what drafts by hidden states or layers of a target that shows none.

    Args:
        target: The model.
        what: That is to draft for it, in the plural.

    Raises:
        ModelError: It verifies no trees, or its KV caches are paged.
    """
    reason = target.capability.reason
    if target.paged is not None:
        reason = "its KV caches are paged, which leaves no room for passes in between"
    elif target.capability.supports_tree:
        return
    raise ModelError(f"{what} cannot draft for this model, as {reason}; choose another drafter for it")


@contextmanager
def head_inputs(model: PreTrainedModel) -> Iterator[list[torch.Tensor]]:
    """What this thread shows the output head meanwhile, each [batch, rows, hidden_size].

    So it is known how any family goes on from its last layer, its final norm included.
    """
    inputs: list[torch.Tensor] = []
    thread = threading.get_ident()

    def note(module: torch.nn.Module, given: tuple[torch.Tensor, ...]) -> None:
        if threading.get_ident() == thread:  # another one may be using the model as well
            inputs.append(given[0])

    handle = model.get_output_embeddings().register_forward_pre_hook(note)
    try:
        yield inputs
    finally:
        handle.remove()


class SessionView:
    """The target as the drafter of one text may use it; see ``groundspeed.drafting.base.TargetView``."""

    def __init__(self, target: TransformersTarget, session: TreeSession) -> None:
        """Take in whose text it is."""
        self._target = target
        self._session = session

    def watch(self) -> None:
        """Keep hidden states from the next pass on."""
        if self._target.model.get_output_embeddings() is None:
            raise DraftError(
                f"{type(self._target.model).__name__} names no output head, so its hidden states cannot be "
                "had; draft in a way that needs none"
            )
        self._session.shows = True

    def hidden_states(self) -> torch.Tensor:
        """What the output head was shown, [k, hidden_size]."""
        if self._session.hidden is None:
            raise DraftError("no hidden states were kept; call `watch` in `begin`, and ask after a pass")
        return self._session.hidden

    @torch.inference_mode()
    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        """Hidden states [..., hidden_size] -> logits [..., vocab]."""
        logits: torch.Tensor = self._target.model.get_output_embeddings()(hidden)
        return logits

    def read_ahead(
        self, layers: int, token_ids: Sequence[int], parents: NDArray[np.int32], held: int
    ) -> torch.Tensor:
        """Run the first layers over a tree whose first node is the last committed token."""
        cache = self._session.cache
        assert isinstance(cache, KeyValueCache)
        room = cache.chunks * CHUNK - cache.length
        if len(token_ids) > room:
            raise DraftError(f"{len(token_ids)} nodes were to be read and the KV cache has room for {room}")
        return self._target.read_ahead(self._session, layers, token_ids, parents, held)
