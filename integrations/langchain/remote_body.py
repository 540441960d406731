"""A call of the chat model becomes the body of a request to a server."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from groundspeed.errors import GroundspeedError, InputError, ModelError
from groundspeed.integrations.forms import answer_schema, instructions
from groundspeed.integrations.langchain.remote import RemoteCall, Served
from groundspeed.integrations.langchain.remote_answer import RemoteAnswer
from groundspeed.integrations.tools import AnswerReader, CallReader, chosen_tools
from groundspeed.integrations.turns import Turn, instructed
from groundspeed.integrations.vllm.documents import DOCUMENTS_KEY, flat_documents
from groundspeed.types import GenerationRequest, Passage
from groundspeed.verify.drafts import draft_texts
from groundspeed.verify.loading import DEFAULT_MODEL, load_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["FORM", "remote_call", "tokenizer_of"]

_EVERYWHERE = (
    "temperature", "max_tokens", "top_p", "top_k", "min_p", "repetition_penalty", "frequency_penalty",
    "presence_penalty", "min_tokens",
)  # fmt: skip
"""Settings that all servers know by these names. All are sent, as a server has defaults of its own."""

_OURS = ("typical_p", "speculate")
"""Settings that only our own server has."""


FORM = ("tools", "tool_choice", "response_format", "parallel_tool_calls")
"""Arguments of a call by which an answer gets its form."""


def remote_call(
    served: Served,
    turns: Sequence[Turn],
    request: GenerationRequest,
    form: Mapping[str, Any],
    *,
    tokenizer: str,
    cite: bool,
) -> RemoteCall:
    """Put a call together.

    Args:
        served: Whose answer is wanted.
        turns: The conversation.
        request: Settings and passages; its prompt is not looked at.
        form: By the names of ``FORM``, tools and format in OpenAI's form.
        tokenizer: Of the served model; loaded where passages must be sent as token ids.
        cite: Put citations into the content.

    Raises:
        InputError: The server has no such setting, or there is no such tool or format.
        ModelError: The tokenizer cannot be loaded.
    """
    messages, fields = _formed(_openai_messages(turns), form, served)
    fields |= _settings(request, served)
    fields |= _documents(request.passages, served, tokenizer)
    one_call = form["parallel_tool_calls"] is False
    reader = _reader(fields, served)
    answer = RemoteAnswer(served.model, request.passages, reader, cite=cite, one_call=one_call)
    return RemoteCall(served.model, messages, fields, request.timeout, answer)


@lru_cache(maxsize=8)
def tokenizer_of(name: str) -> PreTrainedTokenizerBase:
    """The tokenizer of a served model; one a process.

    Raises:
        ModelError: It cannot be loaded.
    """
    try:
        return load_tokenizer(None if name == DEFAULT_MODEL else name)
    except GroundspeedError as error:
        raise ModelError(
            f"the tokenizer {name!r} cannot be loaded ({error}); name that of the served model, "
            "tokenizer=..., a hub id or a folder: documents for a vLLM server, and counts of tokens, need it"
        ) from error


def _openai_messages(turns: Sequence[Turn]) -> list[dict[str, Any]]:
    """Turns as OpenAI's API takes them: the arguments of calls are texts there."""
    told = []
    for turn in turns:
        message = {name: value for name, value in turn.items() if value or name == "content"}
        if calls := turn.get("tool_calls"):
            message["tool_calls"] = [
                {
                    **call,
                    "function": {**call["function"], "arguments": json.dumps(call["function"]["arguments"])},
                }
                for call in calls
            ]
        told.append(message)
    return told


def _formed(
    messages: list[dict[str, Any]], form: Mapping[str, Any], served: Served
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The messages, and the fields that give the answer its form.

    Our own server tells the model what its answer must look like; for others that is done here.
    """
    fields: dict[str, Any] = {}
    choice = form["tool_choice"]
    told, forced = chosen_tools(form["tools"], choice)
    if told:
        fields["tools"] = list(told)
        if form["parallel_tool_calls"] is not None:
            fields["parallel_tool_calls"] = form["parallel_tool_calls"]
    if forced:
        named = {"type": "function", "function": {"name": forced[0]["function"]["name"]}}
        fields["tool_choice"] = "required" if choice in (True, "any", "required") else named
    schema = answer_schema(form["response_format"])
    if schema is None or forced:
        return messages, fields
    given = form["response_format"].get("json_schema", {})
    wanted = {"name": given.get("name") or "answer", "schema": schema, "strict": given.get("strict")}
    fields["response_format"] = {"type": "json_schema", "json_schema": wanted}
    return messages if served.ours else instructed(messages, instructions(schema)), fields


def _reader(fields: Mapping[str, Any], served: Served) -> AnswerReader:
    """What finds calls in the text: vLLM leaves those there that its parser of tool calls does not know."""
    if served.ours or "tools" not in fields:
        return AnswerReader()
    return CallReader([tool["function"]["name"] for tool in fields["tools"]])


def _settings(request: GenerationRequest, served: Served) -> dict[str, Any]:
    """The settings of a request as a server takes them.

    Raises:
        InputError: The server has no such setting, or none of that value.
    """
    if request.grammar is not None:
        raise InputError(
            "a grammar was given, which goes to no server; give response_format, or use "
            "with_structured_output(..., method='json_schema')"
        )
    plain = GenerationRequest("")
    own = {name: value for name in _OURS if (value := getattr(request, name)) != getattr(plain, name)}
    if own and not served.ours:
        raise InputError(
            f"{', '.join(own)} was given, which a vLLM server does not have; leave it out, or ask "
            "`groundspeed serve`"
        )
    if not all(map(math.isfinite, request.logit_bias.values())):
        raise InputError("logit_bias holds a number that is not finite; -100 keeps a token out")
    fields = {name: getattr(request, name) for name in _EVERYWHERE} | own
    if request.stop:
        fields["stop"] = list(request.stop)
    if request.seed is not None:
        fields["seed"] = request.seed
    if request.logit_bias:
        fields["logit_bias"] = {str(token): bias for token, bias in request.logit_bias.items()}
    if request.logprobs is not None:
        fields |= {"logprobs": True, "top_logprobs": request.logprobs}
    return fields


def _documents(passages: Sequence[Passage], served: Served, tokenizer: str) -> dict[str, Any]:
    """The documents of a request as a server takes them: our own as texts, vLLM as token ids.

    Raises:
        ModelError: The tokenizer cannot be loaded.
    """
    if not passages:
        return {}
    if served.ours:
        documents = [
            {"id": one.document_id, "text": one.text, "start": one.start, "following": one.following}
            for one in passages
        ]
        return {"draft_documents": documents}
    texts = [text for text in draft_texts(passages) if text]
    ids = tokenizer_of(tokenizer)(texts, add_special_tokens=False)["input_ids"]
    return {"vllm_xargs": {DOCUMENTS_KEY: flat_documents(ids)}}
