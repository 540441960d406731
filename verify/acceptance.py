"""Which draft nodes the target model's own choices confirm."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from groundspeed.drafting.base import DraftTree
from groundspeed.drafting.draft_probs import Draws

__all__ = ["Choose", "accept"]


class Choose(Protocol):
    """Chooses tokens by the rows [n + 1] of a verified tree, row 0 for the last committed token."""

    def __call__(self, row: int, drafts: Sequence[Draws] = (), /) -> int:
        """The token of the target's own distribution, argmax or a draw.

        Args:
            row: Of the path's rows the next one down.
            drafts: What a stochastic drafter drew behind the row's node, of which a draw may be one.
        """
        ...


def accept(tree: DraftTree, choose: Choose, ends: Collection[int] = ()) -> tuple[list[int], int]:
    """Walk down the tree along the target's choices.

    This is exact whatever the tree holds: each token is chosen from the target's own distribution given its
    true prefix, and a node only decides whether the next row is there. Where a node's children were drawn,
    ``choose`` is told, and takes the drafts for its own draw as often as it may.

    Args:
        tree: The verified draft.
        choose: The target's choice; called for visited rows only.
        ends: Tokens behind which nothing is chosen any more: one ends the walk as the bonus token.

    Returns:
        The accepted nodes from the root down, and the bonus token that follows the last of them.
    """
    children = {
        (parent, token): node
        for node, (parent, token) in enumerate(
            zip(tree.parents.tolist(), tree.token_ids.tolist(), strict=True)
        )
    }
    drafts = {} if tree.draft_probs is None else tree.draft_probs.by_node()
    path: list[int] = []
    node = -1
    while True:
        token = choose(node + 1, drafts[node]) if node in drafts else choose(node + 1)
        child = children.get((node, token))
        if child is None or token in ends:
            return path, token
        path.append(child)
        node = child
