"""The rows of a batch of ``generate``, as requests of an engine."""

from __future__ import annotations

import queue
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from groundspeed.types import Event, GenerationRequest, GenerationResult, StepEvent

if TYPE_CHECKING:
    import torch
    from transformers import GenerationConfig, LogitsProcessor, StoppingCriteriaList
    from transformers.generation.streamers import BaseStreamer

    from groundspeed.verify.engine import Engine

__all__ = ["Ends", "Row", "run_rows"]


class Ends:
    """What ends a row.

    Attributes:
        length: Most tokens of a row, padding included.
        token_ids: Tokens that end it.
        criteria: All others, None without any.
    """

    def __init__(self, criteria: StoppingCriteriaList, config: GenerationConfig) -> None:
        from transformers import EosTokenCriteria, MaxLengthCriteria, StoppingCriteriaList

        self.length = int(config.max_length)
        tokens: set[int] = set()
        others = []
        for criterion in criteria:
            if type(criterion) is MaxLengthCriteria:
                self.length = min(self.length, int(criterion.max_length))
            elif type(criterion) is EosTokenCriteria:
                tokens.update(criterion.eos_token_id.flatten().tolist())
            else:
                others.append(criterion)
        self.token_ids = tuple(sorted(tokens))
        self.criteria = StoppingCriteriaList(others) if others else None


class Row:
    """A row of the batch.

    Attributes:
        prompt: Without the padding.
        answer: What was generated so far, an end-of-sequence token included.
        stopped: Whether a criterion has ended it.
    """

    def __init__(
        self, ids: torch.Tensor, visible: torch.Tensor, ends: Ends, streamer: BaseStreamer | None
    ) -> None:
        """Take in ids [n], of which those ``visible``, bool [n], are the prompt."""
        self.prompt: tuple[int, ...] = tuple(ids[visible].tolist())
        self.answer: list[int] = []
        self.stopped = False
        self._padding = ids[~visible]
        self._criteria = ends.criteria
        self._streamer = streamer
        self._text = ids.new_zeros(1, ends.length)
        self._text[0, : len(ids)] = ids
        self._length = len(ids)

    def padded(self, processors: Sequence[LogitsProcessor]) -> tuple[LogitsProcessor, ...]:
        """The processors, shown the padding too, as in ``generate``."""
        if not len(self._padding) or not processors:
            return tuple(processors)

        def apply(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            import torch

            ids = torch.cat((self._padding[None], input_ids), 1)
            for processor in processors:
                scores = processor(ids, scores)
            return scores

        return (apply,)

    def take(self, token_ids: Sequence[int]) -> None:
        """Take in tokens, up to the one behind which a criterion ends the row."""
        for token in token_ids:
            if self.stopped:
                return
            self.answer.append(token)
            self._text[0, self._length] = token
            self._length += 1
            if self._streamer is not None:
                self._streamer.put(self._text[0, self._length - 1 : self._length].cpu())
            if self._criteria is not None:
                self.stopped = bool(self._criteria(self._text[:, : self._length], None))


def run_rows(engine: Engine, requests: Sequence[GenerationRequest], rows: Sequence[Row]) -> None:
    """Generate all rows, side by side."""
    events: queue.SimpleQueue[tuple[int, Event | BaseException]] = queue.SimpleQueue()

    def deliver_for(row: int) -> Callable[[Event | BaseException], None]:
        return lambda event: events.put((row, event))

    # All are checked before the first one starts.
    submissions = [engine.submission(request) for request in requests]
    tickets = [submit(deliver_for(row)) for row, submit in enumerate(submissions)]
    try:
        left = len(rows)
        while left:
            row, event = events.get()
            if isinstance(event, BaseException):
                raise event
            if isinstance(event, StepEvent):
                rows[row].take(event.token_ids)
                if rows[row].stopped:
                    tickets[row].cancel()
            elif isinstance(event, GenerationResult):
                rows[row].take([event.stop] if isinstance(event.stop, int) else [])
                left -= 1
    finally:
        for ticket in tickets:
            ticket.cancel()
        for ticket in tickets:
            ticket.over.wait()
