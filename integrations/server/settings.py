"""What an operator decides about a server."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from groundspeed.integrations.server.keys import Keys

if TYPE_CHECKING:
    from groundspeed.retrieval.base import Embedder

__all__ = ["Settings"]


@dataclass(frozen=True, slots=True)
class Settings:
    """How a server behaves; the defaults are those of ``groundspeed serve``.

    Attributes:
        model: What requests call the model; None is the engine's own name for it.
        store: Folder of the document store, None for a server without one.
        read_only: Refuse to change the store, as another process does.
        datastore: Folder of the token datastore that the engine drafts from; what is added to the store over
            HTTP, and deleted, is so there as well, under the same namespaces.
        embedding_model: Of the store; None takes the one that the store names.
        keys: Who may ask; without any key everybody may.
        cors_origins: Pages of other origins that may call, ``*`` for all.
        body_bytes: Longest body of a request.
        prompt_tokens: Longest prompt; None leaves it to the model's context.
        answer_tokens: Length of an answer whose request names none.
        documents: Most documents that come with a request.
        document_characters: Of all of them together; they are indexed while other requests wait.
        choices: Most answers that one request may ask for.
        waiting: Requests that may wait for their turn behind those being answered; more are turned away.
        request_seconds: After which an answer ends with what there is of it.
        stall_seconds: For which a client may send nothing, or take nothing of its answer.
        log_prompts: Write prompts and answers into the log.
    """

    model: str | None = None
    store: Path | None = None
    read_only: bool = False
    datastore: Path | None = None
    embedding_model: Embedder | str | None = None
    keys: Keys = field(default_factory=Keys)
    cors_origins: tuple[str, ...] = ()
    body_bytes: int = 8_000_000
    prompt_tokens: int | None = None
    answer_tokens: int = 1024
    documents: int = 100
    document_characters: int = 200_000
    choices: int = 16
    waiting: int = 64
    request_seconds: float = 600.0
    stall_seconds: float = 30.0
    log_prompts: bool = False
