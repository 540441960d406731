"""A smaller language model as drafter: alone, or growing what other drafters began."""

from __future__ import annotations

import threading
import time

import numpy as np
from numpy.typing import NDArray

from groundspeed.drafting.base import (
    Drafter,
    DrafterFactory,
    DraftRequest,
    DraftTree,
    RecyclingDrafter,
    RunnerUps,
    WarmDrafterFactory,
)
from groundspeed.drafting.draft_lm import DraftLM, DraftText, Outlook
from groundspeed.drafting.draft_probs import Draws
from groundspeed.drafting.hit_rates import ABSENT, HitRates
from groundspeed.drafting.none import NoDrafter
from groundspeed.drafting.sprout import Offers, Sprout
from groundspeed.drafting.tree import leading_chain
from groundspeed.drafting.worth import Pace, Trust
from groundspeed.errors import InputError

__all__ = ["DraftModel", "DraftModelDrafter"]

_MOST_NODES = 60
"""Of a tree: as many as the attention of a step takes, and a few to spare."""

_TOGETHER = 4
"""Committed tokens that are read in one pass with nodes; more are read before them."""

_SUPPORT = 64
"""Tokens that draws are from, the most probable ones: what is behind them is next to nothing."""

_OFFERED = 8  # tokens behind each node that take part without draws

_FIRST_DRAW, _NEXT_DRAW = 0.6, 0.4
"""How often a draw is accepted, at a first guess: a matter of its place, and not of how probable it was."""


class DraftModel:
    """Makes the drafters of an engine's requests, and holds what they share.

    With ``first`` the model reads what another drafter proposes and grows it: retrieved text with ``Blend()``
    (RASD, Quan et al. 2025), the tree of a smaller model with another ``DraftModel`` (a cascade).
    """

    def __init__(
        self,
        lm: DraftLM,
        *,
        first: DrafterFactory | None = None,
        depth: int = 8,
        width: int = 4,
        draws: int = 0,
        adapts: bool = True,
    ) -> None:
        """Say how to draft.

        Args:
            lm: The model.
            first: Whose trees it grows; by default it starts from nothing.
            depth: Passes of the model for a draft, at most.
            width: Nodes read in a pass, 1 for a chain. Models that read no trees draft chains anyway.
            draws: Where tokens are drawn, draw so many candidates behind each node from the model and let the
                rejection rule choose (Leviathan et al. 2023; with several, SpecInfer, Miao et al. 2024);
                0 drafts the most probable tokens, and one seed gives one text, with and without drafts.
            adapts: Whether to stop a draft where another pass brings less than is written meanwhile.

        Raises:
            InputError: A number out of range.
        """
        for name, value, least in (("depth", depth, 1), ("width", width, 1), ("draws", draws, 0)):
            if not isinstance(value, int) or value < least:
                raise InputError(f"{name} is {value!r}; it must be a whole number of at least {least}")
        self.lm = lm
        self.first = first
        self.depth = depth
        self.width = width if lm.branches else 1
        self.draws = draws
        self.pace = Pace() if adapts else None
        self.rates = {kind: HitRates() for kind in ("greedy", "sampled", "drawn")}
        self.trust = Trust()
        self._lock = threading.Lock()
        self._pass_seconds = self._mass = 0.0

    def __call__(self) -> DraftModelDrafter:
        """A drafter for one request."""
        return DraftModelDrafter(self, NoDrafter() if self.first is None else self.first())

    def warm_up(self) -> None:
        """Compile what the first drafter needs, if it is one that does."""
        if isinstance(self.first, WarmDrafterFactory):
            self.first.warm_up()

    def observe(self, seconds: float, mass: float) -> None:
        """Learn what a pass takes, and how probable it is that one of a node's children is accepted."""
        with self._lock:
            pace = 1 / 16 if self._pass_seconds else 1.0
            self._pass_seconds += (seconds - self._pass_seconds) * pace
            self._mass += (mass - self._mass) * pace

    def pays(self, reached: float) -> bool:
        """Whether to read nodes of which one is reached with this probability."""
        if self.pace is None:
            return True
        with self._lock:
            return reached * self._mass >= self._pass_seconds * self.pace.rate


class DraftModelDrafter:
    """Grows a tree best-first by path probability, a pass of the model for each few nodes.

    The tree that the model read stays in its KV cache until the answer goes on: the nodes that were accepted
    are kept, so that nothing is read twice. After SpecInfer (Miao et al. 2024), Sequoia (Chen et al. 2024)
    and EAGLE-2 (Li et al. 2024): for any budget the most probable nodes. Probabilities are those of
    ``HitRates``, so they are of acceptance, whatever the model says of itself.

    Attributes:
        runners_up: What the first drafter wants.
    """

    def __init__(self, shared: DraftModel, first: Drafter) -> None:
        """Make a drafter for one request."""
        self._shared = shared
        self._first = first
        self._recycling = first if isinstance(first, RecyclingDrafter) else None
        self.runners_up = self._recycling.runners_up if self._recycling else 0
        self._text: DraftText | None = None
        self._sprout: Sprout | None = None
        self._mark: tuple[float, int] | None = None
        self._worth = shared.trust.worth()
        self._seconds: float | None = None  # that the model took for the last draft, where that is judged

    def begin(self, request: DraftRequest) -> None:
        """Take in the prompt; the model reads it with the first draft."""
        self._first.begin(request)
        self._length = len(request.prompt_ids)
        self._pending = self._known(request.prompt_ids)
        self._temperature = request.temperature
        drawn = bool(self._shared.draws and request.temperature)
        self._draws = (1 if self._shared.width == 1 else self._shared.draws) if drawn else 0
        kind = "drawn" if drawn else "sampled" if request.temperature else "greedy"
        self._rates = self._shared.rates[kind]
        self._rng = np.random.default_rng()  # the drafter's own: no seed of a request has a part in it
        self._text = self._shared.lm.open(request.vocab_size, request.target)

    def recycle(self, shown: RunnerUps) -> None:
        """Hand it to the first drafter."""
        if self._recycling:
            self._recycling.recycle(shown)

    def extend(self, token_ids: NDArray[np.int32]) -> None:
        """Take in newly committed tokens, int32 [k], keep what the model read of them, and learn."""
        self._first.extend(token_ids)
        self._length += len(token_ids)
        kept = 0
        if self._sprout is not None and self._text is not None:
            self._judge(self._sprout, token_ids[:-1].tolist())
            path = self._follow(self._sprout, token_ids.tolist())
            # The last one is read with the next draft, as its row is what that begins with.
            kept = min(len(path), len(token_ids) - 1)
            self._text.commit(path[:kept])
            self._sprout = None
        self._pending = np.concatenate([self._pending, self._known(token_ids[kept:])])
        if self._shared.pace:
            self._shared.pace.wrote(len(token_ids))

    def propose(self, budget: int) -> DraftTree:
        """Draft what may follow the committed text, with at most ``budget`` nodes."""
        pace = self._shared.pace
        if pace:
            self._mark = pace.since(self._mark) if self._mark else pace.mark()
        budget = min(budget, _MOST_NODES)
        drafted = self._first.propose(budget)
        limit = self._shared.lm.context_length
        if budget <= 0 or self._text is None or (limit and self._length + _MOST_NODES > limit):
            return drafted
        # Where nothing comes first, the engine judges.
        judged = pace and pace.rate and self._shared.first
        if judged and not self._worth.wanted():
            return drafted
        start = time.perf_counter()
        if not self._shared.lm.branches:
            drafted = leading_chain(drafted)
        sprout = self._sprout = self._begin_tree(self._text, drafted)
        for _ in range(self._shared.depth - 1):
            nodes = self._worth_reading(sprout, budget)
            if not nodes:
                break
            self._grow(self._text, sprout, nodes)
        tree = sprout.tree(budget)
        self._seconds = time.perf_counter() - start if judged else None
        return tree

    def end(self) -> None:
        """Forget the request."""
        self._first.end()
        self._shared.trust.learn(self._worth)
        text, self._text, self._sprout, self._mark = self._text, None, None, None
        if text is not None:
            text.close()

    def _begin_tree(self, text: DraftText, drafted: DraftTree) -> Sprout:
        """Read what is pending, with the nodes that were drafted first, and offer what may follow."""
        sprout = Sprout(drafted)
        nodes = sorted(sprout.best(_MOST_NODES // 2))
        rows: list[Outlook] = []
        empty = DraftTree.empty()
        if not nodes or len(self._pending) > _TOGETHER:
            rows.append(text.read(self._pending, empty, 0, self._wanted))
            self._pending = self._pending[:0]
        if nodes:
            rows.append(text.read(self._pending, sprout.read(nodes), 0, self._wanted))
            self._pending = self._pending[:0]
        outlook = Outlook(*(np.concatenate(columns) for columns in zip(*rows, strict=True)))
        for row, node in enumerate([-1, *nodes]):
            sprout.expand(node, self._offers(outlook, row, sprout.retrieved(node)))
        return sprout

    def _worth_reading(self, sprout: Sprout, budget: int) -> list[int]:
        """The most probable nodes that were not read and have a place in the tree, if that pays."""
        room = min(self._shared.width, _MOST_NODES - len(sprout.slots))
        nodes = [node for node in sprout.best(budget) if sprout.slot(node) is None]
        if not self._shared.lm.branches:
            nodes = [node for node in nodes if sprout.extends_chain(node)]
        nodes = sorted(nodes[: max(room, 0)])
        reached = sum(sprout.prob(node) for node in nodes)
        return nodes if nodes and self._shared.pays(reached) else []

    def _grow(self, text: DraftText, sprout: Sprout, nodes: list[int]) -> None:
        start = time.perf_counter()
        held = len(sprout.slots)
        outlook = text.read(self._pending, sprout.read(nodes), held, self._wanted)
        mass = 0.0
        for row, node in enumerate(nodes):
            offers = self._offers(outlook, row, sprout.retrieved(node))
            sprout.expand(node, offers)
            mass += sprout.prob(node) * float(offers.probs.sum())
        reached = sum(sprout.prob(node) for node in nodes)
        self._shared.observe(time.perf_counter() - start, mass / reached)

    @property
    def _wanted(self) -> int:
        return _SUPPORT if self._temperature else _OFFERED

    def _offers(self, outlook: Outlook, row: int, retrieved: dict[int, float]) -> Offers:
        """What may follow a node by the model and by the retrieved text."""
        token_ids = outlook.token_ids[row].astype(np.int64)
        logprobs = outlook.logprobs[row].astype(np.float64)
        model = np.exp(logprobs)
        if self._temperature:
            model = np.exp((logprobs - logprobs[0]) / self._temperature)
            model /= model.sum()
        q = None
        offered, of_model = token_ids[:_OFFERED], model[:_OFFERED]
        if self._draws:
            q = self._draw(token_ids, model)
            offered = q.drawn[q.drawn >= 0].astype(np.int64)
            of_model = _FIRST_DRAW * _NEXT_DRAW ** np.arange(len(offered))
        others = np.array([token for token in retrieved if token not in set(offered.tolist())], np.int64)
        of_model = np.concatenate([of_model, np.full(len(others), ABSENT)])
        ranks = np.concatenate([np.arange(len(offered)), np.zeros(len(others), np.int64)])
        all_ids = np.concatenate([offered, others])
        of_text = np.array([retrieved.get(token, ABSENT) for token in all_ids.tolist()])
        cells = self._rates.cells(of_model, of_text, ranks)
        probs = self._rates.rates(cells, of_model, of_text)
        return Offers(all_ids, probs / max(probs.sum(), 1.0), cells, q)

    def _draw(self, token_ids: NDArray[np.int64], probs: NDArray[np.float64]) -> Draws:
        """Draw tokens without replacement: those that lead with Gumbel noise, in that order."""
        with np.errstate(divide="ignore"):
            noisy = np.log(probs) + self._rng.gumbel(size=len(probs))
        first = np.argsort(-noisy)[: self._draws]
        first = first[probs[first].astype(np.float32) > 0]
        drawn = np.full(self._draws, -1, np.int32)
        drawn[: len(first)] = token_ids[first]
        order = np.argsort(token_ids)
        return Draws(token_ids[order].astype(np.int32), probs[order].astype(np.float32), drawn)

    def _follow(self, sprout: Sprout, token_ids: list[int]) -> list[int]:
        """The slots of the committed tokens that were read, from the root down; learns from all of them."""
        path: list[int] = []
        node = -1
        for token in token_ids:
            offers = sprout.offers(node)
            if offers is None:
                break
            self._rates.learn(offers.cells, offers.token_ids == token)
            child = sprout.child(node, token)
            slot = None if child is None else sprout.slot(child)
            if child is None or slot is None:
                break
            path.append(slot)
            node = child
        return path

    def _judge(self, sprout: Sprout, accepted: list[int]) -> None:
        """Whether the model was worth asking: what was accepted that the first drafter did not have."""
        rate = self._shared.pace.rate if self._shared.pace else 0.0
        if self._seconds is not None and rate:
            self._worth.judge(sprout.grown(accepted) / rate, self._seconds)

    def _known(self, token_ids: NDArray[np.int32]) -> NDArray[np.int32]:
        """Tokens as the model can read them: one that it lacks is read as token 0, which costs a draft."""
        return np.where(token_ids < self._shared.lm.vocab_size, token_ids, 0).astype(np.int32)
