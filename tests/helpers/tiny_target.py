"""A target of six tokens whose texts have known probabilities, behind the shipped choice of tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from groundspeed.drafting.base import DraftTree
from groundspeed.types import GenerationRequest
from groundspeed.verify.acceptance import accept
from groundspeed.verify.processors import make_processors
from groundspeed.verify.sampling import ProcessedChooser

VOCABULARY = 6
END = 5
"""Ends a text."""

PROMPT = 0
LOGITS = np.random.default_rng(12).normal(0, 1.0, (VOCABULARY, VOCABULARY)).astype(np.float32)
"""By the last token."""

TEXTS = 100_000
"""Two draws each."""

Text = tuple[int, ...]
Rows = dict[Text, NDArray[Any]]
"""One for each text so far, [VOCABULARY]."""


def texts_of(length: int) -> list[Text]:
    """Those that can go on."""
    return list(product(range(END), repeat=length))


def shipped_scores(settings: Mapping[str, Any], length: int) -> Rows:
    """What the processors of a request make of the logits, behind all texts of up to ``length`` tokens."""
    request = GenerationRequest((PROMPT,), **{"temperature": 1.0, **settings})
    cpu = torch.device("cpu")
    processors = make_processors(request, 1, {END}, cpu)
    return {
        text: ProcessedChooser(processors, 0, (PROMPT, *text), 1, cpu).scores(
            torch.from_numpy(LOGITS[[(PROMPT, *text)[-1]]])
        )
        for size in range(length + 1)
        for text in texts_of(size)
    }


class QuickChooser(ProcessedChooser):
    """The shipped chooser with scores from a table, for as many draws as a test needs."""

    def __init__(self, scores: Rows, seed: int) -> None:
        self._table = scores
        self._seed = seed
        self._length = 1
        self._text = np.zeros((1, 3), int)

    def scores(self, logits: Any) -> NDArray[np.float32]:
        return self._table[tuple(self._text[0, 1 : self._length].tolist())]


def counted(scores: Rows, tree_behind: Callable[[int, Text], DraftTree]) -> NDArray[np.int64]:
    """How often each text of two tokens comes out, [VOCABULARY ** 2]; one that ends at once is filled up.

    Args:
        scores: Behind texts of up to one token.
        tree_behind: The draft, by the number of the text and what stands there of it: one level deep at most,
            and without nodes where one token is left.
    """
    counts = np.zeros(VOCABULARY**2, np.int64)
    no_logits = torch.empty(VOCABULARY + 1, 0)
    for number in range(TEXTS):
        choose = QuickChooser(scores, number)(no_logits)
        text: list[int] = []
        while len(text) < 2 and END not in text:
            tree = tree_behind(number, tuple(text))
            path, bonus = accept(tree, choose, {END})
            text += [*tree.token_ids[path].tolist(), bonus]
        counts[VOCABULARY * text[0] + text[-1]] += 1
    return counts


def enumerated(distribution: Callable[[Text], NDArray[np.float64]]) -> NDArray[np.float64]:
    """The probability of each text of two tokens, as ``counted`` numbers them."""
    behind = [distribution((token,)) for token in range(END)]
    return (distribution(())[:, None] * [*behind, np.eye(VOCABULARY)[END]]).ravel()
