"""As much of vLLM's configuration, model runner and scheduler as the proposer sees; the shapes are vLLM's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from groundspeed.integrations.vllm.proposer import Proposer

VOCABULARY = 300


def config(
    *, tokenizer: str = "/nowhere", k: int = 6, rows: int = 4, context: int = 200, settings: Any = None
) -> Any:
    """A ``VllmConfig``."""
    return SimpleNamespace(
        additional_config={} if settings is None else {"groundspeed": settings},
        model_config=SimpleNamespace(
            tokenizer=tokenizer,
            tokenizer_revision=None,
            trust_remote_code=False,
            max_model_len=context,
            get_vocab_size=lambda: VOCABULARY,
        ),
        speculative_config=SimpleNamespace(num_speculative_tokens=k),
        scheduler_config=SimpleNamespace(max_num_seqs=rows),
    )


@dataclass(eq=False)
class Request:
    """The runner's ``CachedRequestState``."""

    req_id: str
    prompt_token_ids: list[int]
    sampling_params: Any
    output_token_ids: list[int] = field(default_factory=list)


class Runner:
    """A model runner whose model says what was planned, and its scheduler.

    Attributes:
        drafts: By request id, all that was proposed for it, step by step.
    """

    def __init__(self, proposer: Proposer, rows: int = 4, context: int = 200) -> None:
        self.drafter = proposer
        self.requests: dict[str, Request] = {}
        self.input_batch = SimpleNamespace(
            req_ids=[],
            num_prompt_tokens=np.zeros(rows, np.int32),
            num_tokens_no_spec=np.zeros(rows, np.int32),
            token_ids_cpu=np.full((rows, context), 299, np.int32),  # what earlier requests left there
        )
        self.drafts: dict[str, list[list[int]]] = {}
        self._planned: dict[str, list[int]] = {}
        self._reading: dict[str, int] = {}
        self._next: dict[str, list[int]] = {}

    def add(
        self, name: str, prompt: Sequence[int], answer: Sequence[int], documents: Any = None, chunks: int = 1,
        max_tokens: int | None = None,
    ) -> None:  # fmt: skip
        """A request arrives; its prompt is read in so many steps."""
        extra = None if documents is None else {"groundspeed_documents": documents}
        sampling = SimpleNamespace(extra_args=extra, temperature=0.0, max_tokens=max_tokens or len(answer))
        self.requests[name] = Request(name, list(prompt), sampling)
        self._planned[name] = list(answer)
        self.drafts.setdefault(name, [])
        self.resume(name, chunks)

    def resume(self, name: str, chunks: int = 1) -> None:
        """A request takes the next free row, and is read (again)."""
        batch, request = self.input_batch, self.requests[name]
        row = len(batch.req_ids)
        batch.req_ids.append(name)
        tokens = request.prompt_token_ids + request.output_token_ids
        batch.token_ids_cpu[row, : len(tokens)] = tokens
        batch.num_prompt_tokens[row] = len(request.prompt_token_ids)
        batch.num_tokens_no_spec[row] = len(tokens)
        self._reading[name] = chunks
        self._next[name] = []

    def preempt(self, name: str) -> None:
        """A request loses its row, which the last one takes."""
        batch = self.input_batch
        row, last = batch.req_ids.index(name), len(batch.req_ids) - 1
        for array in (batch.num_prompt_tokens, batch.num_tokens_no_spec, batch.token_ids_cpu):
            array[row] = array[last]
        batch.req_ids[row] = batch.req_ids[last]
        batch.req_ids.pop()

    def finish(self, name: str) -> None:
        """A request is over, and vLLM forgets it."""
        self.preempt(name)
        del self.requests[name]

    def step(self) -> list[list[int]]:
        """One pass of the model: a piece of a prompt, or drafts verified and one token more; then drafts."""
        batch = self.input_batch
        sampled = []
        for row, name in enumerate(batch.req_ids):
            request = self.requests[name]
            self._reading[name] -= 1
            if self._reading[name] > 0:
                sampled.append([])
                continue
            left = self._planned[name][len(request.output_token_ids) :]
            right = 0
            while (
                right < min(len(self._next[name]), len(left) - 1) and self._next[name][right] == left[right]
            ):
                right += 1
            said = left[: right + 1]
            start = batch.num_tokens_no_spec[row]
            batch.token_ids_cpu[row, start : start + len(said)] = said
            batch.num_tokens_no_spec[row] += len(said)
            request.output_token_ids += said
            sampled.append(said)
        proposed = self.drafter.propose(sampled, batch.num_tokens_no_spec, batch.token_ids_cpu)
        assert len(proposed) == len(sampled)
        for name, added, draft in zip(list(batch.req_ids), sampled, proposed, strict=True):
            assert added or not draft, "a prompt that is being read was drafted for"
            assert all(isinstance(token, int) and 0 <= token < VOCABULARY for token in draft)
            if added:
                self._next[name] = draft
                self.drafts[name].append(draft)
                if len(self.requests[name].output_token_ids) == len(self._planned[name]):
                    self.finish(name)
        return proposed

    def run(self) -> None:
        """Until no request is left in a row."""
        while self.input_batch.req_ids:
            self.step()
