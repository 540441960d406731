"""The embedded model through LangChain, beside the engine by itself."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.messages import HumanMessage
from langchain_core.prompts import ChatPromptTemplate
from langgraph.graph import START, MessagesState, StateGraph

from groundspeed.errors import ContextLengthError
from groundspeed.integrations.langchain import ChatGroundspeed, GroundspeedLLM, create_grounded_chain
from groundspeed.integrations.langchain.messages import ChatPrompt
from groundspeed.types import GenerationRequest
from groundspeed.verify.engine import Engine

pytestmark = [pytest.mark.models, pytest.mark.timeout(600)]

TEXT = (
    "The lighthouse at Cape Arrow was built in 1871 by Ines Calder, who carried the lens up the cliff in "
    "nine crates. It was dark for two years in the war, and it has been lit by electricity since 1934."
)
QUESTION = f"{TEXT}\n\nRepeat the text about the lighthouse word for word."


@pytest.fixture
def passes(smollm2: Engine, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many requests each verification pass carries."""
    counted: list[int] = []
    verify = smollm2.target.verify
    monkeypatch.setattr(
        smollm2.target, "verify", lambda segments: counted.append(len(segments)) or verify(segments)
    )
    return counted


@pytest.fixture
def model(smollm2: Engine) -> ChatGroundspeed:
    return ChatGroundspeed(engine=smollm2, max_tokens=24)


def test_the_answer_is_the_engines(model: ChatGroundspeed, smollm2: Engine) -> None:
    messages = [HumanMessage(QUESTION)]
    request = GenerationRequest(ChatPrompt(smollm2.tokenizer).token_ids(messages), max_tokens=24)
    expected = smollm2.generate(request).text
    assert model.invoke(messages).content == expected
    assert "".join(str(chunk.content) for chunk in model.stream(messages)) == expected


async def test_documents_change_no_token_and_save_steps(model: ChatGroundspeed) -> None:
    hint = f"{TEXT[:40]} ... Repeat the text about the lighthouse."
    plain = model.invoke(hint)
    drafted = await model.ainvoke(hint, draft_documents=[Document(str(plain.content), id="said")])
    assert drafted.content == plain.content
    speeds = [message.response_metadata["speculative_decoding"] for message in (plain, drafted)]
    assert speeds[1]["tokens_per_step"] > speeds[0]["tokens_per_step"]
    assert speeds[1]["accepted_by_source"]["passage"] > 0
    assert drafted.response_metadata["grounding"][0]["document_id"] == "said"


async def test_eight_at_once_share_passes(model: ChatGroundspeed, passes: list[int]) -> None:
    answers = await asyncio.gather(*(model.ainvoke(f"Tell me about the number {n}.") for n in range(8)))
    steps = sum(answer.response_metadata["speculative_decoding"]["steps"] for answer in answers)
    assert max(passes) == 8
    assert len(passes) < steps / 2


def test_a_batch_shares_passes_too(model: ChatGroundspeed, smollm2: Engine, passes: list[int]) -> None:
    questions = [f"Tell me about the number {n}." for n in range(8)]
    for run in (model.batch, GroundspeedLLM(engine=smollm2, max_tokens=24).batch):
        passes.clear()
        run(questions)
        assert max(passes) == 8


async def test_asynchronous_calls_start_no_threads(model: ChatGroundspeed) -> None:
    await model.ainvoke("Hi")
    before = threading.active_count()
    most = before
    async for _ in model.astream("Tell me about the sea."):
        most = max(most, threading.active_count())
    assert most <= before + 1  # the engine's own


async def test_a_stop_string_across_tokens_ends_every_kind_of_call(model: ChatGroundspeed) -> None:
    whole = str(model.invoke(QUESTION).content)
    stop = whole[len(whole) // 2 - 4 : len(whole) // 2 + 5]
    expected = whole[: whole.index(stop)]
    bound = model.bind(stop=[stop])
    answers = [
        str(bound.invoke(QUESTION).content),
        str((await bound.ainvoke(QUESTION)).content),
        "".join(str(chunk.content) for chunk in bound.stream(QUESTION)),
        "".join([str(chunk.content) async for chunk in bound.astream(QUESTION)]),
        str(bound.batch([QUESTION])[0].content),
    ]
    assert answers == [expected] * 5
    assert bound.invoke(QUESTION).response_metadata["stop"] == stop


def test_a_seed_gives_the_same_answer_with_and_without_documents(model: ChatGroundspeed) -> None:
    drawn = model.bind(temperature=0.9, seed=7)
    first = drawn.invoke(QUESTION)
    assert drawn.invoke(QUESTION, draft_documents=[Document(TEXT)]).content == first.content
    assert drawn.invoke(QUESTION, speculate=False).content == first.content
    assert first.response_metadata["seed"] == 7
    assert model.invoke(QUESTION, temperature=0.9, seed=8).content != first.content


def test_an_answer_that_takes_too_long_says_so(model: ChatGroundspeed) -> None:
    answer = model.invoke(QUESTION, timeout=1e-6)
    assert answer.response_metadata["finish_reason"] == "timeout"


async def test_errors_come_as_they_are_and_at_once(model: ChatGroundspeed) -> None:
    endless = "word " * 9000
    with pytest.raises(ContextLengthError):
        model.invoke(endless)
    with pytest.raises(ContextLengthError):
        await model.ainvoke(endless)
    with pytest.raises(ContextLengthError):
        _ = [chunk async for chunk in model.astream(endless)]


async def test_an_error_of_the_model_reaches_the_caller(
    model: ChatGroundspeed, smollm2: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(segments: Any) -> Any:
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(smollm2.target, "verify", fail)
        with pytest.raises(RuntimeError, match="out of memory"):
            await asyncio.wait_for(model.ainvoke("A question not asked before"), 30)
    assert (await model.ainvoke("Hi")).content


async def test_tokens_stream_inside_a_graph(model: ChatGroundspeed) -> None:
    def answer(state: MessagesState) -> dict[str, Any]:
        return {"messages": [model.invoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("answer", answer)
    graph.add_edge(START, "answer")
    app = graph.compile()
    state = {"messages": [HumanMessage(QUESTION)]}
    pieces = [message async for message, _ in app.astream(state, stream_mode="messages")]
    assert len(pieces) > 5
    assert "".join(str(piece.content) for piece in pieces) == model.invoke(QUESTION).content


def test_a_chain_grounds_what_it_answers(model: ChatGroundspeed) -> None:
    prompt = ChatPromptTemplate.from_template(
        "{context}\n\nRepeat the text about the lighthouse word for word."
    )
    chain = create_grounded_chain(model.with_config(run_name="model"), prompt)
    pieces = [piece for piece in chain.stream({"context": [Document(TEXT, id="cape")]}) if piece]
    assert len(pieces) > 1
    assert "".join(pieces) == model.invoke(QUESTION).content


def test_structured_output_and_forced_calls_hold_their_schema(model: ChatGroundspeed) -> None:
    schema = {
        "title": "answer",
        "description": "An answer.",
        "type": "object",
        "properties": {
            "year": {"type": "integer", "minimum": 1800, "maximum": 1999},
            "kind": {"enum": ["house", "ship"]},
        },
        "required": ["year", "kind"],
    }
    answer = model.with_structured_output(schema).invoke(f"{TEXT}\n\nWhen was it built?")
    assert isinstance(answer, dict)
    assert 1800 <= answer["year"] <= 1999
    assert answer["kind"] in ("house", "ship")
    called = model.bind_tools([schema], tool_choice="any", max_tokens=64).invoke(
        f"{TEXT}\n\nWhen was it built?"
    )
    assert isinstance(called.tool_calls[0]["args"]["year"], int)
