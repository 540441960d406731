"""Structured output and tools, by the official client and by LangChain's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal

import pytest
from helpers.serving import ScriptedEngine, serving
from langchain_openai import ChatOpenAI
from openai import APIError, BadRequestError, OpenAI
from pydantic import BaseModel

HELLO: Any = [{"role": "user", "content": "hello"}]
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Rome", "Oslo"]}},
            "required": ["city"],
        },
    },
}
CLOCK: Any = {"type": "function", "function": {"name": "clock"}}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'


class Verdict(BaseModel):
    """What to say."""

    answer: Literal["yes", "no"]
    sure: bool


def ask(client: OpenAI, **more: Any) -> Any:
    return client.chat.completions.create(
        **{"model": client.models.list().data[0].id, "messages": HELLO, "max_tokens": 200, **more}
    )


@pytest.fixture
def scripted() -> Iterator[Any]:
    """Makes a client of a server whose answers are given."""
    opened: list[Any] = []

    def make(*answers: str | Exception, **options: Any) -> tuple[OpenAI, ScriptedEngine]:
        engine = ScriptedEngine(*answers, **options)
        server = serving(engine)
        client = OpenAI(base_url=f"{server.__enter__()}/v1", api_key="none", max_retries=0)
        opened.extend([server, client])
        return client, engine

    yield make
    for one in reversed(opened):
        one.__exit__(None, None, None)


def test_the_client_parses_an_answer_into_a_class(client: OpenAI) -> None:
    reply = client.chat.completions.parse(
        model="tiny", messages=HELLO, response_format=Verdict, max_tokens=200
    )
    assert isinstance(reply.choices[0].message.parsed, Verdict)
    assert reply.choices[0].finish_reason == "stop"


def test_a_structured_answer_streams(client: OpenAI) -> None:
    with client.chat.completions.stream(
        model="tiny", messages=HELLO, response_format=Verdict, max_tokens=200
    ) as stream:
        assert any(event.type == "content.delta" for event in stream)
        assert isinstance(stream.get_final_completion().choices[0].message.parsed, Verdict)


def test_a_schema_holds_whatever_is_drawn(client: OpenAI) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 1, "maximum": 5}}}
    schema |= {"required": ["n"], "additionalProperties": False}
    form: Any = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    for choice in ask(client, response_format=form, n=4, temperature=2).choices:
        assert 1 <= json.loads(choice.message.content)["n"] <= 5


def test_a_json_object_begins_like_one(client: OpenAI) -> None:
    for choice in ask(client, response_format={"type": "json_object"}, max_tokens=30, n=4).choices:
        assert choice.message.content.lstrip().startswith("{")
        if choice.finish_reason == "stop":
            assert isinstance(json.loads(choice.message.content), dict)


def test_text_is_a_form_like_none(client: OpenAI) -> None:
    plain = ask(client, temperature=0, max_tokens=9).choices[0].message.content
    reply = ask(client, temperature=0, max_tokens=9, response_format={"type": "text"})
    assert reply.choices[0].message.content == plain


def test_a_schema_that_is_none_is_refused(client: OpenAI) -> None:
    form: Any = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "nonsense"}}}
    with pytest.raises(BadRequestError, match="nonsense"):
        ask(client, response_format=form)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_a_call_that_is_asked_for_fits_its_schema(client: OpenAI, choice: Any) -> None:
    choice = ask(client, tools=[WEATHER], tool_choice=choice).choices[0]
    (call,) = choice.message.tool_calls
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
    assert (call.type, call.function.name) == ("function", "weather")
    assert json.loads(call.function.arguments)["city"] in ("Rome", "Oslo")
    assert call.id.startswith("call_")


def test_the_call_of_one_of_several_tools(client: OpenAI) -> None:
    named: Any = {"type": "function", "function": {"name": "clock"}}
    choice = ask(client, tools=[WEATHER, CLOCK], tool_choice=named).choices[0]
    assert choice.message.tool_calls[0].function.name == "clock"


def test_a_forced_call_streams_whole(client: OpenAI) -> None:
    chunks = list(ask(client, tools=[WEATHER], tool_choice="required", stream=True))
    (call,) = [call for c in chunks for call in c.choices[0].delta.tool_calls or ()]
    assert (call.index, call.function.name) == (0, "weather")
    assert json.loads(call.function.arguments)["city"] in ("Rome", "Oslo")
    assert not any(c.choices[0].delta.content for c in chunks)
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


def test_an_unknown_tool_cannot_be_chosen(client: OpenAI) -> None:
    with pytest.raises(BadRequestError, match="the tools are: weather"):
        ask(client, tools=[WEATHER], tool_choice={"type": "function", "function": {"name": "cook"}})


def test_tools_and_a_form_hold_together(client: OpenAI, scripted: Any) -> None:
    form: Any = {"type": "json_schema", "json_schema": {"name": "v", "schema": Verdict.model_json_schema()}}
    for choice in ask(client, tools=[WEATHER], response_format=form, n=4).choices:
        if choice.message.tool_calls:
            assert choice.message.tool_calls[0].function.name == "weather"
        else:
            Verdict.model_validate_json(choice.message.content)
    asked, engine = scripted(CALL)
    reply = ask(asked, tools=[WEATHER], response_format=form).choices[0]
    assert reply.message.tool_calls[0].function.name == "weather"
    assert "fits this schema" in engine.prompt()
    ask(asked, tools=[WEATHER], response_format=form, tool_choice="none")
    assert engine.requests[-1].grammar.kind == "json_schema"


def test_calls_are_read_out_of_an_answer(scripted: Any) -> None:
    client, engine = scripted(f"Let me look. {CALL}{CALL}")
    choice = ask(client, tools=[WEATHER]).choices[0]
    assert choice.message.content == "Let me look."
    assert [call.function.name for call in choice.message.tool_calls] == ["weather", "weather"]
    assert choice.finish_reason == "tool_calls"
    assert engine.prompt().startswith('TOOLS [{"type": "function", "function": {"name": "weather"')


def test_calls_stream_with_their_numbers(scripted: Any) -> None:
    client, _ = scripted(f"Look: {CALL}{CALL}")
    chunks = list(ask(client, tools=[WEATHER], stream=True))
    calls = [call for c in chunks for call in c.choices[0].delta.tool_calls or ()]
    assert [call.index for call in calls] == [0, 1]
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == "Look:"
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


def test_hidden_tools_are_no_part_of_the_prompt(scripted: Any) -> None:
    client, engine = scripted(CALL)
    choice = ask(client, tools=[WEATHER], tool_choice="none").choices[0]
    assert choice.message.tool_calls is None
    assert choice.message.content == CALL
    assert "TOOLS" not in engine.prompt()


def test_a_call_that_cannot_be_read_is_text(scripted: Any) -> None:
    client, _ = scripted("<tool_call>\nnonsense\n</tool_call>")
    choice = ask(client, tools=[WEATHER]).choices[0]
    assert (choice.message.content, choice.message.tool_calls) == ("nonsense", None)
    assert choice.finish_reason == "stop"


def test_one_call_at_a_time_ends_with_the_first(scripted: Any) -> None:
    client, engine = scripted(CALL)
    ask(client, tools=[WEATHER], parallel_tool_calls=False)
    assert engine.requests[-1].stop == ("</tool_call>",)


def test_an_error_in_the_middle_of_a_stream_is_raised_by_the_client(scripted: Any) -> None:
    client, _ = scripted(RuntimeError("secret words of a prompt"))
    stream = ask(client, stream=True)
    seen = "".join(next(stream).choices[0].delta.content for _ in range(5))
    assert seen == "half"
    with pytest.raises(APIError, match="the server failed") as caught:
        next(stream)
    assert "secret" not in str(caught.value)


def test_an_error_of_the_engine_is_a_status(scripted: Any) -> None:
    client, _ = scripted(RuntimeError("x"), "fine")
    with pytest.raises(APIError) as caught:
        ask(client)
    assert caught.value.type == "server_error"
    assert ask(client).choices[0].message.content == "fine"


@pytest.mark.parametrize(("answer", "status"), [("partial", 200), ("", 504)])
def test_time_that_is_over_cuts_an_answer_that_had_begun(scripted: Any, answer: str, status: int) -> None:
    client, _ = scripted(answer, finish_reason="timeout")
    if status == 200:
        choice = ask(client).choices[0]
        assert (choice.finish_reason, choice.groundspeed["finish_reason"]) == ("length", "timeout")
    else:
        with pytest.raises(APIError, match="before the answer began"):
            ask(client)
        with pytest.raises(APIError, match="before the answer began"):
            list(ask(client, stream=True))


def langchain(address: str, **more: Any) -> ChatOpenAI:
    return ChatOpenAI(base_url=f"{address}/v1", api_key="none", model="tiny", max_retries=0, **more)


def test_langchain_gets_answers_and_usage(address: str, client: OpenAI) -> None:
    message = langchain(address, seed=5, max_tokens=9).invoke("hello")
    assert message.content == ask(client, seed=5, max_tokens=9).choices[0].message.content
    assert message.usage_metadata["output_tokens"] == 9


def test_langchain_streams(address: str) -> None:
    model = langchain(address, seed=5, max_tokens=9, stream_usage=True)
    pieces = list(model.stream("hello"))
    assert "".join(str(piece.content) for piece in pieces) == model.invoke("hello").content
    assert sum(piece.usage_metadata["output_tokens"] for piece in pieces if piece.usage_metadata) == 9


def test_langchain_binds_tools(address: str) -> None:
    model = langchain(address, max_tokens=200).bind_tools([WEATHER], tool_choice="weather")
    (call,) = model.invoke("hello").tool_calls
    assert (call["name"], call["args"]["city"] in ("Rome", "Oslo")) == ("weather", True)


def test_langchain_structures_output(address: str) -> None:
    model = langchain(address, max_tokens=200).with_structured_output(Verdict)
    assert isinstance(model.invoke("hello"), Verdict)


async def test_langchain_batches_in_an_event_loop(address: str) -> None:
    model = langchain(address, seed=5, max_tokens=9)
    replies = await model.abatch(["one", "two", "three"])
    assert [reply.content for reply in replies] == [
        model.invoke(text).content for text in ("one", "two", "three")
    ]
