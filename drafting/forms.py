"""Finding text again that is written otherwise: in another case, after a quotation mark, on a new line.

A quote seldom starts as its passage tokenised it: ``The`` is another token than `` the``, and a quotation
mark, a list mark or a line break stands where a space stood. Texts are therefore indexed a second time by the
form of their tokens, what is left of them without case, spaces and punctuation; tokens of nothing else are
passed over. Where more forms agree than tokens do, a copy is taken up at that place.
"""
# mypy: allow-untyped-defs

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from groundspeed.drafting.suffix import (
    CONTEXT,
    CONTEXT_LENGTH,
    FIRST,
    LENGTH,
    SuffixIndex,
    append,
    followed,
)
from groundspeed.jit import kernel

__all__ = ["FormIndex", "follow_form", "token_forms"]

_CUT = "\N{REPLACEMENT CHARACTER}"


def token_forms(texts: Iterable[str]) -> NDArray[np.int32]:
    """Which tokens of a vocabulary are alike but for case, spaces and punctuation.

    Args:
        texts: The text of each token, by id.

    Returns:
        int32 [vocab], the same number for tokens that are alike, -1 for those without a letter or digit and
        for parts of a character.
    """
    names: dict[str, int] = {}
    forms = []
    for text in texts:
        form = "" if _CUT in text else "".join(filter(str.isalnum, text.casefold()))
        forms.append(names.setdefault(form, len(names)) if form else -1)
    return np.array(forms, np.int32)


class FormIndex:
    """The texts of one request, indexed by the forms of their tokens."""

    def __init__(self, forms: NDArray[np.int32] | None) -> None:
        """Start without texts.

        Args:
            forms: int32 [vocab], of ``token_forms``; None to index nothing.
        """
        self._forms = np.empty(0, np.int32) if forms is None else forms
        self._index = SuffixIndex()
        self._places = np.empty(0, np.int64)

    def add(self, texts: Sequence[NDArray[np.int32]], starts: Sequence[int]) -> None:
        """Index texts, int32 [n_i] each, that begin at ``starts`` in the ``SuffixIndex``; once."""
        if not len(self._forms):
            return
        self._index.reserve(sum(len(text) + 1 for text in texts))
        places: list[NDArray[np.int64]] = []
        for text, start in zip(texts, starts, strict=True):
            known = np.minimum(text, len(self._forms) - 1)
            forms = np.where(text < len(self._forms), self._forms[known], -1).astype(np.int32)
            kept = np.flatnonzero(forms >= 0)
            self._index.boundary()
            self._index.extend(forms[kept])
            places += [np.array([-1]), kept + start]
        self._places = np.concatenate(places)

    def arrays(self, more: int) -> tuple[NDArray[Any], ...]:
        """What ``follow_form`` takes, with room for ``more`` tokens."""
        self._index.reserve(more)
        return (*self._index.arrays, self._index.registers, self._places, self._forms)


@kernel
def follow_form(form_index, token):
    """Take in a committed token and look for the context's forms in the texts.

    Args:
        form_index: Of ``FormIndex.arrays``.
        token: The token.

    Returns:
        Where in the ``SuffixIndex`` the text goes on behind the longest match, -1 for nowhere, and how many
        forms match.
    """
    tokens, states, edges, table, registers, places, forms = form_index
    if token >= len(forms) or forms[token] < 0:
        return np.int64(-1), np.int64(0)
    append(tokens, states, edges, table, registers, np.int64(forms[token]))
    state = followed(states, registers[CONTEXT])
    first = states[state, FIRST]
    if state == 0 or first >= len(places):  # only the answer itself has it
        return np.int64(-1), np.int64(0)
    return places[first] + 1, min(states[state, LENGTH], registers[CONTEXT_LENGTH])
