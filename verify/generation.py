"""One request from prompt to answer."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from groundspeed.drafting.base import Drafter, DraftRequest, DraftTree, RecyclingDrafter, RunnerUps
from groundspeed.drafting.budget import fit_budget
from groundspeed.drafting.tree import leading_chain, shallow
from groundspeed.errors import DraftError
from groundspeed.types import (
    Event,
    FinishReason,
    GenerationRequest,
    GenerationResult,
    GenerationStats,
    Passage,
    PrefillEvent,
    Source,
    StepEvent,
)
from groundspeed.verify.acceptance import accept
from groundspeed.verify.draws import fresh_seed
from groundspeed.verify.grounding import ground, stretches
from groundspeed.verify.sampling import leading, make_chooser
from groundspeed.verify.text import Detokenizer

if TYPE_CHECKING:
    import torch

    from groundspeed.verify.base import TargetSession
    from groundspeed.verify.engine import Engine

__all__ = ["Generation"]

logger = logging.getLogger(__name__)

_CHUNK = 1024
"""Prompt tokens per prefill pass: bounds the memory of a pass and the time between two progress events."""


class Generation:
    """The state of one request: the KV cache, the drafter, and what was generated."""

    def __init__(
        self, engine: Engine, request: GenerationRequest, prompt_ids: Sequence[int], room: int | None
    ) -> None:
        """Take in a checked request.

        Args:
            engine: Whose model and drafter are used.
            request: What to generate.
            prompt_ids: The prompt.
            room: Tokens that the context leaves for the answer, None for no bound.
        """
        self._engine = engine
        self._request = request
        self._prompt_ids = prompt_ids
        self._limit = request.max_tokens if room is None else min(request.max_tokens, room)
        self._limited_by: FinishReason = "length" if self._limit == request.max_tokens else "context"
        self._eos = frozenset() if request.ignore_eos else engine.target.eos_token_ids
        self._seed = _seed_of(request)
        self._choose = make_chooser(
            request, self._seed, prompt_ids, self._limit, self._eos, engine.target.device
        )
        self._capability = engine.target.capability
        self._cost = engine.cost
        self._drafter: Drafter | None = None
        self._ids: list[int] = []
        self._sources: list[Source] = []
        self._pieces: list[str] = []
        self._text = Detokenizer(engine.tokenizer)
        self._finish: FinishReason | None = None
        self._steps = self._drafted = 0

    def run(self) -> Iterator[Event]:
        """Prefill, then one draft and one forward pass a step, until something ends the text."""
        prompt = self._prompt_ids
        started = time.perf_counter()
        session = self._engine.target.open(len(prompt) + self._limit + self._cost.max_nodes + 1)
        try:
            yield PrefillEvent(0, len(prompt))
            if self._request.speculate and self._capability.supports_chain:
                self._begin_drafter()
            # A state that cannot be rewound is not to be trusted with pieces either.
            chunk = _CHUNK if self._capability.supports_chain else len(prompt)
            while len(prompt) - session.length > chunk:
                session.prefill(prompt[session.length : session.length + chunk])
                yield PrefillEvent(session.length, len(prompt))
            # The pass that ends the prefill gives the first token; every further one is a step.
            step = self._step(session, prompt[session.length :], DraftTree.empty(), time.perf_counter())
            prefilled = time.perf_counter()
            yield PrefillEvent(len(prompt), len(prompt))
            yield step
            while self._finish is None:
                context, proposed = session.length, time.perf_counter()
                step = self._step(session, step.token_ids[-1:], self._propose(context), proposed)
                self._steps += 1
                self._drafted += step.drafted
                self._cost.observe(step.drafted, context, step.forward_s)
                yield step
            yield self._result(prefilled - started, time.perf_counter() - prefilled)
        finally:
            self._end_drafter()

    def _step(
        self, session: TargetSession, pending: Sequence[int], tree: DraftTree, proposed: float
    ) -> StepEvent:
        """One forward pass: verify ``tree`` behind the ``pending`` tokens and take what is accepted."""
        begun = time.perf_counter()
        logits = session.verify(pending, tree)
        choose = self._choose(logits)
        forwarded = time.perf_counter()
        path, bonus = accept(tree, choose, self._eos)
        token_ids, sources, origins = self._cut(
            [*tree.token_ids[path].tolist(), bonus],
            [*(Source(code) for code in tree.source[path].tolist()), Source.TARGET],
            [*tree.origin[path].tolist(), -1],
        )
        text = self._text.push(token_ids) + (self._text.finish() if self._finish else "")
        self._pieces.append(text)
        accepted = time.perf_counter()
        session.commit(path)
        self._recycle(pending[-1], tree, logits)
        self._extend_drafter(token_ids)
        return StepEvent(
            token_ids=tuple(token_ids),
            sources=tuple(sources),
            origins=tuple(origins),
            text=text,
            drafted=len(tree),
            accepted=sum(source is not Source.TARGET for source in sources),
            draft_s=begun - proposed,
            forward_s=forwarded - begun,
            accept_s=accepted - forwarded,
            commit_s=time.perf_counter() - accepted,
        )

    def _cut(
        self, token_ids: list[int], sources: list[Source], origins: list[int]
    ) -> tuple[list[int], list[Source], list[int]]:
        """Cut a step's tokens at the end of the text, remember what is left and why it ends."""
        room = self._limit - len(self._ids)
        end = next((i for i, token in enumerate(token_ids[:room]) if token in self._eos), None)
        if end is not None:
            self._finish = "stop"
        elif len(token_ids) >= room:
            end, self._finish = room, self._limited_by
        token_ids, sources, origins = token_ids[:end], sources[:end], origins[:end]
        self._ids += token_ids
        self._sources += sources
        return token_ids, sources, origins

    def _result(self, prefill_s: float, decode_s: float) -> GenerationResult:
        text = "".join(self._pieces)
        accepted = Counter(source for source in self._sources if source is not Source.TARGET)
        assert self._finish is not None
        return GenerationResult(
            text=text,
            token_ids=tuple(self._ids),
            sources=tuple(self._sources),
            finish_reason=self._finish,
            grounding=ground(text, self._request.passages, self._request.min_span),
            stats=GenerationStats(
                prompt_tokens=len(self._prompt_ids),
                completion_tokens=len(self._ids),
                steps=self._steps,
                drafted=self._drafted,
                accepted=accepted.total(),
                accepted_by_source={source.label: accepted[source] for source in sorted(accepted)},
                prefill_s=prefill_s,
                decode_s=decode_s,
                decoding=self._capability.decoding if self._request.speculate else "plain",
                decoding_reason=self._capability.reason if self._request.speculate else "speculation is off",
            ),
            seed=self._seed,
        )

    # A drafter only ever costs time: whatever goes wrong in one, the request goes on without it.

    def _begin_drafter(self) -> None:
        tokenizer = self._engine.tokenizer
        try:
            texts = _draft_texts(self._request.passages)
            encoded = tokenizer(texts, add_special_tokens=False)["input_ids"] if texts else []
            self._drafter = self._engine.drafter()
            self._drafter.begin(
                DraftRequest(
                    prompt_ids=np.array(self._prompt_ids, np.int32),
                    passages=tuple(np.array(ids, np.int32) for ids in encoded),
                    vocab_size=self._engine.target.vocab_size,
                    forms=self._engine.forms,
                )
            )
        except Exception:
            self._drop_drafter("begin")

    def _extend_drafter(self, token_ids: Sequence[int]) -> None:
        if self._drafter is not None:
            try:
                self._drafter.extend(np.array(token_ids, np.int32))
            except Exception:
                self._drop_drafter("extend")

    def _recycle(self, token: int, tree: DraftTree, logits: torch.Tensor) -> None:
        """Hand the drafter what the pass showed behind the last committed token and the nodes."""
        if isinstance(self._drafter, RecyclingDrafter) and self._drafter.runners_up:
            try:
                self._drafter.recycle(
                    RunnerUps(
                        np.concatenate([np.array([token], np.int32), tree.token_ids]),
                        np.concatenate([np.array([-1], np.int32), tree.parents + 1]),
                        leading(logits, self._drafter.runners_up),
                    )
                )
            except Exception:
                self._drop_drafter("recycle")

    def _propose(self, context: int) -> DraftTree:
        """The draft for the next step, no deeper than the answer may still be long, as large as it pays."""
        budget = self._cost.max_nodes
        left = self._limit - len(self._ids)
        if self._drafter is None or left <= 1:
            return DraftTree.empty()
        try:
            tree = self._drafter.propose(budget)
            tree.validate(self._engine.target.vocab_size)
            if len(tree) > budget:
                raise DraftError(f"a budget of {budget} nodes was given and {len(tree)} were drafted")
        except Exception:
            self._drop_drafter("propose")
            return DraftTree.empty()
        if not self._capability.supports_tree:
            tree = leading_chain(tree)
        # Deeper nodes could not be kept, and may lie behind the last position of the model.
        return fit_budget(shallow(tree, left - 1), self._cost.relative(context))

    def _drop_drafter(self, doing: str) -> None:
        logger.warning("the drafter failed in %s; the request goes on without drafts", doing, exc_info=True)
        self._end_drafter()

    def _end_drafter(self) -> None:
        drafter, self._drafter = self._drafter, None
        if drafter is not None:
            try:
                drafter.end()
            except Exception:
                logger.warning("the drafter failed in end", exc_info=True)


def _seed_of(request: GenerationRequest) -> int | None:
    """What the draws of a request are keyed by: its own seed or a fresh one, None where nothing is drawn."""
    if not request.temperature:
        return None
    return fresh_seed() if request.seed is None else request.seed


def _draft_texts(passages: Sequence[Passage]) -> list[str]:
    """What to draft from by passage: each stretch once, at the best of its passages, empty at the others."""
    texts = [""] * len(passages)
    for best, _, text in stretches(passages):
        texts[best] = text
    # The same text may stand in several documents.
    return [
        "" if any(text in other and (text != other or j < i) for j, other in enumerate(texts)) else text
        for i, text in enumerate(texts)
    ]
