"""Tools for draft trees: paths, merging, pruning."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from groundspeed.drafting.base import DraftTree
from groundspeed.drafting.draft_probs import DraftProbs
from groundspeed.errors import DraftError
from groundspeed.types import Source

__all__ = ["chain", "depths", "leading_chain", "merge", "paths", "prune", "shallow", "verdicts"]


def chain(
    token_ids: NDArray[np.int32],
    probs: NDArray[np.float32] | None = None,
    source: NDArray[np.uint16] | None = None,
    origin: NDArray[np.int64] | None = None,
) -> DraftTree:
    """A tree that is one path.

    Args:
        token_ids: int32 [n].
        probs: float32 [n], path probabilities; 1 by default.
        source: uint16 [n]; the prompt by default.
        origin: int64 [n]; -1 by default.
    """
    n = len(token_ids)
    return DraftTree(
        token_ids=np.ascontiguousarray(token_ids, np.int32),
        parents=np.arange(-1, n - 1, dtype=np.int32),
        probs=np.ones(n, np.float32) if probs is None else probs,
        source=np.full(n, Source.PROMPT, np.uint16) if source is None else source,
        origin=np.full(n, -1, np.int64) if origin is None else origin,
    )


def depths(tree: DraftTree) -> NDArray[np.int32]:
    """Depth of every node, int32 [n]; children of the last committed token have depth 0."""
    depth = np.zeros(len(tree), np.int32)
    for node, parent in enumerate(tree.parents.tolist()):
        if parent >= 0:
            depth[node] = depth[parent] + 1
    return depth


def paths(tree: DraftTree) -> list[list[int]]:
    """Nodes of every path from the root to a leaf, root first, leaves in node order."""
    parents = tree.parents.tolist()
    inner = set(parents)
    found = []
    for leaf in range(len(tree)):
        if leaf not in inner:
            path = [leaf]
            while parents[path[-1]] >= 0:
                path.append(parents[path[-1]])
            found.append(path[::-1])
    return found


def prune(tree: DraftTree, budget: int) -> DraftTree:
    """The ``budget`` most probable nodes, in the order they stand in. Always a tree, as probs never rise."""
    if len(tree) <= budget:
        return tree
    # Stable, so among equals the ancestor, which stands first, is kept first.
    kept = np.sort(np.argsort(-tree.probs, kind="stable")[: max(budget, 0)])
    return _select(tree, kept)


def leading_chain(tree: DraftTree) -> DraftTree:
    """The path that the nodes begin with, which is the greedy one when the best child comes first."""
    size = 0
    while size < len(tree) and tree.parents[size] == size - 1:
        size += 1
    return tree if size == len(tree) else _select(tree, np.arange(size))


def shallow(tree: DraftTree, depth: int) -> DraftTree:
    """The nodes on paths of at most ``depth`` nodes, in the order they stand in."""
    if len(tree) <= depth:
        return tree
    kept = np.flatnonzero(depths(tree) < depth)
    return tree if len(kept) == len(tree) else _select(tree, kept)


def merge(trees: Sequence[DraftTree]) -> DraftTree:
    """Merge trees by common prefix: paths that begin alike share their nodes.

    Of nodes that coincide the first tree's provenance stays, and the larger probability. Nodes come depth
    first, the most probable child first.

    Args:
        trees: Drafts over the same committed text, at most one of them stochastic; provenance of the first
            ones wins.

    Raises:
        DraftError: For more than one stochastic draft.
    """
    children: dict[int, dict[int, int]] = {-1: {}}
    draft_probs: DraftProbs | None = None
    rows: list[tuple[int, int, int]] = []  # token, source, origin
    probs: list[float] = []
    for tree in trees:
        names = [-1] * (len(tree) + 1)  # the last entry stands for the root, index -1
        columns = (tree.token_ids, tree.parents, tree.probs, tree.source, tree.origin)
        for node, (token, parent, prob, source, origin) in enumerate(
            zip(*(column.tolist() for column in columns), strict=True)
        ):
            siblings = children[names[parent]]
            name = siblings.get(token)
            if name is None:
                name = siblings[token] = len(rows)
                children[name] = {}
                rows.append((token, source, origin))
                probs.append(prob)
            names[node] = name
            probs[name] = max(probs[name], prob)
        if tree.draft_probs is not None:
            if draft_probs is not None:
                raise DraftError(
                    "two stochastic drafts were to be merged; merge one with deterministic ones."
                )
            draft_probs = tree.draft_probs.renamed(np.array(names, np.int32))

    order: list[int] = []
    parents: list[int] = []
    stack = [(-1, -1)]
    while stack:
        name, parent = stack.pop()
        if name >= 0:
            order.append(name)
            parents.append(parent)
        here = len(order) - 1 if name >= 0 else -1
        stack += [(child, here) for child in sorted(children[name].values(), key=lambda c: (probs[c], -c))]
    places = _places(len(order), np.array(order, np.intp))
    return DraftTree(
        token_ids=np.array([rows[name][0] for name in order], np.int32),
        parents=np.array(parents, np.int32),
        probs=np.array([probs[name] for name in order], np.float32),
        source=np.array([rows[name][1] for name in order], np.uint16),
        origin=np.array([rows[name][2] for name in order], np.int64),
        draft_probs=None if draft_probs is None else draft_probs.renamed(places),
    )


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


def _select(tree: DraftTree, kept: NDArray[np.intp]) -> DraftTree:
    places = _places(len(tree), kept)
    return DraftTree(
        token_ids=tree.token_ids[kept],
        parents=places[tree.parents[kept]],
        probs=tree.probs[kept],
        source=tree.source[kept],
        origin=tree.origin[kept],
        draft_probs=None if tree.draft_probs is None else tree.draft_probs.renamed(places),
    )


def _places(n: int, order: NDArray[np.intp]) -> NDArray[np.int32]:
    """Where each of n nodes stands in ``order``, -1 for nowhere; the last entry is the root's, index -1."""
    places = np.full(n + 1, -1, np.int32)
    places[order] = np.arange(len(order), dtype=np.int32)
    return places
