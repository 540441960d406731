"""The types that all rooms share. Plain data: no behaviour beyond what the fields imply."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from groundspeed.errors import InputError

if TYPE_CHECKING:
    from transformers import LogitsProcessor

    from groundspeed.drafting.base import DraftTree

__all__ = [
    "Decoding",
    "Document",
    "Event",
    "FinishReason",
    "GenerationRequest",
    "GenerationResult",
    "GenerationStats",
    "Grammar",
    "GroundedSpan",
    "Passage",
    "PrefillEvent",
    "ProgressCallback",
    "Source",
    "StepEvent",
    "TokenLogprob",
]


@dataclass(frozen=True, slots=True)
class Document:
    """A text with an identity: what loaders yield and a corpus is made of.

    Attributes:
        id: Unique in its corpus.
        text: The whole text; offsets everywhere count its characters.
        metadata: Anything JSON can hold (title, path, ...).
    """

    id: str
    text: str
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Passage:
    """A stretch of a document that retrieval found for a question.

    Attributes:
        document_id: Id of the parent document.
        text: The stretch itself, ``document.text[start : start + len(text)]``.
        start: Character offset of the stretch in the parent document.
        score: The retriever's score; higher is better, comparable within one result list only.
        metadata: Of the parent document.
        following: What is known to stand behind the stretch in the parent document; it is in no prompt.
    """

    document_id: str
    text: str
    start: int = 0
    score: float = 0.0
    metadata: Mapping[str, Any] = field(default_factory=dict)
    following: str = ""

    @property
    def end(self) -> int:
        """Character offset in the parent document just past the stretch."""
        return self.start + len(self.text)


class Source(IntEnum):
    """Where a token came from. ``TARGET`` is the model itself (a bonus token); the rest are draft sources.

    ``MODEL`` is what a model was asked for: a draft model, the target's first layers, or heads on the target.
    """

    TARGET = 0
    PASSAGE = 1
    PROMPT = 2
    OUTPUT = 3
    DATASTORE = 4
    RECYCLED = 5
    GRAMMAR = 6
    MODEL = 7

    @property
    def label(self) -> str:
        """The name used in statistics and JSON."""
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Grammar:
    """What an answer must look like. It is checked when it is used, before anything is generated.

    Attributes:
        kind: What ``text`` is.
        text: A JSON schema, a regular expression, a grammar, or a JSON list of the possible answers.
    """

    kind: Literal["json_schema", "regex", "lark", "choice"]
    text: str

    @classmethod
    def json_schema(cls, schema: Mapping[str, Any] | str) -> Grammar:
        """JSON that a schema describes, given as an object or as its text.

        Between its tokens the model may put a space, or a line break and an indentation;
        ``"x-guidance": {"whitespace_flexible": false}`` in the schema lets none in, so that more is forced.
        """
        return cls("json_schema", schema if isinstance(schema, str) else json.dumps(schema))

    @classmethod
    def json_object(cls) -> Grammar:
        """Any JSON object."""
        return cls.json_schema({"type": "object"})

    @classmethod
    def regex(cls, pattern: str) -> Grammar:
        """A text that matches the whole of a regular expression of Rust's ``regex``: without look-around."""
        return cls("regex", pattern)

    @classmethod
    def lark(cls, grammar: str) -> Grammar:
        """A text of a context-free grammar in llguidance's form of Lark, which begins at ``start``."""
        return cls("lark", grammar)

    @classmethod
    def choice(cls, texts: Sequence[str]) -> Grammar:
        """One of the given texts.

        Raises:
            InputError: A single string was given.
        """
        if isinstance(texts, str):
            raise InputError(f"choice was given the string {texts!r}; give a list of texts")
        return cls("choice", json.dumps(list(texts)))


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One text to generate.

    Attributes:
        prompt: The prompt as text, or as token ids, which are used as they are.
        passages: What to draft from and to ground the answer in, best first; they never change the prompt.
        prediction: What the answer will probably say: drafted from, behind the passages, and no source.
        namespaces: Of the token datastore, if there is one: those that may be drafted from; None for all.
        max_tokens: Upper bound on generated tokens.
        temperature: 0 is greedy decoding; above, tokens are drawn from the logits divided by it.
        stop: The answer ends before the first of these strings that it completes, wherever tokens begin
            and end.
        grammar: What the answer must look like; it ends when that is complete.
        ignore_eos: Go on past end-of-sequence tokens until ``max_tokens`` (for benchmarks).
        stop_token_ids: Tokens that end the answer as an end-of-sequence token does, with ``ignore_eos`` too.
        speculate: False decodes plainly through the same engine.
        min_span: Shortest copied span, in characters, that grounding reports.
        seed: Of the draws, in [0, 2**64); None takes a fresh one, which the result holds.
        top_k: Draw from so many of the most probable tokens; 0 for all.
        top_p: Draw from the most probable tokens that together have this probability; 1 for all.
        min_p: Draw from tokens at least this times as probable as the most probable one; 0 for all.
        typical_p: Draw from the tokens whose information is nearest to the entropy and that together have
            this probability; 1 for all.
        repetition_penalty: Logits of tokens in the prompt or the answer so far are divided by it, where
            negative multiplied; 1 changes nothing.
        frequency_penalty: Taken off a token's logit for every time it occurs in the answer so far.
        presence_penalty: Taken off the logit of every token that occurs in the answer so far.
        logit_bias: Added to the logits of tokens, by id; -inf excludes a token.
        bad_words: Token sequences that the answer must not complete.
        min_tokens: No end-of-sequence token before so many tokens.
        logits_processors: Of transformers, or called like them with ids [1, text] and scores [1, vocab]: once
            for every token, in order, after the settings above that hold in greedy decoding too and before
            temperature, ``top_k``, ``top_p``, ``min_p`` and ``typical_p``, as in ``generate``.
        timeout: Seconds from its arrival after which the answer ends as it is; None for no bound.
        logprobs: Report the log-probability of every token and of so many of the most probable ones in its
            place, 0 to 20; None reports none.
        echo: The text begins with the prompt; with ``logprobs`` the result has those of its tokens too.
    """

    prompt: str | tuple[int, ...]
    passages: tuple[Passage, ...] = ()
    max_tokens: int = 256
    temperature: float = 0.0
    stop: tuple[str, ...] = ()
    grammar: Grammar | None = None
    ignore_eos: bool = False
    speculate: bool = True
    min_span: int = 24
    seed: int | None = None
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    bad_words: tuple[tuple[int, ...], ...] = ()
    min_tokens: int = 0
    logits_processors: tuple[LogitsProcessor, ...] = ()
    timeout: float | None = None
    logprobs: int | None = None
    echo: bool = False
    stop_token_ids: tuple[int, ...] = ()
    prediction: str = ""
    namespaces: tuple[str, ...] | None = None

    def variants(self, n: int) -> tuple[GenerationRequest, ...]:
        """The request for n answers: n requests that differ in their seed only.

        The seeds are the request's own and those that follow it; without one, each takes a fresh one.
        ``logits_processors`` that keep a state are not for more than one answer.

        Raises:
            InputError: n is no whole number above 0.
        """
        if not isinstance(n, int) or n < 1:
            raise InputError(f"n is {n!r}; it must be a whole number of answers, 1 or more")
        if self.seed is None:
            return (self,) * n
        return tuple(replace(self, seed=(self.seed + i) % 2**64) for i in range(n))


@dataclass(frozen=True, slots=True)
class GroundedSpan:
    """A stretch of the answer that stands verbatim in a passage.

    ``answer[start:end] == document.text[document_start:document_end] == text``.

    Attributes:
        start: Character offset in the answer.
        end: Just past the span in the answer.
        document_id: Document the passage belongs to.
        document_start: Character offset in the document.
        document_end: Just past the span in the document.
        text: The verbatim text.
        passage: Index into the request's passages; the span may run on into what follows this one.
    """

    start: int
    end: int
    document_id: str
    document_start: int
    document_end: int
    text: str
    passage: int


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """How probable the model held a token: by its own logits, before anything is done to them.

    Attributes:
        token_id: The token.
        logprob: Natural logarithm of its probability.
        top: The most probable tokens in its place with theirs, best first, as many as were asked for.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class PrefillEvent:
    """Progress of reading the prompt: ``done`` of ``total`` tokens are in the KV cache."""

    done: int
    total: int


@dataclass(frozen=True, slots=True)
class StepEvent:
    """One verification step: what was committed and what it took.

    Attributes:
        token_ids: Tokens committed by this step, in order; the last one is the bonus token.
        sources: Where each of ``token_ids`` came from, same length.
        origins: Position in the source per token (see ``groundspeed.drafting.base``), -1 for the target
            itself.
        text: Text that became final with this step; may be empty while a character is incomplete or a stop
            string may have begun. The first step's begins with the prompt where it is echoed.
        drafted: Nodes of the draft tree that was verified.
        accepted: Draft nodes accepted (``len(token_ids) - 1``, less where the stop cut it short).
        draft_s: Seconds spent proposing the tree.
        forward_s: Seconds in the target model's forward pass.
        accept_s: Seconds choosing the accepted path.
        commit_s: Seconds compacting the KV cache and telling the drafter.
        logprobs: Of ``token_ids``, same length; None where they were not asked for.
        tree: The draft tree that was verified; None where nothing was. The accepted ones of ``token_ids`` are
            a path in it from the root.
    """

    token_ids: tuple[int, ...]
    sources: tuple[Source, ...]
    origins: tuple[int, ...]
    text: str
    drafted: int
    accepted: int
    draft_s: float
    forward_s: float
    accept_s: float
    commit_s: float
    logprobs: tuple[TokenLogprob, ...] | None = None
    tree: DraftTree | None = field(default=None, compare=False, repr=False)


Decoding: TypeAlias = Literal["tree", "chain", "plain"]

FinishReason: TypeAlias = Literal["stop", "length", "context", "timeout", "cancelled"]


@dataclass(frozen=True, slots=True)
class GenerationStats:
    """What an answer took.

    Attributes:
        prompt_tokens: Tokens of the prompt.
        completion_tokens: Tokens generated.
        steps: Forward passes after the prefill.
        drafted: Draft nodes verified.
        accepted: Draft nodes accepted.
        accepted_by_source: Accepted nodes per draft source label.
        queued_s: Seconds from the request's arrival to the start of its prefill.
        prefill_s: Seconds of the prefill.
        decode_s: Seconds from the end of the prefill to the last token.
        decoding: How the target was driven: ``tree``, ``chain`` or ``plain``.
        decoding_reason: Why not ``tree``, None for a tree.
        cached_tokens: Tokens of the prompt whose keys and values were there already.
        shared_steps: Those of ``steps`` whose pass carried other requests as well.
    """

    prompt_tokens: int
    completion_tokens: int
    steps: int
    drafted: int
    accepted: int
    accepted_by_source: Mapping[str, int]
    queued_s: float
    prefill_s: float
    decode_s: float
    decoding: Decoding
    decoding_reason: str | None = None
    cached_tokens: int = 0
    shared_steps: int = 0

    @property
    def tokens_per_step(self) -> float:
        """Accepted draft tokens and the bonus token, per forward pass after the prefill; 0 without steps."""
        return (self.accepted + self.steps) / self.steps if self.steps else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Decoding speed, prefill excluded."""
        return self.completion_tokens / self.decode_s if self.decode_s else 0.0


@dataclass(frozen=True, slots=True)
class GenerationResult:
    """A finished answer.

    Attributes:
        text: The answer; behind the prompt's text where that is echoed.
        token_ids: Its tokens, without the end-of-sequence token. Behind a stop string they end with the token
            that completed it, so they may hold more than the text.
        sources: Where each token came from, same length.
        finish_reason: ``stop`` (end of sequence, a stop string, or the grammar is complete), ``length``
            (``max_tokens``), ``context`` (context full), ``timeout`` or ``cancelled``.
        grounding: Spans copied verbatim from the passages, in answer order, disjoint and maximal.
        stats: What it took.
        seed: Of its random draws, the request's own or the fresh one taken instead; None for greedy decoding.
        stop: The stop string, or the one of ``stop_token_ids``, that ended it; None where something else did.
        logprobs: Of ``token_ids``, same length; None where they were not asked for.
        prompt_logprobs: Of the prompt's tokens, as far as it was read; the first one has none. None where the
            prompt was not echoed or none were asked for.
    """

    text: str
    token_ids: tuple[int, ...]
    sources: tuple[Source, ...]
    finish_reason: FinishReason
    grounding: tuple[GroundedSpan, ...]
    stats: GenerationStats
    seed: int | None = None
    stop: str | int | None = None
    logprobs: tuple[TokenLogprob, ...] | None = None
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None


Event: TypeAlias = PrefillEvent | StepEvent | GenerationResult

ProgressCallback: TypeAlias = Callable[[str, int, int], None]
"""Told what is being done, how much of it is done, and of how much; a total of 0 is not known."""
