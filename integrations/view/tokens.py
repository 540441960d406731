"""Which text came from which source."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from groundspeed.types import Source, StepEvent
from groundspeed.verify.text import Detokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["Piece", "Pieces", "passage_of"]


@dataclass(frozen=True, slots=True)
class Piece:
    """Text of an answer that came with one token.

    Attributes:
        text: The text.
        source: Where the token came from.
        passage: Index of the passage it was drafted from, None where it was another source.
    """

    text: str
    source: Source
    passage: int | None = None


class Pieces:
    """Cuts the text of an answer, as its steps show it, into the pieces that its tokens gave.

    A character of several tokens goes to the last of them. What is held back because a stop string may have
    begun goes to its own token later, and a stop string itself to none: the pieces of all steps together are
    the answer.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """Start an answer.

        Args:
            tokenizer: The target model's.
        """
        self._detokenizer = Detokenizer(tokenizer)
        self._waiting: deque[Piece] = deque()

    def step(self, event: StepEvent) -> list[Piece]:
        """The text that became final with a step, piece by piece."""
        for token, source, origin in zip(event.token_ids, event.sources, event.origins, strict=True):
            self._waiting.append(Piece(self._detokenizer.push([token]), source, passage_of(source, origin)))
        shown, text = [], event.text
        while text and self._waiting:
            piece = self._waiting.popleft()
            if len(piece.text) > len(text):
                self._waiting.appendleft(replace(piece, text=piece.text[len(text) :]))
            if piece.text:
                shown.append(replace(piece, text=text[: len(piece.text)]))
            text = text[len(piece.text) :]
        if text:  # an incomplete character, which ended the answer
            shown.append(Piece(text, Source.TARGET))
        return shown


def passage_of(source: Source, origin: int) -> int | None:
    """Index of the passage that a token was drafted from, None where it was another source."""
    return origin >> 32 if source is Source.PASSAGE else None
