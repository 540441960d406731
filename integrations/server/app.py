"""The application: routes, limits, errors and metrics around one engine."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware

import groundspeed
from groundspeed.integrations.server import answers, chat, completions, health, models, namespaces, page
from groundspeed.integrations.server.errors import add_error_handlers
from groundspeed.integrations.server.gate import Gate
from groundspeed.integrations.server.metrics import Metrics
from groundspeed.integrations.server.serving import Admission, Serving
from groundspeed.integrations.server.stores import Stores
from groundspeed.integrations.server.tokens import TokenCopies

if TYPE_CHECKING:
    from groundspeed.integrations.pipeline import RagPipeline
    from groundspeed.integrations.server.settings import Settings
    from groundspeed.verify.engine import Engine

__all__ = ["create_app"]

ROUTERS = (
    health.router,
    models.router,
    chat.router,
    completions.router,
    answers.router,
    namespaces.router,
    page.router,
)
"""All routes. A router of ``/v1`` asks for keys by the ``CallerOf`` of its routes."""


def create_app(engine: Engine, settings: Settings, *, pipeline: RagPipeline | None = None) -> FastAPI:
    """Make the application; it closes the engine when it is shut down.

    Args:
        engine: What answers.
        settings: What the operator decided.
        pipeline: Answers questions over the namespace ``corpus`` instead of the store's own passages.
    """
    admission = Admission(engine.scheduler.most_active, settings.waiting)
    metrics = Metrics(engine, waiting=lambda: admission.waiting, in_hand=lambda: admission.in_hand)
    writes = settings.datastore if not settings.read_only else None
    tokens = TokenCopies(writes, engine.tokenizer) if writes else None
    stores = Stores(settings.store, settings.embedding_model, tokens, read_only=settings.read_only)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
        yield
        engine.close()
        stores.close()

    app = FastAPI(
        title="groundspeed",
        version=groundspeed.__version__,
        lifespan=lifespan,
        redirect_slashes=False,
        docs_url=None,  # its page would load scripts from elsewhere
        redoc_url=None,
    )
    app.state.serving = Serving(engine, settings, stores, admission, metrics, given=pipeline)
    add_error_handlers(app)
    app.add_middleware(Gate, settings=settings, metrics=metrics)
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origins,
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["authorization", "content-type"],
            expose_headers=["x-request-id", "retry-after"],
        )
    for router in ROUTERS:
        app.include_router(router)
    document = app.openapi

    def without_422() -> dict[str, Any]:
        """FastAPI says of every route that it answers 422; ours answer 400, as OpenAI's API does."""
        for operations in (told := document())["paths"].values():
            for operation in operations.values():
                operation["responses"].pop("422", None)
        return told

    app.openapi = without_422  # type: ignore[method-assign]
    return app
