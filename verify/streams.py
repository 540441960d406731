"""The events of a request as they come, for whoever waits in a thread or in an event loop."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import AsyncGenerator, Callable, Iterator
from types import TracebackType

from groundspeed.types import Event, GenerationResult
from groundspeed.verify.scheduler import Ticket

__all__ = ["EventStream", "events"]

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
    loop = asyncio.get_running_loop()
    arrived: asyncio.Queue[Event | BaseException] = asyncio.Queue()

    def deliver(event: Event | BaseException) -> None:
        loop.call_soon_threadsafe(arrived.put_nowait, event)

    ticket = submit(deliver)
    try:
        while True:
            event = await arrived.get()
            if isinstance(event, BaseException):
                raise event
            yield event
            if isinstance(event, GenerationResult):
                return
    finally:
        ticket.cancel()
