"""What a stochastic drafter must tell for its draws to be verified exactly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from groundspeed.errors import DraftError

__all__ = ["DraftProbs", "Draws"]


class Draws(NamedTuple):
    """What was drawn from one distribution q, without replacement.

    Attributes:
        token_ids: int32 [s], rising.
        probs: float32 [s], q of them.
        drawn: int32 [k], tokens, in the order in which they were drawn.
    """

    token_ids: NDArray[np.int32]
    probs: NDArray[np.float32]
    drawn: NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class DraftProbs:
    """What was drawn, and from what: r distributions q over s tokens each, at most k draws from each.

    Each draw is from q without the ones before it, renormalised. Different distributions are drawn from
    independently, also where several belong to one node: draws with replacement are a distribution each.

    **Every draw is listed, whether or not its node is in the tree.** A tree may be cut and others merged into
    it for any reason, as its nodes only decide which rows are there; but to leave out a draw because of what
    was drawn would change the distribution of the text. A drafter's randomness is its own: nothing it draws
    depends on the noise that a request's seed gives.

    Attributes:
        nodes: int32 [r], behind which node, -1 for the last committed token.
        token_ids: int32 [r, s], the tokens that q speaks of, rising in each row. For a whole vocabulary
            ``np.broadcast_to(np.arange(s, dtype=np.int32), (r, s))``, which takes no memory.
        probs: float32 [r, s], q; each row sums to 1.
        drawn: int32 [r, k], tokens in the order in which they were drawn; a row with fewer ends in -1.
    """

    nodes: NDArray[np.int32]
    token_ids: NDArray[np.int32]
    probs: NDArray[np.float32]
    drawn: NDArray[np.int32]

    def by_node(self) -> dict[int, list[Draws]]:
        """What was drawn behind each node, without nodes behind which nothing was."""
        found: dict[int, list[Draws]] = {}
        for row, node in enumerate(self.nodes.tolist()):
            drawn = self.drawn[row]
            found.setdefault(node, []).append(
                Draws(self.token_ids[row], self.probs[row], drawn[: np.count_nonzero(drawn >= 0)])
            )
        return found

    def renamed(self, names: NDArray[np.int32]) -> DraftProbs:
        """What was drawn behind the nodes that stay in the tree.

        Args:
            names: int32 [n + 1], the new number of each node, -1 for those that go; the last entry is -1 and
                stands for the last committed token.
        """
        stays = (self.nodes == -1) | (names[self.nodes] >= 0)
        return DraftProbs(
            names[self.nodes[stays]], self.token_ids[stays], self.probs[stays], self.drawn[stays]
        )

    def validate(self, n: int, vocab_size: int) -> None:
        """Check the contract.

        Args:
            n: Nodes of the tree.
            vocab_size: Token ids must lie in [0, vocab_size).

        Raises:
            DraftError: Naming the first distribution that breaks the contract.
        """
        self._check_shapes()
        right = {
            f"nodes in [-1, {n})": (self.nodes >= -1) & (self.nodes < n),
            f"token_ids that rise in [0, {vocab_size})": (self.token_ids[:, 0] >= 0)
            & (self.token_ids[:, -1] < vocab_size)
            & (np.diff(self.token_ids) > 0).all(1),
            "probs that are not negative and sum to 1": (self.probs.min(1) >= 0)
            & (np.abs(self.probs.sum(1, dtype=np.float64) - 1) < _INEXACT),
            "drawn tokens that differ and are possible, then -1": np.array(
                [_possible(*row) for row in zip(self.token_ids, self.probs, self.drawn, strict=True)], bool
            ),
        }
        for wanted, rows in right.items():
            if not rows.all():
                row = int(rows.argmin())
                raise DraftError(
                    f"draft_probs breaks its contract in distribution {row}, drawn from behind node "
                    f"{self.nodes[row]} with draws {self.drawn[row].tolist()}; a drafter must give {wanted}."
                )

    def _check_shapes(self) -> None:
        r = len(self.nodes)
        s, k = (column.shape[-1] for column in (self.token_ids, self.drawn))
        for name, shape, dtype in (
            ("nodes", (r,), np.int32),
            ("token_ids", (r, max(s, 1)), np.int32),
            ("probs", (r, max(s, 1)), np.float32),
            ("drawn", (r, k), np.int32),
        ):
            column = getattr(self, name)
            if column.shape != shape or column.dtype != dtype:
                raise DraftError(
                    f"draft_probs.{name} is {column.dtype} {list(column.shape)} beside {r} nodes, {s} tokens "
                    f"and {k} draws; a drafter must give {np.dtype(dtype)} {list(shape)}."
                )


_INEXACT = 1e-3
"""How far a float32 sum over a large vocabulary may lie from 1."""


def _possible(token_ids: NDArray[np.int32], probs: NDArray[np.float32], drawn: NDArray[np.int32]) -> bool:
    tokens = drawn[: np.count_nonzero(drawn >= 0)]
    places = np.minimum(np.searchsorted(token_ids, tokens), len(token_ids) - 1)
    return bool(
        (tokens >= 0).all()
        and (drawn[len(tokens) :] == -1).all()
        and len(set(tokens.tolist())) == len(tokens)
        and (token_ids[places] == tokens).all()
        and (probs[places] > 0).all()
    )
