"""From documents to the token datastore."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from groundspeed.datastores.building import BuildReport, build
from groundspeed.datastores.documents import DocumentStore
from groundspeed.datastores.fingerprint import TokenizerFingerprint
from groundspeed.datastores.parts import Addition
from groundspeed.datastores.writer import TokenDatastoreWriter
from groundspeed.types import Document, ProgressCallback

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["CORPUS", "TOKENS", "index_tokens", "tokenize"]

CORPUS = "corpus"
"""The namespace of indexed documents."""

TOKENS = "tokens"
"""Where the token datastore of a corpus is: a folder in its document store."""

_BATCH_CHARACTERS = 1_000_000


def tokenize(
    documents: Iterable[Document],
    tokenizer: PreTrainedTokenizerBase,
    on_progress: ProgressCallback | None = None,
    total_bytes: int = 0,
) -> Iterator[Addition]:
    """Turn documents into token ids, a batch at a time; fast tokenizers use all cores for a batch.

    Args:
        documents: The texts; their ids and metadata are kept.
        tokenizer: Adds no special tokens.
        on_progress: Is told the tokens so far, as the stage ``tokenize``.
        total_bytes: Of all texts, as far as it is known; lets the total be estimated.
    """
    tokens = read = 0
    for batch in _batches(documents):
        ids = tokenizer([document.text for document in batch], add_special_tokens=False)["input_ids"]
        for document, token_ids in zip(batch, ids, strict=True):
            tokens += len(token_ids)
            read += len(document.text.encode())
            yield Addition(document.id, np.array(token_ids, np.int64), document.metadata)
        if on_progress is not None:
            on_progress("tokenize", tokens, tokens * total_bytes // max(read, 1) if read < total_bytes else 0)


def index_tokens(
    store: str | Path, tokenizer: Any, on_progress: ProgressCallback | None = None
) -> BuildReport:
    """Make the token datastore beside a document store hold the same documents; what is unchanged stays.

    Raises:
        StoreError: A store is damaged, or the datastore is being written or of another tokenizer.
    """
    kept = DocumentStore(store).read().documents
    fingerprint = TokenizerFingerprint.of(tokenizer)
    with TokenDatastoreWriter.open(Path(store) / TOKENS, fingerprint, background=False) as writer:
        digests = {document_id: metadata.get("digest") for document_id, metadata in writer.documents(CORPUS)}
        writer.delete(CORPUS, [*(digests.keys() - {stored.document.id for stored in kept})])
        fresh = (
            Document(stored.document.id, stored.document.text, {"digest": stored.digest})
            for stored in kept
            if digests.get(stored.document.id) != stored.digest
        )
        return build(writer, CORPUS, tokenize(fresh, tokenizer, on_progress), on_progress=on_progress)


def _batches(documents: Iterable[Document]) -> Iterator[list[Document]]:
    batch: list[Document] = []
    characters = 0
    for document in documents:
        batch.append(document)
        characters += len(document.text)
        if characters >= _BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch
