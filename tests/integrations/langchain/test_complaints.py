"""What users of local models in LangChain have complained of in public; each a test that can fail."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from langchain_core.caches import InMemoryCache
from langchain_core.documents import Document
from langchain_core.exceptions import OutputParserException
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from pydantic import BaseModel
from tokenizers.processors import TemplateProcessing

from groundspeed.errors import ContextLengthError
from groundspeed.integrations.langchain import ChatGroundspeed, GroundspeedLLM, create_grounded_chain
from groundspeed.types import GenerationRequest
from groundspeed.verify.engine import Engine

QUESTION = "what is it"


@pytest.fixture
def chat(tiny: Engine, letters: dict[int, float]) -> ChatGroundspeed:
    return ChatGroundspeed(engine=tiny, logit_bias=letters, max_tokens=24)


@pytest.fixture
def text_model(tiny: Engine, letters: dict[int, float]) -> GroundspeedLLM:
    return GroundspeedLLM(engine=tiny, logit_bias=letters, max_tokens=24)


async def every_answer(model: Any, **call: Any) -> list[str]:
    """The answers of all six kinds of call."""
    answers = [
        model.invoke(QUESTION, **call),
        *model.batch([QUESTION], **call),
        await model.ainvoke(QUESTION, **call),
        *await model.abatch([QUESTION], **call),
        list(model.stream(QUESTION, **call)),
        [piece async for piece in model.astream(QUESTION, **call)],
    ]
    return ["".join(map(text_of, one)) if isinstance(one, list) else text_of(one) for one in answers]


def text_of(answer: Any) -> str:
    return answer if isinstance(answer, str) else str(answer.content)


async def test_the_prompt_is_not_echoed_in_the_answer(
    chat: ChatGroundspeed, text_model: GroundspeedLLM, tiny: Engine, letters: dict[int, float]
) -> None:
    for model, prompt in ((chat, f"[user] {QUESTION}|[assistant] "), (text_model, QUESTION)):
        request = GenerationRequest(prompt, max_tokens=24, logit_bias=letters)
        assert await every_answer(model) == [tiny.generate(request).text] * 6


async def test_stop_is_not_ignored_in_invoke_nor_in_any_other_call(
    chat: ChatGroundspeed, text_model: GroundspeedLLM
) -> None:
    for model in (chat, text_model):
        whole = text_of(model.invoke(QUESTION))
        expected = whole[: whole.index(whole[10])]
        assert await every_answer(model, stop=[whole[10]]) == [expected] * 6
        assert await every_answer(model.bind(stop=[whole[10]])) == [expected] * 6


async def test_stop_strings_of_several_tokens_end_streams(
    chat: ChatGroundspeed, text_model: GroundspeedLLM
) -> None:
    for model in (chat, text_model):
        whole = text_of(model.invoke(QUESTION))
        stop = whole[9:14]
        assert await every_answer(model, stop=[stop]) == [whole[: whole.index(stop)]] * 6


async def test_arguments_of_a_call_are_not_ignored(chat: ChatGroundspeed, text_model: GroundspeedLLM) -> None:
    for model in (chat, text_model):
        whole = text_of(model.invoke(QUESTION))
        assert await every_answer(model, max_tokens=5) == [whole[:5]] * 6
        (drawn,) = set(await every_answer(model, temperature=2.0, seed=3))
        assert drawn != whole


def test_tools_reach_the_template(scripted: Any) -> None:
    @tool
    def weather(place: str) -> str:
        """Say what the weather is."""
        return place

    engine = scripted('<tool_call>{"name": "weather", "arguments": {"place": "Rome"}}</tool_call>')
    answer = ChatGroundspeed(engine=engine).bind_tools([weather]).invoke("Rome?")
    assert engine.prompt().startswith('TOOLS [{"type": "function", "function": {"name": "weather", "desc')
    assert answer.tool_calls[0]["args"] == {"place": "Rome"}


def test_the_last_message_need_not_be_a_human_message(scripted: Any) -> None:
    conversation = [HumanMessage("a"), AIMessage("b")]
    for last in (AIMessage("c"), SystemMessage("c"), ToolMessage("c", tool_call_id="1")):
        engine = scripted()
        ChatGroundspeed(engine=engine).invoke([*conversation, last])
        assert engine.prompt().endswith("c|[assistant] ")


async def test_asynchronous_calls_do_not_raise_and_start_no_thread(
    chat: ChatGroundspeed, text_model: GroundspeedLLM
) -> None:
    for model in (chat, text_model):
        assert text_of(await model.ainvoke(QUESTION)) == text_of(model.invoke(QUESTION))
        before = others()
        assert all([others() == before async for _ in model.astream(QUESTION)])


def others() -> set[threading.Thread]:
    """Threads that are not the engine's own."""
    return {thread for thread in threading.enumerate() if thread.name != "groundspeed"}


def test_usage_and_finish_reason_are_there(chat: ChatGroundspeed, text_model: GroundspeedLLM) -> None:
    streamed = None
    for chunk in chat.stream(QUESTION):
        streamed = chunk if streamed is None else streamed + chunk
    for message in (chat.invoke(QUESTION), streamed):
        assert message is not None
        assert message.usage_metadata is not None
        assert message.usage_metadata["output_tokens"] == 24
        assert message.response_metadata["finish_reason"] == "length"
    (((generation,),)) = text_model.generate([QUESTION]).generations
    assert generation.generation_info is not None
    assert generation.generation_info["usage_metadata"]["input_tokens"] == len(QUESTION)
    assert generation.generation_info["finish_reason"] == "length"


def test_the_first_token_is_not_doubled(scripted: Any, end_token: str) -> None:
    engine = scripted()
    tokenizer = engine.tokenizer
    tokenizer.bos_token = end_token
    first = tokenizer.bos_token_id
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{end_token} $A", special_tokens=[(end_token, first)]
    )
    tokenizer.chat_template = "{{ bos_token }}{{ messages[0].content }}"
    one, letter = tokenizer("x").input_ids  # so it is added to a text of any kind
    ChatGroundspeed(engine=engine).invoke("x")
    assert engine.requests[-1].prompt == (one, letter) == (first, letter)


async def test_errors_of_the_worker_thread_come_at_once(
    chat: ChatGroundspeed, tiny: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ContextLengthError):
        chat.invoke("word " * 2000)
    with pytest.raises(ContextLengthError):
        _ = [chunk async for chunk in chat.astream("word " * 2000)]

    def fail(segments: Any) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(tiny.target, "before", fail)
    patient = chat.bind(timeout=60.0)
    begun = time.monotonic()
    with pytest.raises(RuntimeError, match="out of memory"):
        patient.invoke("not asked before")
    with pytest.raises(RuntimeError, match="out of memory"):
        await patient.ainvoke("not asked before")
    with pytest.raises(RuntimeError, match="out of memory"):
        list(patient.stream("not asked before"))
    assert time.monotonic() - begun < 60  # as a test of the order of things, not of speed
    monkeypatch.undo()
    assert chat.invoke(QUESTION).content


class Joke(BaseModel):
    """A joke."""

    setup: str


def test_structured_output_is_never_none(scripted: Any) -> None:
    whole = ChatGroundspeed(engine=scripted('{"setup": "a"}')).with_structured_output(Joke)
    assert whole.invoke("x") == Joke(setup="a")
    cut = ChatGroundspeed(engine=scripted('{"setup": "a', finish_reason="length"))
    for schema in (Joke, Joke.model_json_schema()):
        with pytest.raises(OutputParserException, match="max_tokens"):
            cut.with_structured_output(schema).invoke("x")
        with pytest.raises(OutputParserException, match="max_tokens"):
            list(cut.with_structured_output(schema).stream("x"))
        raw = cut.with_structured_output(schema, include_raw=True).invoke("x")
        assert isinstance(raw["parsing_error"], OutputParserException)


async def test_tokens_stream_inside_a_graph(chat: ChatGroundspeed) -> None:
    def answer(state: MessagesState) -> dict[str, Any]:
        return {"messages": [chat.invoke(state["messages"])]}

    async def aanswer(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await chat.ainvoke(state["messages"])]}

    state: Any = {"messages": [HumanMessage(QUESTION)]}
    for node in (answer, aanswer):
        graph = StateGraph(MessagesState)
        graph.add_node("answer", node)
        graph.add_edge(START, "answer")
        app = graph.compile()
        pieces = [message async for message, _ in app.astream(state, stream_mode="messages")]
        assert len(pieces) > 5
        assert "".join(text_of(piece) for piece in pieces) == chat.invoke(QUESTION).content


@pytest.mark.parametrize("kind", ["chat", "text", "chat chain", "text chain", "bound chain"])
def test_a_batch_does_not_run_one_after_another(
    kind: str, chat: ChatGroundspeed, text_model: GroundspeedLLM, tiny: Engine
) -> None:
    prompt = ChatPromptTemplate.from_template("{input} {context}")
    runs: dict[str, Any] = {
        "chat": chat,
        "text": text_model,
        "chat chain": create_grounded_chain(chat, prompt),
        "text chain": create_grounded_chain(text_model, prompt),
        "bound chain": create_grounded_chain(chat.bind(top_k=5).with_retry(), prompt),
    }
    inputs: list[Any] = [f"{number} {QUESTION}" for number in range(12)]
    if "chain" in kind:
        inputs = [{"input": text, "context": [Document(text, id=text)]} for text in inputs]
    target, scheduler = tiny.target, tiny.scheduler
    target.hold()
    try:
        with ThreadPoolExecutor(1) as beside:
            answers = beside.submit(runs[kind].batch, inputs)
            for _ in range(1000):  # until all are there, or 10 seconds
                if (there := len(scheduler._waiting) + len(scheduler._active)) == 12:
                    break
                time.sleep(0.01)
            target.release()
            assert len(answers.result()) == 12
    finally:
        target.release()
    assert there == 12


def test_an_answer_of_another_temperature_is_not_taken_from_the_cache(scripted: Any) -> None:
    for make in (ChatGroundspeed, GroundspeedLLM):
        engine = scripted("first", "second", "third", "fourth")
        model = make(engine=engine, cache=InMemoryCache())
        calls = [
            lambda model=model: model.invoke("x"),
            lambda model=model: model.invoke("x", temperature=0.5),
            lambda model=model: model.bind(temperature=0.7).invoke("x"),
            lambda model=model: model.invoke("x", seed=1),
        ]
        for _ in range(2):
            assert [text_of(call()) for call in calls] == ["first", "second", "third", "fourth"]
        assert len(engine.requests) == 4


async def test_many_at_once_give_the_answers_that_each_gives_alone(chat: ChatGroundspeed) -> None:
    questions = [f"{QUESTION} {number}" for number in range(8)]
    alone = [chat.invoke(question).content for question in questions]
    together = await asyncio.gather(*map(chat.ainvoke, questions))
    assert [answer.content for answer in together] == alone
