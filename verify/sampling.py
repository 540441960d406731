"""How the target's logits become a token."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from groundspeed.drafting.draft_probs import Draws
from groundspeed.errors import InputError, ModelError
from groundspeed.verify.acceptance import Choose
from groundspeed.verify.draws import draw
from groundspeed.verify.processors import make_processors
from groundspeed.verify.rejection import draw_by_rejection
from groundspeed.verify.top_tokens import leading
from groundspeed.verify.warpers import TopP, Typical

if TYPE_CHECKING:
    from transformers import LogitsProcessor

    from groundspeed.types import GenerationRequest

__all__ = ["Chooser", "ProcessedChooser", "make_chooser", "warm_up"]

Chooser = Callable[[torch.Tensor], Choose]
"""Takes the logits [n + 1, vocab] of a pass, gives what chooses a token by row.

The rows are those of one path, asked for from the root down: each token is chosen behind those chosen before.
"""


def greedy(logits: torch.Tensor) -> Choose:
    """The most probable token of each row, of equals the first."""
    tokens: list[int] = leading(logits, 1)[:, 0].tolist()
    return lambda row, drafts=(): tokens[row]


class ProcessedChooser:
    """Chooses from processed logits: draws a token or, without a seed, takes the most probable one.

    A row is processed when it is visited, and the chosen token joins the text at once. So the text is the
    true prefix of every visited node, and processors are called once for every token, in order, just as in
    plain decoding: those that keep a state may be used.
    """

    def __init__(
        self,
        processors: Sequence[LogitsProcessor],
        seed: int | None,
        prompt_ids: Sequence[int],
        max_tokens: int,
        device: torch.device,
    ) -> None:
        """Start behind the prompt.

        Args:
            processors: Applied in order.
            seed: Of the draws; None chooses the most probable token.
            prompt_ids: What stands before the answer.
            max_tokens: Tokens that will be chosen, at most.
            device: Where the logits are.
        """
        self._processors = processors
        self._seed = seed
        self._length = len(prompt_ids)
        self._text = torch.zeros(1, self._length + max_tokens, dtype=torch.long, device=device)
        self._text[0, : self._length] = torch.tensor(prompt_ids)

    def __call__(self, logits: torch.Tensor) -> Choose:
        """What chooses by row of ``logits``, [n + 1, vocab]."""
        return lambda row, drafts=(): self._choose(self.scores(logits[row : row + 1]), drafts)

    @torch.no_grad()
    def scores(self, logits: torch.Tensor) -> NDArray[np.float32]:
        """Logits [1, vocab] of the next token -> scores [vocab], whose softmax it is drawn from.

        Raises:
            InputError: When no token is left.
            ModelError: When there are no numbers to draw from.
        """
        # A copy in float32, as in `generate`: processors may write to it, and round as they do there.
        processed = logits.to(dtype=torch.float32, copy=True)
        for processor in self._processors:
            processed = processor(self._text[:, : self._length], processed)
        if processed.shape != logits.shape:
            raise InputError(
                f"the logits processors gave scores of shape {list(processed.shape)} for logits of shape "
                f"{list(logits.shape)}; each processor must return one score for each token"
            )
        scores: NDArray[np.float32] = processed[0].float().cpu().numpy()
        self._check(float(scores.max()))
        return scores

    def _choose(self, scores: NDArray[np.float32], drafts: Sequence[Draws]) -> int:
        if self._seed is None:
            token = int(scores.argmax())
        elif drafts:
            token = draw_by_rejection(scores, drafts, self._seed, self._length)
        else:
            token = draw(scores, self._seed, self._length)
        self._text[0, self._length] = token
        self._length += 1
        return token

    def _check(self, best: float) -> None:
        if best == float("-inf"):
            raise InputError(
                f"no token is left to choose at position {self._length} of the text: logit_bias, bad_words, "
                "min_tokens, logits_processors and grammar together exclude all of them; exclude fewer"
            )
        if not np.isfinite(best):
            raise ModelError(
                f"the processed logits at position {self._length} of the text hold {best}, which cannot be "
                "drawn from; load the model in float32, or mend the logits processor that gave it"
            )


def make_chooser(
    request: GenerationRequest,
    seed: int | None,
    prompt_ids: Sequence[int],
    max_tokens: int,
    eos_token_ids: Collection[int],
    device: torch.device,
) -> Chooser:
    """The chooser that a checked request asks for.

    Args:
        request: What is asked for.
        seed: Of the draws, None for greedy decoding.
        prompt_ids: The prompt.
        max_tokens: Tokens that will be chosen, at most.
        eos_token_ids: Tokens that end the text.
        device: Where the logits are.
    """
    processors = make_processors(request, len(prompt_ids), eos_token_ids, device)
    if seed is None and not processors:
        return greedy
    return ProcessedChooser(processors, seed, prompt_ids, max_tokens, device)


def warm_up() -> None:
    """Compile what chooses tokens, or load it from numba's cache, so that no request waits for it."""
    scores = torch.zeros(1, 8)
    for warper in (TopP(0.9), Typical(0.9)):
        draw(warper(torch.zeros(1, 1, dtype=torch.long), scores)[0].numpy(), 0, 0)
    for dtype in (torch.float32, torch.bfloat16):
        leading(scores.to(dtype), 1)
