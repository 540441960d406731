"""Question answering over a store: retrieve, build the prompt, generate with the passages as draft source."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias, TypedDict, Unpack

from groundspeed.integrations.prompts import GroundedPrompt
from groundspeed.types import Event, GenerationRequest, GenerationResult, Grammar, Passage

if TYPE_CHECKING:
    from transformers import LogitsProcessor

    from groundspeed.retrieval.retriever import Mode, Retriever
    from groundspeed.verify.engine import Engine

__all__ = ["Answer", "AnswerEvent", "GenerationOptions", "RagPipeline", "RetrievalEvent"]


@dataclass(frozen=True, slots=True)
class RetrievalEvent:
    """Retrieval is over and the prompt is built.

    Attributes:
        passages: What was found, best first. All of it serves as draft source.
        shown: How many of them, from the first, stand in the prompt.
    """

    passages: tuple[Passage, ...]
    shown: int


@dataclass(frozen=True, slots=True)
class Answer:
    """A grounded answer.

    Attributes:
        passages: What was found, best first; ``result.grounding`` counts in them.
        shown: How many of them, from the first, stood in the prompt.
        result: The generated text with its copied spans and statistics.
    """

    passages: tuple[Passage, ...]
    shown: int
    result: GenerationResult

    @property
    def text(self) -> str:
        """The answer itself."""
        return self.result.text


AnswerEvent: TypeAlias = RetrievalEvent | Event


class GenerationOptions(TypedDict, total=False):
    """The fields of ``GenerationRequest`` that an asker may set."""

    max_tokens: int
    temperature: float
    stop: tuple[str, ...]
    grammar: Grammar | None
    ignore_eos: bool
    speculate: bool
    min_span: int
    seed: int | None
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    repetition_penalty: float
    frequency_penalty: float
    presence_penalty: float
    logit_bias: Mapping[int, float]
    bad_words: tuple[tuple[int, ...], ...]
    min_tokens: int
    logits_processors: tuple[LogitsProcessor, ...]
    timeout: float | None
    logprobs: int | None
    echo: bool
    stop_token_ids: tuple[int, ...]
    prediction: str
    namespaces: tuple[str, ...] | None


class RagPipeline:
    """Answers questions from a store, drafting from what was retrieved."""

    def __init__(self, engine: Engine, retriever: Retriever) -> None:
        """Join an engine and an open store."""
        self.engine = engine
        self.retriever = retriever
        self._prompt = GroundedPrompt(engine.tokenizer)

    def ask(
        self,
        question: str,
        *,
        k: int = 5,
        mode: Mode = "hybrid",
        rerank: str | None = None,
        **options: Unpack[GenerationOptions],
    ) -> Answer:
        """Answer a question.

        Args:
            question: The question.
            k: Most passages to retrieve.
            mode: How to search, see ``Retriever.search``.
            rerank: A cross-encoder that orders the passages anew.
            options: Fields of ``GenerationRequest``: ``max_tokens``, ``temperature``, ...

        Raises:
            GroundspeedError: What retrieval and generation raise.
        """
        events = list(self.stream(question, k=k, mode=mode, rerank=rerank, **options))
        found, result = events[0], events[-1]
        assert isinstance(found, RetrievalEvent)
        assert isinstance(result, GenerationResult)
        return Answer(found.passages, found.shown, result)

    def stream(
        self,
        question: str,
        *,
        k: int = 5,
        mode: Mode = "hybrid",
        rerank: str | None = None,
        **options: Unpack[GenerationOptions],
    ) -> Iterator[AnswerEvent]:
        """Answer a question bit by bit; arguments and errors as in ``ask``.

        Yields:
            One ``RetrievalEvent``, then the engine's events, the ``GenerationResult`` last.
        """
        passages = tuple(self.retriever.search(question, k=k, mode=mode, rerank=rerank))
        request, shown = self.request(question, passages, **options)
        yield RetrievalEvent(passages, shown)
        yield from self.engine.stream(request)

    def request(
        self, question: str, passages: tuple[Passage, ...], **options: Unpack[GenerationOptions]
    ) -> tuple[GenerationRequest, int]:
        """Build the request for a question over passages.

        Passages that the context has no room for, the last first, are left out of the prompt; they still
        serve as draft source.

        Returns:
            The request, and how many of the passages stand in its prompt.
        """
        request = GenerationRequest(prompt="", passages=passages, **options)
        limit = self.engine.target.context_length
        room = None if limit is None else limit - request.max_tokens
        prompt, shown = self._prompt.fit(question, passages, room)
        return replace(request, prompt=prompt), shown
