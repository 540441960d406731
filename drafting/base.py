"""The contract of drafting: a drafter proposes a draft tree, the target model verifies it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from groundspeed.drafting.draft_probs import DraftProbs
from groundspeed.errors import DraftError
from groundspeed.types import Source

if TYPE_CHECKING:
    import torch

__all__ = [
    "DraftRequest",
    "DraftTree",
    "Drafter",
    "DrafterFactory",
    "RecyclingDrafter",
    "RunnerUps",
    "TargetView",
    "ThriftyDrafter",
    "WarmDrafterFactory",
]


class TargetView(Protocol):
    """The target model as the drafter of one request may use it, from ``begin`` to ``end``.

    Nothing that is done with it changes the answer: what it writes, the next verification writes anew.
    """

    def watch(self) -> None:
        """Keep hidden states from the next pass on.

        Raises:
            DraftError: The model does not show them.
        """
        ...

    def hidden_states(self) -> torch.Tensor:
        """What the output head was shown, [k, hidden_size], on the target's device.

        Row i is the one that the i-th token of the last ``extend`` was chosen behind.

        Raises:
            DraftError: None were kept.
        """
        ...

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        """The output head: hidden states behind the final norm [..., hidden_size] -> logits [..., vocab]."""
        ...

    def read_ahead(
        self, layers: int, token_ids: Sequence[int], parents: NDArray[np.int32], held: int
    ) -> torch.Tensor:
        """Run the first layers, the final norm and the head over a tree behind what the KV cache holds.

        The layers use their own part of the request's KV cache; only the last committed token is not in it,
        and is the first node of the tree.

        Args:
            layers: How many.
            token_ids: n nodes, the last committed token first.
            parents: int32 [n], -1 for the first node.
            held: So many of the first nodes were read since the last ``extend`` by as many layers.

        Returns:
            Logits [n - held, vocab] behind the nodes that were not held.

        Raises:
            DraftError: There is no room for so many nodes.
        """
        ...


@dataclass(frozen=True, slots=True, eq=False)
class DraftRequest:
    """What a drafter is told about a request.

    Attributes:
        prompt_ids: int32 [p], the prompt.
        passages: int32 [m_i] each, the request's passages tokenised, best first, with what follows them in
            their documents. One that repeats, overlaps or continues another is joined to the better one, and
            empty at its own place.
        vocab_size: Ids at or above this are never drafted.
        temperature: That the answer is drawn with; 0 for greedy decoding.
        forms: int32 [at most vocab_size], which tokens are alike but for case, spaces and punctuation
            (``groundspeed.drafting.forms.token_forms``); None where that is not known.
        namespaces: What of a datastore may be drafted from; None for all that the drafter sees.
        target: The target model, for drafters that use its heads or its layers; None where there is none to
            hand on: in a replay, and where the model verifies no trees.
    """

    prompt_ids: NDArray[np.int32]
    passages: tuple[NDArray[np.int32], ...]
    vocab_size: int
    forms: NDArray[np.int32] | None = None
    temperature: float = 0.0
    namespaces: tuple[str, ...] | None = None
    target: TargetView | None = None


@dataclass(frozen=True, slots=True, eq=False)
class DraftTree:
    """A tree of draft tokens that hangs off the last committed token. n nodes in topological order.

    An empty tree is a good answer: it means plain decoding. No node has two children with the same token.

    Attributes:
        token_ids: int32 [n].
        parents: int32 [n], -1 for a child of the last committed token, otherwise ``parents[i] < i``.
        probs: float32 [n], estimated probability that the whole path to the node is accepted, in (0, 1],
            never above the parent's.
        source: uint16 [n], the ``groundspeed.types.Source`` that proposed the node.
        origin: int64 [n], where in the source: for passages ``passage << 32 | token``, for prompt and output
            the token position in prompt + output, for the datastore ``piece << 40 | position`` as
            ``Snapshot.document_at`` takes them; -1 where that is not known.
        draft_probs: What a stochastic drafter drew and from what; None for deterministic drafters.
    """

    token_ids: NDArray[np.int32]
    parents: NDArray[np.int32]
    probs: NDArray[np.float32]
    source: NDArray[np.uint16]
    origin: NDArray[np.int64]
    draft_probs: DraftProbs | None = None

    def __len__(self) -> int:
        return len(self.token_ids)

    @classmethod
    def empty(cls) -> DraftTree:
        """The tree that drafts nothing."""
        return _EMPTY

    def validate(self, vocab_size: int) -> None:
        """Check the contract.

        Args:
            vocab_size: Token ids must lie in [0, vocab_size).

        Raises:
            DraftError: Naming the first node that breaks the contract.
        """
        n = len(self)
        columns: dict[str, tuple[NDArray[Any], type[np.generic]]] = {
            "token_ids": (self.token_ids, np.int32),
            "parents": (self.parents, np.int32),
            "probs": (self.probs, np.float32),
            "source": (self.source, np.uint16),
            "origin": (self.origin, np.int64),
        }
        for name, (column, dtype) in columns.items():
            if column.shape != (n,) or column.dtype != dtype:
                raise DraftError(
                    f"{name} is {column.dtype} {list(column.shape)} in a tree of {n} nodes; "
                    f"a drafter must give {np.dtype(dtype)} [{n}]."
                )

        children: set[tuple[int, int]] = set()
        probs = self.probs.tolist()
        stray = next((code for code in self.source.tolist() if code not in _DRAFT_SOURCES), None)
        if stray is not None:
            raise DraftError(
                f"source holds {stray}; a drafter must give one of {sorted(_DRAFT_SOURCES)}, the draft "
                "sources of groundspeed.types.Source."
            )
        for node, (token, parent) in enumerate(
            zip(self.token_ids.tolist(), self.parents.tolist(), strict=True)
        ):
            ceiling = probs[parent] if 0 <= parent < node else 1.0
            if not 0 <= token < vocab_size:
                breach = f"drafts token {token}, outside the vocabulary of {vocab_size}"
            elif not -1 <= parent < node:
                breach = f"has parent {parent}, which is neither -1 nor an earlier node"
            elif not 0.0 < probs[node] <= ceiling:
                breach = f"has path probability {probs[node]}, outside (0, {ceiling}], its parent's"
            elif (parent, token) in children:
                breach = f"repeats token {token} under parent {parent}"
            else:
                children.add((parent, token))
                continue
            raise DraftError(f"Node {node} of the draft tree {breach}; the drafter that made it is at fault.")
        if self.draft_probs is not None:
            self.draft_probs.validate(n, vocab_size)


@dataclass(frozen=True, slots=True, eq=False)
class RunnerUps:
    """What the target held possible after each token of a pass: the last committed one, then the n nodes.

    Attributes:
        token_ids: int32 [n + 1].
        parents: int32 [n + 1], the row of the token before, -1 for row 0.
        top_ids: int32 [n + 1, k], the target's k most probable next tokens, best first.
    """

    token_ids: NDArray[np.int32]
    parents: NDArray[np.int32]
    top_ids: NDArray[np.int32]


class Drafter(Protocol):
    """Drafts for one request: ``begin``, then ``extend`` and ``propose`` in turn, then ``end``.

    What is shared between requests (a datastore, calibration) is handed to the constructor and is safe under
    threads; the drafter itself is used by one request at a time.

    A drafter may fail: its request goes on without drafts. One from outside this project has a second for
    each call, as all requests of the engine wait for it; what takes longer belongs on a thread of its own.
    """

    def begin(self, request: DraftRequest) -> None:
        """Take in the prompt and the passages."""
        ...

    def extend(self, token_ids: NDArray[np.int32]) -> None:
        """Take in newly committed tokens, int32 [k]."""
        ...

    def propose(self, budget: int) -> DraftTree:
        """Draft what may follow the committed text, with at most ``budget`` nodes."""
        ...

    def end(self) -> None:
        """The request is over; free what it held."""
        ...


@runtime_checkable
class RecyclingDrafter(Drafter, Protocol):
    """A drafter that also learns from what the target showed and did not choose.

    Attributes:
        runners_up: How many tokens k of each row it wants, 0 for none.
    """

    runners_up: int

    def recycle(self, shown: RunnerUps) -> None:
        """Take in what a verification showed; called before the ``extend`` with what it accepted."""
        ...


@runtime_checkable
class ThriftyDrafter(Drafter, Protocol):
    """A drafter that takes less time where fewer nodes are worth verifying.

    Attributes:
        least: Paths less probable than this are not worth a node at present; set before ``propose``.
    """

    least: float


class DrafterFactory(Protocol):
    """Makes a drafter for a new request."""

    def __call__(self) -> Drafter:
        """Return a fresh drafter."""
        ...


@runtime_checkable
class WarmDrafterFactory(DrafterFactory, Protocol):
    """A factory whose drafters need something compiled, or loaded, before the first of them is made."""

    def warm_up(self) -> None:
        """Get ready now, so that no request waits for it; may be called again, in any thread."""
        ...


_DRAFT_SOURCES = frozenset(int(source) for source in Source if source is not Source.TARGET)

_EMPTY = DraftTree(
    token_ids=np.empty(0, np.int32),
    parents=np.empty(0, np.int32),
    probs=np.empty(0, np.float32),
    source=np.empty(0, np.uint16),
    origin=np.empty(0, np.int64),
)
