"""The grounded prompt: passages and question as the target model wants to read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from groundspeed.integrations.turns import TurnPrompt, defused
from groundspeed.types import Passage

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["GroundedPrompt"]

# Of eleven wordings tried on the embedded 135M model (twelve questions, one to three passages), this one
# quoted most and looped least: asked for more than a sentence, or shown numbered passages, a model this small
# goes in circles. It follows what it reads last, so the request to quote stands there.
_SYSTEM = "You are a helpful assistant. Answer from the given text only."
_REMINDER = "Answer with a sentence from the text."


class GroundedPrompt:
    """Builds prompts for one tokenizer: with its chat template where it has one, as plain text otherwise."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """Take the tokenizer of the target model."""
        self._tokenizer = tokenizer

    def fit(
        self, question: str, passages: Sequence[Passage], room: int | None
    ) -> tuple[tuple[int, ...], int]:
        """Build the prompt with as many passages, best first, as fit.

        Args:
            question: The question.
            passages: Best first.
            room: Most tokens the prompt may have, None for any number.

        Returns:
            The prompt's token ids and how many passages it shows. Without passages the prompt may still be
            longer than ``room``.
        """
        for shown in range(len(passages), 0, -1):
            ids = self.token_ids(question, passages[:shown])
            if room is None or len(ids) <= room:
                return ids, shown
        return self.token_ids(question, ()), 0

    def token_ids(self, question: str, passages: Sequence[Passage]) -> tuple[int, ...]:
        """Build the prompt with all the passages."""
        texts = "\n\n".join(passage.text.strip() for passage in passages)
        user = f"Text:\n{texts}\n\nQuestion: {question.strip()}\n{_REMINDER}"
        if not self._tokenizer.chat_template:
            text = f"{_SYSTEM}\n\n{defused(user, self._tokenizer)}\n\nAnswer:"
            return tuple(self._tokenizer(text).input_ids)
        return TurnPrompt(self._tokenizer).ids(
            [{"role": "system", "content": _SYSTEM}, {"role": "user", "content": user}]
        )
