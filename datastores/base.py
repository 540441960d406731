"""The contract of a token datastore: what drafting and serving may rely on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from numpy.typing import NDArray

from groundspeed.datastores.fingerprint import TokenizerFingerprint
from groundspeed.datastores.snapshot import Snapshot

__all__ = ["TokenSource", "TokenStore"]


class TokenSource(Protocol):
    """Stored text to draft from. Safe under threads."""

    @property
    def tokenizer(self) -> TokenizerFingerprint:
        """Whose ids are stored."""
        ...

    def snapshot(self, namespaces: Sequence[str] | None = None) -> Snapshot:
        """What the named namespaces hold now; taken between requests and kept through one.

        A kernel takes ``snapshot.table`` and ``snapshot.like``, see ``groundspeed.datastores.pointers``.
        """
        ...


class TokenStore(TokenSource, Protocol):
    """Stored text that can be added to."""

    def append(
        self,
        namespace: str,
        document_id: str,
        token_ids: NDArray[Any] | Sequence[int],
        metadata: Mapping[str, Any] | None = None,
        *,
        replace: bool = False,
        durable: bool = True,
    ) -> None:
        """Add a document; the next snapshot has it."""
        ...

    def delete(self, namespace: str, document_ids: Sequence[str], *, durable: bool = True) -> int:
        """Delete documents; the next snapshot has none of them. Returns how many there were."""
        ...

    def learn(
        self,
        namespace: str,
        token_ids: NDArray[Any] | Sequence[int],
        *,
        max_tokens: int,
        metadata: Mapping[str, Any] | None = None,
        durable: bool = False,
    ) -> str:
        """Add an answer to a namespace that keeps the newest; returns its id."""
        ...
