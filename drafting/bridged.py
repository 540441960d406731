"""A draft model with another tokenizer than the target's: the two talk in text."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from groundspeed.drafting.base import DraftRequest, DraftTree
from groundspeed.drafting.draft_lm import DraftLM, DraftText
from groundspeed.drafting.tree import chain
from groundspeed.drafting.worth import Pace
from groundspeed.types import Source

__all__ = ["Bridge", "BridgedDraftModel", "BridgedDrafter"]

_OPEN = 6
"""Target tokens at the end of the text that are never taken to be settled: what follows may be joined to them
in the draft model's tokens."""

_MOST_OPEN = 48  # where there is no space, the text is settled in the middle of a word

_LEAST = 0.2  # a chain goes on while it is accepted to its end with this probability


class Bridge(NamedTuple):
    """Two tokenizers, without special tokens.

    Attributes:
        to_text: Of the target.
        to_ids: Of the target.
        to_draft_text: Of the draft model.
        to_draft_ids: Of the draft model.
    """

    to_text: Callable[[Sequence[int]], str]
    to_ids: Callable[[str], list[int]]
    to_draft_text: Callable[[Sequence[int]], str]
    to_draft_ids: Callable[[str], list[int]]


class BridgedDraftModel:
    """Makes the drafters of an engine's requests (universal assisted decoding, Timor et al. 2025)."""

    def __init__(self, lm: DraftLM, bridge: Bridge, *, depth: int = 8, adapts: bool = True) -> None:
        """Say how to draft.

        Args:
            lm: The model.
            bridge: Between its tokens and the target's.
            depth: Tokens of the draft model in a draft, at most.
            adapts: Whether to stop a draft where another pass brings less than is written meanwhile.
        """
        self.lm = lm
        self.bridge = bridge
        self.depth = depth
        self.pace = Pace() if adapts else None
        self._lock = threading.Lock()
        self._accepted = 0.7  # of the tokens that follow an accepted one

    def __call__(self) -> BridgedDrafter:
        """A drafter for one request."""
        return BridgedDrafter(self)

    @property
    def accepted(self) -> float:
        """The share of drafted tokens behind accepted ones that are accepted too."""
        with self._lock:
            return self._accepted

    def learn(self, hit: bool) -> None:
        """Take in whether a token was accepted."""
        with self._lock:
            self._accepted += (min(max(float(hit), 0.02), 0.98) - self._accepted) / 64


class BridgedDrafter:
    """Drafts the most probable chain of a model that has other tokens.

    The text so far is settled for the draft model up to a space some tokens before its end: its tokens up to
    there are committed. What is behind is encoded anew for every draft and read as nodes, since the next word
    may change its tokens. What the model adds is text again, encoded with the end of the target's text. Where
    the two do not fit, nothing but the draft is lost.
    """

    def __init__(self, shared: BridgedDraftModel) -> None:
        """Make a drafter for one request."""
        self._shared = shared
        self._text: DraftText | None = None
        self._drafted: list[int] = []
        self._mark: tuple[float, int] | None = None

    def begin(self, request: DraftRequest) -> None:
        """Take in the prompt; the model reads it with the first draft."""
        self._vocab_size = request.vocab_size
        self._text = self._shared.lm.open(self._shared.lm.vocab_size)
        self._read = 0
        self._unread: list[int] = []
        self._open: list[int] = request.prompt_ids.tolist()
        self._drafted = []

    def extend(self, token_ids: NDArray[np.int32]) -> None:
        """Take in newly committed tokens, int32 [k]."""
        for drafted, token in zip(self._drafted, token_ids.tolist(), strict=False):
            self._shared.learn(drafted == token)
            if drafted != token:
                break
        self._drafted = []
        self._open += token_ids.tolist()
        if self._shared.pace:
            self._shared.pace.wrote(len(token_ids))

    def propose(self, budget: int) -> DraftTree:
        """Draft what may follow the committed text, with at most ``budget`` nodes."""
        pace = self._shared.pace
        if pace:
            self._mark = pace.since(self._mark) if self._mark else pace.mark()
        if budget <= 0 or self._text is None:
            return DraftTree.empty()
        self._settle()
        end = self._shared.bridge.to_text(self._open)
        nodes = self._shared.bridge.to_draft_ids(end)
        length = self._read + len(self._unread) + len(nodes) + self._shared.depth
        limit = self._shared.lm.context_length
        if (limit and length > limit) or not (self._read or self._unread):
            return DraftTree.empty()
        added = self._added(self._text, nodes)
        self._drafted = self._ours(end, nodes, added)[:budget]
        n = len(self._drafted)
        probs = self._shared.accepted ** np.arange(1, n + 1)
        return chain(
            np.array(self._drafted, np.int32),
            probs.astype(np.float32),
            np.full(n, Source.MODEL, np.uint16),
        )

    def end(self) -> None:
        """Forget the request."""
        text, self._text, self._mark = self._text, None, None
        if text is not None:
            text.close()

    def _settle(self) -> None:
        """Hand over the text up to the last space that lies far enough from the end."""
        to_text = self._shared.bridge.to_text
        for end in range(len(self._open) - _OPEN, 0, -1):
            forced = end > _MOST_OPEN
            if forced or to_text(self._open[end : end + 1])[:1].isspace():
                self._unread += self._shared.bridge.to_draft_ids(to_text(self._open[:end]))
                del self._open[:end]
                return

    def _added(self, text: DraftText, nodes: list[int]) -> list[int]:
        """The draft model's tokens behind the text, most probable ones one after the other."""
        if self._unread:
            outlook = text.read(np.array(self._unread, np.int32), DraftTree.empty(), 0, 1)
            self._read += len(self._unread)
            self._unread = []
        held = 0
        added: list[int] = []
        prob = 1.0
        while True:
            path = np.array([*nodes, *added], np.int32)
            if len(path) > held:
                outlook = text.read(np.empty(0, np.int32), chain(path), held, 1)
                held = len(path)
            prob *= float(np.exp(outlook.logprobs[-1, 0]))
            added.append(int(outlook.token_ids[-1, 0]))
            if len(added) >= self._shared.depth or prob < _LEAST:
                text.commit([])
                return added

    def _ours(self, end: str, nodes: list[int], added: list[int]) -> list[int]:
        """The target's tokens for what was added behind the end of its text."""
        bridge = self._shared.bridge
        whole = bridge.to_draft_text([*nodes, *added])
        if not whole.startswith(end):
            return []
        ids = bridge.to_ids(whole)
        if ids[: len(self._open)] != self._open:
            ids = self._open + bridge.to_ids(whole[len(end) :])
        found = ids[len(self._open) :]
        known = next((i for i, token in enumerate(found) if token >= self._vocab_size), len(found))
        return found[:known]
