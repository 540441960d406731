"""The state of a draft node, and how a token moves it on."""
# mypy: allow-untyped-defs

from __future__ import annotations

from groundspeed.drafting.suffix import FIRST, LENGTH, LINK, MAX_MATCH
from groundspeed.jit import kernel

__all__ = ["LAYOUT", "NODE_COLUMNS", "advance"]

# Columns of a node: what the candidates are computed from.
STATE = 0  # state of the node's context in the suffix automaton
MATCH = 1  # tokens of that context that are matched, at most MAX_MATCH
PLACE = 2  # position in the texts that a copy would continue at, -1 for none
ASTRAY = 3  # tokens since the copy was broken, 0 while it lasts
RUN = 4  # tokens copied before it was broken
HEAT = 5  # share of recent output that repeats earlier text, in [0, HOT]
FORM_PLACE = 6  # position that a text goes on at whose forms agree, where tokens do not, -1 for none
FORM_RUN = 7  # forms that agree
LAST = 8  # last token of the node's text, -1 for none
PREVIOUS = 9  # the one before
NODE_COLUMNS = 10
HOT = 1000

# Entries of `layout`: where the texts of the request lie in SuffixIndex.tokens.
SECOND = 0  # first token after the best passage
OTHERS = 1  # first token after the best three
STREAM = 2  # first token of the prompt; the passages lie before it
OUTPUT = 3  # first generated token
VOCABULARY = 4  # ids at or above are never offered
LAYOUT = 5

_PATIENCE = 6  # tokens off the copy before another place is taken up


@kernel
def advance(index, node, token, state, match):
    """Move ``node`` on by a token that leads to ``state`` (-1: to none) with ``match`` tokens matched."""
    tokens, states, _, _ = index
    if state < 0:
        state = match = 0
    if match > MAX_MATCH:
        match = MAX_MATCH
        while states[states[state, LINK], LENGTH] >= match:
            state = states[state, LINK]
    node[STATE] = state
    node[MATCH] = match
    node[PREVIOUS] = node[LAST]
    node[LAST] = token
    place = node[FORM_PLACE]
    if place >= 0 and tokens[place] == token:
        node[FORM_PLACE] = place + 1
        node[FORM_RUN] += 1
    else:
        node[FORM_PLACE] = -1
    place = node[PLACE]
    if place >= 0 and tokens[place] == token:
        node[PLACE] = place + 1
        node[RUN] = node[RUN] + 1 if node[ASTRAY] == 0 else 1
        node[ASTRAY] = 0
    elif place >= 0 and match < 3 and node[ASTRAY] > 0 and tokens[place] >= 0 and tokens[place + 1] == token:
        node[PLACE] = place + 2
        node[RUN] = 1
        node[ASTRAY] = 0
    elif match >= 3 or place < 0 or node[ASTRAY] >= _PATIENCE:
        node[PLACE] = states[state, FIRST] + 1 if state > 0 else -1
        node[RUN] = match
        node[ASTRAY] = 0
    else:
        node[ASTRAY] += 1
