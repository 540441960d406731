"""Lookahead decoding: the target drafts for itself, out of guesses that it improves pass by pass.

Fu et al. 2024 (arXiv 2402.02057). A window of guesses stands behind the text; each pass replaces every guess
by what the target says behind the guesses before it (Jacobi iteration), and the n-grams that come about on
the way go to a pool, beside those of the prompt. When one begins with the last token of the text, its
continuation is a draft.

The window needs no pass of its own: it is a tree. Its level 0 is a chain of W tokens behind the last
committed one, and the guess of level j in column i follows that of level j - 1 in the same column. So it
stands in the draft tree beside the continuations from the pool, and what the target says of it comes back
through ``recycle``.
"""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
from numpy.typing import NDArray

from groundspeed.drafting.base import DraftRequest, DraftTree, RunnerUps
from groundspeed.drafting.builder import TreeBuilder
from groundspeed.drafting.tree import verdicts
from groundspeed.errors import InputError
from groundspeed.types import Source

__all__ = ["LookaheadDrafter", "NgramPool"]

# Rate of tokens from the pool at first, for how many that counts, and for how many the rate lasts.
_PRIOR, _DOUBT, _MEMORY = 0.4, 8, 256
_WORTH, _WORTH_STEPS = 0.06, 16  # what a window guess is worth at first, and for how many steps that counts


class NgramPool:
    """The n-grams that came about last, by their first token, and which of them the window found."""

    def __init__(self, most: int) -> None:
        """Start empty.

        Args:
            most: N-grams that are kept for each first token.
        """
        self._most = most
        self._by_first: dict[int, OrderedDict[tuple[int, ...], bool]] = {}

    def add(self, ngram: tuple[int, ...], *, guessed: bool) -> None:
        """Keep an n-gram, guessed by the window or read; the one that came longest ago makes room."""
        kept = self._by_first.setdefault(ngram[0], OrderedDict())
        kept.setdefault(ngram[1:], guessed)
        kept.move_to_end(ngram[1:])
        if len(kept) > self._most:
            kept.popitem(last=False)

    def behind(self, token: int) -> list[tuple[tuple[int, ...], bool]]:
        """What followed a token, the latest first, and whether it was guessed."""
        return list(reversed(self._by_first.get(token, {}).items()))


class LookaheadDrafter:
    """Drafts from the pool, and proposes the window along with it.

    The probability of a token from the pool is how often tokens at its depth were accepted. A guess of the
    window brings little in its own pass; its ``probs`` say what it is worth to verify it: tokens that guesses
    brought, sooner or later, by guess. So a window that brings less than it costs is cut by the budget, from
    its last column on, and the other columns go on.

    Attributes:
        runners_up: The most probable token behind each guess is wanted.
    """

    runners_up = 1

    def __init__(self, window: int = 4, ngram: int = 3, candidates: int = 4) -> None:
        """Make a drafter for one request.

        Args:
            window: W, columns of guesses.
            ngram: N, tokens of an n-gram; the window has N - 1 levels, which makes W (N - 1) nodes.
            candidates: G, n-grams that are drafted at most.

        Raises:
            InputError: Numbers that make no window.
        """
        if window < 1 or ngram < 2 or candidates < 1:
            raise InputError(
                f"a window of {window} columns, n-grams of {ngram} tokens and {candidates} candidates were "
                "asked for; give at least 1, 2 and 1"
            )
        self._levels, self._columns = ngram - 1, window
        self._candidates = candidates
        self._pool = NgramPool(candidates)
        self._rates = np.full(self._levels, _PRIOR)  # by depth, how often tokens are right
        self._tried = np.full(self._levels, _DOUBT)
        self._worth = _WORTH
        self._moved = 0  # tokens by which the window is ahead of the text
        self._proposed = DraftTree.empty()
        self._kinds: list[tuple[int, bool]] = []
        """Depth of each proposed node from the pool, which come first, and whether it was guessed."""

    def begin(self, request: DraftRequest) -> None:
        """Fill the window with tokens of the prompt, and the pool with its n-grams."""
        self._random = np.random.default_rng(0)
        known = request.prompt_ids[request.prompt_ids < request.vocab_size]
        self._prompt = known if len(known) else np.zeros(1, np.int32)
        self._last = int(self._prompt[-1])
        self._window = self._guesses(self._levels, self._columns)
        tokens = known.tolist()
        for ngram in zip(*(tokens[i:] for i in range(self._levels + 1)), strict=False):
            self._pool.add(ngram, guessed=False)

    def recycle(self, shown: RunnerUps) -> None:
        """Move the window on by one token, by what the target said behind its columns."""
        rows: dict[tuple[int | None, int], int] = {
            (parent, token): row
            for row, (parent, token) in enumerate(
                zip(shown.parents.tolist(), shown.token_ids.tolist(), strict=True)
            )
        }
        said = self._guesses(1, self._columns)
        first: int | None = 0
        for column in range(self._columns):
            first = rows.get((first, int(self._window[0, column])))
            row: int | None = first
            for level in range(1, self._levels):
                row = rows.get((row, int(self._window[level, column])))
            if row is None:  # this column and those behind it were cut
                if column == 0:
                    return
                break
            said[0, column] = shown.top_ids[row, 0]
            self._pool.add((*self._window[:, column].tolist(), int(said[0, column])), guessed=True)
        self._window = np.vstack([self._window[1:], said])
        self._moved = 1

    def extend(self, token_ids: NDArray[np.int32]) -> None:
        """Take in newly committed tokens, int32 [k]."""
        if not len(token_ids):
            return
        brought = 0
        for node, right in verdicts(self._proposed, token_ids):
            depth, guessed = self._kinds[node] if node < len(self._kinds) else (-1, True)
            brought += right and guessed
            if depth >= 0:
                self._tried[depth] = min(self._tried[depth] + 1, _MEMORY)
                self._rates[depth] += (right - self._rates[depth]) / self._tried[depth]
        guesses = len(self._proposed) - len(self._kinds)
        if guesses:
            self._worth += (brought / guesses - self._worth) / _WORTH_STEPS
        self._last = int(token_ids[-1])
        self._proposed = DraftTree.empty()
        gone = min(len(token_ids) - self._moved, self._columns)
        self._moved = 0
        self._window = np.hstack([self._window[:, gone:], self._guesses(self._levels, gone)])

    def propose(self, budget: int) -> DraftTree:
        """The n-grams of the pool that the last token begins, and the window, column by column."""
        builder = TreeBuilder(max(budget, 0), Source.RECYCLED)
        self._kinds = []
        for ngram, guessed in self._pool.behind(self._last):
            node: int | None = -1
            prob = 1.0
            for depth, token in enumerate(ngram):
                prob *= float(self._rates[depth])
                node = None if node is None else builder.add(node, token, prob)
                self._kinds += [(depth, guessed)] * (len(builder.token_ids) - len(self._kinds))
        first: int | None = -1
        for column in self._window.T.tolist():
            first = node = None if first is None else builder.add(first, column[0], self._worth)
            for token in column[1:]:
                node = None if node is None else builder.add(node, token, self._worth)
        self._proposed = builder.tree()
        return self._proposed

    def end(self) -> None:
        """Free the pool."""
        self._pool = NgramPool(self._candidates)

    def _guesses(self, levels: int, columns: int) -> NDArray[np.int32]:
        """Tokens of the prompt at random, which are at least of the text's kind."""
        return self._random.choice(self._prompt, (levels, columns))
