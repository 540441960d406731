"""The default drafter: one blended variable-order predictor over all that the request and the store hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from groundspeed.datastores.base import TokenSource
from groundspeed.datastores.snapshot import Snapshot
from groundspeed.drafting.base import DraftRequest, DraftTree, RunnerUps
from groundspeed.drafting.calibration import Calibration
from groundspeed.drafting.commit import commit, most_frequent, offer_root
from groundspeed.drafting.features import FEATURES, NONE_FEATURES, ROW
from groundspeed.drafting.forms import FormIndex
from groundspeed.drafting.growth import grow, grow_chain
from groundspeed.drafting.node import (
    FORM_PLACE,
    HEAT,
    HOT,
    LAST,
    LAYOUT,
    MATCH,
    NODE_COLUMNS,
    OTHERS,
    OUTPUT,
    PLACE,
    PREVIOUS,
    SECOND,
    STATE,
    STREAM,
    VOCABULARY,
)
from groundspeed.drafting.offers import CANDIDATE_COLUMNS, CANDIDATES
from groundspeed.drafting.recycled import RecycledTokens
from groundspeed.drafting.suffix import CONTEXT, CONTEXT_LENGTH, SuffixIndex

__all__ = ["Blend", "BlendDrafter", "warm_up"]

Look: TypeAlias = Callable[[Sequence[str] | None], Snapshot]
"""Gives what some namespaces hold now, None for all of them."""

_FLOOR = 0.002  # paths less probable than this are not worth a node at any budget
_FREQUENT = 16  # tokens of order 0
_MOST_NODES = 1 << 12  # memory is taken by the budget, and no larger tree ever pays
_NOTHING_STORED = Snapshot((), np.dtype(np.uint16))
_NOTHING_SHOWN = RecycledTokens(capacity=8)


def warm_up(stored: Snapshot | None = None, *, chain: bool = False) -> None:
    """Compile the kernels, or load them from numba's cache, so that no request waits for it.

    About 18 s on the first run after an installation, 0.7 s later. Safe in a thread beside other work.

    Args:
        stored: What will be drafted from; ids of 2 and of 4 bytes are compiled for apart.
        chain: Whether chains will be drafted, and not trees.
    """
    drafter = BlendDrafter(stored, chain=chain)
    token = np.zeros(1, np.int32)
    drafter.begin(DraftRequest(prompt_ids=token, passages=(), vocab_size=1, forms=token))
    drafter.recycle(RunnerUps(token, token - 1, token[None]))
    drafter.extend(token)
    drafter.propose(1)


class BlendDrafter:
    """Drafts from the request's passages, its prompt, what was generated so far, and what is stored.

    At every node of the tree the tokens that followed its context anywhere compete (``offers``); the tree
    grows best-first by path probability, so for any budget it holds the most probable nodes (the argument of
    Sequoia and EAGLE-2). Nodes come depth first, the most probable child first.

    Attributes:
        runners_up: How many of the tokens that the target showed it takes in per row.
        least: Paths less probable than this are not looked for.
    """

    runners_up = ROW
    least = 0.0

    def __init__(
        self,
        stored: Snapshot | Look | None = None,
        calibration: Calibration | None = None,
        recycled: RecycledTokens | None = None,
        learn: Callable[[NDArray[np.int32]], object] | None = None,
        *,
        chain: bool = False,
    ) -> None:
        """Make a drafter for one request.

        Args:
            stored: Text to draft from as well, a corpus or earlier answers: what a datastore holds, or what
                gives that of the namespaces that the request may see.
            calibration: The predictor's weights, shared by requests and learning from them; by default the
                shipped ones, learning from this request alone.
            recycled: What the target showed, shared by requests; by default of this request alone.
            learn: Told the answer, int32 [k], when it ends.
            chain: Draft one path, at each node its most probable token, for targets that verify no trees.
        """
        self._grow = grow_chain if chain else grow
        self._look = stored if callable(stored) else lambda _: stored or _NOTHING_STORED
        self._calibration = calibration or Calibration()
        self._shared_recycled = recycled
        self._learn = learn
        self._forget()

    def begin(self, request: DraftRequest) -> None:
        """Index the passages, best first, and the prompt, and take what is stored as it is now."""
        self._forget()
        self._stored = self._look(request.namespaces)
        texts = (*request.passages, request.prompt_ids)
        self._index.reserve(sum(len(text) + 1 for text in texts))
        starts = []
        for text in texts:
            self._index.boundary()
            starts.append(len(self._index))
            self._index.extend(text)
        self._starts = np.array(starts, np.int64)
        self._forms = FormIndex(request.forms)
        self._forms.add(texts, starts)
        self._recycled = self._shared_recycled or RecycledTokens()
        layout = np.empty(LAYOUT, np.int64)
        layout[SECOND] = starts[min(1, len(request.passages))]
        layout[OTHERS] = starts[min(3, len(request.passages))]
        layout[STREAM] = starts[-1]
        layout[OUTPUT] = len(self._index)
        layout[VOCABULARY] = request.vocab_size
        frequent = most_frequent(self._index.states, self._index.edges, request.vocab_size, _FREQUENT)
        self._request = (layout, frequent, _count(texts, request.vocab_size))
        self._node[STATE] = self._index.registers[CONTEXT]
        self._node[MATCH] = self._index.registers[CONTEXT_LENGTH]
        for column, back in ((LAST, 1), (PREVIOUS, 2)):
            if len(request.prompt_ids) >= back:
                self._node[column] = request.prompt_ids[-back]
        self._begun = True

    def recycle(self, shown: RunnerUps) -> None:
        """Take in what a verification showed."""
        self._recycled.store(int(self._node[PREVIOUS]), shown)

    def extend(self, token_ids: NDArray[np.int32]) -> None:
        """Take in newly committed tokens, int32 [k]."""
        self._index.reserve(len(token_ids))
        commit(
            self._index.arrays,
            self._index.registers,
            self._forms.arrays(len(token_ids)),
            self._request,
            self._stored.arrays,
            self._recycled.arrays,
            self._node,
            self._calibration.weights,
            self._calibration.seen,
            token_ids,
        )

    def propose(self, budget: int) -> DraftTree:
        """Draft what may follow the committed text, with at most ``budget`` nodes."""
        if budget <= 0:
            return DraftTree.empty()
        budget = min(budget, _MOST_NODES)
        return DraftTree(
            *self._grow(
                self._index.arrays,
                len(self._index),
                self._request,
                self._starts,
                self._stored.arrays,
                self._recycled.arrays,
                self._node,
                self._calibration.weights,
                budget,
                max(self.least, _FLOOR),
            )
        )

    def end(self) -> None:
        """Hand on the answer to whoever learns from it, and forget the request."""
        answer = self._index.tokens[self._request[0][OUTPUT] : len(self._index)]
        begun = self._begun
        self._forget()
        if begun and self._learn is not None and len(answer):
            self._learn(answer)

    def _forget(self) -> None:
        self._begun = False
        self._stored = _NOTHING_STORED
        self._index: SuffixIndex = SuffixIndex()
        self._forms = FormIndex(None)
        self._recycled = self._shared_recycled or _NOTHING_SHOWN
        self._starts = np.zeros(1, np.int64)
        self._request = (np.zeros(LAYOUT, np.int64), np.empty(0, np.int64), np.empty(0, np.int32))
        self._node: NDArray[np.int64] = np.zeros(NODE_COLUMNS, np.int64)
        for column in (PLACE, FORM_PLACE, LAST, PREVIOUS):
            self._node[column] = -1
        self._node[HEAT] = HOT // 2

    def offers(self) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int32]]:
        """What may follow the committed text, as the fit of the priors wants it.

        Returns:
            int64 [c] candidate tokens, int32 [c, FEATURES] their features, int32 [NONE_FEATURES] those of
            "none of them".
        """
        candidates = np.empty((CANDIDATES, CANDIDATE_COLUMNS), np.int64)
        features = np.empty((CANDIDATES, FEATURES), np.int32)
        none_features = np.empty(NONE_FEATURES, np.int32)
        n = offer_root(
            self._index.arrays, len(self._index), self._request, self._stored.arrays,
            self._recycled.arrays, self._node, candidates, features, none_features,
        )  # fmt: skip
        return candidates[:n, 0], features[:n], none_features


def _count(texts: Sequence[NDArray[np.int32]], vocab_size: int) -> NDArray[np.int32]:
    """How often each token below ``vocab_size`` stands in texts, int32 [vocab_size]."""
    tokens = np.concatenate(texts)
    return np.bincount(tokens[tokens < vocab_size], minlength=vocab_size).astype(np.int32)


class Blend:
    """Makes the blend's drafters for the requests of an engine."""

    def __init__(
        self,
        datastore: TokenSource | None = None,
        *,
        namespaces: Sequence[str] | None = None,
        learn: Callable[[NDArray[np.int32]], object] | None = None,
        calibration: Calibration | None = None,
        recycled: RecycledTokens | None = None,
        chain: bool = False,
    ) -> None:
        """Say what requests share.

        Args:
            datastore: Draft from what it holds as well; of the target's tokenizer.
            namespaces: What requests may see of it, those that name namespaces too; all by default.
            learn: Told every answer, int32 [k], as it ends: a datastore's ``learn`` makes the next ones draft
                from it.
            calibration: Weights that all requests draft by and teach; by default each starts from the shipped
                ones and learns for itself, as traffic of one kind makes shared ones worse for another.
            recycled: A table that all requests write to and draft from; by default each has its own.
            chain: Draft chains, not trees.
        """
        self._chain = chain
        self._calibration = calibration
        self._datastore = datastore
        self._namespaces = namespaces
        self._learn = learn
        self._recycled = recycled

    def warm_up(self) -> None:
        """See the function of that name."""
        warm_up(self._datastore.snapshot([]) if self._datastore else None, chain=self._chain)

    def __call__(self) -> BlendDrafter:
        """A drafter for one request, which drafts from what the datastore holds when it begins."""
        look = self._look if self._datastore else None
        return BlendDrafter(look, self._calibration, self._recycled, self._learn, chain=self._chain)

    def _look(self, namespaces: Sequence[str] | None) -> Snapshot:
        assert self._datastore is not None
        if namespaces is None:
            namespaces = self._namespaces
        elif self._namespaces is not None:
            namespaces = [name for name in namespaces if name in self._namespaces]
        return self._datastore.snapshot(namespaces)
