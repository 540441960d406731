"""How a request's own documents travel to the proposer: as one flat list of token ids.

Over HTTP, vLLM passes on ``vllm_xargs``, whose values are numbers, strings or flat lists of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import index

from groundspeed.errors import InputError

__all__ = ["DOCUMENTS_KEY", "SEPARATOR", "flat_documents", "split_documents"]

DOCUMENTS_KEY = "groundspeed_documents"
"""Name of the list in ``SamplingParams.extra_args`` and in ``vllm_xargs``."""

SEPARATOR = -1
"""Stands between two documents, as no token has this id."""


def flat_documents(documents: Sequence[Sequence[int]]) -> list[int]:
    """One list of all documents' tokens, with a separator between two documents.

    Args:
        documents: Token ids of each, without special tokens, best first.

    Raises:
        InputError: Something other than a token id.
    """
    flat: list[int] = []
    for number, document in enumerate(documents):
        if number:
            flat.append(SEPARATOR)
        for token in document:
            try:
                flat.append(index(token))
            except TypeError:
                flat.append(SEPARATOR)
            if flat[-1] < 0:
                raise InputError(
                    f"document {number} holds {token!r}; give the ids of its tokens, which are not negative: "
                    "tokenizer(text, add_special_tokens=False)['input_ids']"
                )
    return flat


def split_documents(flat: Sequence[int]) -> list[list[int]]:
    """The documents that ``flat_documents`` made a list of."""
    documents: list[list[int]] = [[]]
    for token in flat:
        if token == SEPARATOR:
            documents.append([])
        else:
            documents[-1].append(token)
    return documents if flat else []
