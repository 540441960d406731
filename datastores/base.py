"""The contract of a token datastore: what drafting relies on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from groundspeed.datastores.fingerprint import TokenizerFingerprint
from groundspeed.datastores.snapshot import Snapshot

__all__ = ["TokenSource"]


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
