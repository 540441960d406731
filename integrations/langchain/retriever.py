"""The retriever: a document store of groundspeed as LangChain asks for documents."""

from __future__ import annotations

import threading
from typing import Any

from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from pydantic import Field, PrivateAttr

from groundspeed.integrations.langchain.documents import to_document
from groundspeed.retrieval.retriever import Mode, Retriever

__all__ = ["GroundspeedRetriever"]

_opening = threading.Lock()


class GroundspeedRetriever(BaseRetriever):
    """Finds passages of a store, each as a document that knows where it stands in its parent.

    ``metadata`` has the parent's own, ``source`` (its id), ``start_index``, ``score``, and in ``following``
    what stands behind the passage, from which an answer may be drafted on. The store is read by the first
    question; what is written later is for a new retriever.
    """

    store: str
    """Folder of the store, as made by ``groundspeed index`` or ``index_corpus``."""
    k: int = Field(default=5, ge=1)
    mode: Mode = "hybrid"
    rerank: str | None = None
    """A cross-encoder that orders the passages anew."""
    embedding_model: str | None = None
    """The model that built the store, if it has moved."""

    _opened: Retriever | None = PrivateAttr(default=None)

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, **how: Any
    ) -> list[Document]:
        wanted = {"k": self.k, "mode": self.mode, "rerank": self.rerank, **how}
        return [to_document(passage) for passage in self._retriever().search(query, **wanted)]

    def _retriever(self) -> Retriever:
        with _opening:
            if self._opened is None:
                self._opened = Retriever.open(self.store, self.embedding_model)
            return self._opened

    def __getstate__(self) -> dict[Any, Any]:
        state = super().__getstate__()
        return {**state, "__pydantic_private__": {**(state["__pydantic_private__"] or {}), "_opened": None}}
