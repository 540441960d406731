"""Drafters that try to break verification."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from groundspeed.drafting.base import DraftRequest, DraftTree
from groundspeed.types import Source


def tree_of(tokens: Sequence[int], parents: Sequence[int], prob: float = 1.0) -> DraftTree:
    """A tree from plain lists; every node is equally likely."""
    n = len(tokens)
    return DraftTree(
        np.array(tokens, np.int32),
        np.array(parents, np.int32),
        np.full(n, prob, np.float32),
        np.full(n, Source.PROMPT, np.uint16),
        np.arange(n, dtype=np.int64),
    )


class Adversary:
    """Knows the answer and drafts around it.

    Args:
        answer: What the target is going to say.
        seed: Of the drafts.
    """

    def __init__(self, answer: Sequence[int], seed: int = 0) -> None:
        self.answer = list(answer)
        self.rng = np.random.default_rng(seed)
        self.proposed = 0

    def begin(self, request: DraftRequest) -> None:
        self.vocab_size = request.vocab_size
        self.done = 0

    def extend(self, token_ids: NDArray[np.int32]) -> None:
        self.done += len(token_ids)

    def end(self) -> None:
        self.done = 0

    def propose(self, budget: int) -> DraftTree:
        tree = self.draft(budget)
        self.proposed += len(tree)
        return tree

    def draft(self, budget: int) -> DraftTree:
        raise NotImplementedError


class RandomTrees(Adversary):
    """Trees of any shape, of tokens that may be right at any node."""

    def draft(self, budget: int) -> DraftTree:
        size = int(self.rng.integers(0, budget + 1))
        tokens: list[int] = []
        parents: list[int] = []
        depths: list[int] = []
        taken: set[tuple[int, int]] = set()
        for _ in range(size):
            parent = int(self.rng.integers(-1, len(tokens)))
            depth = depths[parent] + 1 if parent >= 0 else 0
            right = self.answer[self.done + depth : self.done + depth + 1]
            token = right[0] if right and self.rng.random() < 0.6 else int(self.rng.integers(self.vocab_size))
            if (parent, token) not in taken:
                taken.add((parent, token))
                tokens.append(token)
                parents.append(parent)
                depths.append(depth)
        return tree_of(tokens, parents)


class AllWrong(Adversary):
    """A bush of every kind of wrong tokens."""

    def draft(self, budget: int) -> DraftTree:
        right = set(self.answer[self.done :])
        wrong = [t for t in range(self.vocab_size) if t not in right][: budget // 2]
        if not wrong:
            return DraftTree.empty()
        return tree_of([*wrong, *wrong], [-1] * len(wrong) + list(range(len(wrong))))


class RightAnswer(Adversary):
    """The answer itself, as one path as long as the budget."""

    def draft(self, budget: int) -> DraftTree:
        ahead = self.answer[self.done : self.done + budget]
        return tree_of(ahead, range(-1, len(ahead) - 1))


class RightAnswerLast(Adversary):
    """The answer, each of its nodes behind wrong siblings, so that every acceptance moves the cache."""

    def draft(self, budget: int) -> DraftTree:
        tokens: list[int] = []
        parents: list[int] = []
        parent = -1
        for right in self.answer[self.done : self.done + budget // 3]:
            tokens += [(right + 1) % self.vocab_size, (right + 2) % self.vocab_size, right]
            parents += [parent] * 3
            parent = len(tokens) - 1
        return tree_of(tokens, parents)


class FullBudget(Adversary):
    """Always exactly the budget: a right path filled up with wrong children of its nodes."""

    def draft(self, budget: int) -> DraftTree:
        ahead = self.answer[self.done : self.done + budget // 2]
        tokens, parents = list(ahead), list(range(-1, len(ahead) - 1))
        at = -1
        while len(tokens) < budget:
            free = [
                t for t in range(self.vocab_size) if (at, t) not in set(zip(parents, tokens, strict=True))
            ]
            tokens.append(free[0])
            parents.append(at)
            at = (at + 2) % (len(tokens) + 1) - 1
        return tree_of(tokens, parents)


ADVERSARIES = [RandomTrees, AllWrong, RightAnswer, RightAnswerLast, FullBudget]
