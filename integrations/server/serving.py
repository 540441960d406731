"""What the routes of a server share, and the dependencies by which they get it."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

import groundspeed
from groundspeed.integrations.pipeline import RagPipeline
from groundspeed.integrations.server.errors import ApiError
from groundspeed.integrations.server.keys import EVERYBODY, Caller
from groundspeed.integrations.server.metrics import Metrics
from groundspeed.integrations.server.settings import Settings
from groundspeed.integrations.tokenizing import CORPUS

if TYPE_CHECKING:
    from groundspeed.integrations.server.stores import Stores
    from groundspeed.verify.engine import Engine

__all__ = ["Admission", "Admitted", "CallerOf", "Serving", "ServingOf"]


class Admission:
    """Counts the requests that need the engine, and turns away those beyond what may wait.

    The engine has a queue of its own, in which the requests wait; here it is bounded.

    Attributes:
        in_hand: Requests that are being answered or wait.
        leaving: Whether the server is shutting down: it lets nobody in.
    """

    def __init__(self, running: int, waiting: int) -> None:
        """Say how many requests are answered at once, and how many more may wait."""
        self.in_hand = 0
        self.leaving = False
        self._running = running
        self._waiting = waiting
        self._seconds = 1.0  # that a request takes, lately

    @property
    def waiting(self) -> int:
        """Requests that wait for their turn."""
        return max(0, self.in_hand - self._running)

    def check(self) -> None:
        """Refuse whoever cannot be let in now.

        Raises:
            ApiError: The server is shutting down, or too many wait already.
        """
        if self.leaving:
            raise ApiError(503, "the server is shutting down; ask another one, or later", "shutting_down")
        if self.in_hand >= self._running + self._waiting:
            wait = max(1, round(self._seconds * self._waiting / self._running))
            raise ApiError(
                429,
                f"{self._running} requests are being answered and {self._waiting} wait, which is all that "
                f"may; try again in {wait} s",
                "queue_full",
                headers={"retry-after": str(wait)},
            )

    def enter(self) -> float:
        """Let a request in; when that was, for ``leave``.

        Raises:
            ApiError: As ``check``.
        """
        self.check()
        self.in_hand += 1
        return time.perf_counter()

    def leave(self, entered: float) -> None:
        """A request is over."""
        self.in_hand -= 1
        self._seconds += (time.perf_counter() - entered - self._seconds) / 8


@dataclass(slots=True)
class Serving:
    """What the routes share; ``request.app.state.serving``.

    Attributes:
        engine: The engine.
        settings: What the operator decided.
        stores: The document stores, by namespace.
        admission: Counts requests.
        metrics: What Prometheus is told.
        given: A pipeline that takes the place of the store's own, for the namespace ``corpus``.
        created: When the server began, in seconds of the Unix epoch.
    """

    engine: Engine
    settings: Settings
    stores: Stores
    admission: Admission
    metrics: Metrics
    given: RagPipeline | None = None
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def model(self) -> str:
        """What requests call the model."""
        return self.settings.model or self.engine.model_name or "groundspeed"

    def pipeline(self, caller: Caller, namespace: str) -> RagPipeline:
        """What answers questions over a namespace as it is now. May wait for the disk: not for an event loop.

        Raises:
            ApiError: There is no such namespace, or it is not the caller's.
            StoreError: The store is damaged.
        """
        caller.check(namespace)
        if self.given is not None and namespace == CORPUS:
            return self.given
        return RagPipeline(self.engine, self.stores.retriever(namespace))

    @property
    def fingerprint(self) -> str:
        """What the same seed gives the same answer under."""
        return f"groundspeed-{groundspeed.__version__}-{self.engine.dtype}"

    def check_model(self, name: str) -> None:
        """Refuse another model than there is.

        Raises:
            ApiError: Naming the one that there is.
        """
        if name != self.model:
            raise ApiError(
                404,
                f"there is no model {name!r} here; this server has {self.model!r}",
                "model_not_found",
                param="model",
            )


def _serving(request: Request) -> Serving:
    serving: Serving = request.app.state.serving
    return serving


ServingOf = Annotated[Serving, Depends(_serving)]
"""What the routes share."""

_bearer = HTTPBearer(auto_error=False, description="An API key of this server, if it asks for keys.")


def _caller(
    request: Request,
    serving: ServingOf,
    given: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)],
) -> Caller:
    keys = serving.settings.keys
    if not len(keys):
        return EVERYBODY
    caller = keys.find(given.credentials) if given else None
    if caller is None:
        said = "the API key is not one of this server's" if given else "no API key was given"
        raise ApiError(
            401,
            f"{said}; send one as the header 'Authorization: Bearer KEY'",
            "invalid_api_key",
            headers={"www-authenticate": "Bearer"},
        )
    request.state.noted["caller"] = caller.name
    return caller


CallerOf = Annotated[Caller, Depends(_caller)]
"""Who asks; refuses whoever has no key."""


async def _admitted(serving: ServingOf, caller: CallerOf) -> AsyncGenerator[None]:
    entered = serving.admission.enter()
    try:
        yield
    finally:
        serving.admission.leave(entered)


Admitted = Depends(_admitted)
"""A place in the queue, until the response was sent, streams included: ``dependencies=[Admitted]``."""
