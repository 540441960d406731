"""``ChatGroundspeed`` of a server: our own answers as the local model does, a vLLM one is sent token ids."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from helpers.serving import ScriptedEngine, serving
from helpers.tokenizers import byte_tokenizer
from helpers.vllm_server import FakeVllm
from langchain_core.documents import Document
from langchain_core.load import dumps
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.tools import tool
from pydantic import BaseModel

from groundspeed.errors import (
    ContextLengthError,
    GenerationTimeoutError,
    GroundspeedError,
    InputError,
    ModelError,
)
from groundspeed.integrations.langchain import ChatGroundspeed, create_grounded_chain
from groundspeed.integrations.server.keys import Caller, Keys
from groundspeed.integrations.server.settings import Settings
from groundspeed.integrations.vllm.documents import DOCUMENTS_KEY, split_documents
from groundspeed.verify.engine import Engine

DOCUMENTS = [
    Document("The cache is compacted in place.", id="a", metadata={"source": "cache.md", "start_index": 7}),
    Document("A tree holds what may follow.", id="b", metadata={"when": object()}),
]
KEY = "ann-0123456789abc"


@pytest.fixture(scope="module")
def settings(engine: Engine) -> dict[str, Any]:
    """Answers of letters: their bytes are characters."""
    letters = engine.encode("abcdefghijklmnopqrstuvwxyz ")
    return {"max_tokens": 40, "logit_bias": dict.fromkeys(letters, 100.0)}


@pytest.fixture(scope="module")
def here(engine: Engine, settings: dict[str, Any]) -> ChatGroundspeed:
    return ChatGroundspeed(engine=engine, **settings)


@pytest.fixture(scope="module")
def there(address: str, settings: dict[str, Any]) -> ChatGroundspeed:
    return ChatGroundspeed(base_url=f"{address}/v1", **settings)


def same(there: AIMessage, here: AIMessage) -> None:
    """Two answers are the same but for what they took, which the kept beginnings of prompts change."""
    assert there.text == here.text
    assert there.usage_metadata is not None
    assert here.usage_metadata is not None
    assert there.usage_metadata.keys() == here.usage_metadata.keys()
    assert there.usage_metadata["total_tokens"] == here.usage_metadata["total_tokens"]
    told, wanted = there.response_metadata, here.response_metadata
    assert told.keys() == wanted.keys()
    for name in told.keys() - {"speculative_decoding"}:
        assert told[name] == wanted[name]
    speed, known = told["speculative_decoding"], wanted["speculative_decoding"]
    assert speed.keys() == known.keys()
    assert (speed["completion_tokens"], speed["decoding"]) == (known["completion_tokens"], known["decoding"])


def joined(chunks: Any) -> Any:
    first, *rest = chunks
    for chunk in rest:
        first += chunk
    return first


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"temperature": 0.8, "seed": 5, "top_p": 0.9, "top_k": 40, "repetition_penalty": 1.2},
        {"logprobs": 2, "max_tokens": 5},
        {"typical_p": 0.9, "temperature": 1.0, "seed": 2, "speculate": False},
        {"stop": ["zzz"], "min_tokens": 3, "logit_bias": {65: 100.0}},
    ],
)
async def test_an_answer_is_that_of_the_model_in_this_process(
    given: dict[str, Any], here: ChatGroundspeed, there: ChatGroundspeed
) -> None:
    asked: Any = {**given, "draft_documents": DOCUMENTS[:1]}
    wanted = here.invoke("hello", **asked)
    same(there.invoke("hello", **asked), wanted)
    same(await there.ainvoke("hello", **asked), wanted)
    same(joined(there.stream("hello", **asked)), wanted)
    same(joined([chunk async for chunk in there.astream("hello", **asked)]), wanted)


@pytest.mark.parametrize("version", [None, "v1"])
def test_documents_are_drafted_from_and_cited(
    version: Any, here: ChatGroundspeed, there: ChatGroundspeed
) -> None:
    said = str(here.invoke("hello").content)
    models = [model.model_copy(update={"output_version": version}) for model in (there, here)]
    document = Document(said, id="said", metadata={"title": "Said"})
    remote, local = (model.invoke("hello", draft_documents=[document]) for model in models)
    same(remote, local)
    assert remote.response_metadata["speculative_decoding"]["accepted_by_source"]["passage"] > 0
    (span,) = remote.response_metadata["grounding"]
    assert (span["document_id"], span["text"]) == ("said", said)
    blocks = [remote.content_blocks, local.content_blocks]
    for one in blocks:
        for citation in one[0].get("annotations", ()):
            citation.pop("id", None)  # drawn at random
    assert blocks[0] == blocks[1]
    assert bool(blocks[0][0].get("annotations")) == (version == "v1")


def test_documents_come_by_chains_and_messages_as_to_a_local_model(
    here: ChatGroundspeed, there: ChatGroundspeed
) -> None:
    prompt = ChatPromptTemplate.from_template("Answer {input} from the text.\n{context}")
    inputs = [{"input": str(n), "context": [Document(f"text {n}", id=str(n))]} for n in range(3)]
    remote, local = (create_grounded_chain(model, prompt).batch(inputs) for model in (there, here))
    assert remote == local
    call = {"name": "search", "args": {"q": "é"}, "id": "1"}
    messages = [
        HumanMessage("x"),
        AIMessage("", tool_calls=[call]),
        ToolMessage("found", tool_call_id="1", name="search", artifact=DOCUMENTS[:1]),
    ]
    same(there.invoke(messages), here.invoke(messages))


@tool
def weather(place: str) -> str:
    """Say what the weather is."""
    return place


class Verdict(BaseModel):
    """A verdict."""

    sure: bool


async def test_tools_and_structured_answers_are_those_of_the_model_in_this_process() -> None:
    call = '<tool_call>\n{"name": "weather", "arguments": {"place": "Rome"}}\n</tool_call>'
    for script, bound in (
        (call, lambda model: model.bind_tools([weather])),
        (f"Let me see.{call}{call}", lambda model: model.bind_tools([weather], parallel_tool_calls=False)),
    ):
        local = bound(ChatGroundspeed(engine=_script(script))).invoke("x")
        with serving(ScriptedEngine(script)) as address:
            remote = bound(ChatGroundspeed(base_url=f"{address}/v1"))
            for answer in (
                remote.invoke("x"),
                await remote.ainvoke("x"),
                joined(remote.stream("x")),
            ):
                assert answer.content == local.content
                assert [c["args"] for c in answer.tool_calls] == [c["args"] for c in local.tool_calls]
                assert answer.response_metadata["finish_reason"] == "stop"
    engine = ScriptedEngine('{"sure": true}')
    with serving(engine) as address:
        remote = ChatGroundspeed(base_url=f"{address}/v1")
        assert remote.with_structured_output(Verdict).invoke("x") == Verdict(sure=True)
        assert remote.bind_tools([weather], tool_choice="weather").invoke("x").content is not None
    told, forced = engine.requests
    assert told.grammar is not None
    assert forced.grammar is not None
    assert "must be JSON" in engine.prompt(0)


def _script(text: str) -> Any:
    """A local engine of one answer."""
    engine = ScriptedEngine(text)
    engine.generate = lambda request: list(engine._events(text, request))[-1]  # type: ignore[attr-defined]
    return engine


def test_errors_are_those_of_a_model_in_this_process(address: str, there: ChatGroundspeed) -> None:
    with pytest.raises(InputError, match=r"n of|top_p|top_k"):
        there.invoke("x", top_k=-1)
    with pytest.raises(ContextLengthError, match="4096"):
        there.invoke("x" * 5000)
    with pytest.raises(ModelError, match="no model 'other'"):
        there.invoke("x", model="other")
    with pytest.raises(InputError, match="4 are the most"):
        there.invoke("x", draft_documents=[Document(str(n)) for n in range(5)])
    with pytest.raises(GenerationTimeoutError, match="raise timeout"):
        there.invoke("x", timeout=0.001, max_tokens=400)
    with pytest.raises(ModelError, match="cannot be reached"):
        ChatGroundspeed(base_url="http://127.0.0.1:9/v1", max_retries=0).invoke("x")
    with pytest.raises(InputError, match="json_schema"):
        there.with_structured_output(Verdict, method="json_mode").invoke("x")
    with pytest.raises(InputError, match="means nothing here"):
        there.invoke("x", temprature=1)
    with pytest.raises(InputError, match="device"):
        ChatGroundspeed(base_url=address, device="cpu")
    with pytest.raises(InputError, match="no engine"):
        _ = there.engine
    for error in (InputError, ContextLengthError, ModelError, GenerationTimeoutError):
        assert issubclass(error, GroundspeedError)


async def test_an_error_in_the_middle_of_a_stream_and_a_cut_answer_raise() -> None:
    with serving(ScriptedEngine(RuntimeError("boom"))) as address:
        pieces: list[Any] = []
        with pytest.raises(ModelError, match="the server failed"):
            pieces.extend(ChatGroundspeed(base_url=f"{address}/v1").stream("x"))
        assert joined(pieces).content == "half"
    with serving(ScriptedEngine("half", finish_reason="timeout")) as address:
        model = ChatGroundspeed(base_url=f"{address}/v1")
        with pytest.raises(TimeoutError, match="4 tokens after its timeout"):
            await model.ainvoke("x")
        with pytest.raises(TimeoutError):
            list(model.stream("x"))


def test_leaving_a_stream_ends_the_request(there: ChatGroundspeed, address: str, engine: Engine) -> None:
    stream = there.stream("x", max_tokens=3000)
    next(stream)
    stream.close()
    until = time.monotonic() + 20
    while engine.scheduler.active:
        assert time.monotonic() < until
        time.sleep(0.02)


def test_a_key_is_sent_and_neither_shown_nor_kept(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(ScriptedEngine("hi"), Settings(keys=Keys({KEY: Caller("ann")}))) as address:
        with pytest.raises(ModelError, match="GROUNDSPEED_API_KEY"):
            ChatGroundspeed(base_url=f"{address}/v1").invoke("x")
        monkeypatch.setenv("GROUNDSPEED_API_KEY", KEY)
        model = ChatGroundspeed(base_url=f"{address}/v1")
        assert model.invoke("x").content == "hi"
        assert ChatGroundspeed(base_url=f"{address}/v1", api_key=KEY).invoke("x").content == "hi"
        assert pickle.loads(pickle.dumps(model)).invoke("x").content == "hi"
        for text in (repr(model), dumps(model), str(model._identifying_params)):
            assert KEY not in text
        assert model._identifying_params["base_url"] == f"{address}/v1"


@pytest.fixture(scope="module")
def vllm() -> Iterator[tuple[FakeVllm, str]]:
    fake = FakeVllm()
    server = uvicorn.Server(uvicorn.Config(fake.app, port=0, log_config=None))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield fake, f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/v1"
    server.should_exit = True
    thread.join()


@pytest.fixture(scope="module")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("tokenizer")
    byte_tokenizer("ca", "cac").save_pretrained(folder)
    return str(folder)


async def test_a_vllm_server_is_sent_the_documents_as_token_ids(
    vllm: tuple[FakeVllm, str], tokenizer_folder: str
) -> None:
    fake, url = vllm
    model = ChatGroundspeed(base_url=url, tokenizer=tokenizer_folder, seed=3, stop=["!"], top_k=7)
    answers = [
        model.invoke("x", draft_documents=DOCUMENTS),
        await model.ainvoke("x", draft_documents=DOCUMENTS),
        joined(model.stream("x", draft_documents=DOCUMENTS)),
        joined([chunk async for chunk in model.astream("x", draft_documents=DOCUMENTS)]),
    ]
    ids = byte_tokenizer("ca", "cac")
    wanted = [ids(document.page_content).input_ids for document in DOCUMENTS]
    for body in fake.bodies[-4:]:
        assert split_documents(body["vllm_xargs"][DOCUMENTS_KEY]) == wanted
        assert all(isinstance(token, int) for token in body["vllm_xargs"][DOCUMENTS_KEY])
        assert "draft_documents" not in body
        assert (body["model"], body["seed"], body["stop"], body["top_k"]) == ("served", 3, ["!"], 7)
        assert (body["temperature"], body["max_tokens"], body["repetition_penalty"]) == (0.0, 256, 1.0)
    for answer in answers:
        assert answer.content == "So: The cache is compacted in place."
        assert answer.usage_metadata == {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5}
        assert answer.response_metadata["stop"] == "!"
        (span,) = answer.response_metadata["grounding"]
        assert (span["document_id"], span["document_start"]) == ("cache.md", 7)
        assert "speculative_decoding" not in answer.response_metadata
    assert model.get_num_tokens("cache") == 3


def test_a_vllm_server_needs_a_tokenizer_only_for_documents(
    vllm: tuple[FakeVllm, str], tmp_path: Path
) -> None:
    fake, url = vllm
    model = ChatGroundspeed(base_url=url, model="served", tokenizer=str(tmp_path))
    assert model.invoke("x").content
    assert "vllm_xargs" not in fake.bodies[-1]
    with pytest.raises(ModelError, match="tokenizer=") as raised:
        model.invoke("x", draft_documents=DOCUMENTS)
    assert str(tmp_path) in str(raised.value)


def test_a_vllm_servers_model_is_told_the_schema_and_what_it_lacks_is_refused(
    vllm: tuple[FakeVllm, str],
) -> None:
    fake, url = vllm
    model = ChatGroundspeed(base_url=url)
    list(model.with_structured_output(Verdict, include_raw=True).stream("x"))
    body = fake.bodies[-1]
    assert body["response_format"]["json_schema"]["schema"]["additionalProperties"] is False
    assert "must be JSON" in body["messages"][0]["content"]
    for setting in ({"typical_p": 0.5}, {"speculate": False}):
        with pytest.raises(InputError, match="vLLM server does not have"):
            model.invoke("x", **setting)
    with pytest.raises(ContextLengthError, match="99 tokens"):
        model.invoke("x" * 100)


CALL = '<tool_call>\n{"name": "weather", "arguments": {"place": "Rome"}}\n</tool_call>'


@pytest.mark.parametrize("how", [{}, {"parallel_tool_calls": False}, {"tool_choice": "weather"}])
@pytest.mark.parametrize(
    ("text", "content", "calls", "unreadable"),
    [
        (f"Let me see.{CALL}{CALL}", "Let me see.", 2, 0),
        (CALL.replace("{", "[{", 1).replace("}}", "}}]"), "", 1, 0),
        ("<tool_call>\nweather(Rome", "", 0, 1),
        ("There is <no> call.", "There is <no> call.", 0, 0),
    ],
    ids=["two", "a list", "no JSON", "none"],
)
async def test_calls_that_a_vllm_server_leaves_in_the_text_are_read(
    vllm: tuple[FakeVllm, str],
    how: Any,
    text: str,
    content: str,
    calls: int,
    unreadable: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those that its parser does not know."""
    fake, url = vllm
    monkeypatch.setattr(fake, "text", text)
    model = ChatGroundspeed(base_url=url).bind_tools([weather], **how)
    wanted = min(calls, 1) if "parallel_tool_calls" in how else calls
    for answer in (
        model.invoke("x"),
        await model.ainvoke("x"),
        joined(model.stream("x")),
        joined([chunk async for chunk in model.astream("x")]),
    ):
        assert answer.content == content
        assert [call["args"] for call in answer.tool_calls] == [{"place": "Rome"}] * wanted
        assert len(answer.invalid_tool_calls) == unreadable
    assert ChatGroundspeed(base_url=url).invoke("x").content == text


def test_a_vllm_server_without_a_parser_of_calls_says_which_flags_it_lacks(
    vllm: tuple[FakeVllm, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake, url = vllm
    monkeypatch.setattr(fake, "parses_calls", False)
    model = ChatGroundspeed(base_url=url).bind_tools([weather])
    for ask in (model.invoke, lambda text: [*model.stream(text)]):
        with pytest.raises(InputError, match="--enable-auto-tool-choice and --tool-call-parser"):
            ask("x")
