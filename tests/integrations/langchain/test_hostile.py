"""What users do to a model that nobody had in mind; nothing is lost and errors say what was wrong."""

from __future__ import annotations

import asyncio
import pickle
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.messages import (
    AIMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import ConfigurableField

from groundspeed.errors import GroundspeedError, InputError, ModelError, StoreError
from groundspeed.integrations.langchain import (
    ChatGroundspeed,
    GroundspeedLLM,
    GroundspeedVectorStore,
    create_grounded_chain,
)
from groundspeed.verify.engine import Engine


@pytest.fixture
def chat(tiny: Engine, letters: dict[int, float]) -> ChatGroundspeed:
    return ChatGroundspeed(engine=tiny, logit_bias=letters, max_tokens=16)


@pytest.fixture
def text_model(tiny: Engine, letters: dict[int, float]) -> GroundspeedLLM:
    return GroundspeedLLM(engine=tiny, logit_bias=letters, max_tokens=16)


def idle(engine: Engine) -> bool:
    """Whether all requests end within a minute."""
    for _ in range(6000):
        if not engine.scheduler._active and not engine.scheduler._waiting:
            return True
        time.sleep(0.01)
    return False


@pytest.mark.parametrize(
    "call",
    [
        {"temperature": "hot"},
        {"temperature": -1},
        {"max_tokens": 0},
        {"max_tokens": "many"},
        {"max_tokens": 1.5},
        {"stop": [""]},
        {"stop": [1]},
        {"stop": 1},
        {"seed": -1},
        {"seed": "x"},
        {"top_k": -1},
        {"top_k": "all"},
        {"top_p": 2},
        {"logit_bias": {"a": 1}},
        {"logit_bias": {10**6: 1}},
        {"logit_bias": 3},
        {"timeout": 0},
        {"timeout": "soon"},
        {"logprobs": 50},
        {"min_tokens": "x"},
        {"grammar": "json"},
        {"draft_documents": 5},
        {"draft_documents": {"page_content": "x"}},
        {"tools": 5},
        {"tools": [5]},
        {"tools": [{"type": "web_search"}]},
        {"tool_choice": "any"},
        {"tool_choice": 5},
        {"response_format": 5},
    ],
    ids=repr,
)
def test_a_bad_argument_is_an_error_in_every_call(
    call: dict[str, Any], chat: ChatGroundspeed, text_model: GroundspeedLLM
) -> None:
    with pytest.raises(InputError):
        chat.invoke("x", **call)
    with pytest.raises(InputError):
        list(chat.stream("x", **call))
    with pytest.raises(InputError):
        asyncio.run(chat.ainvoke("x", **call))
    with pytest.raises(InputError):
        text_model.invoke("x", **call)
    with pytest.raises(InputError):
        list(text_model.stream("x", **call))


def test_stop_may_be_a_string_as_elsewhere(scripted: Any) -> None:
    engine = scripted()
    model = ChatGroundspeed(engine=engine, stop="end")
    model.invoke("x")
    model.invoke("x", stop="other")
    assert [request.stop for request in engine.requests] == [("end",), ("other",)]


@pytest.mark.parametrize("messages", [[], [RemoveMessage("1")]], ids=["none", "remove"])
def test_messages_that_are_none_are_refused(messages: list[Any], chat: ChatGroundspeed) -> None:
    with pytest.raises(InputError, match="message"):
        chat.invoke(messages)


def test_messages_may_be_empty_and_in_any_order(chat: ChatGroundspeed) -> None:
    odd = [
        ToolMessage("", tool_call_id="1"),
        AIMessage(""),
        SystemMessage(""),
        ChatMessage(role="critic", content="no"),
        FunctionMessage(name="f", content="1"),
        AIMessage("", tool_calls=[{"name": "f", "args": {"a": {"b": ["<end>"]}}, "id": None}]),
        SystemMessage([]),
        HumanMessage(["a", {"type": "text", "text": "b"}]),
        AIMessage([{"type": "reasoning", "reasoning": "hm"}]),
    ]
    assert chat.invoke("").content
    assert chat.invoke(odd).content
    assert chat.invoke(odd[::-1]).content
    assert chat.batch([]) == []


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb"])
def test_a_text_that_is_no_unicode_is_an_error(
    text: str, chat: ChatGroundspeed, text_model: GroundspeedLLM
) -> None:
    for model in (chat, text_model):
        with pytest.raises(InputError, match="surrogate"):
            model.invoke(text)
        assert model.invoke("x", draft_documents=[Document(text)])


def test_any_unicode_goes_through(chat: ChatGroundspeed, text_model: GroundspeedLLM) -> None:
    for text in ("\0", "\u2028", "👩‍👩‍👧‍👦", "e\u0301", "\ufffd", "\u202eabc", "x" * 2000):
        for model in (chat, text_model):
            assert model.invoke(text, draft_documents=[Document(text, id=text)])


async def test_a_cancelled_call_ends_its_request(chat: ChatGroundspeed, tiny: Engine) -> None:
    endless = chat.bind(max_tokens=2000)

    async def streamed() -> None:
        async for _ in endless.astream("x"):
            pass

    for call in (lambda: endless.ainvoke("x"), streamed):
        task = asyncio.ensure_future(call())
        while not tiny.scheduler._active:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.to_thread(idle, tiny)


async def test_leaving_the_asynchronous_stream_of_a_chain_ends_the_request(scripted: Any) -> None:
    engine = scripted("a long answer")
    prompt = ChatPromptTemplate.from_template("{context}")
    chain = create_grounded_chain(ChatGroundspeed(engine=engine), prompt)
    stream: Any = chain.astream({"context": [Document("x")]})
    assert await anext(stream) == "a"
    assert engine.closed == 0
    await stream.aclose()
    for _ in range(1000):  # LangChain leaves it to the event loop, which takes a moment
        if engine.closed:
            break
        await asyncio.sleep(0.01)
    assert engine.closed == 1


def test_a_callback_that_raises_ends_the_request(chat: ChatGroundspeed, tiny: Engine) -> None:
    class Refusing(BaseCallbackHandler):
        raise_error = True

        def on_llm_new_token(self, *args: Any, **kwargs: Any) -> None:
            raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        list(chat.bind(max_tokens=2000).stream("x", {"callbacks": [Refusing()]}))
    assert idle(tiny)
    assert chat.invoke("x").content


def test_a_callback_that_fails_quietly_changes_nothing(
    chat: ChatGroundspeed, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(BaseCallbackHandler):
        def on_llm_new_token(self, *args: Any, **kwargs: Any) -> None:
            raise RuntimeError("oops")

    pieces = chat.stream("x", {"callbacks": [Broken()]})
    assert "".join(str(piece.content) for piece in pieces) == chat.invoke("x").content
    assert "oops" in caplog.text


def test_many_threads_may_share_a_model(chat: ChatGroundspeed, text_model: GroundspeedLLM) -> None:
    def streamed(text: str) -> str:
        return "".join(str(piece.content) for piece in chat.stream(text))

    calls: list[Callable[[str], Any]] = [lambda text: chat.invoke(text).content, streamed, text_model.invoke]
    texts = [f"number {number}" for number in range(8)]
    expected = [call(text) for call in calls for text in texts]
    with ThreadPoolExecutor(24) as threads:
        found = [threads.submit(call, text) for call in calls for text in texts]
        assert [one.result() for one in found] == expected


def test_a_model_with_configurable_fields_keeps_its_engine(tiny: Engine, letters: dict[int, float]) -> None:
    for kind in (ChatGroundspeed, GroundspeedLLM):
        model = kind(engine=tiny, logit_bias=letters, max_tokens=16)
        chosen = model.configurable_fields(max_tokens=ConfigurableField(id="most"))
        short = chosen.with_config(configurable={"most": 3}).invoke("x")
        whole = model.invoke("x")
        texts = [str(getattr(one, "content", one)) for one in (short, whole)]
        assert texts[0] == texts[1][:3]
        again = pickle.loads(pickle.dumps(model))
        assert again.engine is tiny


def test_an_engine_that_was_closed_says_so() -> None:
    from helpers.engines import engine_for
    from helpers.many import watched

    engine = engine_for(watched("llama"))
    engine.close()
    with pytest.raises(GroundspeedError, match="closed"):
        GroundspeedLLM(engine=engine).invoke("3 4")


class Vectors(DeterministicFakeEmbedding):
    """Gives vectors of a shape of its own, as a model behind an API may."""

    shape: tuple[int, int] | None = None

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return np.ones(self.shape).tolist() if self.shape else super().embed_documents(texts)


def test_vectors_that_do_not_fit_leave_the_store_as_it_was(tmp_path: Path) -> None:
    store = GroundspeedVectorStore(tmp_path, Vectors(size=8))
    store.add_texts(["one", "two"], ids=["1", "2"])
    for shape in ((1, 12), (3, 4), (0, 0)):
        with pytest.raises(ModelError, match="for 2 texts"):
            GroundspeedVectorStore(tmp_path, Vectors(size=8, shape=shape)).add_texts(["x", "y"])
    with pytest.raises(StoreError, match=r"12 numbers.*have 8"):
        GroundspeedVectorStore(tmp_path, Vectors(size=8, shape=(2, 12))).add_texts(["x", "y"])
    with pytest.raises(StoreError, match=r"3 numbers.*have 8"):
        store.similarity_search_by_vector([1.0, 2.0, 3.0])
    with pytest.raises(InputError, match="k is -1"):
        store.similarity_search("x", k=-1)
    assert store.similarity_search("x", k=0) == []
    again = GroundspeedVectorStore(tmp_path, Vectors(size=8))
    assert {document.id for document in again.similarity_search("x")} == {"1", "2"}


def test_metadata_is_the_stores_own(tmp_path: Path) -> None:
    store = GroundspeedVectorStore(tmp_path, DeterministicFakeEmbedding(size=8))
    facts: dict[str, Any] = {"pair": (1, 2), "deep": {"list": [1]}}
    store.add_texts(["one"], [facts], ids=["1"])
    facts["deep"]["list"].append(2)
    again = GroundspeedVectorStore(tmp_path, store.embeddings)
    assert store.get_by_ids(["1"]) == again.get_by_ids(["1"])
    assert store.get_by_ids(["1"])[0].metadata == {"pair": [1, 2], "deep": {"list": [1]}}


def test_many_threads_may_share_a_vector_store_and_its_folder(tmp_path: Path) -> None:
    stores = [GroundspeedVectorStore(tmp_path, DeterministicFakeEmbedding(size=8)) for _ in range(2)]
    with ThreadPoolExecutor(8) as threads:
        added = [threads.submit(stores[n % 2].add_texts, [f"text {n}"], ids=[str(n)]) for n in range(40)]
        found = [threads.submit(stores[n % 2].similarity_search, "x", k=50) for n in range(10)]
        assert [one.result() for one in added] == [[str(n)] for n in range(40)]
        assert all(len(one.result()) <= 40 for one in found)
    for store in stores:
        assert len(store.similarity_search("x", k=50)) == 40
