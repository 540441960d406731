"""Tools and structured output, with scripted answers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.structured_output import ToolStrategy
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from pydantic import BaseModel

from groundspeed.errors import InputError
from groundspeed.integrations.langchain import ChatGroundspeed, GroundspeedMiddleware
from groundspeed.integrations.tools import Call, CallReader
from groundspeed.types import Grammar
from groundspeed.verify.grammar import Grammars

BODY = '{"name": "weather", "arguments": {"place": "Rome"}}'
CALL = f"<tool_call>\n{BODY}\n</tool_call>"


@tool
def weather(place: str) -> str:
    """Say what the weather is."""
    return f"sunny in {place}"


class Joke(BaseModel):
    """A joke."""

    setup: str
    punchline: str = ""


def read(text: str, size: int, opened: bool = False) -> list[str | tuple[str | None, str]]:
    """What a reader makes of a text that comes in pieces, texts joined."""
    reader = CallReader({"weather"}, opened=opened)
    parts = [part for at in range(0, len(text), size) for part in reader.push(text[at : at + size])]
    joined: list[Any] = []
    for part in [*parts, *reader.finish()]:
        if isinstance(part, Call):
            joined.append((part.name, part.arguments))
        elif joined and isinstance(joined[-1], str):
            joined[-1] += part
        else:
            joined.append(part)
    return joined


ROME = ("weather", '{"place": "Rome"}')


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("no call, 1 < 2 and <tool", ["no call, 1 < 2 and <tool"]),
        (CALL, [ROME]),
        (f"Let me see.\n{CALL}\n{CALL}", ["Let me see.", ROME, ROME]),
        (f"\n{CALL} done", [ROME, "done"]),
        (f"<tool_call>[{BODY}, {BODY}]</tool_call>", [ROME, ROME]),
        ('{"name": "weather", "parameters": {"place": "Rome"}}', [ROME]),
        ('[{"name": "weather", "arguments": {"place": "Rome"}}]', [ROME]),
        ('{"name": "unknown", "arguments": {}}', ['{"name": "unknown", "arguments": {}}']),
        ('{"answer": 1}', ['{"answer": 1}']),
        ("<tool_call>\n{oh", [(None, "{oh")]),
        ("a text that ends in space \n", ["a text that ends in space \n"]),
        ("", []),
    ],
)
def test_calls_are_found_however_the_answer_falls_into_pieces(text: str, parts: list[Any], size: int) -> None:
    assert read(text, size) == parts


def test_a_call_whose_opening_stands_in_the_prompt_is_found() -> None:
    assert read('{"name": "weather", "arguments": {"place": "Rome"}}', 2, opened=True) == [ROME]


def test_tools_reach_the_template_and_calls_come_back_parsed(scripted: Any) -> None:
    engine = scripted(CALL)
    bound = ChatGroundspeed(engine=engine).bind_tools([weather])
    whole = bound.invoke("Rome?")
    assert "TOOLS" in engine.prompt()
    assert "Say what the weather is." in engine.prompt()
    chunks = list(bound.stream("Rome?"))
    total = chunks[0]
    for chunk in chunks[1:]:
        total += chunk
    for message in (whole, total):
        assert isinstance(message, AIMessage)
        assert message.content == ""
        (call,) = message.tool_calls
        assert (call["name"], call["args"], call["type"]) == ("weather", {"place": "Rome"}, "tool_call")
        assert call["id"]


def test_calls_and_results_go_back_through_the_template(scripted: Any) -> None:
    engine = scripted()
    call = {"name": "weather", "args": {"place": "Rome"}, "id": "1"}
    messages = [HumanMessage("?"), AIMessage("", tool_calls=[call]), ToolMessage("sunny", tool_call_id="1")]
    ChatGroundspeed(engine=engine).bind_tools([weather]).invoke(messages)
    assert 'CALL weather {"place": "Rome"}|[tool] sunny|' in engine.prompt()


def test_a_template_without_tools_is_told_of_them_in_the_text(scripted: Any) -> None:
    engine = scripted(CALL)
    engine.tokenizer.chat_template = "{% for m in messages %}[{{ m.role }}] {{ m.content }}|{% endfor %}"
    call = {"name": "weather", "args": {"place": "Rome"}, "id": "1"}
    messages = [HumanMessage("?"), AIMessage("", tool_calls=[call]), ToolMessage("sunny", tool_call_id="1")]
    answer = ChatGroundspeed(engine=engine).bind_tools([weather]).invoke(messages)
    assert engine.prompt().startswith("[system] You may call")
    assert "Say what the weather is." in engine.prompt()
    assert f"[assistant] {CALL}|[user] <tool_response>\nsunny\n</tool_response>|" in engine.prompt()
    assert answer.tool_calls


@pytest.mark.parametrize("choice", ["any", "required", True, "weather", {"function": {"name": "weather"}}])
def test_a_forced_call_is_held_to_the_tools_schema(choice: Any, scripted: Any) -> None:
    engine = scripted('{"name": "weather", "arguments": {"place": "Rome"}}')
    answer = ChatGroundspeed(engine=engine).bind_tools([weather], tool_choice=choice).invoke("hi")
    grammar = engine.requests[-1].grammar
    assert grammar is not None
    schema = json.loads(grammar.text)
    assert schema["properties"]["name"] == {"const": "weather"}
    assert schema["properties"]["arguments"]["required"] == ["place"]
    assert answer.tool_calls[0]["args"] == {"place": "Rome"}


def test_a_tool_that_is_not_there_cannot_be_chosen(scripted: Any) -> None:
    with pytest.raises(InputError, match="weather"):
        ChatGroundspeed(engine=scripted()).bind_tools([weather], tool_choice="wether")


def test_a_call_that_cannot_be_read_is_an_invalid_one(scripted: Any) -> None:
    model = ChatGroundspeed(engine=scripted('<tool_call>\n{"name": "weather", "arg</tool_call>'))
    answer = model.bind_tools([weather]).invoke("hi")
    assert not answer.tool_calls
    assert answer.invalid_tool_calls[0]["args"] == '{"name": "weather", "arg'


def test_structured_output_is_an_object_and_asks_for_its_grammar(scripted: Any) -> None:
    engine = scripted('{"setup": "a", "punchline": "b"}')
    model = ChatGroundspeed(engine=engine).with_structured_output(Joke)
    assert model.invoke("x") == Joke(setup="a", punchline="b")
    assert list(model.stream("x"))[-1] == Joke(setup="a", punchline="b")
    schema = json.loads(engine.requests[-1].grammar.text)
    assert schema["additionalProperties"] is False
    assert schema["required"] == ["setup"]
    assert engine.prompt().startswith("[system] Your answer must be JSON that fits this schema:\n{")
    assert json.dumps(schema) in engine.prompt()


def test_instructions_stand_behind_a_system_message_and_json_mode_needs_none(scripted: Any) -> None:
    engine = scripted('{"setup": "a", "punchline": "b"}')
    model = ChatGroundspeed(engine=engine)
    model.with_structured_output(Joke).invoke([("system", "Be funny."), ("human", "x")])
    assert engine.prompt().startswith("[system] Be funny.\n\nYour answer must be JSON")
    assert model.with_structured_output(Joke, method="json_mode").invoke("x").punchline == "b"
    assert engine.prompt() == "[user] x|[assistant] "
    assert engine.requests[-1].grammar == engine.requests[0].grammar
    model.invoke("x", response_format={"type": "json_object"})
    assert engine.prompt() == "[user] x|[assistant] "
    assert engine.requests[-1].grammar == Grammar.json_object()


def test_objects_may_be_left_open(scripted: Any) -> None:
    engine = scripted('{"setup": "a", "punchline": "b"}')
    ChatGroundspeed(engine=engine).with_structured_output(Joke, strict=False).invoke("x")
    assert "additionalProperties" not in json.loads(engine.requests[-1].grammar.text)


def test_one_call_at_a_time_can_be_asked_for(scripted: Any) -> None:
    engine = scripted(f"<tool_call>{BODY}")  # as the engine ends it, before the stop string
    bound = ChatGroundspeed(engine=engine, stop=["x"]).bind_tools([weather], parallel_tool_calls=False)
    assert len(bound.invoke("hi").tool_calls) == 1
    assert engine.requests[-1].stop == ("x", "</tool_call>")


class Trip(BaseModel):
    """A trip."""

    class Place(BaseModel):
        """A place."""

        name: str

    places: list[Place]


@pytest.mark.parametrize("marks_are_tokens", [False, True])
def test_tools_and_a_response_format_give_a_call_or_the_answer(scripted: Any, marks_are_tokens: bool) -> None:
    engine = scripted(CALL, '{"places": [{"name": "Rome"}]}')
    if marks_are_tokens:
        engine.tokenizer.add_tokens(["<tool_call>", "</tool_call>"])
    bound = ChatGroundspeed(engine=engine).bind_tools([weather, Trip], response_format=Trip)
    assert bound.invoke("x").tool_calls[0]["args"] == {"place": "Rome"}
    assert json.loads(str(bound.invoke("x").content)) == {"places": [{"name": "Rome"}]}
    assert '"fits this schema:' not in engine.prompt()
    assert "TOOLS" in engine.prompt()
    grammars = Grammars(engine.tokenizer, len(engine.tokenizer), [engine.tokenizer.eos_token_id])

    def follows(text: str) -> bool:
        state = grammars.start(engine.requests[-1].grammar, 0)
        try:
            state.take(engine.tokenizer(text).input_ids)
        except InputError:
            return False
        state.take([engine.tokenizer.eos_token_id])
        return state.taken == len(engine.tokenizer(text).input_ids)

    fitting = [
        '{"places": [{"name": "Rome"}]}',
        CALL,
        f"{CALL}\n{CALL}",
        BODY,
        '<tool_call>\n{"name": "Trip", "arguments": {"places": [{"name": "Rome"}]}}\n</tool_call>',
    ]
    others = [
        "Rome",
        '{"places": [{"nme": "Rome"}]}',
        '{"name": "wether", "arguments": {}}',
        f"Well. {CALL}",
        '<tool_call>\n{"places": []}\n</tool_call>',
    ]
    assert [follows(text) for text in fitting] == [True] * len(fitting)
    assert [follows(text) for text in others] == [False] * len(others)


def test_a_forced_call_comes_before_a_response_format(scripted: Any) -> None:
    engine = scripted(BODY)
    bound = ChatGroundspeed(engine=engine).bind_tools([weather], tool_choice="any", response_format=Trip)
    assert bound.invoke("x").tool_calls
    assert json.loads(engine.requests[-1].grammar.text)["properties"]["name"] == {"const": "weather"}


def test_what_is_no_response_format_is_refused(scripted: Any) -> None:
    for wrong in ({"type": "xml"}, {"json_schema": {}}, "json", Joke(setup="a")):
        with pytest.raises(InputError, match="response_format"):
            ChatGroundspeed(engine=scripted()).invoke("x", response_format=wrong)


def test_a_dict_streams_as_it_grows(scripted: Any) -> None:
    model = ChatGroundspeed(engine=scripted('{"setup": "ab", "punchline": "c"}'))
    pieces = list(model.with_structured_output(Joke.model_json_schema()).stream("x"))
    assert {"setup": "a"} in pieces
    assert pieces[-1] == {"setup": "ab", "punchline": "c"}


async def test_an_agent_calls_tools_and_its_documents_reach_the_drafter(scripted: Any) -> None:
    found = Document("It is sunny in Rome all day.", id="almanac")

    @tool(response_format="content_and_artifact")
    def search(query: str) -> tuple[str, list[Document]]:
        """Search."""
        return "a summary", [found]

    asking = '<tool_call>{"name": "search", "arguments": {"query": "Rome"}}</tool_call>'
    for asynchronous in (False, True):
        engine = scripted(asking, "It is sunny in Rome all day.")
        agent = create_agent(
            ChatGroundspeed(engine=engine),
            [search],
            middleware=[GroundspeedMiddleware()],
            system_prompt="Help.",
        )
        state = {"messages": [HumanMessage("Rome?")], "context": [Document("from the state", id="state")]}
        result = await agent.ainvoke(state) if asynchronous else agent.invoke(state)
        answer = result["messages"][-1]
        assert answer.content == "It is sunny in Rome all day."
        assert [[p.document_id for p in request.passages] for request in engine.requests] == [
            ["state"],
            ["state", "almanac"],
        ]
        assert answer.response_metadata["grounding"][0]["document_id"] == "almanac"
        assert "all day" not in engine.prompt()
        assert "from the state" not in engine.prompt()


def test_an_agent_gives_a_structured_response(scripted: Any) -> None:
    answer = '{"setup": "a", "punchline": "b"}'
    for form, said in ((Joke, answer), (ToolStrategy(Joke), f'{{"name": "Joke", "arguments": {answer}}}')):
        engine = scripted(BODY, said)
        agent = create_agent(ChatGroundspeed(engine=engine), [weather], response_format=form)
        result = agent.invoke({"messages": [HumanMessage("x")]})
        assert result["structured_response"] == Joke(setup="a", punchline="b")
        assert "sunny in Rome" in engine.prompt()
        assert all(request.grammar is not None for request in engine.requests)
