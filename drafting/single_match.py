"""Single match: the baseline that follows the one longest match, as SuffixDecoding does."""
# mypy: allow-untyped-defs

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from groundspeed.drafting.base import DraftRequest, DraftTree
from groundspeed.drafting.suffix import (
    CONTEXT,
    CONTEXT_LENGTH,
    COUNT,
    EDGES,
    FIRST,
    LENGTH,
    LINK,
    MAX_MATCH,
    NEXT,
    TARGET,
    TOKEN,
    SuffixIndex,
    find_edge,
    followed,
)
from groundspeed.jit import kernel
from groundspeed.types import Source

__all__ = ["SingleMatchDrafter", "index_history"]


def index_history(texts: Iterable[NDArray[np.int32]]) -> SuffixIndex:
    """Index earlier answers, int32 [n_i] each, for the drafters of many requests to read."""
    index = SuffixIndex()
    for text in texts:
        index.boundary()
        index.extend(text)
    return index


class SingleMatchDrafter:
    """Drafts the most frequent continuations of one match.

    After SuffixDecoding (Oliaro et al. 2024), which weighs matches by their score instead. The longest end of
    the committed text, of at most ``MAX_MATCH`` tokens, that was followed by something is looked for in the
    request (passages, prompt, output) and in the earlier answers; the longer match is taken, the request's
    where they are equal. The tree holds the paths behind it that occurred most often: a path's probability is
    its number of occurrences over that of the match. Shorter matches have no say, nor has the other text.

    A node's origin is the first place in the request where the match stands with the path to the node; nodes
    from earlier answers are of the datastore, of no known origin, -1.
    """

    def __init__(self, history: SuffixIndex | None = None) -> None:
        """Make a drafter for one request.

        Args:
            history: Earlier answers, see ``index_history``; read, never changed.
        """
        self._history = history if history is not None else SuffixIndex()
        self.end()

    def begin(self, request: DraftRequest) -> None:
        """Index the passages, best first, and the prompt."""
        self.end()
        starts = []
        for text in (*request.passages, request.prompt_ids):
            self._index.boundary()
            starts.append(len(self._index))
            self._index.extend(text)
        self._starts = np.array(starts, np.int64)
        self._output = len(self._index)
        self._vocab_size = request.vocab_size
        self._follow_history(request.prompt_ids[-MAX_MATCH:])

    def extend(self, token_ids: NDArray[np.int32]) -> None:
        """Take in newly committed tokens, int32 [k]."""
        self._index.extend(token_ids)
        self._follow_history(token_ids)

    def propose(self, budget: int) -> DraftTree:
        """Draft the ``budget`` most frequent paths behind the longest match."""
        registers = self._index.registers
        ours = _followed(self._index.states, registers[CONTEXT], registers[CONTEXT_LENGTH])
        theirs = _followed(self._history.states, *self._match)
        index, (state, length) = (self._index, ours) if ours[1] >= theirs[1] else (self._history, theirs)
        if not length or budget <= 0:
            return DraftTree.empty()
        token_ids, parents, counts, places = _most_frequent_paths(
            index.states, index.edges, state, length, self._vocab_size, budget
        )
        if index is self._history:
            source = np.full(len(places), Source.DATASTORE, np.uint16)
            origin = np.full(len(places), -1, np.int64)
        else:
            source, origin = self._provenance(places)
        probs = (counts / index.states[state, COUNT]).astype(np.float32)
        return DraftTree(token_ids, parents, probs, source, origin)

    def end(self) -> None:
        """Forget the request."""
        self._index = SuffixIndex()
        self._starts = np.zeros(1, np.int64)
        self._output = self._vocab_size = 0
        self._match = (0, 0)  # state and length of the longest end of the text that stands in the history

    def _follow_history(self, token_ids: NDArray[np.int32]) -> None:
        history = self._history
        self._match = _follow(history.states, history.edges, history.table, *self._match, token_ids)

    def _provenance(self, places: NDArray[np.int64]) -> tuple[NDArray[np.uint16], NDArray[np.int64]]:
        text = np.searchsorted(self._starts, places, side="right") - 1
        offset = places - self._starts[text]
        prompt = len(self._starts) - 1
        source = np.where(places < self._output, Source.PROMPT, Source.OUTPUT)
        source = np.where(text < prompt, Source.PASSAGE, source).astype(np.uint16)
        return source, np.where(text < prompt, text << 32 | offset, offset)


@kernel
def _followed(states, state, length):
    """State and length of the longest suffix of a match that is followed by something."""
    longest = followed(states, state)
    return longest, length if longest == state else states[longest, LENGTH]


@kernel
def _follow(states, edges, table, state, length, token_ids):
    """Move the longest match on by tokens: its state and its length, at most MAX_MATCH."""
    for token in token_ids:
        edge = find_edge(edges, table, state, np.int64(token))
        while edge < 0 and state > 0:
            state = states[state, LINK]
            length = states[state, LENGTH]
            edge = find_edge(edges, table, state, np.int64(token))
        if edge >= 0:
            state, length = _shortened(states, edges[edge, TARGET], length + 1)
    return state, length


@kernel
def _shortened(states, state, length):
    """State and length of a match's last MAX_MATCH tokens."""
    if length > MAX_MATCH:
        length = MAX_MATCH
        while states[states[state, LINK], LENGTH] >= length:
            state = states[state, LINK]
    return state, length


@kernel
def _most_frequent_paths(states, edges, state, length, vocab_size, budget):
    """The ``budget`` most frequent paths that leave a state, most frequent first, among equals shorter ones.

    A path never occurs more often than its beginning, so the nodes are expanded in the order they end up in:
    what stands in the first ``budget`` places of the sorted candidates is the tree. Only the last MAX_MATCH
    tokens of match and path are told apart, as the index counts no more.
    """
    token_ids = np.empty(budget, np.int32)
    parents = np.empty(budget, np.int32)
    counts = np.empty(budget, np.int64)
    reached = np.empty(budget, np.int64)
    lengths = np.empty(budget, np.int64)
    size = 0
    node = -1
    most = states[state, COUNT]
    while node < size:
        if node >= 0:
            state = reached[node]
            length = lengths[node]
            most = counts[node]
        edge = states[state, EDGES]
        while edge >= 0:
            target, longer = _shortened(states, edges[edge, TARGET], length + 1)
            count = min(states[target, COUNT], most)
            if edges[edge, TOKEN] < vocab_size and (size < budget or count > counts[size - 1]):
                size = min(size + 1, budget)
                at = size - 1
                while at > node + 1 and counts[at - 1] < count:
                    token_ids[at] = token_ids[at - 1]
                    parents[at] = parents[at - 1]
                    counts[at] = counts[at - 1]
                    reached[at] = reached[at - 1]
                    lengths[at] = lengths[at - 1]
                    at -= 1
                token_ids[at] = edges[edge, TOKEN]
                parents[at] = node
                counts[at] = count
                reached[at] = target
                lengths[at] = longer
            edge = edges[edge, NEXT]
        node += 1
    places = np.empty(size, np.int64)
    for i in range(size):
        places[i] = states[reached[i], FIRST]
    return token_ids[:size], parents[:size], counts[:size], places
