"""Middleware for agents: documents in the state reach the drafter."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NotRequired

from langchain.agents.middleware import AgentMiddleware, AgentState, ModelRequest, ModelResponse
from langchain_core.documents import Document

__all__ = ["GroundedState", "GroundspeedMiddleware"]


class GroundedState(AgentState[Any]):
    """An agent's state with documents in it."""

    context: NotRequired[list[Document]]


class GroundspeedMiddleware(AgentMiddleware[Any, Any, Any]):
    """Hands the documents in an agent's state to each call of its model, for ``create_agent``.

    Documents that a tool returns as its artifact reach the drafter without it.
    """

    state_schema = GroundedState

    def __init__(self, key: str = "context") -> None:
        """Say where in the state the documents are; a missing key is no documents."""
        super().__init__()
        self._key = key

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> ModelResponse[Any]:
        """Call the model with the documents."""
        return handler(self._with_documents(request))

    async def awrap_model_call(
        self,
        request: ModelRequest[Any],
        handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]],
    ) -> ModelResponse[Any]:
        """``wrap_model_call`` for an event loop."""
        return await handler(self._with_documents(request))

    def _with_documents(self, request: ModelRequest[Any]) -> ModelRequest[Any]:
        documents = dict(request.state).get(self._key)
        if not documents:
            return request
        return request.override(model_settings={**request.model_settings, "draft_documents": documents})
