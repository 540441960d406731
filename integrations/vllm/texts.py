"""Which text stands in which row of vLLM's batch, and the drafter of each.

Rows are used again, change places, and disappear while a request is preempted: no text is known by its row.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from sys import maxsize
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from groundspeed.drafting.base import Drafter
from groundspeed.errors import InputError
from groundspeed.integrations.vllm.documents import DOCUMENTS_KEY, SEPARATOR, split_documents

__all__ = ["ByContent", "ByRequest", "Opening", "Text", "Texts"]


@dataclass(frozen=True, slots=True, eq=False)
class Opening:
    """What a drafter is made from.

    Attributes:
        prompt_ids: int32 [p].
        documents: int32 [m_i] each, best first.
        temperature: That the answer is drawn with.
    """

    prompt_ids: NDArray[np.int32]
    documents: tuple[NDArray[np.int32], ...] = ()
    temperature: float = 0.0


@dataclass(slots=True, eq=False)
class Text:
    """A request's text as far as its drafter knows it.

    Attributes:
        drafter: None where it failed: no drafts come any more.
        seen: Tokens it has taken in, the prompt's included.
        owner: What vLLM keeps of the request.
        prompt: vLLM's list of the prompt's tokens; another one where a session was given more input.
    """

    drafter: Drafter | None
    seen: int
    owner: Any = None
    prompt: Any = field(default=None, repr=False)

    def goes_on(self, owner: Any, first: int) -> bool:
        """Whether it is the beginning, of at most ``first`` tokens, of what vLLM keeps under the name."""
        return self.owner is owner and self.prompt is owner.prompt_token_ids and self.seen <= first


class Texts(Protocol):
    """Finds the text of a row."""

    def find(self, row: int, first: int, tokens: NDArray[np.int32]) -> Text:
        """The text of a row, begun where it is a new one.

        Args:
            row: Of the batch.
            first: Tokens of it before those that this step added.
            tokens: int32 [end], all.
        """
        ...

    def keep(self, text: Text, tokens: NDArray[np.int32]) -> None:
        """Remember a text that has taken in all tokens, int32 [end]."""
        ...

    def room(self, row: int, text: Text) -> int:
        """Tokens that may be drafted for it to any use, as far as is known here."""
        ...

    def tidy(self) -> None:
        """Let go of texts that are over."""
        ...


class ByRequest:
    """Texts by what vLLM's model runner keeps of each request.

    An id may come again for another request, so the state that the runner keeps must be the same object too.
    """

    def __init__(
        self,
        runner: Any,
        begin: Callable[[Opening], Drafter | None],
        vocab_size: int,
        max_document_tokens: int,
        warn: Callable[[str], None],
    ) -> None:
        """Begin without texts.

        Args:
            runner: The model runner.
            begin: Makes a text's drafter, None where that fails.
            vocab_size: Documents with other ids are left out.
            max_document_tokens: Of a request.
            warn: Told about documents that cannot be used.
        """
        self._runner = runner
        self._begin = begin
        self._vocab_size = vocab_size
        self._max_document_tokens = max_document_tokens
        self._warn = warn
        self._texts: dict[str, Text] = {}

    def find(self, row: int, first: int, tokens: NDArray[np.int32]) -> Text:
        """See ``Texts``."""
        batch = self._runner.input_batch
        request_id = batch.req_ids[row]
        request = self._runner.requests[request_id]
        text = self._texts.get(request_id)
        if text is None or not text.goes_on(request, first):
            if text is not None:
                _end(text)
            text = self._open(request, tokens[: batch.num_prompt_tokens[row]])
            self._texts[request_id] = text
        return text

    def keep(self, text: Text, tokens: NDArray[np.int32]) -> None:
        """See ``Texts``; it is remembered already."""

    def room(self, row: int, text: Text) -> int:
        """See ``Texts``. Some versions of vLLM keep a list of requests that take no drafts."""
        batch = self._runner.input_batch
        if batch.req_ids[row] in getattr(batch, "spec_decode_unsupported_reqs", ()):
            return 0
        most = text.owner.sampling_params.max_tokens
        return maxsize if most is None else int(most) - len(text.owner.output_token_ids) - 1

    def tidy(self) -> None:
        """See ``Texts``. Preempted requests stay in the runner's table, and so here."""
        for request_id in self._texts.keys() - self._runner.requests.keys():
            _end(self._texts.pop(request_id))

    def _open(self, request: Any, prompt_ids: NDArray[np.int32]) -> Text:
        drafter = None
        if request.prompt_token_ids is not None and request.sampling_params is not None:
            sampling = request.sampling_params
            documents = self._documents(sampling.extra_args)
            drafter = self._begin(Opening(prompt_ids.copy(), documents, sampling.temperature))
        return Text(drafter, len(prompt_ids), request, request.prompt_token_ids)

    def _documents(self, extra_args: Mapping[str, Any] | None) -> tuple[NDArray[np.int32], ...]:
        flat = (extra_args or {}).get(DOCUMENTS_KEY)
        if flat is None:
            return ()
        try:
            ids = _checked(flat, self._vocab_size)
        except InputError as error:
            self._warn(str(error))
            return ()
        if len(ids) > self._max_document_tokens:
            self._warn(
                f"a request came with {len(ids):,} tokens of documents, of which the first "
                f"{self._max_document_tokens:,} are drafted from; send the best documents first, or raise "
                "max_document_tokens"
            )
        kept = ids[: self._max_document_tokens]
        return tuple(np.array(document, np.int32) for document in split_documents(kept.tolist()))


class ByContent:
    """Texts by their tokens, for where the model runner is not known.

    Texts of the same tokens may be taken for one another, and nothing is lost: no documents are known here.
    """

    def __init__(self, begin: Callable[[Opening], Drafter | None], most: int) -> None:
        """Begin without texts.

        Args:
            begin: Makes a text's drafter, None where that fails.
            most: Texts that are kept, those of preempted requests among them; the oldest give way.
        """
        self._begin = begin
        self._most = most
        self._texts: OrderedDict[int, list[Text]] = OrderedDict()

    def find(self, row: int, first: int, tokens: NDArray[np.int32]) -> Text:
        """See ``Texts``."""
        before = tokens[:first]
        digest = hash(before.tobytes())
        if digest not in self._texts:
            return Text(self._begin(Opening(before.copy())), first)
        alike = self._texts[digest]
        text = alike.pop()
        if not alike:
            del self._texts[digest]
        return text

    def keep(self, text: Text, tokens: NDArray[np.int32]) -> None:
        """See ``Texts``."""
        self._texts.setdefault(hash(tokens.tobytes()), []).append(text)

    def room(self, row: int, text: Text) -> int:
        """See ``Texts``."""
        return maxsize

    def tidy(self) -> None:
        """See ``Texts``."""
        while len(self._texts) > self._most:
            for text in self._texts.popitem(last=False)[1]:
                _end(text)


def _checked(flat: Any, vocab_size: int) -> NDArray[np.int64]:
    """A request's documents as ids."""
    try:
        ids = np.array(flat, np.int64 if len(flat) == 0 else None)
    except (TypeError, ValueError, OverflowError):
        ids = np.empty(0)
    if ids.ndim != 1 or ids.dtype.kind != "i":
        raise InputError(
            f"{DOCUMENTS_KEY} is {str(flat)[:60]}; it must be a flat list of token ids, as flat_documents "
            "makes it"
        )
    wrong = ids[(ids >= vocab_size) | (ids < SEPARATOR)]
    if len(wrong):
        raise InputError(
            f"{DOCUMENTS_KEY} holds the id {wrong[0]}, and the model has {vocab_size:,} tokens; encode "
            "documents with the model's own tokenizer"
        )
    return ids


def _end(text: Text) -> None:
    """Let a drafter go, whatever it says."""
    if text.drafter is not None:
        with suppress(Exception):
            text.drafter.end()
