"""Any causal language model of transformers as a target model."""

from __future__ import annotations

import inspect
import logging
import math
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Self
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray

from groundspeed.errors import ModelError
from groundspeed.verify.attention import PassAttention, Stretch
from groundspeed.verify.base import Capability, Segment, TargetSession
from groundspeed.verify.cache import KeyValueCache, Layout
from groundspeed.verify.devices import Driver, driver_for
from groundspeed.verify.fused_layers import fuse_layers
from groundspeed.verify.norms import fuse_norms
from groundspeed.verify.packing import pack_linears
from groundspeed.verify.paged_passes import PagedPasses
from groundspeed.verify.pages import PagedCache
from groundspeed.verify.pattern import Pattern, register
from groundspeed.verify.probe import examine, try_tree
from groundspeed.verify.sessions import ChainSession, RecomputeSession, TreeSession
from groundspeed.verify.shallow import shallow_twin
from groundspeed.verify.target_view import SessionView, head_inputs

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from groundspeed.drafting.base import TargetView

__all__ = ["TransformersTarget", "warn_of_processors"]


_LEAST_ROWS = 4
"""A matrix product on the CPU takes no longer for four rows than for one, and sums one row in another order
than several: with rows to spare a plain step is quicker, and rounds as a step that verifies a draft does."""


_LOCKS: WeakKeyDictionary[Any, threading.RLock] = WeakKeyDictionary()
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


def warn_of_processors(model: PreTrainedModel) -> None:
    """Name the settings of a model's generation config that requests do not take from it."""
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

    Attributes:
        model: The model.
        config: Of its text part.
        device: Where it takes in tokens.
        dtype: What it computes in.
        capability: What it can verify in one pass.
        layout: Of its KV caches.
        windows: By layer, the attention window that it asked for in the last packed pass.
        paged: Runs its passes over paged KV caches; None where each text has a cache of its own.

    Args:
        model: A causal language model; its device and dtype are used as they are.
        driver: Makes what runs its passes over paged KV caches, by default on a CUDA device only; with None
            each text has a cache of its own.

    Raises:
        ModelError: The model is an encoder-decoder.
    """

    def __init__(
        self, model: PreTrainedModel, *, driver: Callable[[torch.device], Driver | None] = driver_for
    ) -> None:
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
        self._lock = _LOCKS.setdefault(model, threading.RLock())
        self.layout = Layout({})
        self.windows: dict[int, int | None] = {}
        self._twins: dict[int, PreTrainedModel] = {}
        self.paged: PagedPasses | None = None
        self.capability: Capability = examine(self)
        if self.capability.supports_tree and (drives := driver(self.device)) is not None:
            self._turn_to_pages(drives)

    @classmethod
    def packed(
        cls, model: PreTrainedModel, *, driver: Callable[[torch.device], Driver | None] = driver_for
    ) -> Self:
        """Take a model into service, its weights packed and its layers fused where it verifies trees."""
        target = cls(model, driver=driver)
        if target.capability.supports_tree and pack_linears(model) + fuse_norms(model):
            with target._lock:
                fuse_layers(model)
            return cls(model, driver=driver)  # tried again as it is now
        return target

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

    @property
    def bytes_per_token(self) -> int:
        """What a token takes in the KV cache, 0 where it is not known."""
        return self.layout.bytes_per_token if self.capability.supports_tree else 0

    def reserve(self, tokens: int) -> None:
        """Get ready for texts of so many tokens at a time; see ``TargetModel``."""
        if self.paged is not None:
            with self._lock:
                self.paged.reserve(tokens)

    def open(self, capacity: int, *, like: TargetSession | None = None, length: int = 0) -> TargetSession:
        """Start a text; see ``TargetModel``."""
        if self.capability.supports_tree:
            assert like is None or isinstance(like, TreeSession)
            if self.paged is not None:
                with self._lock:  # the pool may move
                    return self.paged.open(capacity, like, length)
            cache = KeyValueCache(self.layout, capacity)
            if like is not None:
                assert isinstance(like.cache, KeyValueCache)
                cache.take(like.cache, length)
            return TreeSession(cache)
        if self.capability.decoding == "plain" and not self.capability.cached:
            return RecomputeSession(self)
        return ChainSession(self, rewind=self.capability.supports_chain)

    def verify(self, segments: Sequence[Segment]) -> list[torch.Tensor]:
        """Take texts through one forward pass; see ``TargetModel``. Texts without trees take turns."""
        if segments and isinstance(segments[0].session, TreeSession):
            if isinstance(segments[0].session.cache, PagedCache):
                assert self.paged is not None
                with self._lock:
                    return self.paged.verify(segments)
            return self._verify_packed(segments)
        logits = []
        for segment in segments:
            session = segment.session
            assert isinstance(session, ChainSession | RecomputeSession)
            logits.append(session.verify(segment.token_ids, segment.tree, segment.rows, segment.held))
        return logits

    def _verify_packed(self, segments: Sequence[Segment]) -> list[torch.Tensor]:
        """All segments behind one another as one row of tokens."""
        sessions: list[TreeSession] = []
        stretches: list[Stretch] = []
        tokens: list[int] = []
        rows: list[int] = []
        counts = []
        for segment in segments:
            committed, held = len(segment.token_ids), segment.held
            session = segment.session
            assert isinstance(session, TreeSession)
            assert isinstance(session.cache, KeyValueCache)
            sessions.append(session)
            stretches.append(Stretch(session.cache, committed, segment.tree.parents, len(tokens), held=held))
            nodes = segment.tree.token_ids[held:].tolist()
            tokens += [*segment.token_ids, *nodes]
            counts.append(min(segment.rows, committed) + len(nodes) if segment.rows else 0)
            rows += range(len(tokens) - counts[-1], len(tokens))
        shows = any(session.shows for session in sessions)
        with ExitStack() as stack:
            inputs = stack.enter_context(head_inputs(self.model)) if shows else []
            logits = self._run_packed(tokens, rows, stretches)
        for session, segment in zip(sessions, segments, strict=True):
            session.cache.advance(len(segment.token_ids))
        self.layout.complete = True
        if inputs:
            hidden = inputs[-1][0]
            hidden = hidden if len(hidden) == max(len(rows), 1) else hidden[rows]
            for session, segment, states in zip(
                sessions, segments, torch.split(hidden[: len(rows)], counts), strict=True
            ):
                session.hidden = states[segment.rows - 1 :] if session.shows else None
        return list(torch.split(logits, counts))

    def view(self, session: TargetSession) -> TargetView | None:
        """What the drafter of a text may use of the model; see ``TargetModel``."""
        if not isinstance(session, TreeSession) or isinstance(session.cache, PagedCache):
            return None  # a recorded pass keeps no hidden states, and has no room for passes in between
        return SessionView(self, session)

    def read_ahead(
        self,
        session: TreeSession,
        layers: int,
        token_ids: Sequence[int],
        parents: NDArray[np.int32],
        held: int = 0,
    ) -> torch.Tensor:
        """Run the first layers over a tree behind a text; see ``groundspeed.drafting.base.TargetView``.

        What they write to the KV cache, the next pass writes anew.
        """
        if layers not in self._twins:
            self._twins[layers] = shallow_twin(self.model, layers)
        assert isinstance(session.cache, KeyValueCache)
        tokens = list(token_ids[held:])
        stretch = Stretch(session.cache, 0, parents, held=held)
        return self._run_packed(tokens, range(len(tokens)), [stretch], self._twins[layers])

    def _run_packed(
        self,
        tokens: list[int],
        rows: Sequence[int],
        stretches: Sequence[Stretch],
        model: PreTrainedModel | None = None,
    ) -> torch.Tensor:
        """Run the model, or a twin of it, over a packed pass; logits of some rows, [len(rows), vocab]."""
        size = max(len(tokens), _LEAST_ROWS if self.device.type == "cpu" else 0)
        token_ids = torch.tensor([[*tokens, *[0] * (size - len(tokens))]], device=self.device)
        pattern = PassAttention(stretches, size, self.layers, self.device)
        # A last row is always asked for: no row at all is more than some models can take.
        wanted = torch.tensor(list(rows) or [size - 1], device=self.device)
        return self.run(token_ids, pattern, wanted, model)[: len(rows)]

    @torch.inference_mode()
    def run(
        self,
        token_ids: torch.Tensor,
        pattern: Pattern,
        rows: torch.Tensor | None,
        model: PreTrainedModel | None = None,
    ) -> torch.Tensor:
        """Run the model over a pass whose attention is ours.

        Args:
            token_ids: int64 [1, s].
            pattern: Who sees whom.
            rows: int64 [n], the tokens behind which logits are wanted; None for all.
            model: A twin of the model to run in its place.

        Returns:
            Logits [n, vocab].
        """
        inputs = {
            "input_ids": token_ids,
            "position_ids": pattern.positions,
            "cache": pattern,
            "use_cache": True,
        }
        with self._lock, pattern.active(self.config):
            logits = self._logits(inputs, 0 if rows is None else rows, model)
        self.windows = pattern.windows
        # Some models give all whatever is asked for.
        return logits if rows is None or logits.shape[0] == len(rows) else logits[rows]

    @torch.inference_mode()
    def forward(
        self, token_ids: Sequence[int], rows: int, cache: Any = None, *, past: int = 0
    ) -> torch.Tensor:
        """Run the model as ``generate`` runs it.

        Args:
            token_ids: s tokens.
            rows: Logits are wanted for the last ``rows`` tokens.
            cache: Keys and values of what came before, None to do without a cache.
            past: Tokens that came before.

        Returns:
            Logits [rows, vocab].
        """
        ids = torch.tensor([list(token_ids)], device=self.device)
        with self._lock:
            if cache is None:
                return self._logits({"input_ids": ids, "use_cache": False}, rows)[-rows:]
            seen = past + len(token_ids)
            inputs = self.model.prepare_inputs_for_generation(
                ids,
                cache=cache,
                attention_mask=torch.ones(1, seen, dtype=torch.long, device=self.device),
                position_ids=torch.arange(past, seen, device=self.device)[None],
                is_first_iteration=not past,
                use_cache=True,
            )
            return self._logits(inputs, rows)[-rows:]

    def _logits(
        self, inputs: dict[str, Any], rows: int | torch.Tensor, model: PreTrainedModel | None = None
    ) -> torch.Tensor:
        """Hand the model what it takes; logits of the last ``rows`` tokens, 0 for all, or of those rows."""
        inputs["logits_to_keep"] = rows
        taken = {name: value for name, value in inputs.items() if name in self._parameters}
        logits: torch.Tensor = (model or self.model)(**taken).logits
        return logits[0]

    def _turn_to_pages(self, driver: Driver) -> None:
        """Run passes over paged caches from now on, if that gives the same as the model alone."""
        devices = {kind.device for pair in self.layout.kinds.values() for kind in pair}
        if len(devices) > 1:
            fault = f"its layers are on {len(devices)} devices"
        else:
            self.paged = PagedPasses(self, driver)
            fault = try_tree(self, self.open)
        if fault:
            self.paged = None
            logger.warning("each text has a KV cache of its own, and no pass is recorded: %s", fault)
