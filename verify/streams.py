"""The events of a request as they come, for whoever waits in a thread or in an event loop."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from types import TracebackType

from groundspeed.types import Event, GenerationResult
from groundspeed.verify.scheduler import Ticket

__all__ = ["EventStream", "Submit", "events", "events_of_all"]

Submit = Callable[[Callable[[Event | BaseException], None]], Ticket]


class EventStream(Iterator[Event]):
    """The events of one request; the last one is its result.

    Closing it, or leaving it as a context manager, ends the request and frees everything.
    """

    def __init__(self, submit: Submit) -> None:
        """Send a request off.

        Args:
            submit: Queues the request whose events go to the given function.
        """
        self._events: queue.SimpleQueue[Event | BaseException] = queue.SimpleQueue()
        self._done = False
        self._ticket = submit(self._events.put)

    def __next__(self) -> Event:
        if self._done:
            raise StopIteration
        event = self._events.get()
        self._done = isinstance(event, GenerationResult | BaseException)
        if isinstance(event, BaseException):
            raise event
        if self._done:
            self._ticket.over.wait()
        return event

    def cancel(self) -> None:
        """End the request before its next pass, from any thread; the result comes, with what there is."""
        self._ticket.cancel()

    def close(self) -> None:
        """End the request and wait until all it held is free; no event comes any more."""
        self._done = True
        self._ticket.cancel()
        self._ticket.over.wait()

    def __enter__(self) -> EventStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        # Nobody waits any more; it ends by itself before the next pass.
        if hasattr(self, "_ticket"):
            self._ticket.cancel()


async def events(submit: Submit) -> AsyncGenerator[Event]:
    """The same for an event loop: no thread waits. Leaving the iteration ends the request.

    Args:
        submit: Queues the request whose events go to the given function.
    """
    async with aclosing(events_of_all([submit])) as stream:
        async for _, event in stream:
            yield event


async def events_of_all(submits: Sequence[Submit]) -> AsyncGenerator[tuple[int, Event]]:
    """The events of several requests as they come, each with the request's number.

    The requests are queued when the iteration begins; leaving it, or an error of one of them, ends all.

    Args:
        submits: Each queues a request whose events go to the given function.
    """
    loop = asyncio.get_running_loop()
    arrived: asyncio.Queue[tuple[int, Event | BaseException]] = asyncio.Queue()

    def deliver_to(number: int) -> Callable[[Event | BaseException], None]:
        def deliver(event: Event | BaseException) -> None:
            loop.call_soon_threadsafe(arrived.put_nowait, (number, event))

        return deliver

    tickets: list[Ticket] = []
    try:
        tickets += (submit(deliver_to(number)) for number, submit in enumerate(submits))
        left = len(tickets)
        while left:
            number, event = await arrived.get()
            if isinstance(event, BaseException):
                raise event
            yield number, event
            left -= isinstance(event, GenerationResult)
    finally:
        for ticket in tickets:
            ticket.cancel()
