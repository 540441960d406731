"""An online suffix index over token ids: which tokens followed this context, how often, and where.

A suffix automaton (Blumer et al. 1985) over several texts, in flat numba arrays. A state stands for the
strings that end at the same places; its suffix links lead to ever shorter suffixes, so the states on the link
chain of the text's end are the different contexts a variable-order predictor wants to ask. Appending a token
is amortised O(1) in the length of the text: the automaton's own work, plus one walk over at most
``MAX_MATCH`` links that keeps the counts.
"""
# mypy: allow-untyped-defs

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from groundspeed.jit import kernel

__all__ = ["MAX_MATCH", "SuffixIndex"]

MAX_MATCH = 64
"""Longest context, in tokens, that is counted and asked for. Longer matches are as certain as this one."""

SEAM = -1
"""Stands in ``SuffixIndex.tokens`` before each text and after the last."""

# Columns of SuffixIndex.states, one row a state; row 0 is the empty string.
LENGTH = 0  # tokens of the state's longest string
LINK = 1  # state of the longest suffix that ends at more places; -1 for the root
COUNT = 2  # places its strings end at; kept for strings of at most MAX_MATCH + 1 tokens
FIRST = 3  # position of the last token of the earliest occurrence
LATEST = 4  # position of the last token of the latest occurrence; kept as COUNT is
EDGES = 5  # newest outgoing edge, -1 for none
STATE_COLUMNS = 6

# Columns of SuffixIndex.edges, one row a transition.
TOKEN = 0
TARGET = 1
NEXT = 2  # next older edge of the same state, -1 for the last
OWNER = 3  # state it leaves
EDGE_COLUMNS = 4

# Entries of SuffixIndex.registers.
STATES = 0  # states in use
EDGES_USED = 1  # edges in use
LAST = 2  # state of the whole current text
CONTEXT = 3  # state of the current text's last CONTEXT_LENGTH tokens
CONTEXT_LENGTH = 4  # min(tokens since the last boundary, MAX_MATCH)
SIZE = 5  # tokens in `tokens`
REGISTERS = 6

_START_CAPACITY = 1024


class SuffixIndex:
    """The texts of one request, indexed as they grow.

    Attributes:
        tokens: int32 [capacity + 1], all texts one after the other; ``len(index)`` are in use, then a seam.
        states: int32 [2 * capacity + 1, STATE_COLUMNS].
        edges: int32 [3 * capacity, EDGE_COLUMNS].
        table: int32 [a power of two], open addressing from (state, token) to edge + 1; 0 is free.
        registers: int64 [REGISTERS].
    """

    __slots__ = ("edges", "registers", "states", "table", "tokens")

    def __init__(self) -> None:
        self.tokens = np.full(1, SEAM, np.int32)
        self.states = np.empty((0, STATE_COLUMNS), np.int32)
        self.edges = np.empty((0, EDGE_COLUMNS), np.int32)
        self.table = np.zeros(0, np.int32)
        self.registers = np.zeros(REGISTERS, np.int64)
        self._resize(_START_CAPACITY)
        self.states[0] = (0, -1, 0, -1, -1, -1)
        self.registers[STATES] = 1

    def __len__(self) -> int:
        return int(self.registers[SIZE])

    @property
    def arrays(self) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]:
        """tokens, states, edges, table: what kernels that only read take."""
        return self.tokens, self.states, self.edges, self.table

    def boundary(self) -> None:
        """Start a new text. No match reaches across from the one before, and ``SEAM`` stands between them."""
        self.reserve(1)
        self.registers[SIZE] += 1
        self.tokens[len(self)] = SEAM
        self.registers[LAST] = self.registers[CONTEXT] = self.registers[CONTEXT_LENGTH] = 0

    def extend(self, token_ids: NDArray[np.int32]) -> None:
        """Append tokens, int32 [k], to the current text."""
        self.reserve(len(token_ids))
        append_all(self.tokens, self.states, self.edges, self.table, self.registers, token_ids)

    def reserve(self, count: int) -> None:
        """Make room for ``count`` more tokens; the capacity grows by doubling."""
        needed = len(self) + count
        if needed >= len(self.tokens):
            self._resize(max(needed, 2 * len(self.tokens)))

    def followers(self, context: NDArray[np.int32]) -> dict[int, int]:
        """Tokens that follow the context somewhere, with their number of occurrences.

        Args:
            context: int32 [c], at most ``MAX_MATCH`` tokens.
        """
        state = 0
        for token in context:
            edge = find_edge(self.edges, self.table, state, int(token))
            if edge < 0:
                return {}
            state = int(self.edges[edge, TARGET])
        found = {}
        edge = self.states[state, EDGES]
        while edge >= 0:
            found[int(self.edges[edge, TOKEN])] = int(self.states[self.edges[edge, TARGET], COUNT])
            edge = self.edges[edge, NEXT]
        return found

    def _resize(self, capacity: int) -> None:
        """Make room for ``capacity`` tokens in all: under twice as many states and three times the edges."""
        self.tokens = _grown(self.tokens, capacity + 1)
        self.states = _grown(self.states, 2 * capacity + 1)
        self.edges = _grown(self.edges, 3 * capacity)
        self.table = np.zeros(1 << int(4 * capacity - 1).bit_length(), np.int32)
        fill_table(self.edges, self.table, self.registers)


def _grown(array: NDArray[np.int32], rows: int) -> NDArray[np.int32]:
    grown = np.empty((rows, *array.shape[1:]), np.int32)
    grown[: len(array)] = array
    return grown


@kernel
def find_slot(edges, table, state, token):
    """Slot of ``table`` that holds the edge, or the free slot where it belongs."""
    mask = len(table) - 1
    mixed = np.uint64(state) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(token) * np.uint64(
        0xC2B2AE3D27D4EB4F
    )
    slot = np.int64((mixed ^ (mixed >> np.uint64(29))) >> np.uint64(7)) & mask
    while table[slot] != 0:
        edge = table[slot] - 1
        if edges[edge, OWNER] == state and edges[edge, TOKEN] == token:
            break
        slot = (slot + 1) & mask
    return slot


@kernel
def find_edge(edges, table, state, token):
    """The edge that leaves ``state`` with ``token``, -1 for none."""
    return table[find_slot(edges, table, state, token)] - 1


@kernel
def fill_table(edges, table, registers):
    """Enter all edges into an empty table."""
    for edge in range(registers[EDGES_USED]):
        table[find_slot(edges, table, edges[edge, OWNER], edges[edge, TOKEN])] = edge + 1


@kernel
def add_edge(states, edges, table, registers, state, token, target):
    """Add a transition that is not there yet."""
    edge = registers[EDGES_USED]
    registers[EDGES_USED] = edge + 1
    table[find_slot(edges, table, state, token)] = edge + 1
    edges[edge, TOKEN] = token
    edges[edge, TARGET] = target
    edges[edge, OWNER] = state
    edges[edge, NEXT] = states[state, EDGES]
    states[state, EDGES] = edge


@kernel
def add_state(states, registers, length, link, count, first):
    """Add a state without edges and return it."""
    state = registers[STATES]
    registers[STATES] = state + 1
    states[state, LENGTH] = length
    states[state, LINK] = link
    states[state, COUNT] = count
    states[state, FIRST] = first
    states[state, LATEST] = first
    states[state, EDGES] = -1
    return state


@kernel
def split(states, edges, table, registers, parent, token, target):
    """State for the suffixes that ``parent`` + ``token`` stands for: ``target`` itself, or its shorter half.

    ``target`` is where ``token`` leads from ``parent``. When it also holds strings longer than the parent's
    plus one, those no longer end at the same places, and the shorter ones move to a state of their own.
    """
    length = states[parent, LENGTH] + 1
    if states[target, LENGTH] == length:
        return target
    clone = add_state(
        states, registers, length, states[target, LINK], states[target, COUNT], states[target, FIRST]
    )
    first = registers[EDGES_USED]
    edge = states[target, EDGES]
    while edge >= 0:
        add_edge(states, edges, table, registers, clone, edges[edge, TOKEN], edges[edge, TARGET])
        edge = edges[edge, NEXT]
    for copy in range(first, registers[EDGES_USED]):  # add_edge reversed their order: newest first again
        edges[copy, NEXT] = copy + 1 if copy + 1 < registers[EDGES_USED] else -1
        states[clone, EDGES] = first
    states[target, LINK] = clone
    if registers[CONTEXT] == target and registers[CONTEXT_LENGTH] <= length:
        registers[CONTEXT] = clone
    while parent >= 0:
        edge = find_edge(edges, table, parent, token)
        if edge < 0 or edges[edge, TARGET] != target:
            break
        edges[edge, TARGET] = clone
        parent = states[parent, LINK]
    return clone


@kernel
def append_all(tokens, states, edges, table, registers, token_ids):
    """Append int32 [k] tokens to the current text; there is room for them."""
    for token in token_ids:
        append(tokens, states, edges, table, registers, np.int64(token))


@kernel
def append(tokens, states, edges, table, registers, token):
    """Append one token to the current text; there is room for it."""
    position = registers[SIZE]
    registers[SIZE] = position + 1
    tokens[position] = token
    tokens[position + 1] = SEAM
    parent = registers[LAST]
    edge = find_edge(edges, table, parent, token)
    if edge >= 0:  # the current text, whole, stands elsewhere already
        registers[LAST] = split(states, edges, table, registers, parent, token, edges[edge, TARGET])
    else:
        new = add_state(states, registers, states[parent, LENGTH] + 1, 0, 0, position)
        while parent >= 0 and edge < 0:
            add_edge(states, edges, table, registers, parent, token, new)
            parent = states[parent, LINK]
            if parent >= 0:
                edge = find_edge(edges, table, parent, token)
        if parent >= 0:
            states[new, LINK] = split(states, edges, table, registers, parent, token, edges[edge, TARGET])
        registers[LAST] = new
    count_context(states, edges, table, registers, token, position)


@kernel
def followed(states, state):
    """The state of the longest suffix of a state's strings that something has followed, 0 for none."""
    while state > 0 and states[state, EDGES] < 0:
        state = states[state, LINK]
    return state


@kernel
def count_context(states, edges, table, registers, token, position):
    """Move the current context on by the appended token and count every suffix of it once more."""
    context = edges[find_edge(edges, table, registers[CONTEXT], token), TARGET]
    length = registers[CONTEXT_LENGTH] + 1
    state = context
    while state > 0:
        states[state, COUNT] += 1
        states[state, LATEST] = position
        state = states[state, LINK]
    if length > MAX_MATCH:
        length = MAX_MATCH
        while states[states[context, LINK], LENGTH] >= length:
            context = states[context, LINK]
    registers[CONTEXT] = context
    registers[CONTEXT_LENGTH] = length
