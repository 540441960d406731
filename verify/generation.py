"""One request from prompt to answer, pass by pass."""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from groundspeed.drafting.base import Drafter, DraftRequest, DraftTree, RecyclingDrafter, RunnerUps
from groundspeed.drafting.tree import leading_chain, shallow
from groundspeed.errors import DraftError
from groundspeed.types import (
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
from groundspeed.verify.base import Segment
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


class Generation:
    """The state of one request: its KV cache, its drafter, and what was generated.

    A scheduler drives it: ``begin``, then a ``segment`` for a pass and ``take`` of its outcome in turn, until
    ``finished``; ``end`` whatever happens.
    """

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
        self._drafter: Drafter | None = None
        self._session: TargetSession | None = None
        self._ids: list[int] = []
        self._sources: list[Source] = []
        self._pieces: list[str] = []
        self._text = Detokenizer(engine.tokenizer)
        self._finish: FinishReason | None = None
        self._steps = self._drafted = self._cached = 0
        self._arrived = time.perf_counter()
        self._began = self._prefilled = 0.0  # not yet

    @property
    def capacity(self) -> int:
        """Most tokens that the KV cache will hold."""
        return len(self._prompt_ids) + self._limit + self._engine.cost.max_nodes + 1

    @property
    def prompt_ids(self) -> Sequence[int]:
        """The prompt."""
        return self._prompt_ids

    @property
    def begun(self) -> bool:
        """Whether it has a session."""
        return self._session is not None

    @property
    def session(self) -> TargetSession:
        """The text in the target model, from ``begin`` on."""
        assert self._session is not None
        return self._session

    @property
    def committed(self) -> list[int]:
        """The tokens that the KV cache holds."""
        return [*self._prompt_ids, *self._ids][: self.session.length]

    @property
    def decoding(self) -> bool:
        """Whether the prompt has been read."""
        return self.session.length >= len(self._prompt_ids)

    @property
    def deadline(self) -> float:
        """When its time is up, by ``time.perf_counter``."""
        return self._arrived + (math.inf if self._request.timeout is None else self._request.timeout)

    @property
    def finished(self) -> bool:
        """Whether the text has ended."""
        return self._finish is not None

    def begin(self, session: TargetSession) -> PrefillEvent:
        """Start behind what the session holds of the prompt already."""
        self._session = session
        self._cached = session.length
        self._began = time.perf_counter()
        if self._request.speculate and self._capability.supports_chain:
            self._begin_drafter()
        return PrefillEvent(session.length, len(self._prompt_ids))

    def segment(self, tokens: int) -> Segment:
        """The next piece of the prompt, of at most so many tokens where the model can stop within it."""
        start = self.session.length
        # A state that cannot be rewound is not to be trusted with pieces either.
        end = start + tokens if self._capability.supports_chain else len(self._prompt_ids)
        piece = self._prompt_ids[start:end]
        return Segment(self.session, piece, wanted=start + len(piece) == len(self._prompt_ids))

    def step(self, tree: DraftTree) -> Segment:
        """The last token of the answer with a draft behind it."""
        return Segment(self.session, self._ids[-1:], tree)

    def take(
        self, segment: Segment, logits: torch.Tensor, draft_s: float, forward_s: float
    ) -> Iterator[PrefillEvent | StepEvent]:
        """Take in the outcome of a pass.

        Args:
            segment: What this text had in it.
            logits: [n + 1, vocab], see ``TargetModel.verify``.
            draft_s: Seconds that the proposal took.
            forward_s: Seconds of the pass.
        """
        if not segment.wanted:
            yield PrefillEvent(self.session.length, len(self._prompt_ids))
            return
        # The pass that ends the prompt gives the first token; every further one is a step.
        first = not self._prefilled
        begun = time.perf_counter()
        tree = segment.tree
        path, bonus = accept(tree, self._choose(logits), self._eos)
        token_ids, sources, origins = self._cut(
            [*tree.token_ids[path].tolist(), bonus],
            [*(Source(code) for code in tree.source[path].tolist()), Source.TARGET],
            [*tree.origin[path].tolist(), -1],
        )
        text = self._text.push(token_ids) + (self._text.finish() if self._finish else "")
        self._pieces.append(text)
        accepted = time.perf_counter()
        self.session.commit(path)
        self._recycle(segment.token_ids[-1], tree, logits)
        self._extend_drafter(token_ids)
        if first:
            self._prefilled = time.perf_counter()
            yield PrefillEvent(len(self._prompt_ids), len(self._prompt_ids))
        else:
            self._steps += 1
            self._drafted += len(tree)
        yield StepEvent(
            token_ids=tuple(token_ids),
            sources=tuple(sources),
            origins=tuple(origins),
            text=text,
            drafted=len(tree),
            accepted=sum(source is not Source.TARGET for source in sources),
            draft_s=draft_s,
            forward_s=forward_s,
            accept_s=accepted - begun,
            commit_s=time.perf_counter() - accepted,
        )

    def stop(self, reason: FinishReason) -> StepEvent | None:
        """End the text here; what was held back of it, if anything was."""
        self._finish = reason
        text = self._text.finish()
        if not text:
            return None
        self._pieces.append(text)
        return StepEvent((), (), (), text, 0, 0, 0.0, 0.0, 0.0, 0.0)

    def end(self) -> None:
        """Free what the request held."""
        self._end_drafter()
        self._session = None

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

    def result(self) -> GenerationResult:
        """What was generated, once finished."""
        text = "".join(self._pieces)
        now = time.perf_counter()
        began, prefilled = self._began or now, self._prefilled or now
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
                queued_s=began - self._arrived,
                prefill_s=prefilled - began,
                decode_s=now - prefilled,
                cached_tokens=self._cached,
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

    def propose(self) -> DraftTree:
        """The draft for the next step, no deeper than the answer may still be long."""
        budget = self._engine.cost.max_nodes
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
        return shallow(tree, left - 1)

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
