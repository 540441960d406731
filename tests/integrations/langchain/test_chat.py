"""The chat model, with scripted answers: what reaches the engine and what LangChain gets to see."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
from langchain_core.caches import InMemoryCache
from langchain_core.documents import Document
from langchain_core.load import dumps, loads
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.outputs import ChatGenerationChunk
from langchain_core.rate_limiters import InMemoryRateLimiter
from langchain_core.tracers import BaseTracer
from langchain_core.tracers.schemas import Run

from groundspeed.errors import GenerationTimeoutError, InputError, ModelError
from groundspeed.integrations.langchain import ChatGroundspeed, GroundspeedLLM
from groundspeed.verify.engine import Engine

SECRET = Document("the secret words", id="vault", metadata={"title": "Vault"})


class Recorder(BaseTracer):
    """Keeps every run as a tracer would send it away."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def _persist_run(self, run: Run) -> None:
        self.seen.append(run.model_dump_json(exclude={"outputs"}) if hasattr(run, "model_dump_json") else "")
        self.seen.append(repr({key: value for key, value in vars(run).items() if key != "outputs"}))


def prompt_of(engine: Any, messages: list[Any], **kwargs: Any) -> str:
    ChatGroundspeed(engine=engine).invoke(messages, **kwargs)
    text: str = engine.prompt()
    return text


def test_the_prompt_is_the_templates_and_the_answer_does_not_hold_it(scripted: Any) -> None:
    engine = scripted("hi")
    answer = ChatGroundspeed(engine=engine).invoke([("system", "Be brief."), ("human", "Hello")])
    assert engine.prompt() == "[system] Be brief.|[user] Hello|[assistant] "
    assert answer.content == "hi"


def test_a_template_of_alternating_turns_gets_them(scripted: Any) -> None:
    engine = scripted()
    engine.tokenizer.chat_template = (
        "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('turns must alternate') }}{% endif %}<{{ m.content }}>{% endfor %}"
    )
    messages = [SystemMessage("s"), HumanMessage("a"), HumanMessage("b"), AIMessage("c"), HumanMessage("d")]
    assert prompt_of(engine, messages) == "<s\n\na\n\nb><c><d>"


def test_a_text_that_spells_out_a_special_token_cannot_end_its_turn(scripted: Any, end_token: str) -> None:
    engine = scripted()
    prompt_of(engine, [HumanMessage(f"x{end_token}y")])
    assert engine.tokenizer.eos_token_id not in engine.requests[-1].prompt


def test_a_model_without_a_chat_template_says_so(scripted: Any) -> None:
    engine = scripted()
    engine.tokenizer.chat_template = None
    with pytest.raises(ModelError, match="GroundspeedLLM"):
        ChatGroundspeed(engine=engine).invoke("x")


def test_images_are_refused(scripted: Any) -> None:
    message = HumanMessage([{"type": "image", "url": "http://x"}, {"type": "text", "text": "?"}])
    with pytest.raises(InputError, match="image"):
        ChatGroundspeed(engine=scripted()).invoke([message])


def test_settings_reach_the_engine_and_those_of_a_call_come_first(scripted: Any) -> None:
    engine = scripted()
    model = ChatGroundspeed(engine=engine, temperature=0.5, seed=3, top_p=0.9, stop=["a"], timeout=9)
    model.bind(top_k=7).invoke("x", temperature=0.25, stop=["b", "c"])
    request = engine.requests[-1]
    assert (request.temperature, request.seed, request.top_p, request.top_k) == (0.25, 3, 0.9, 7)
    assert (request.stop, request.timeout) == (("b", "c"), 9)


def test_a_setting_that_does_not_exist_is_refused(scripted: Any) -> None:
    with pytest.raises(InputError, match="temprature, which it does not have"):
        ChatGroundspeed(engine=scripted(), temprature=1)
    with pytest.raises(InputError, match="temprature, which means nothing here"):
        ChatGroundspeed(engine=scripted()).bind(temprature=1).invoke("x")


def test_usage_and_metadata_come_once_with_a_stream_and_are_those_of_invoke(scripted: Any) -> None:
    model = ChatGroundspeed(engine=scripted("a cat"))
    chunks = list(model.stream("x"))
    assert [bool(chunk.usage_metadata) for chunk in chunks] == [False] * 5 + [True]
    total, whole = chunks[0], model.invoke("x")
    for chunk in chunks[1:]:
        total += chunk
    assert total.content == whole.content == "a cat"
    assert total.usage_metadata == whole.usage_metadata
    assert whole.usage_metadata is not None
    assert (whole.usage_metadata["input_tokens"], whole.usage_metadata["output_tokens"]) == (3, 5)
    assert total.response_metadata == whole.response_metadata
    assert whole.response_metadata["finish_reason"] == "stop"
    assert whole.response_metadata["model_name"] == "scripted"
    speed = whole.response_metadata["speculative_decoding"]
    assert (speed["steps"], speed["drafted"], speed["accepted"], speed["tokens_per_step"]) == (2, 5, 4, 3.0)
    assert speed["accepted_by_source"] == {"passage": 4}


def test_documents_reach_the_drafter_and_neither_prompt_nor_trace(scripted: Any) -> None:
    for call in ("invoke", "stream", "batch"):
        engine, recorder = scripted("hi"), Recorder()
        model = ChatGroundspeed(engine=engine)
        given = ["x"] if call == "batch" else "x"
        result = getattr(model, call)(given, {"callbacks": [recorder]}, draft_documents=[SECRET])
        result = list(result) if call == "stream" else result
        (request,) = engine.requests
        assert [passage.document_id for passage in request.passages] == ["vault"]
        assert engine.prompt() == "[user] x|[assistant] "
        assert recorder.seen
        assert not any("secret" in text for text in recorder.seen)


async def test_documents_stay_out_of_asynchronous_traces_too(scripted: Any) -> None:
    engine, recorder = scripted("hi"), Recorder()
    model = ChatGroundspeed(engine=engine).bind(draft_documents=[SECRET])
    await model.ainvoke("x", {"callbacks": [recorder]})
    _ = [chunk async for chunk in model.astream("x", {"callbacks": [recorder]})]
    assert [len(request.passages) for request in engine.requests] == [1, 1]
    assert recorder.seen
    assert not any("secret" in text for text in recorder.seen)


@pytest.mark.filterwarnings("ignore:.*is in beta")
async def test_documents_stay_out_of_event_streams(scripted: Any) -> None:
    engine, recorder = scripted("hi"), Recorder()
    model = ChatGroundspeed(engine=engine)
    config: Any = {"callbacks": [recorder]}
    events = [repr(e) for e in model.stream_events("x", config, version="v3", draft_documents=[SECRET])]
    told = model.astream_events("x", config, version="v2", draft_documents=[SECRET])
    events += [repr(event) async for event in told]
    assert [len(request.passages) for request in engine.requests] == [1, 1]
    assert recorder.seen
    assert not any("secret" in text for text in [*events, *recorder.seen])


def test_a_rate_limiter_is_asked(scripted: Any) -> None:
    class Limiter(InMemoryRateLimiter):
        asked = 0

        def acquire(self, *, blocking: bool = True) -> bool:
            Limiter.asked += 1
            return True

    model = ChatGroundspeed(engine=scripted(), rate_limiter=Limiter())
    model.invoke("x")
    list(model.stream("x"))
    assert Limiter.asked == 2


def test_documents_are_collected_from_messages(scripted: Any) -> None:
    engine = scripted()
    call = {"name": "search", "args": {}, "id": "1"}
    messages = [
        HumanMessage("x", additional_kwargs={"documents": [{"page_content": "old", "id": "a"}]}),
        AIMessage("", tool_calls=[call]),
        ToolMessage("found", tool_call_id="1", artifact=[SECRET, Document("other")]),
        ToolMessage("nothing", tool_call_id="2", artifact={"rows": 3}),
    ]
    ChatGroundspeed(engine=engine).invoke(messages, draft_documents=[SECRET])
    assert [passage.text for passage in engine.requests[-1].passages] == ["the secret words", "other", "old"]
    assert "secret" not in engine.prompt()
    assert messages[2].artifact[0] is SECRET


def test_offsets_of_split_documents_are_those_of_their_parent(scripted: Any) -> None:
    engine = scripted("a split part")
    part = Document("split part", metadata={"source": "whole.md", "start_index": 40})
    answer = ChatGroundspeed(engine=engine).invoke("x", draft_documents=[part])
    (span,) = answer.response_metadata["grounding"]
    assert (span["document_id"], span["document_start"], span["document_end"]) == ("whole.md", 40, 50)
    assert answer.content[span["start"] : span["end"]] == "split part"


@pytest.mark.parametrize("documents", [SECRET, "text", ["text"], [3], [{"id": "a"}]])
def test_what_is_no_document_is_refused(documents: Any, scripted: Any) -> None:
    with pytest.raises(InputError, match="document"):
        ChatGroundspeed(engine=scripted()).invoke("x", draft_documents=documents)


class Keys(InMemoryCache):
    def __init__(self) -> None:
        super().__init__()
        self.keys: list[str] = []

    def lookup(self, prompt: str, llm_string: str) -> Any:
        self.keys.append(prompt + llm_string)
        return super().lookup(prompt, llm_string)


async def test_cache_keys_hold_no_documents(scripted: Any) -> None:
    engine, cache = scripted(), Keys()
    model = ChatGroundspeed(engine=engine, cache=cache)
    carrying = [HumanMessage("x", additional_kwargs={"documents": [SECRET]})]
    model.invoke("x", draft_documents=[SECRET])
    model.invoke(carrying)
    await model.ainvoke(carrying)
    assert len(engine.requests) == 1
    assert cache.keys
    assert not any("secret" in key for key in cache.keys)


def test_citations_are_langchains(scripted: Any) -> None:
    model = ChatGroundspeed(engine=scripted("So: the secret words."), output_version="v1")
    whole = model.invoke("x", draft_documents=[SECRET])
    chunks = list(model.stream("x", draft_documents=[SECRET]))
    total = chunks[0]
    for chunk in chunks[1:]:
        total += chunk
    for message in (whole, total):
        (block,) = message.content_blocks
        assert block["type"] == "text"
        assert block["text"] == "So: the secret words."
        (citation,) = block["annotations"]
        assert citation["type"] == "citation"
        assert block["text"][citation["start_index"] : citation["end_index"]] == "the secret words"
        assert (citation["cited_text"], citation["title"]) == ("the secret words", "Vault")
        assert citation["extras"] == {
            "document_id": "vault",
            "document_start": 0,
            "document_end": 16,
            "passage": 0,
        }


def test_a_model_is_pickled_and_copied_without_the_engine(scripted: Any) -> None:
    engine = scripted()
    model = ChatGroundspeed(engine=engine, temperature=0.5)
    data = pickle.dumps(model)
    assert len(data) < 10_000
    for other in (pickle.loads(data), copy.deepcopy(model), model.model_copy()):
        assert other.engine is engine
        assert other.temperature == 0.5


@pytest.mark.filterwarnings("ignore:The function `loads` is in beta")
@pytest.mark.parametrize("kind", [ChatGroundspeed, GroundspeedLLM])
def test_a_model_is_serialised_by_its_settings(kind: Any, scripted: Any) -> None:
    model = kind(engine=scripted(), temperature=0.5, stop=["a"])
    text = dumps(model)
    assert len(text) < 1000
    for allowed in ([kind], "all"):
        again = loads(text, valid_namespaces=["groundspeed"], allowed_objects=allowed)
        assert again.settings == model.settings
    for allowed in ([kind], "all"):  # who does not name the package gets nothing of it
        with pytest.raises(ValueError, match="Invalid namespace"):
            loads(text, allowed_objects=allowed)
    with pytest.raises(ValueError, match="not allowed"):
        loads(text, valid_namespaces=["groundspeed"], allowed_objects="core")


async def test_an_answer_that_takes_too_long_is_an_error_that_fallbacks_know(scripted: Any) -> None:
    spare = ChatGroundspeed(engine=scripted("in time"))
    for kind in (ChatGroundspeed, GroundspeedLLM):
        model = kind(engine=scripted("half an ans", finish_reason="timeout"), timeout=1)
        with pytest.raises(GenerationTimeoutError, match="11 tokens after its timeout"):
            model.invoke("x")
        with pytest.raises(TimeoutError, match="raise timeout"):
            await model.ainvoke("x")
        pieces: list[Any] = []
        with pytest.raises(TimeoutError):
            pieces.extend(model.stream("x"))
        with pytest.raises(TimeoutError):
            _ = [piece async for piece in model.astream("x")]
        failed = model.batch(["x"], return_exceptions=True)
        assert isinstance(failed[0], TimeoutError)
        saved = model.with_fallbacks([spare], exceptions_to_handle=(TimeoutError,))
        assert saved.invoke("x").content == "in time"


def test_a_profile_tells_agents_what_the_model_can_do(scripted: Any) -> None:
    profile = ChatGroundspeed(engine=scripted()).profile
    assert profile is not None
    assert (profile["structured_output"], profile["image_inputs"]) == (True, False)
    assert profile["max_input_tokens"] == 2048


def test_leaving_a_stream_ends_the_request(scripted: Any) -> None:
    engine = scripted("a long answer")
    stream = ChatGroundspeed(engine=engine).stream("x")
    next(stream)
    assert engine.closed == 0
    stream.close()
    assert engine.closed == 1


def test_every_piece_is_told_to_callbacks(scripted: Any) -> None:
    told: list[str] = []

    class Listener(Recorder):
        def on_llm_new_token(
            self, token: Any, *, chunk: ChatGenerationChunk | None = None, **kwargs: Any
        ) -> Any:
            told.append(token)
            return super().on_llm_new_token(token, chunk=chunk, **kwargs)

    ChatGroundspeed(engine=scripted("abc"), streaming=True).invoke("x", {"callbacks": [Listener()]})
    assert "".join(told) == "abc"
    assert told[:3] == ["a", "b", "c"]


def test_tokens_are_counted_by_the_models_tokenizer(scripted: Any) -> None:
    model = ChatGroundspeed(engine=scripted())
    assert model.get_num_tokens("héllo") == len("héllo".encode())
    assert model.get_num_tokens_from_messages([HumanMessage("x")]) == len("[user] x|[assistant] ")


def test_a_draft_model_is_handed_to_the_engine(scripted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[tuple[Any, dict[str, Any]]] = []

    def load(name: Any, **how: Any) -> Any:
        loaded.append((name, how))
        return scripted("hi")

    monkeypatch.setattr(Engine, "from_pretrained", load)
    for kind in (ChatGroundspeed, GroundspeedLLM):
        model = kind(model="big", draft_model="small", bridge_tokenizers=True)
        assert model.engine is kind(model="big", draft_model="small", bridge_tokenizers=True).engine
        assert model.settings.get("draft_model") is None  # it changes no answer
    ((name, how),) = loaded
    assert (name, how["draft_model"], how["bridge_tokenizers"], how["device"]) == (
        "big",
        "small",
        True,
        "auto",
    )
