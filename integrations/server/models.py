"""``/v1/models``."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter
from pydantic import BaseModel

from groundspeed.integrations.server.errors import documented
from groundspeed.integrations.server.serving import CallerOf, Serving, ServingOf

__all__ = ["router"]

router = APIRouter(prefix="/v1/models", tags=["models"])


class Model(BaseModel):
    """A model, as OpenAI's API describes it."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "groundspeed"
    context_length: int | None
    """Tokens of prompt and answer together; null for no bound."""


class Models(BaseModel):
    """The models of this server: one."""

    object: Literal["list"] = "list"
    data: list[Model]


@router.get("", responses=documented())
async def list_models(serving: ServingOf, caller: CallerOf) -> Models:
    """List the models."""
    return Models(data=[_model(serving)])


@router.get("/{model:path}", responses=documented(404))
async def get_model(model: str, serving: ServingOf, caller: CallerOf) -> Model:
    """Describe a model."""
    serving.check_model(model)
    return _model(serving)


def _model(serving: Serving) -> Model:
    return Model(
        id=serving.model, created=serving.created, context_length=serving.engine.target.context_length
    )
