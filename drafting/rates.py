"""How often drafted tokens turn out right, by kind: what drafters estimate path probabilities from."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike, NDArray

from groundspeed.drafting.base import DraftTree

__all__ = ["AcceptanceRates", "verdicts"]

_FIRST, _LAST = 8, 256  # how many tokens the prior counts for, and how many are remembered


class AcceptanceRates:
    """By kind, how often a token is accepted once its parent is; follows what happens.

    May be shared by requests: in several threads an observation may be lost, and nothing else.

    Attributes:
        rates: float64 [kinds].
    """

    def __init__(self, priors: ArrayLike) -> None:
        """Start from a guess for each kind."""
        self.rates: NDArray[np.float64] = np.array(priors, np.float64)
        self._seen = np.full(len(self.rates), _FIRST)

    def observe(self, kind: int, accepted: bool) -> None:
        """Learn from a token."""
        self._seen[kind] = min(self._seen[kind] + 1, _LAST)
        self.rates[kind] += (accepted - self.rates[kind]) / self._seen[kind]


def verdicts(tree: DraftTree, token_ids: NDArray[np.int32]) -> Iterator[tuple[int, bool]]:
    """Which drafted tokens were right, of those whose parent was.

    The text that was committed says so of all nodes, also of those that were cut before the verification.

    Args:
        tree: What was proposed.
        token_ids: int32 [k], what was committed.

    Yields:
        A node, and whether its token came next behind its parent.
    """
    children: dict[int, list[int]] = {}
    for node, parent in enumerate(tree.parents.tolist()):
        children.setdefault(parent, []).append(node)
    parent = -1
    for token in token_ids.tolist():
        right = None
        for node in children.get(parent, ()):
            same = int(tree.token_ids[node]) == token
            right = node if same else right
            yield node, same
        if right is None:
            return
        parent = right
