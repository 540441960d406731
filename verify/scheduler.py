"""Many requests through one model: who takes part in which forward pass."""

from __future__ import annotations

import atexit
import logging
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from groundspeed.drafting.base import DraftTree
from groundspeed.drafting.budget import BatchCost, share_budget
from groundspeed.drafting.worth import Price
from groundspeed.errors import GroundspeedError
from groundspeed.types import Event
from groundspeed.verify.cache import whole_chunks
from groundspeed.verify.prefix import PrefixCache

if TYPE_CHECKING:
    import torch

    from groundspeed.types import FinishReason
    from groundspeed.verify.base import Segment, TargetModel
    from groundspeed.verify.generation import Generation

__all__ = ["Scheduler", "Ticket"]

logger = logging.getLogger(__name__)

_IDLE_SECONDS = 2.0  # without work, after which the thread ends
_PIECE, _PIECE_BESIDE = 1024, 128
"""Prompt tokens of a pass, alone and beside answers that are being written, which must not wait for long."""
_MOST_FAILED = 8
"""Passes in a row that may fail by their requests' own fault; after more the device is lost, most likely."""
_DIED = "the thread that drives the model has died"


class Ticket:
    """A request at the scheduler, and who is told what becomes of it.

    Attributes:
        generation: Its state.
        over: Set when the last event was delivered and everything is freed.
    """

    def __init__(self, generation: Generation, deliver: Callable[[Event | BaseException], None]) -> None:
        """Make a ticket.

        Args:
            generation: The state of a checked request.
            deliver: Called in the scheduler's thread with each event, at last the result, or an error.
        """
        self.generation = generation
        self.over = threading.Event()
        self._deliver = deliver
        self._cancelled = False

    def cancel(self) -> None:
        """End the request before the next pass; its result says so."""
        self._cancelled = True

    def deliver(self, event: Event | BaseException) -> None:
        """Tell whoever waits. One that cannot be told any more is not worth a pass."""
        try:
            self._deliver(event)
        except Exception:
            self._cancelled = True

    def ended_early(self, now: float) -> FinishReason | None:
        """Why the request must not go on."""
        if self._cancelled:
            return "cancelled"
        return "timeout" if now >= self.generation.deadline else None


class Scheduler:
    """Runs requests side by side: they join and leave between passes (continuous batching, Yu et al. 2022).

    One thread drives the model. It is started by the first request and ends when there is nothing to do. A
    pass carries the draft trees of all texts that are being written, within a node budget that they share by
    expected gain, and a piece of the prompts that are being read. Requests begin in the order they came, as
    soon as there is room for their whole KV cache.

    Attributes:
        prefixes: What is kept for requests that begin alike.
        cache_tokens: Tokens that all KV caches may hold together.
        most_active: Requests that take part in a pass, at most.
    """

    def __init__(self, target: TargetModel, cost: BatchCost, *, most_active: int, cache_bytes: int) -> None:
        """Get ready.

        Args:
            target: The model.
            cost: Of its passes; learns from every pass.
            most_active: Requests that take part in a pass, at most.
            cache_bytes: Memory for KV caches, those kept for their prefixes included.
        """
        self.prefixes = PrefixCache(target)
        self._target = target
        self._cost = cost
        self.most_active = most_active
        self._price = Price(0.0, 0.0)  # of drafts, in the pass at hand
        self.cache_tokens = cache_bytes // max(target.bytes_per_token, 1)
        self._waiting: deque[Ticket] = deque()
        self._active: list[Ticket] = []
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._died = False
        self._failed = 0  # passes since the last one that gave anything
        _schedulers.add(self)

    def submit(self, ticket: Ticket) -> None:
        """Queue a request."""
        with self._changed:
            if self._closed:
                raise GroundspeedError("the engine was closed; make a new one")
            if self._died:
                raise GroundspeedError(f"{_DIED}; make a new engine")
            self._waiting.append(ticket)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="groundspeed", daemon=True)
                self._thread.start()
            self._changed.notify()

    def close(self) -> None:
        """Cancel all requests and wait for the thread."""
        with self._changed:
            self._closed = True
            for ticket in [*self._waiting, *self._active]:
                ticket.cancel()
            thread = self._thread
            self._changed.notify()
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        self.prefixes.clear()

    @property
    def fault(self) -> str | None:
        """Why requests are not answered any more; None where they are. To look at from any thread."""
        with self._changed:
            if self._closed:
                return "the engine was closed"
            if self._died:
                return _DIED
        if self._failed > _MOST_FAILED:
            return f"each of the last {self._failed} passes failed"
        return None

    @property
    def active(self) -> int:
        """Texts that take part in the passes now; to look at from any thread."""
        return len(self._active)

    @property
    def used_bytes(self) -> int:
        """Memory of KV caches now, those kept for their prefixes included; to look at from any thread."""
        return (self._used + self.prefixes.tokens) * self._target.bytes_per_token

    @property
    def most_bytes(self) -> int:
        """Memory that KV caches may take."""
        return self.cache_tokens * self._target.bytes_per_token

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._waiting and not self._active:
                    self._changed.wait(0 if self._closed else _IDLE_SECONDS)
                    if not self._waiting:
                        self._thread = None
                        return
            try:
                self._turn()
            except Exception as error:  # nobody must wait for ever, whatever went wrong
                logger.exception("a pass failed outside the model; the requests in it end")
                with self._changed:
                    tickets = list(self._active)
                    if not tickets and self._waiting:  # or it would fail for ever
                        tickets.append(self._waiting.popleft())
                for ticket in tickets:
                    self._leave(ticket, error)
            except BaseException:  # ends this thread, and nobody else would tell those who wait
                with self._changed:
                    self._died = True
                    tickets = [*self._active, *self._waiting]
                    self._waiting.clear()
                for ticket in tickets:
                    self._leave(ticket, GroundspeedError(f"{_DIED}; make a new engine"))
                raise

    def _turn(self) -> None:
        """One forward pass, and what comes before and after it."""
        self._dismiss()
        self._admit()
        if not self._active:
            return
        begun = time.perf_counter()
        segments = self._segments()
        if not segments:
            return
        drafted = time.perf_counter()
        outcomes = self._verify(list(segments.values()))
        seconds = time.perf_counter() - drafted
        lost = all(isinstance(outcome, Exception) for outcome in outcomes)
        self._failed = self._failed + 1 if lost else 0
        shared = len(segments) > 1 and self._target.capability.supports_tree
        if not any(isinstance(outcome, Exception) for outcome in outcomes):
            self._observe(segments, seconds)
        for (ticket, segment), outcome in zip(segments.items(), outcomes, strict=True):
            try:
                if isinstance(outcome, Exception):
                    raise outcome
                generation, draft_s = ticket.generation, drafted - begun
                for event in generation.take(segment, outcome, draft_s, seconds, self._price, shared=shared):
                    ticket.deliver(event)
                if generation.finished:
                    self._leave(ticket, generation.result())
            except Exception as error:
                self._leave(ticket, error)

    def _segments(self) -> dict[Ticket, Segment]:
        """What each text takes through the pass: a draft, or a piece of its prompt while there is room."""
        drafts = self._drafts()
        writing, trees = list(drafts), list(drafts.values())
        pieces: dict[Ticket, Segment] = {}
        room = _PIECE_BESIDE if writing else _PIECE
        for ticket in self._active:
            if room > 0 and ticket not in drafts:
                pieces[ticket] = ticket.generation.segment(room)
                room -= len(pieces[ticket].token_ids)
        if any(map(len, trees)):
            # Prompts must be read whether or not a pass brings more tokens, and their texts will be written
            # in the passes that a draft can save: so they count as if they were written already.
            texts = len(drafts) + len(pieces)
            context = sum(ticket.generation.session.length for ticket in writing) // len(writing)
            seconds = self._cost.of(texts).seconds(context)
            padded = [*trees, *[DraftTree.empty()] * len(pieces)]
            trees = share_budget(padded, seconds / seconds[0])[: len(trees)]
            nodes = sum(map(len, trees))
            self._price = Price(seconds[0] / texts, (seconds[nodes] - seconds[0]) / max(nodes, 1))
        steps = zip(writing, trees, strict=True)
        return {ticket: ticket.generation.step(tree) for ticket, tree in steps} | pieces

    def _drafts(self) -> dict[Ticket, DraftTree]:
        """What is proposed for each text that is being written; one that cannot go on leaves."""
        trees: dict[Ticket, DraftTree] = {}
        for ticket in [ticket for ticket in self._active if ticket.generation.decoding]:
            try:
                trees[ticket] = ticket.generation.propose(len(self._active))
            except Exception as error:
                self._leave(ticket, error)
        return trees

    def _observe(self, segments: dict[Ticket, Segment], seconds: float) -> None:
        """Learn what a pass costs, from those that only write."""
        if all(ticket.generation.written for ticket in segments):
            texts = len(segments)
            nodes = sum(len(segment.tree) for segment in segments.values())
            context = sum(segment.session.length - 1 for segment in segments.values()) // texts
            self._cost.of(texts).observe(nodes, context, seconds)

    def _verify(self, segments: list[Segment]) -> list[torch.Tensor | Exception]:
        """By segment its logits, or what went wrong."""
        if len(segments) > 1 and self._target.capability.supports_tree:
            try:
                return list(self._target.verify(segments))
            except Exception as error:  # nothing has changed, so it can be found out whose it was
                logger.warning(
                    "a pass of %d texts failed; they are tried one by one", len(segments), exc_info=error
                )
        return [self._verify_alone(segment) for segment in segments]

    def _verify_alone(self, segment: Segment) -> torch.Tensor | Exception:
        try:
            return self._target.verify([segment])[0]
        except Exception as error:
            return error

    def _dismiss(self) -> None:
        """End what was cancelled or has run out of time."""
        now = time.perf_counter()
        with self._changed:
            tickets = [*self._active, *self._waiting]
        for ticket in tickets:
            reason = ticket.ended_early(now)
            if reason is not None:
                with self._changed:
                    if ticket in self._waiting:
                        self._waiting.remove(ticket)
                try:
                    step = ticket.generation.stop(reason)
                    if step is not None:
                        ticket.deliver(step)
                    self._leave(ticket, ticket.generation.result())
                except Exception as error:
                    self._leave(ticket, error)

    def _admit(self) -> None:
        """Begin requests in the order they came, while there is room for them."""
        while len(self._active) < self.most_active:
            with self._changed:
                if not self._waiting:
                    return
                ticket = self._waiting[0]
            generation = ticket.generation
            if self._active and self._used + generation.capacity > self.cache_tokens:
                return
            found = None
            if not generation.scores:
                found = self.prefixes.find(
                    generation.prompt_ids,
                    [(other.generation.committed, other.generation.session) for other in self._active],
                )
            self._make_room(generation.capacity)
            with self._changed:
                self._waiting.popleft()
                self._active.append(ticket)
            try:
                like, length = found or (None, 0)
                session = self._target.open(generation.capacity, like=like, length=length)
                ticket.deliver(generation.begin(session))
            except Exception as error:
                self._leave(ticket, error)

    def _leave(self, ticket: Ticket, last: Event | BaseException) -> None:
        """Free what a request held, and tell its outcome."""
        generation = ticket.generation
        with self._changed:
            if ticket in self._active:
                self._active.remove(ticket)
        ticket.deliver(last)
        try:
            self._keep(generation)
        except Exception:
            logger.warning("a text could not be kept for its prefix", exc_info=True)
        generation.end()
        ticket.over.set()

    def _keep(self, generation: Generation) -> None:
        """Keep what was read for requests that begin alike, if there is room without driving others out."""
        if not generation.begun or not self._target.capability.supports_tree:
            return
        committed = generation.committed
        if self._make_room(whole_chunks(len(committed))):
            self.prefixes.keep(committed, generation.session)

    @property
    def _used(self) -> int:
        """Tokens that there is room for in the KV caches of the active requests."""
        return sum(ticket.generation.capacity for ticket in self._active)

    def _make_room(self, tokens: int) -> bool:
        """Forget prefixes until there is room for so many tokens; whether there is."""
        while self._used + self.prefixes.tokens + tokens > self.cache_tokens:
            if not self.prefixes.forget():
                return False
        return True


_schedulers: weakref.WeakSet[Scheduler] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Let no thread be within a pass when the interpreter goes."""
    for scheduler in list(_schedulers):
        scheduler.close()
