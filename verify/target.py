"""Any causal language model of transformers as a target model."""

from __future__ import annotations

import inspect
import logging
import math
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch

from groundspeed.drafting.base import DraftTree
from groundspeed.errors import ModelError
from groundspeed.verify.attention import IMPLEMENTATION, TreeAttention, register
from groundspeed.verify.base import Capability, TargetSession
from groundspeed.verify.cache import PreallocatedCache
from groundspeed.verify.probe import examine

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["ChainSession", "RecomputeSession", "TransformersTarget", "TreeSession"]


_LEAST_ROWS = 4
"""A matrix product on the CPU takes no longer for four rows than for one, and sums one row in another order
than several: with rows to spare a plain step is quicker, and rounds as a step that verifies a draft does."""


_LOCKS: WeakKeyDictionary[Any, threading.Lock] = WeakKeyDictionary()
"""One per model, whoever drives it: the attention function is swapped for the time of a pass."""

_PROCESSORS = {
    "repetition_penalty": (None, 1.0),
    "no_repeat_ngram_size": (None, 0),
    "suppress_tokens": (None, []),
    "begin_suppress_tokens": (None, []),
    "bad_words_ids": (None, []),
    "sequence_bias": (None, {}),
    "forced_bos_token_id": (None,),
    "forced_eos_token_id": (None,),
    "min_length": (None, 0),
    "min_new_tokens": (None, 0),
}
"""Settings of a generation config that make ``generate`` change logits, with the values that do nothing."""

logger = logging.getLogger(__name__)


def _warn_of_processors(model: PreTrainedModel) -> None:
    settings = {name: getattr(model.generation_config, name, None) for name in _PROCESSORS}
    active = [f"{name}={value}" for name, value in settings.items() if value not in _PROCESSORS[name]]
    if active:
        logger.warning(
            "the model's generation config sets %s, which is not applied by itself: set it in the request if "
            "it is wanted",
            ", ".join(active),
        )


class TransformersTarget:
    """A target model over anything that ``AutoModelForCausalLM`` loads.

    The model itself is left as it is: the attention function is swapped in for the time of a pass only.

    Args:
        model: A causal language model; its device and dtype are used as they are.

    Raises:
        ModelError: The model is an encoder-decoder.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        if model.config.is_encoder_decoder:
            raise ModelError(
                f"{type(model).__name__} is an encoder-decoder; a causal (decoder-only) language model is "
                "needed. Load one with AutoModelForCausalLM."
            )
        register()
        self.model = model.eval()
        self.config: Any = model.config.get_text_config()
        embeddings = model.get_input_embeddings().weight
        self.device: torch.device = embeddings.device
        self.dtype: torch.dtype = embeddings.dtype
        self._parameters = frozenset(inspect.signature(model.forward).parameters)
        self._lock = _LOCKS.setdefault(model, threading.Lock())
        _warn_of_processors(model)
        self.capability: Capability = examine(self)

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""
        return int(self.config.vocab_size)

    @property
    def layers(self) -> int:
        """Number of decoder layers."""
        return int(self.config.num_hidden_layers)

    @property
    def context_length(self) -> int | None:
        """Most tokens a text may have, None where the model sets no bound."""
        length = getattr(self.config, "max_position_embeddings", None)
        rope = getattr(self.config, "rope_parameters", None) or {}
        if rope.get("rope_type") == "longrope":
            # Beyond this length transformers turns all positions by other frequencies, cached ones included.
            short = getattr(self.config, "original_max_position_embeddings", None)
            length = min(
                length or math.inf, short or rope.get("original_max_position_embeddings") or math.inf
            )
        return int(length) if length and 0 < length < math.inf else None

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """Tokens that end a text, as ``generate`` would take them."""
        ids = getattr(self.model.generation_config, "eos_token_id", None)
        return frozenset([ids] if isinstance(ids, int) else ids or ())

    def open(self, capacity: int) -> TargetSession:
        """Start a text that will never hold more than ``capacity`` tokens, draft nodes included."""
        if self.capability.supports_tree:
            return TreeSession(self, capacity)
        if self.capability.decoding == "plain" and not self.capability.cached:
            return RecomputeSession(self)
        return ChainSession(self, rewind=self.capability.supports_chain)

    @torch.inference_mode()
    def forward(
        self,
        token_ids: Sequence[int],
        rows: int,
        cache: Any = None,
        *,
        past: int = 0,
        pattern: TreeAttention | None = None,
    ) -> torch.Tensor:
        """Run the model.

        Args:
            token_ids: s tokens.
            rows: Logits are wanted for the last ``rows`` tokens.
            cache: Keys and values of what came before, None to do without a cache.
            past: Tokens that came before.
            pattern: Tree attention; None leaves attention to the model, called as ``generate`` calls it.

        Returns:
            Logits [rows, vocab].
        """
        ids = torch.tensor([list(token_ids)], device=self.device)
        with self._lock:
            if pattern is not None:
                inputs = {
                    "input_ids": ids,
                    "position_ids": pattern.positions,
                    "cache": cache,
                    "use_cache": True,
                }
                before = self.config._attn_implementation
                self.config._attn_implementation = IMPLEMENTATION
                try:
                    with pattern.active():
                        return self._logits(inputs, rows)
                finally:
                    self.config._attn_implementation = before
            if cache is None:
                return self._logits({"input_ids": ids, "use_cache": False}, rows)
            seen = past + len(token_ids)
            inputs = self.model.prepare_inputs_for_generation(
                ids,
                cache=cache,
                attention_mask=torch.ones(1, seen, dtype=torch.long, device=self.device),
                position_ids=torch.arange(past, seen, device=self.device)[None],
                is_first_iteration=not past,
                use_cache=True,
            )
            return self._logits(inputs, rows)

    def _logits(self, inputs: dict[str, Any], rows: int) -> torch.Tensor:
        """Hand the model what it takes; the logits of the last ``rows`` tokens."""
        inputs["logits_to_keep"] = rows
        taken = {name: value for name, value in inputs.items() if name in self._parameters}
        logits: torch.Tensor = self.model(**taken).logits
        return logits[0, -rows:]


class TreeSession:
    """A text whose KV cache is ours: trees are verified by tree attention and compacted in place."""

    def __init__(self, target: TransformersTarget, capacity: int) -> None:
        """Reserve the KV cache.

        Args:
            target: The model.
            capacity: Most tokens the cache will hold, draft nodes included.
        """
        self._target = target
        self._least = _LEAST_ROWS if target.device.type == "cpu" else 1
        self._cache = PreallocatedCache(target.layers, capacity + self._least)

    @property
    def length(self) -> int:
        """Committed tokens in the KV cache."""
        return self._cache.length

    def prefill(self, token_ids: Sequence[int]) -> None:
        """Take ``token_ids`` into the KV cache."""
        self.verify(token_ids, DraftTree.empty())

    def verify(self, token_ids: Sequence[int], tree: DraftTree) -> torch.Tensor:
        """Take in committed tokens with a draft tree behind them; see ``TargetSession``."""
        tokens = [*token_ids, *tree.token_ids.tolist()]
        spare = max(0, self._least - len(tokens))
        parents = tree.parents.tolist() + [-1] * spare
        self.pattern = TreeAttention(self.length, parents, len(token_ids), self._target.device)
        if spare:
            # Wherever the rows to spare stand, nobody looks; behind the last position there may be none.
            self.pattern.positions[:, len(tokens) :] = self.length
        tokens += [0] * spare
        logits = self._target.forward(tokens, len(parents) + 1, self._cache, pattern=self.pattern)
        self._cache.advance(len(token_ids))
        return logits[: len(tree) + 1]

    def commit(self, path: Sequence[int]) -> None:
        """Keep the nodes of ``path`` and drop all others."""
        self._cache.keep(list(path))


class ChainSession:
    """A text whose cache is the library's: single paths where it can be rewound, single tokens elsewhere."""

    def __init__(self, target: TransformersTarget, *, rewind: bool) -> None:
        """Start with an empty cache.

        Args:
            target: The model.
            rewind: Whether chains will be verified, so that the cache must be able to forget tokens.
        """
        from transformers import DynamicCache

        self._target = target
        self._rewind = rewind
        self._cache = DynamicCache(config=target.config)
        self._recording = False
        self._pending = 0
        self.length = 0

    def prefill(self, token_ids: Sequence[int]) -> None:
        """Take ``token_ids`` into the cache."""
        self._target.forward(token_ids, 1, self._cache, past=self.length)
        self.length += len(token_ids)

    def verify(self, token_ids: Sequence[int], tree: DraftTree) -> torch.Tensor:
        """Take in committed tokens with a chain behind them; see ``TargetSession``.

        Raises:
            ModelError: The tree has branches, or nodes although the cache cannot be rewound.
        """
        if len(tree) and (not self._rewind or tree.parents.tolist() != list(range(-1, len(tree) - 1))):
            raise ModelError(
                f"this model verifies {'single paths' if self._rewind else 'no drafts'}, not a tree"
            )
        self._forget(0)
        if len(tree) and not self._recording:
            # Only once the prompt is in: layers of bounded size keep everything from here on.
            self._cache.activate_past_recording()
            self._recording = True
        tokens = [*token_ids, *tree.token_ids.tolist()]
        logits = self._target.forward(tokens, len(tree) + 1, self._cache, past=self.length)
        self.length += len(token_ids)
        self._pending = len(tree)
        return logits

    def commit(self, path: Sequence[int]) -> None:
        """Keep the first nodes of the chain and drop the others."""
        self._forget(len(path))

    def _forget(self, kept: int) -> None:
        if self._recording:
            self._cache.crop(kept - self._pending)
        self.length += kept
        self._pending = 0


class RecomputeSession:
    """A text without a cache, for models whose own cannot be driven from outside: right, and slow."""

    def __init__(self, target: TransformersTarget) -> None:
        """Start an empty text."""
        self._target = target
        self._text: list[int] = []

    @property
    def length(self) -> int:
        """Committed tokens."""
        return len(self._text)

    def prefill(self, token_ids: Sequence[int]) -> None:
        """Take in ``token_ids``."""
        self._text += token_ids

    def verify(self, token_ids: Sequence[int], tree: DraftTree) -> torch.Tensor:
        """Take in committed tokens and compute the whole text anew; see ``TargetSession``.

        Raises:
            ModelError: The tree has nodes.
        """
        if len(tree):
            raise ModelError("this model verifies no drafts, a tree was given; mind its capability")
        self._text += token_ids
        return self._target.forward(self._text, 1)

    def commit(self, path: Sequence[int]) -> None:
        """There are no nodes to keep."""
