"""Namespaces and documents of the store, over HTTP; each key sees its own namespaces only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal
from uuid import uuid4

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, ConfigDict, Field

from groundspeed.integrations.server.answering import away
from groundspeed.integrations.server.bodies import Body
from groundspeed.integrations.server.errors import ApiError, documented, invalid
from groundspeed.integrations.server.serving import Admitted, CallerOf, ServingOf
from groundspeed.integrations.server.stores import NAME
from groundspeed.types import Document

if TYPE_CHECKING:
    from groundspeed.retrieval.updating import LiveStore

__all__ = ["router"]

router = APIRouter(prefix="/v1/namespaces", tags=["store"])

Namespace = Annotated[
    str, Path(pattern=NAME, description="A namespace; `corpus` is what `groundspeed index` made.")
]
DocumentId = Annotated[str, Path(min_length=1, max_length=1024)]

_MOST_LISTED = 1000


class NamespaceFacts(BaseModel):
    """A namespace."""

    id: str
    object: Literal["namespace"] = "namespace"
    documents: int
    chunks: int


class Namespaces(BaseModel):
    """The namespaces that the key sees."""

    object: Literal["list"] = "list"
    data: list[NamespaceFacts]


class DocumentFacts(BaseModel):
    """A document."""

    id: str
    object: Literal["document"] = "document"
    characters: int
    metadata: dict[str, Any]


class DocumentText(DocumentFacts):
    """A document with its text."""

    text: str


class Documents(BaseModel):
    """A page of a namespace's documents, in the order they came."""

    object: Literal["list"] = "list"
    data: list[DocumentFacts]
    has_more: bool


class Deleted(BaseModel):
    """What is no more."""

    id: str
    object: str
    deleted: Literal[True] = True


class NewDocument(BaseModel):
    """A document to keep."""

    model_config = ConfigDict(extra="forbid")

    id: str | None = Field(None, min_length=1, max_length=1024)
    text: str = Field(min_length=1)
    metadata: dict[str, Any] = Field(default_factory=dict)


class NewDocuments(Body):
    """Documents to keep; one with the id of another takes its place."""

    documents: list[NewDocument] = Field(min_length=1)


class Added(NamespaceFacts):
    """The namespace with the documents in it."""

    ids: list[str]


@router.get("", responses=documented())
async def list_namespaces(serving: ServingOf, caller: CallerOf) -> Namespaces:
    """List the namespaces that the key sees."""

    def look() -> list[NamespaceFacts]:
        names = [name for name in serving.stores.names() if caller.sees(name)]
        return [_facts(name, serving.stores.live(name)) for name in names]

    return Namespaces(data=await away(look))


@router.get("/{namespace}", responses=documented(403, 404))
async def get_namespace(namespace: Namespace, serving: ServingOf, caller: CallerOf) -> NamespaceFacts:
    """Describe a namespace."""
    caller.check(namespace)
    return await away(lambda: _facts(namespace, serving.stores.live(namespace)))


@router.delete("/{namespace}", responses=documented(403, 404), dependencies=[Admitted])
async def delete_namespace(namespace: Namespace, serving: ServingOf, caller: CallerOf) -> Deleted:
    """Delete a namespace with all its documents."""
    caller.check(namespace)
    await away(lambda: serving.stores.remove(namespace))
    return Deleted(id=namespace, object="namespace")


@router.get("/{namespace}/documents", responses=documented(403, 404))
async def list_documents(
    namespace: Namespace,
    serving: ServingOf,
    caller: CallerOf,
    limit: Annotated[int, Query(ge=1, le=_MOST_LISTED)] = 100,
    after: Annotated[str | None, Query(description="The last document of the page before.")] = None,
) -> Documents:
    """List the documents of a namespace, without their texts."""
    caller.check(namespace)
    contents = await away(lambda: serving.stores.live(namespace).contents())
    documents = [stored.document for stored in contents.documents]
    start = 0
    if after is not None:
        start = next((row for row, one in enumerate(documents, start=1) if one.id == after), 0)
        if not start:
            raise invalid(
                f"the namespace has no document {after!r}; list it from the beginning", param="after"
            )
    page = documents[start : start + limit]
    return Documents(data=[_described(one) for one in page], has_more=start + limit < len(documents))


@router.post("/{namespace}/documents", responses=documented(403, 404), dependencies=[Admitted])
async def add_documents(
    namespace: Namespace, body: NewDocuments, serving: ServingOf, caller: CallerOf
) -> Added:
    """Add documents, all or none; the namespace is made if it is missing."""
    caller.check(namespace)
    added = [Document(one.id or uuid4().hex, one.text, one.metadata) for one in body.documents]
    facts = await away(lambda: _facts(namespace, serving.stores.upsert(namespace, added)))
    return Added(**facts.model_dump(), ids=[one.id for one in added])


@router.get("/{namespace}/documents/{document:path}", responses=documented(403, 404))
async def get_document(
    namespace: Namespace, document: DocumentId, serving: ServingOf, caller: CallerOf
) -> DocumentText:
    """Give a document with its text."""
    caller.check(namespace)
    found = await away(lambda: serving.stores.live(namespace).get([document]))
    if not found:
        raise _missing(namespace, document)
    return DocumentText(**_described(found[0]).model_dump(), text=found[0].text)


@router.delete(
    "/{namespace}/documents/{document:path}", responses=documented(403, 404), dependencies=[Admitted]
)
async def delete_document(
    namespace: Namespace, document: DocumentId, serving: ServingOf, caller: CallerOf
) -> Deleted:
    """Delete a document."""
    caller.check(namespace)
    if not await away(lambda: serving.stores.live(namespace).get([document])):
        raise _missing(namespace, document)
    await away(lambda: serving.stores.delete(namespace, [document]))
    return Deleted(id=document, object="document")


def _facts(name: str, live: LiveStore) -> NamespaceFacts:
    documents, chunks = live.counts()
    return NamespaceFacts(id=name, documents=documents, chunks=chunks)


def _described(document: Document) -> DocumentFacts:
    return DocumentFacts(id=document.id, characters=len(document.text), metadata=dict(document.metadata))


def _missing(namespace: str, document: str) -> ApiError:
    return ApiError(
        404,
        f"the namespace {namespace!r} has no document {document!r}; list what it has",
        "document_not_found",
        param="document",
    )
