"""Which tokenizer a store's ids belong to."""

from __future__ import annotations

import json
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

__all__ = ["TokenizerFingerprint"]


@dataclass(frozen=True, slots=True)
class TokenizerFingerprint:
    """What tells two tokenizers apart.

    Attributes:
        name: Hub id or folder, for messages; two names may mean the same tokenizer.
        vocab_size: Ids lie in [0, vocab_size).
        digest: Hash of everything that decides which ids a text gets.
    """

    name: str
    vocab_size: int
    digest: str

    @classmethod
    def of(cls, tokenizer: Any) -> TokenizerFingerprint:
        """Take the fingerprint of a transformers tokenizer."""
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is not None:
            state = json.loads(backend.to_str())
            # Set by whoever called the tokenizer last, and no part of what it is.
            state["truncation"] = state["padding"] = None
        else:
            state = tokenizer.get_vocab()
        digest = sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()
        return cls(str(tokenizer.name_or_path) or type(tokenizer).__name__, len(tokenizer), digest)

    def same_ids(self, other: TokenizerFingerprint) -> bool:
        """Whether both give every text the same ids."""
        return (self.vocab_size, self.digest) == (other.vocab_size, other.digest)
