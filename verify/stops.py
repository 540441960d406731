"""The text of an answer as it comes, up to the first stop string."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from groundspeed.errors import InputError
from groundspeed.verify.text import Detokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from groundspeed.types import GenerationRequest

__all__ = ["AnswerText", "StopStrings", "check_stops"]


class StopStrings:
    """Finds the first stop string in a text that comes in pieces, and shows nothing that may belong to it.

    First is the one that ends first; of several that end together, the longest. So it does not depend on how
    the text falls into pieces. Whatever could still begin a stop string is held back, so text that was shown
    never has to be taken back.

    Attributes:
        found: The stop string, None as long as there is none.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        """Watch for ``stops``, none of which is empty."""
        self.found: str | None = None
        self._stops = stops
        self._reach = max(map(len, stops), default=0) - 1  # characters that may be held back
        self._held = ""

    def push(self, text: str) -> str:
        """Take in a piece of the text; what may be shown with it. Behind a stop string nothing is."""
        if self.found is not None:
            return ""
        text = self._held + text
        ends = [(start + len(stop), start, stop) for stop in self._stops if (start := text.find(stop)) >= 0]
        if ends:
            _, start, self.found = min(ends)
            shown, self._held = text[:start], ""
            return shown
        begins = range(max(0, len(text) - self._reach), len(text))
        cut = next((at for at in begins if self._may_begin(text[at:])), len(text))
        shown, self._held = text[:cut], text[cut:]
        return shown

    def finish(self) -> str:
        """The text is over: what was held back."""
        held, self._held = self._held, ""
        return held

    def _may_begin(self, text: str) -> bool:
        return any(stop.startswith(text) for stop in self._stops)


class AnswerText:
    """Turns the tokens of one answer into its text, up to the first stop string.

    Tokens count until the stop string is complete: the answer's ids end with the token with which the text
    that completes it is final, as in vLLM, while its text ends before the stop string.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, stops: Sequence[str] = ()) -> None:
        """Start an answer.

        Args:
            tokenizer: The target model's.
            stops: Checked stop strings.
        """
        self._detokenizer = Detokenizer(tokenizer)
        self._stops = StopStrings(stops) if stops else None

    @property
    def stop(self) -> str | None:
        """The stop string that ended the text, None as long as none did."""
        return self._stops.found if self._stops is not None else None

    def push(self, token_ids: Sequence[int]) -> tuple[int, str]:
        """Take in tokens.

        Returns:
            How many of them belong to the answer, and the text that became final with them.
        """
        if self._stops is None:
            return len(token_ids), self._detokenizer.push(token_ids)
        shown = ""
        for count, token in enumerate(token_ids, start=1):
            # One by one, since the token that completes a stop string is the last one.
            shown += self._stops.push(self._detokenizer.push([token]))
            if self.stop is not None:
                return count, shown
        return len(token_ids), shown

    def finish(self) -> str:
        """The answer is over: what was held back. Even that may hold a stop string."""
        rest = self._detokenizer.finish()
        return rest if self._stops is None else self._stops.push(rest) + self._stops.finish()


def check_stops(request: GenerationRequest) -> None:
    """Refuse stop strings and tokens that are none.

    Raises:
        InputError: Naming what was given and what is wanted.
    """
    stops: Sequence[Any] = request.stop
    if isinstance(stops, str):
        raise InputError(f"stop is the string {stops!r}; give a tuple of strings, ({stops!r},)")
    for stop in stops:
        if not isinstance(stop, str) or not stop:
            raise InputError(f"stop holds {stop!r}; each must be a string of one character or more")
    tokens: Sequence[Any] = request.stop_token_ids
    for token in tokens:
        if not isinstance(token, int) or token < 0:
            raise InputError(
                f"stop_token_ids holds {token!r}; each must be a token id, a whole number from 0 on"
            )
