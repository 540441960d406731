"""Documents of LangChain become the passages that an answer is drafted from and grounded in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from langchain_core.documents import Document
from langchain_core.messages import BaseMessage, ToolMessage
from langchain_core.prompt_values import PromptValue
from pydantic import Field

from groundspeed.errors import InputError
from groundspeed.types import Passage

__all__ = [
    "DraftDocument",
    "GroundedPromptValue",
    "documents_of_text",
    "to_document",
    "to_passages",
    "without_documents",
]

DraftDocument: TypeAlias = Document | Mapping[str, Any] | Passage
"""A document, a dict with ``page_content`` and perhaps ``id`` and ``metadata``, or a passage."""

DOCUMENTS = "documents"
"""Where a message carries documents, in its ``additional_kwargs``."""


class GroundedPromptValue(PromptValue):
    """A prompt with the documents that its answer is drafted from, for models that know what to do with them.

    To all others it is the prompt.
    """

    prompt: PromptValue
    documents: list[Document] = Field(exclude=True, repr=False)

    def to_string(self) -> str:
        """The prompt's text, from which ``documents_of_text`` tells the documents."""
        return _GroundedText.of(self.prompt.to_string(), self.documents)

    def to_messages(self) -> list[BaseMessage]:
        """The prompt's messages, of which the last one carries the documents."""
        *messages, last = self.prompt.to_messages()
        own = last.additional_kwargs.get(DOCUMENTS, [])
        carried = {**last.additional_kwargs, DOCUMENTS: [*self.documents, *own]}
        return [*messages, last.model_copy(update={"additional_kwargs": carried})]


class _GroundedText(str):
    """A text that LangChain hands through to a text model as it is."""

    documents: Sequence[Document]

    @classmethod
    def of(cls, text: str, documents: Sequence[Document]) -> _GroundedText:
        """The text with its documents."""
        grounded = cls(text)
        grounded.documents = documents
        return grounded


def documents_of_text(text: str) -> Sequence[Document]:
    """The documents that came with the text of a ``GroundedPromptValue``; none with any other."""
    return text.documents if isinstance(text, _GroundedText) else ()


def to_passages(
    documents: Iterable[DraftDocument] | None, carried: Iterable[DraftDocument] = ()
) -> tuple[Passage, ...]:
    """Turn documents into passages, in order, each once.

    ``metadata`` may say where in its parent a document stands: ``source`` and ``start_index``, as LangChain's
    splitters write it; and what comes behind it: ``following``, as ``GroundspeedRetriever`` does.

    Args:
        documents: That were handed over.
        carried: That came along with a prompt; these come last.

    Raises:
        InputError: Something that is no document, or a single one.
    """
    documents = () if documents is None else documents
    if isinstance(documents, Document | Mapping | Passage | str) or not isinstance(documents, Iterable):
        raise InputError(
            f"draft_documents is a {type(documents).__name__}; give a list of documents, [document]"
        )
    found: dict[tuple[str, int, str], Passage] = {}
    for number, document in enumerate([*documents, *carried]):
        passage = _passage(document, number)
        found.setdefault((passage.document_id, passage.start, passage.text), passage)
    return tuple(found.values())


def to_document(passage: Passage) -> Document:
    """The document for a passage that retrieval found; ``to_passages`` turns it back."""
    return Document(
        id=f"{passage.document_id}:{passage.start}",
        page_content=passage.text,
        metadata={
            **passage.metadata,
            "source": passage.document_id,
            "start_index": passage.start,
            "score": passage.score,
            "following": passage.following,
        },
    )


def without_documents(
    messages: Sequence[BaseMessage],
) -> tuple[list[BaseMessage], list[Document | Mapping[str, Any]]]:
    """Take out the documents that messages carry beside their text, the newest message's first.

    They stand in the ``artifact`` of tool messages and in ``additional_kwargs["documents"]``.

    Returns:
        The messages without them, and the documents.
    """
    kept: list[BaseMessage] = []
    found: list[list[Document | Mapping[str, Any]]] = []
    for message in messages:
        changes: dict[str, Any] = {}
        if DOCUMENTS in message.additional_kwargs:
            rest = dict(message.additional_kwargs)
            found.append(_documents_in(rest.pop(DOCUMENTS)))
            changes["additional_kwargs"] = rest
        if isinstance(message, ToolMessage) and (carried := _documents_in(message.artifact)):
            found.append(carried)
            changes["artifact"] = None
        kept.append(message.model_copy(update=changes) if changes else message)
    return kept, [document for documents in reversed(found) for document in documents]


def _documents_in(value: Any) -> list[Document | Mapping[str, Any]]:
    """What of an artifact is documents; tools may return anything."""
    values = value if isinstance(value, list | tuple) else [value]
    return [
        item
        for item in values
        if isinstance(item, Document) or (isinstance(item, Mapping) and "page_content" in item)
    ]


def _passage(document: DraftDocument, number: int) -> Passage:
    if isinstance(document, Passage):
        return document
    text: Any
    if isinstance(document, Document):
        own_id, text, metadata = document.id, document.page_content, document.metadata
    elif isinstance(document, Mapping):
        own_id, text = document.get("id"), document.get("page_content")
        metadata = document.get("metadata") or {}
    else:
        raise InputError(
            f"draft_documents holds a {type(document).__name__}; give documents of LangChain, or dicts with "
            "page_content"
        )
    if not isinstance(text, str):
        raise InputError(f"a draft document has the page_content {text!r}; it must be a string")
    start, source = metadata.get("start_index"), metadata.get("source")
    whole = not isinstance(start, int) or start < 0
    names = (own_id, source) if whole else (source, own_id)
    name = next((str(name) for name in names if name), f"document-{number}")
    score, following = metadata.get("score"), metadata.get("following")
    return Passage(
        document_id=name,
        text=text,
        start=0 if whole else int(start or 0),
        score=float(score) if isinstance(score, int | float) else 0.0,
        metadata={key: value for key, value in metadata.items() if key != "following"},
        following=following if isinstance(following, str) else "",
    )
