"""Draft models without a neural network: what follows a text is a table, and every call is checked."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from groundspeed.drafting.base import DraftTree
from groundspeed.drafting.draft_lm import Outlook


class TableLM:
    """A draft model whose distribution depends on the last token and on the length of the text.

    Attributes:
        logits: float64 [2, vocab, vocab], by the parity of the length and the last token.
        texts: All that were opened.
        passes: Rows of each pass.
        tokens: How many were read, in all.
    """

    def __init__(self, vocab_size: int, seed: int = 0, *, branches: bool = True, spread: float = 1.5) -> None:
        self.vocab_size = vocab_size
        self.branches = branches
        self.context_length: int | None = None
        self.logits = np.random.default_rng(seed).normal(0, spread, (2, vocab_size, vocab_size))
        self.texts: list[TableText] = []
        self.passes: list[int] = []
        self.tokens = 0

    def open(self, vocab_size: int, target: object = None) -> TableText:
        self.texts.append(TableText(self, vocab_size))
        return self.texts[-1]

    def logprobs(self, text: Sequence[int]) -> NDArray[np.float64]:
        """Behind a text, [vocab]."""
        logits = self.logits[len(text) % 2, text[-1]]
        logprobs: NDArray[np.float64] = logits - np.log(np.exp(logits).sum())
        return logprobs


class TableText:
    """Knows which tokens it was shown, as a KV cache does.

    Attributes:
        committed: The text that is sure.
        nodes: Paths of the nodes that wait.
        closed: Whether it was.
    """

    def __init__(self, lm: TableLM, vocab_size: int) -> None:
        self._lm = lm
        self._vocab_size = vocab_size
        self.committed: list[int] = []
        self.nodes: list[list[int]] = []
        self.closed = False

    def read(self, token_ids: NDArray[np.int32], tree: DraftTree, held: int, k: int) -> Outlook:
        assert not self.closed
        assert held == len(self.nodes)
        assert len(token_ids) == 0 or held == 0
        self.committed += token_ids.tolist()
        assert self.committed
        for node in range(held, len(tree)):
            parent = int(tree.parents[node])
            assert -1 <= parent < node
            assert self._lm.branches or parent == node - 1
            above = [] if parent < 0 else self.nodes[parent]
            self.nodes.append([*above, int(tree.token_ids[node])])
        behind = [[]] * bool(len(token_ids)) + self.nodes[held:]
        self._lm.passes.append(len(behind))
        self._lm.tokens += len(token_ids) + len(tree) - held
        rows = np.array([self._lm.logprobs([*self.committed, *path])[: self._vocab_size] for path in behind])
        best = np.argsort(-rows, axis=1, kind="stable")[:, :k]
        return Outlook(best.astype(np.int32), np.take_along_axis(rows, best, 1).astype(np.float32))

    def commit(self, path: Sequence[int]) -> None:
        for above, node in zip([-1, *path], path, strict=False):
            before = [] if above < 0 else self.nodes[above]
            assert self.nodes[node][:-1] == before, "a path goes from the root down"
        if path:
            self.committed += self.nodes[path[-1]]
        self.nodes = []

    def close(self) -> None:
        self.closed = True
