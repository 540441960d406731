"""The documents that are kept over HTTP, as tokens to draft from."""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from groundspeed.datastores.fingerprint import TokenizerFingerprint
from groundspeed.datastores.writer import TokenDatastoreWriter
from groundspeed.integrations.tokenizing import tokenize
from groundspeed.types import Document

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["TokenCopies"]


class TokenCopies:
    """Documents in a token datastore, under the namespaces that they have in the document store.

    The first change takes the datastore for writing, until ``close``. Whoever drafts from it sees a change
    with the next request. Threads may share it.
    """

    def __init__(self, folder: Path, tokenizer: PreTrainedTokenizerBase) -> None:
        """Name the datastore and the tokenizer of its ids."""
        self._folder = folder
        self._tokenizer = tokenizer
        self._open: TokenDatastoreWriter | None = None
        self._lock = threading.Lock()

    def put(self, namespace: str, documents: Sequence[Document]) -> None:
        """Add documents; one with the id of another takes its place.

        Raises:
            StoreError: The datastore is damaged, or another process writes it.
        """
        writer = self._writer()
        for addition in tokenize(documents, self._tokenizer):
            writer.append(namespace, addition.id, addition.token_ids, replace=True)

    def drop(self, namespace: str, ids: Collection[str] | None = None) -> None:
        """Delete documents, None for all of the namespace; ids that are not there are passed over.

        Raises:
            StoreError: The datastore is damaged, or another process writes it.
        """
        writer = self._writer()
        writer.delete(namespace, [name for name, _ in writer.documents(namespace)] if ids is None else [*ids])

    def close(self) -> None:
        """Let others write."""
        with self._lock:
            if self._open is not None:
                self._open.close()
            self._open = None

    def _writer(self) -> TokenDatastoreWriter:
        with self._lock:
            if self._open is None:
                fingerprint = TokenizerFingerprint.of(self._tokenizer)
                self._open = TokenDatastoreWriter.open(self._folder, fingerprint)
            return self._open
