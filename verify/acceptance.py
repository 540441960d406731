"""Which draft nodes the target model's own choices confirm."""

from __future__ import annotations

from collections.abc import Callable, Collection

from groundspeed.drafting.base import DraftTree

__all__ = ["accept"]


def accept(
    tree: DraftTree, choose: Callable[[int], int], ends: Collection[int] = ()
) -> tuple[list[int], int]:
    """Walk down the tree along the target's choices.

    For deterministic drafts this is exact whatever ``choose`` does, argmax or a draw: each token is chosen
    from the target's own distribution given its true prefix, and a draft only decides whether the next row is
    there.

    Args:
        tree: The verified draft.
        choose: The token that the target chooses by row of the verified logits; called for visited rows only.
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
    path: list[int] = []
    node = -1
    while True:
        token = choose(node + 1)
        child = children.get((node, token))
        if child is None or token in ends:
            return path, token
        path.append(child)
        node = child
