"""The default drafter: one blended variable-order predictor over passages, prompt and output."""

from __future__ import annotations

from functools import cache
from importlib.resources import as_file, files

import numpy as np
from numpy.typing import NDArray

from groundspeed.drafting.base import DraftRequest, DraftTree
from groundspeed.drafting.growth import commit, grow, most_frequent
from groundspeed.drafting.offers import (
    CANDIDATES,
    FEATURES,
    HEAT,
    HOT,
    LAYOUT,
    MATCH,
    NODE_COLUMNS,
    NONE_FEATURES,
    OUTPUT,
    PLACE,
    STATE,
    STREAM,
    VOCABULARY,
    WEIGHTS,
    offer,
)
from groundspeed.drafting.suffix import CONTEXT, CONTEXT_LENGTH, SuffixIndex
from groundspeed.errors import DraftError

__all__ = ["BlendDrafter", "load_priors", "warm_up"]

_FREQUENT = 16  # tokens of order 0


@cache
def load_priors() -> NDArray[np.float64]:
    """The shipped weights, float64 [WEIGHTS], fitted by ``benchmarks/fit_priors.py``."""
    with as_file(files("groundspeed.drafting") / "priors.npy") as path:
        priors: NDArray[np.float32] = np.load(path)
        return priors.astype(np.float64)


def warm_up() -> None:
    """Compile the kernels, or load them from numba's cache, so that no request waits for it.

    About 5 s on the first run after an installation, 0.3 s later. Safe in a thread beside other work.
    """
    drafter = BlendDrafter()
    token = np.zeros(1, np.int32)
    drafter.begin(DraftRequest(prompt_ids=token, passages=(), vocab_size=1))
    drafter.extend(token)
    drafter.propose(1)


class BlendDrafter:
    """Drafts from the request's passages, its prompt and what was generated so far.

    At every node of the tree the tokens that followed its context anywhere compete (``offers``); the tree
    grows best-first by path probability, so for any budget it holds the most probable nodes (the argument of
    Sequoia and EAGLE-2). Nodes come depth first, the most probable child first.
    """

    def __init__(self, priors: NDArray[np.float64] | None = None) -> None:
        """Make a drafter for one request.

        Args:
            priors: float64 [WEIGHTS], the weights of the predictor; the shipped ones by default.

        Raises:
            DraftError: Priors of another shape.
        """
        self._weights = load_priors() if priors is None else priors
        if self._weights.shape != (WEIGHTS,):
            raise DraftError(
                f"The priors have shape {self._weights.shape}, this version takes ({WEIGHTS},); "
                "fit them again with benchmarks/fit_priors.py."
            )
        self.end()

    def begin(self, request: DraftRequest) -> None:
        """Index the passages, best first, and the prompt."""
        self.end()
        texts = (*request.passages, request.prompt_ids)
        self._index.reserve(sum(len(text) + 1 for text in texts))
        starts = []
        for text in texts:
            self._index.boundary()
            starts.append(len(self._index))
            self._index.extend(text)
        self._starts = np.array(starts, np.int64)
        self._layout[STREAM] = starts[-1]
        self._layout[OUTPUT] = len(self._index)
        self._layout[VOCABULARY] = request.vocab_size
        self._frequent = most_frequent(self._index.states, self._index.edges, request.vocab_size, _FREQUENT)
        self._node[STATE] = self._index.registers[CONTEXT]
        self._node[MATCH] = self._index.registers[CONTEXT_LENGTH]

    def extend(self, token_ids: NDArray[np.int32]) -> None:
        """Take in newly committed tokens, int32 [k]."""
        index = self._index
        index.reserve(len(token_ids))
        commit(index.tokens, index.states, index.edges, index.table, index.registers, self._node, token_ids)

    def propose(self, budget: int) -> DraftTree:
        """Draft what may follow the committed text, with at most ``budget`` nodes."""
        if budget <= 0:
            return DraftTree.empty()
        index = self._index
        return DraftTree(
            *grow(
                index.tokens,
                index.states,
                index.edges,
                index.table,
                self._layout,
                self._starts,
                self._frequent,
                self._node,
                self._weights,
                budget,
            )
        )

    def end(self) -> None:
        """Forget the request."""
        self._index = SuffixIndex()
        self._layout = np.zeros(LAYOUT, np.int64)
        self._starts = np.zeros(1, np.int64)
        self._frequent = np.empty(0, np.int64)
        self._node = np.zeros(NODE_COLUMNS, np.int64)
        self._node[PLACE] = -1
        self._node[HEAT] = HOT // 2

    def offers(self) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int32]]:
        """What may follow the committed text, as the fit of the priors wants it.

        Returns:
            int64 [c] candidate tokens, int32 [c, FEATURES] their features, int32 [NONE_FEATURES] those of
            "none of them".
        """
        index = self._index
        candidates = np.empty((CANDIDATES, 3), np.int64)
        features = np.empty((CANDIDATES, FEATURES), np.int32)
        none_features = np.empty(NONE_FEATURES, np.int32)
        n = offer(
            index.tokens, index.states, index.edges, index.table, self._layout, self._frequent,
            self._node, candidates, features, none_features,
        )  # fmt: skip
        return candidates[:n, 0], features[:n], none_features
