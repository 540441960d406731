"""One request from prompt to answer, pass by pass."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from groundspeed.drafting.base import DraftTree
from groundspeed.drafting.tree import leading_chain, shallow
from groundspeed.drafting.worth import Price
from groundspeed.types import (
    FinishReason,
    GenerationRequest,
    GenerationResult,
    GenerationStats,
    PrefillEvent,
    Source,
    StepEvent,
    TokenLogprob,
)
from groundspeed.verify.acceptance import accept
from groundspeed.verify.attention_kernel import LONGEST_STEP
from groundspeed.verify.base import Segment
from groundspeed.verify.cache import whole_chunks
from groundspeed.verify.drafts import Drafts
from groundspeed.verify.draws import fresh_seed
from groundspeed.verify.grounding import ground
from groundspeed.verify.logprobs import token_logprobs
from groundspeed.verify.sampling import make_chooser
from groundspeed.verify.stops import AnswerText

if TYPE_CHECKING:
    import torch

    from groundspeed.verify.base import TargetSession
    from groundspeed.verify.engine import Engine
    from groundspeed.verify.grammar import GrammarState

__all__ = ["Generation"]

_SCORED = 256
"""Most tokens of a prompt that are scored in a pass, as it gives a row of logits for each."""


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
        ends = () if request.ignore_eos else engine.target.eos_token_ids
        self._eos = frozenset(request.stop_token_ids).union(ends)
        self._grammar: GrammarState | None = None
        if request.grammar is not None:
            self._grammar = engine.grammars.start(request.grammar, len(prompt_ids))
            self._eos = self._grammar.ends.union(request.stop_token_ids)
            # Its mask comes last of what may exclude a token, so that nothing lets one in again.
            request = replace(request, logits_processors=(*request.logits_processors, self._grammar))
        self._seed = _seed_of(request)
        self._choose = make_chooser(
            request, self._seed, prompt_ids, self._limit, self._eos, engine.target.device
        )
        self._capability = engine.target.capability
        self._speculates = request.speculate and self._capability.supports_chain
        self._drafts = Drafts(engine)
        self._session: TargetSession | None = None
        self._ids: list[int] = []
        self._sources: list[Source] = []
        self._pieces: list[str] = []
        self._text = AnswerText(engine.tokenizer, request.stop)
        self._echo = engine.decode(request.prompt) if request.echo else ""
        self._logprobs: list[TokenLogprob] | None = None if request.logprobs is None else []
        scored = request.echo and request.logprobs is not None
        self._prompt_logprobs: list[TokenLogprob | None] | None = [None] if scored else None
        self._finish: FinishReason | None = None
        self._end: int | None = None  # the token that ended it
        self._steps = self._shared = self._drafted = self._cached = 0
        self._arrived = time.perf_counter()
        self._began = self._prefilled = 0.0  # not yet

    @property
    def capacity(self) -> int:
        """Tokens that the KV cache has room for."""
        nodes = max(self._engine.cost.max_nodes, LONGEST_STEP)  # what drafters read ahead is of no other size
        return whole_chunks(len(self._prompt_ids) + self._limit + nodes + 1)

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
    def written(self) -> bool:
        """Whether the pass that ended the prompt was taken in."""
        return bool(self._prefilled)

    @property
    def scores(self) -> bool:
        """Whether the log-probabilities of the prompt are wanted, so that all of it must be read."""
        return self._prompt_logprobs is not None

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
        if self._speculates:
            self._drafts.begin(self._prompt_ids, self._request, session)
        return PrefillEvent(session.length, len(self._prompt_ids))

    def segment(self, tokens: int) -> Segment:
        """The next piece of the prompt, of at most so many tokens where the model can stop within it."""
        start = self.session.length
        tokens = min(tokens, _SCORED) if self.scores else tokens
        # A state that cannot be rewound is not to be trusted with pieces either.
        end = start + tokens if self._capability.supports_chain else len(self._prompt_ids)
        piece = self._prompt_ids[start:end]
        last = start + len(piece) == len(self._prompt_ids)
        return Segment(self.session, piece, rows=len(piece) if self.scores else int(last))

    def step(self, tree: DraftTree) -> Segment:
        """The last token of the answer with a draft behind it."""
        return Segment(self.session, self._ids[-1:], tree)

    def take(
        self,
        segment: Segment,
        logits: torch.Tensor,
        draft_s: float,
        forward_s: float,
        price: Price,
        *,
        shared: bool,
    ) -> Iterator[PrefillEvent | StepEvent]:
        """Take in the outcome of a pass.

        Args:
            segment: What this text had in it.
            logits: [rows + n, vocab], see ``TargetModel.verify``.
            draft_s: Seconds that the proposal took.
            forward_s: Seconds of the pass.
            price: What drafting is measured by in it.
            shared: Whether it carried other requests as well.
        """
        if self._prompt_logprobs is not None:
            self._score(self._prompt_logprobs, logits[: segment.rows])
            logits = logits[segment.rows - 1 :]  # here only: right after a pass it takes 80 us
        if not self.decoding:
            yield PrefillEvent(self.session.length, len(self._prompt_ids))
            return
        # The pass that ends the prompt gives the first token; every further one is a step.
        first = not self._prefilled
        begun = time.perf_counter()
        tree = segment.tree
        path, bonus = accept(tree, self._choose(logits), self._eos)
        token_ids, text = self._take([*tree.token_ids[path].tolist(), bonus])
        count = len(token_ids)
        sources = [*(Source(code) for code in tree.source[path].tolist()), Source.TARGET][:count]
        origins = [*tree.origin[path].tolist(), -1][:count]
        logprobs = self._log_probabilities(logits, path, token_ids)
        self._sources += sources
        accepted = time.perf_counter()
        self.session.commit(path)
        self._drafts.recycle(segment.token_ids[-1], tree, logits)
        self._drafts.extend(token_ids)
        grammar = tree.source == Source.GRAMMAR
        self._drafts.judge(len(tree) - int(grammar.sum()), len(path) - int(grammar[path].sum()), price)
        if first:
            self._prefilled = time.perf_counter()
            yield PrefillEvent(len(self._prompt_ids), len(self._prompt_ids))
        else:
            self._steps += 1
            self._shared += shared
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
            logprobs=logprobs,
            tree=tree,
        )

    def propose(self, texts: int = 1) -> DraftTree:
        """The draft for the next step, no deeper than the answer may still be long.

        Args:
            texts: That share its pass.
        """
        left = self._limit - len(self._ids)
        if not self._speculates or left <= 1:
            return DraftTree.empty()
        budget = self._engine.cost.max_nodes
        tree = self._drafts.propose(budget, texts)
        if self._grammar is not None:
            tree = self._grammar.weave(tree, budget)
        if not self._capability.supports_tree:
            tree = leading_chain(tree)
        # Deeper nodes could not be kept, and may lie behind the last position of the model.
        return shallow(tree, left - 1)

    def stop(self, reason: FinishReason) -> StepEvent | None:
        """End the text here; what was held back of it, if anything was."""
        text = self._show(self._text.finish())
        self._finish = reason if self._text.stop is None else "stop"
        if not text:
            return None
        none = None if self._logprobs is None else ()
        return StepEvent((), (), (), text, 0, 0, 0.0, 0.0, 0.0, 0.0, logprobs=none)

    def end(self) -> None:
        """Free what the request held."""
        self._drafts.end()
        if self._session is not None:
            self._session.close()
        self._session = None

    def _take(self, token_ids: list[int]) -> tuple[list[int], str]:
        """Which of a step's tokens belong to the answer, and the text shown with them; notes why it ends."""
        room = self._limit - len(self._ids)
        end = next((i for i, token in enumerate(token_ids[:room]) if token in self._eos), None)
        if self._grammar is not None:
            self._grammar.take(token_ids[self._grammar.taken - len(self._ids) :])
            if self._grammar.complete:
                end = self._grammar.taken - len(self._ids)
        if end is not None:
            self._finish = "stop"
            self._end = next(iter(token_ids[end:]), None)
        elif len(token_ids) >= room:
            end, self._finish = room, self._limited_by
        count, text = self._text.push(token_ids[:end])
        if self._finish:
            text += self._text.finish()
        if self._text.stop is not None:
            self._finish = "stop"
        self._ids += token_ids[:count]
        return token_ids[:count], self._show(text)

    def _show(self, text: str) -> str:
        """Add to the answer; what is shown with that, the first time behind the prompt if it is echoed."""
        shown = text if self._pieces else self._echo + text
        self._pieces.append(text)
        return shown

    def _score(self, scored: list[TokenLogprob | None], logits: torch.Tensor) -> None:
        """Note the log-probabilities of the prompt's next tokens, by the logits [n, vocab] before each."""
        following = self._prompt_ids[len(scored) : len(scored) + len(logits)]
        if following:
            scored += token_logprobs(logits[: len(following)], following, self._request.logprobs or 0)

    def _log_probabilities(
        self, logits: torch.Tensor, path: Sequence[int], token_ids: Sequence[int]
    ) -> tuple[TokenLogprob, ...] | None:
        """Those of a step's tokens, the accepted ``path`` and the bonus token, where they are wanted."""
        if self._logprobs is None:
            return None
        rows = [0, *(node + 1 for node in path)][: len(token_ids)]
        logprobs = token_logprobs(logits[rows], token_ids, self._request.logprobs or 0)
        self._logprobs += logprobs
        return logprobs

    def result(self) -> GenerationResult:
        """What was generated, once finished."""
        answer = "".join(self._pieces)
        grounding = ground(answer, self._request.passages, self._request.min_span)
        shift = len(self._echo)
        logprobs, of_prompt = self._logprobs, self._prompt_logprobs
        stop_ids = self._request.stop_token_ids
        now = time.perf_counter()
        began, prefilled = self._began or now, self._prefilled or now
        accepted = Counter(source for source in self._sources if source is not Source.TARGET)
        assert self._finish is not None
        return GenerationResult(
            text=self._echo + answer,
            token_ids=tuple(self._ids),
            sources=tuple(self._sources),
            finish_reason=self._finish,
            grounding=tuple(
                replace(span, start=span.start + shift, end=span.end + shift) for span in grounding
            ),
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
                shared_steps=self._shared,
                decoding=self._capability.decoding if self._request.speculate else "plain",
                decoding_reason=self._capability.reason if self._request.speculate else "speculation is off",
            ),
            seed=self._seed,
            stop=self._end if self._text.stop is None and self._end in stop_ids else self._text.stop,
            logprobs=None if logprobs is None else tuple(logprobs),
            prompt_logprobs=None if of_prompt is None else tuple(of_prompt),
        )


def _seed_of(request: GenerationRequest) -> int | None:
    """What the draws of a request are keyed by: its own seed or a fresh one, None where nothing is drawn."""
    if not request.temperature:
        return None
    return fresh_seed() if request.seed is None else request.seed
