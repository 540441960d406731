"""For those who call ``generate`` of transformers and keep to it.

``model.generate(**inputs, custom_generate=groundspeed_generate)`` prepares everything as always, and hands
the decoding loop over: logits processors and stopping criteria come as transformers made them.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from groundspeed.errors import InputError
from groundspeed.integrations.transformers_rows import Ends, Row, run_rows
from groundspeed.types import GenerationRequest, Passage

if TYPE_CHECKING:
    import torch
    from transformers import (
        GenerationConfig,
        LogitsProcessor,
        LogitsProcessorList,
        PreTrainedModel,
        PreTrainedTokenizerBase,
        StoppingCriteriaList,
    )
    from transformers.generation import GenerateDecoderOnlyOutput
    from transformers.generation.streamers import BaseStreamer

    from groundspeed.verify.engine import Engine

__all__ = ["groundspeed_generate"]

_SERVED = {"attention_mask", "position_ids", "cache", "logits_to_keep", "use_cache"}
"""What ``generate`` may hand on beside the prompt."""

_EXTRAS = ("output_scores", "output_logits", "output_attentions", "output_hidden_states")

_OF_WHOLE_BATCHES = {
    "EncoderNoRepeatNGramLogitsProcessor",
    "EncoderRepetitionPenaltyLogitsProcessor",
    "PrefixConstrainedLogitsProcessor",
    "UnbatchedClassifierFreeGuidanceLogitsProcessor",
}
"""Processors that must know which row of the batch they see."""


def groundspeed_generate(
    model: PreTrainedModel,
    input_ids: torch.Tensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    generation_config: GenerationConfig,
    synced_gpus: bool = False,
    streamer: BaseStreamer | None = None,
    draft_passages: Sequence[str] = (),
    draft_tokenizer: PreTrainedTokenizerBase | None = None,
    token_streamer: BaseStreamer | None = None,
    **model_kwargs: Any,
) -> torch.Tensor | GenerateDecoderOnlyOutput:
    """The decoding loop of ``generate`` by speculation: greedy search or sampling, the rows side by side.

    Used as ``model.generate(**inputs, custom_generate=groundspeed_generate, ...)``. Greedy tokens are those
    of ``generate`` but for rounding; drawn ones follow the same distribution, and ``torch.manual_seed`` fixes
    them. The first call for a model tries out what it can verify and what a pass costs, about two seconds.
    The model is left as it is, and no keys and values are kept from one call to the next.

    Args:
        model: A causal language model, in evaluation mode.
        input_ids: [b, n], with padding on the left.
        logits_processor: Applied to each row by itself, so a processor sees a batch of one. With several rows
            each has its own copy.
        stopping_criteria: Asked about each row by itself after each token, with None for the scores.
        generation_config: As ``generate`` prepared it.
        synced_gpus: Refused.
        streamer: Takes the tokens of a batch of one. transformers 5.24 does not hand its ``streamer`` on, so
            give ``token_streamer``.
        draft_passages: Texts to draft from beside the prompts, best first. They change no token.
        draft_tokenizer: The model's; passages need it, and drafts find more with it.
        token_streamer: A streamer, by a name that transformers hands on.
        model_kwargs: What ``generate`` prepared for the model.

    Returns:
        int64 [b, n + longest], prompts and answers, filled up with the padding token; within a
        ``GenerateDecoderOnlyOutput`` if the config sets ``return_dict_in_generate``.

    Raises:
        InputError: Something is asked for that is not served; the message names it.
        ContextLengthError: A prompt leaves no room in the model's context.
    """
    import torch
    from transformers.generation import GenerateDecoderOnlyOutput

    _refuse_unserved(model, input_ids, generation_config, synced_gpus, model_kwargs)
    if draft_passages and draft_tokenizer is None:
        raise InputError("draft_passages were given without draft_tokenizer; give the model's tokenizer too")
    if token_streamer is not None:
        token_streamer.put(input_ids.cpu())  # as `generate` does with its own
        streamer = token_streamer
    if streamer is not None and len(input_ids) > 1:
        raise InputError(f"a streamer was given for {len(input_ids)} rows; it takes the tokens of one")

    ends = Ends(stopping_criteria, generation_config)
    rows = [
        Row(ids, visible, ends, streamer)
        for ids, visible in zip(input_ids, _visible(input_ids, **model_kwargs), strict=True)
    ]
    passages = tuple(Passage(f"draft_passages[{i}]", text) for i, text in enumerate(draft_passages))
    draws = bool(generation_config.do_sample)
    seeds = torch.randint(2**63 - 1, (len(rows),)).tolist() if draws else [None] * len(rows)
    requests = [
        GenerationRequest(
            row.prompt,
            passages,
            max_tokens=ends.length - input_ids.shape[1],
            temperature=float(draws),  # that of the config is among the processors
            seed=seed,
            logits_processors=row.padded(processors),
            ignore_eos=True,
            stop_token_ids=ends.token_ids,
        )
        for row, processors, seed in zip(
            rows, _own_processors(model, logits_processor, len(rows)), seeds, strict=True
        )
    ]
    kept = _Kept.of(model)
    with kept.lock:
        engine = kept.engine_for(model, draft_tokenizer)
        try:
            run_rows(engine, requests, rows)
        finally:
            engine.forget_prefixes()  # the weights may be others the next time
    if streamer is not None:
        streamer.end()
    sequences = _padded(input_ids, [row.answer for row in rows], generation_config)
    if generation_config.return_dict_in_generate:
        return GenerateDecoderOnlyOutput(sequences=sequences)
    return sequences


class _Kept:
    """The engine of a model. It hangs on the model and goes with it; a copy of the model starts without."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._engine: Engine | None = None

    def __reduce__(self) -> tuple[type[_Kept], tuple[()]]:
        return _Kept, ()

    @staticmethod
    def of(model: PreTrainedModel) -> _Kept:
        kept: _Kept = model.__dict__.setdefault("_groundspeed", _Kept())
        return kept

    def engine_for(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None) -> Engine:
        """The engine, made when there is none or the model has moved."""
        from groundspeed.verify.engine import Engine
        from groundspeed.verify.target import TransformersTarget

        engine = self._engine
        weight = model.get_input_embeddings().weight
        if engine is None or (engine.target.device, engine.target.dtype) != (weight.device, weight.dtype):
            # Nothing is recorded or reserved on its device: the model is not ours, and may be changed.
            target = TransformersTarget(model, driver=lambda device: None)
            self._engine = Engine(target, tokenizer or _NoTokenizer())
        elif tokenizer is not None and tokenizer is not engine.tokenizer:
            self._engine = Engine(engine.target, tokenizer, cost=engine.cost)
        assert self._engine is not None
        return self._engine


class _NoTokenizer:
    """Stands in where there is no tokenizer: tokens have no text."""

    def decode(self, token_ids: Sequence[int], **options: Any) -> str:
        return ""


def _refuse_unserved(
    model: PreTrainedModel,
    input_ids: torch.Tensor,
    config: GenerationConfig,
    synced_gpus: bool,
    model_kwargs: dict[str, Any],
) -> None:
    import torch
    from transformers.generation import GenerationMode

    mode = config.get_generation_mode()
    kwargs = sorted(name for name, value in model_kwargs.items() if value is not None and name not in _SERVED)
    extras = [name for name in _EXTRAS if config.return_dict_in_generate and getattr(config, name)]
    device = model.get_input_embeddings().weight.device
    faults = (
        (
            mode not in (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE),
            f"{mode.replace('_', ' ')} is asked for, and only greedy search and sampling are served: leave "
            "out num_beams and prompt_lookup_num_tokens",
        ),
        (synced_gpus, "synced_gpus is set: ranks that must run in step cannot speculate by themselves"),
        (bool(kwargs), f"{', '.join(kwargs)} cannot be served: give token ids and an attention_mask only"),
        (
            getattr(model_kwargs.get("cache"), "_is_user_defined", False),
            "a cache was given, and keys and values are kept elsewhere: leave it out and give the whole text",
        ),
        (bool(extras), f"{', '.join(extras)} is set, which drafts do not leave in one piece: leave it out"),
        (model.training, "the model is in training mode: call model.eval() first"),
        (
            input_ids.device != device,
            f"input_ids are on {input_ids.device} and the model takes them on {device}: move them there",
        ),
        (
            torch.is_autocast_enabled(input_ids.device.type),
            "autocast is on, which does not reach the thread that runs the model: load the model in the "
            "dtype that is wanted",
        ),
    )
    for fault, message in faults:
        if fault:
            raise InputError(f"groundspeed_generate: {message}, or call generate without custom_generate")


def _visible(
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    position_ids: torch.Tensor | None = None,
    **model_kwargs: Any,
) -> torch.Tensor:
    """Which tokens of input_ids [b, n] are no padding; bool [b, n]."""
    import torch

    visible = torch.ones_like(input_ids) if attention_mask is None else attention_mask
    visible = visible.bool()
    if not bool(visible[:, -1].all()):
        raise InputError(
            "the attention_mask hides the last token of a row; put the padding on the left "
            "(padding_side='left' of the tokenizer)"
        )
    if position_ids is not None:
        wanted = visible.long().cumsum(-1) - 1
        if position_ids.dim() > 2 or bool((position_ids.expand_as(wanted) != wanted)[visible].any()):
            raise InputError(
                "position_ids other than those of the attention_mask were given; leave them out, or call "
                "generate without custom_generate"
            )
    return visible


def _own_processors(
    model: PreTrainedModel, processors: LogitsProcessorList, rows: int
) -> list[list[LogitsProcessor]]:
    """The processors of each row."""
    import torch

    own = [_quick(processor) for processor in processors]
    if rows == 1 or not own:
        return [own] * rows
    refused = [name for one in own if (name := type(one).__name__) in _OF_WHOLE_BATCHES]
    if refused:
        raise InputError(
            f"{refused[0]} must know which row it sees, and rows take turns here: give one row at a time, or "
            "call generate without custom_generate"
        )
    copies = [copy.deepcopy(own, {id(model): model}) for _ in range(rows)]
    for row, processors in enumerate(copies):
        for processor in processors:
            # Of each row its padding, which a repetition penalty passes over.
            ignored = getattr(processor, "prompt_ignore_length", None)
            if isinstance(ignored, torch.Tensor):
                processor.prompt_ignore_length = ignored[row : row + 1]
    return copies


def _quick(processor: LogitsProcessor) -> LogitsProcessor:
    """Ours, which keeps the same tokens in a fraction of the time, for the library's own."""
    from transformers import TopPLogitsWarper, TypicalLogitsWarper

    from groundspeed.verify.warpers import TopP, Typical

    if type(processor) is TopPLogitsWarper and processor.min_tokens_to_keep == 1:
        return TopP(processor.top_p, processor.filter_value)
    if type(processor) is TypicalLogitsWarper and processor.min_tokens_to_keep == 1:
        return Typical(processor.mass, processor.filter_value)
    return processor


def _padded(
    input_ids: torch.Tensor, answers: Sequence[Sequence[int]], config: GenerationConfig
) -> torch.Tensor:
    """Prompts [b, n] and answers in one tensor, int64 [b, n + longest]."""
    longest = max(map(len, answers))
    padding = config._pad_token_tensor
    if padding is None and any(len(answer) < longest for answer in answers):
        raise InputError("rows ended at different lengths and there is no padding token; set pad_token_id")
    n = input_ids.shape[1]
    sequences = input_ids.new_full((len(answers), n + longest), 0 if padding is None else int(padding))
    sequences[:, :n] = input_ids
    for row, answer in zip(sequences, answers, strict=True):
        row[n : n + len(answer)] = input_ids.new_tensor(answer)
    return sequences
