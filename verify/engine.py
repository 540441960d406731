"""The engine: requests in, events out."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from groundspeed.drafting import budget
from groundspeed.drafting.base import DrafterFactory, WarmDrafterFactory
from groundspeed.drafting.blend import Blend
from groundspeed.drafting.budget import BatchCost, CostModel
from groundspeed.drafting.forms import token_forms
from groundspeed.drafting.worth import Trust
from groundspeed.errors import ContextLengthError, InputError
from groundspeed.openmp import release_threads
from groundspeed.types import Event, GenerationRequest, GenerationResult, ProgressCallback
from groundspeed.verify import sampling
from groundspeed.verify.cost import measure_cost
from groundspeed.verify.generation import Generation
from groundspeed.verify.grammar import Grammars, check_grammar
from groundspeed.verify.logprobs import check_logprobs
from groundspeed.verify.make_drafter import drafter_by_name, make_drafter
from groundspeed.verify.memory import spare_bytes
from groundspeed.verify.processors import check_sampling
from groundspeed.verify.scheduler import Scheduler, Ticket
from groundspeed.verify.stops import check_stops
from groundspeed.verify.streams import EventStream, events
from groundspeed.verify.target import TransformersTarget, warn_of_processors
from groundspeed.verify.text import check_text, decode

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from groundspeed.verify.base import TargetModel

__all__ = ["Engine"]

logger = logging.getLogger(__name__)


class Engine:
    """Generates text with a target model, drafting from each request's passages, prompt and output.

    Attributes:
        target: The model whose answer is wanted.
        tokenizer: Its tokenizer.
        model_name: What the model was asked for by.
        cost: The cost of a verification pass of one request, which decides how much is drafted; every step
            refines it.
        scheduler: Runs the requests side by side.
        trust: Whether drafting paid for the last requests, which decides how the next ones begin.
    """

    def __init__(
        self,
        target: TargetModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        drafter: DrafterFactory | None = None,
        cost: CostModel | None = None,
        model_name: str = "",
        most_active: int = 16,
        cache_bytes: int | None = None,
    ) -> None:
        """Get ready: times a few verification passes, if their cost is not given.

        Args:
            target: The model whose answer is wanted.
            tokenizer: Its tokenizer.
            drafter: Makes the drafter of a request; by default ``Blend()``.
            cost: What a verification pass costs at first; measured by default.
            model_name: For reports.
            most_active: Requests that take part in a pass, at most; more wait for their turn.
            cache_bytes: Memory for KV caches, those kept for requests that begin alike included; half of what
                is free by default. Requests wait until theirs fits.
        """
        self.target = target
        self.tokenizer = tokenizer
        self.model_name = model_name
        self.drafter = Blend() if drafter is None else drafter
        cache_bytes = spare_bytes(target.device) if cache_bytes is None else cache_bytes
        if target.bytes_per_token:
            target.reserve(cache_bytes // target.bytes_per_token)
        self.cost = measure_cost(target) if cost is None else cost
        self.trust = Trust()
        budget.warm_up()
        if isinstance(self.drafter, WarmDrafterFactory):
            self.drafter.warm_up()  # now, and not within the first answer
            _ = self.forms
        self.scheduler = Scheduler(
            target,
            BatchCost(self.cost),
            most_active=most_active,
            cache_bytes=cache_bytes,
        )
        release_threads()  # of loading and measuring, which most often happen in another thread
        if target.capability.reason:
            logger.info(
                "%s: %s decoding, as %s", model_name, target.capability.decoding, target.capability.reason
            )

    @cached_property
    def forms(self) -> NDArray[np.int32]:
        """int32 [vocab], which tokens are alike but for case, spaces and punctuation. About 10 us a token."""
        return token_forms(str(self.tokenizer.decode([i])) for i in range(self.target.vocab_size))

    @cached_property
    def grammars(self) -> Grammars:
        """What takes in the grammars of requests; the first one takes some tenths of a second more."""
        return Grammars(self.tokenizer, self.target.vocab_size, self.target.eos_token_ids)

    @property
    def device(self) -> str:
        """Where the model runs."""
        return str(self.target.device)

    @property
    def dtype(self) -> str:
        """What the model computes in."""
        return str(self.target.dtype).removeprefix("torch.")

    @property
    def fault(self) -> str | None:
        """Why the engine answers no more and must be replaced; None while it is well."""
        return self.scheduler.fault

    @classmethod
    def from_pretrained(
        cls,
        name: str | None = None,
        *,
        device: str = "auto",
        dtype: str = "auto",
        drafter: DrafterFactory | str | None = None,
        datastore: str | Path | None = None,
        draft_model: str | None = None,
        bridge_tokenizers: bool = False,
        most_active: int = 16,
        cache_bytes: int | None = None,
        on_progress: ProgressCallback | None = None,
    ) -> Engine:
        """Load a model and make an engine for it.

        Args:
            name: A hub id, a folder or a GGUF file; None is the small model that comes from PyPI.
            device: ``auto``, ``cpu``, ``cuda``, ``cuda:1``, ...
            dtype: ``auto``, ``float32`` or ``bfloat16``.
            drafter: Makes the drafter of a request, by default ``Blend()``; or the name of one: ``blend``,
                ``lookahead``, ``first-layers``, or a folder of Medusa heads.
            datastore: Folder of a token datastore that the default drafter draws on; a calibration saved in
                it as ``calibration.npz`` is gone on from.
            draft_model: A smaller model with the same tokens, that drafts where text does not: hub id, folder
                or GGUF file. It grows what the default drafter proposes.
            bridge_tokenizers: Let a draft model of other tokens draft by way of text.
            most_active: Requests that take part in a pass, at most.
            cache_bytes: Memory for KV caches; half of what is free by default.
            on_progress: Told about the work done, in stages.

        Raises:
            InputError: A datastore or a draft model, and another drafter than the blend; a drafter's name
                that nothing has; or a draft model of other tokens.
            StoreError: The datastore is missing, damaged or of another tokenizer.
            MissingDependencyError: The default model is not installed; the message holds the command.
            ModelError: The model cannot be loaded.
        """
        from groundspeed.verify.loading import load_model

        drafter = None if drafter == "blend" else drafter
        for given, what in ((datastore, "datastore"), (draft_model, "draft model")):
            if given is not None and drafter is not None:
                raise InputError(
                    f"a {what} and a drafter were given, and only the blend takes a {what} in; leave one "
                    "out, or make the drafter of both yourself"
                )
        of_target = drafter_by_name(drafter) if isinstance(drafter, str) else None
        factory = None if isinstance(drafter, str) else drafter
        if drafter is None:
            factory = make_drafter(
                name,
                datastore=None if datastore is None else Path(datastore),
                draft_model=draft_model,
                bridge_tokenizers=bridge_tokenizers,
                device=device,
                dtype=dtype,
                on_progress=on_progress,
            )

        def report(done: int) -> None:
            if on_progress:
                on_progress("Trying the model", done, 2)

        with ThreadPoolExecutor(1) as beside:
            if isinstance(factory, WarmDrafterFactory):
                # Its first run compiles for seconds, and loading mostly waits for the disk.
                beside.submit(factory.warm_up)
            beside.submit(budget.warm_up)
            beside.submit(sampling.warm_up)
            loaded = load_model(name, device, dtype, on_progress)
        warn_of_processors(loaded.model)
        report(0)
        target = TransformersTarget.packed(loaded.model)
        report(1)
        engine = cls(
            target,
            loaded.tokenizer,
            drafter=of_target(target, loaded.tokenizer) if of_target else factory,
            model_name=loaded.name,
            most_active=most_active,
            cache_bytes=cache_bytes,
        )
        report(2)
        return engine

    def generate(self, request: GenerationRequest) -> GenerationResult:
        """Generate a text and wait for it.

        Raises:
            InputError: A parameter out of range, or more than the memory for KV caches holds.
            ContextLengthError: The prompt leaves no room in the model's context.
        """
        return self.generate_all([request])[0]

    def generate_all(self, requests: Iterable[GenerationRequest]) -> list[GenerationResult]:
        """Generate texts side by side and wait for all of them; results come in the order of the requests.

        Raises:
            InputError: As ``generate``; of several errors the first request's is raised, and the others end.
        """
        streams: list[EventStream] = []
        try:
            streams += (self.stream(request) for request in requests)
            return [_result_of(stream) for stream in streams]
        finally:
            for stream in streams:
                stream.close()

    def stream(self, request: GenerationRequest) -> EventStream:
        """Generate a text step by step: the progress of the prefill, a record of every step, the result.

        The request is queued at once and goes on whether or not its events are taken; close the stream to end
        it.

        Raises:
            InputError: A parameter out of range, or more than the memory for KV caches holds.
            ContextLengthError: The prompt leaves no room in the model's context.
        """
        return EventStream(self.submission(request))

    def astream(self, request: GenerationRequest) -> AsyncGenerator[Event]:
        """``stream`` for an event loop: queued when the iteration begins, ended when it is left.

        Raises:
            InputError: As ``stream``, at once.
            ContextLengthError: As ``stream``, at once.
        """
        return events(self.submission(request))

    async def agenerate(self, request: GenerationRequest) -> GenerationResult:
        """``generate`` for an event loop; cancelling the task ends the request."""
        async with aclosing(self.astream(request)) as stream:
            async for event in stream:
                if isinstance(event, GenerationResult):
                    return event
        raise AssertionError("a stream ends with its result")

    def forget_prefixes(self) -> None:
        """Drop what is kept for requests that begin alike, as a measurement needs; while none is running."""
        self.scheduler.prefixes.clear()

    def close(self) -> None:
        """End all requests and free what is kept; the engine takes no more."""
        self.scheduler.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def submission(self, request: GenerationRequest) -> Callable[[Callable[[Any], None]], Ticket]:
        """Check a request; what is left is to say who is told of its events, which queues it.

        For callers that wait for several requests in one place. The function given to the result is called
        in the engine's thread with each event, at last the ``GenerationResult`` or an exception.

        Raises:
            InputError: As ``stream``.
            ContextLengthError: As ``stream``.
        """
        prompt_ids = self.encode(request.prompt)
        room = self._check(request, prompt_ids)
        generation = Generation(self, request, prompt_ids, room)
        most = self.scheduler.cache_tokens
        if generation.capacity > most:
            raise InputError(
                f"prompt, answer and draft may take {generation.capacity:,} tokens, and the KV "
                f"caches hold {most:,} at most; lower max_tokens, shorten the prompt, or raise "
                "the engine's cache_bytes"
            )

        def submit(deliver: Callable[[Any], None]) -> Ticket:
            release_threads()  # whoever asks has often computed something, embeddings say, and now waits
            ticket = Ticket(generation, deliver)
            self.scheduler.submit(ticket)
            return ticket

        return submit

    def encode(self, prompt: str | tuple[int, ...]) -> list[int]:
        """The token ids of a prompt."""
        if not isinstance(prompt, str):
            return list(prompt)
        ids: list[int] = self.tokenizer(check_text(prompt))["input_ids"]
        return ids

    def decode(self, prompt: str | tuple[int, ...]) -> str:
        """The text of a prompt."""
        if isinstance(prompt, str):
            return prompt
        return decode(self.tokenizer, prompt)

    def _check(self, request: GenerationRequest, prompt_ids: list[int]) -> int | None:
        """Refuse what cannot be done; how many tokens the context leaves, None for no bound."""
        prompt_tokens = len(prompt_ids)
        if not prompt_tokens:
            raise InputError("the prompt has no tokens; give it some text")
        if not isinstance(request.max_tokens, int) or request.max_tokens < 1:
            raise InputError(f"max_tokens is {request.max_tokens!r}; it must be a whole number of at least 1")
        check_sampling(request, self.target.vocab_size)
        check_stops(request)
        check_logprobs(request)
        check_grammar(request)
        if request.timeout is not None and not request.timeout > 0:
            raise InputError(f"timeout is {request.timeout}; it must be None or above 0 seconds")
        if request.min_span < 1:
            raise InputError(f"min_span is {request.min_span}; it must be at least 1 character")
        vocab_size = self.target.vocab_size
        wrong = next(
            (i for i in prompt_ids if not isinstance(i, int | np.integer) or not 0 <= i < vocab_size), None
        )
        if wrong is not None:
            raise InputError(
                f"the prompt holds token id {wrong}; the model's vocabulary has {vocab_size} "
                "tokens: encode the prompt with the model's own tokenizer"
            )
        length = self.target.context_length
        if length is None:
            return None
        if prompt_tokens >= length:
            raise ContextLengthError(
                f"the prompt has {prompt_tokens} tokens and {self.model_name or 'the model'} holds {length}, "
                "answer included; shorten the prompt, pass fewer or shorter passages, or use a model with a "
                "longer context"
            )
        return length - prompt_tokens


def _result_of(stream: EventStream) -> GenerationResult:
    for event in stream:
        if isinstance(event, GenerationResult):
            return event
    raise AssertionError("a stream ends with its result")
