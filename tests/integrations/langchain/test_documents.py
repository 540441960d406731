"""Chains, text model, retriever and vector store: documents go the whole way, each with its own input."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from langchain_core.caches import InMemoryCache
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.language_models import FakeListChatModel
from langchain_core.load import dumps
from langchain_core.prompts import ChatPromptTemplate, PromptTemplate
from langchain_core.tracers import BaseTracer
from langchain_core.tracers.schemas import Run

from groundspeed import index_corpus
from groundspeed.datastores.documents import DocumentStore
from groundspeed.errors import InputError, StoreError
from groundspeed.integrations.langchain import (
    ChatGroundspeed,
    GroundspeedLLM,
    GroundspeedRetriever,
    GroundspeedVectorStore,
    create_grounded_chain,
)
from groundspeed.integrations.langchain.documents import to_document, to_passages
from groundspeed.types import Passage

PROMPT = ChatPromptTemplate.from_messages([("system", "Use: {context}"), ("human", "{input}")])
INPUTS = [{"input": str(n), "context": [Document(f"text {n}", id=f"d{n}")]} for n in range(3)]


def seen(engine: Any) -> set[tuple[str, str]]:
    """Prompt and documents of each request."""
    return {
        (engine.prompt(n), " ".join(p.document_id for p in request.passages))
        for n, request in enumerate(engine.requests)
    }


WANTED = {(f"[system] Use: text {n}|[user] {n}|[assistant] ", f"d{n}") for n in range(3)}


async def test_each_input_of_a_grounded_chain_has_its_own_documents(scripted: Any) -> None:
    async def streamed(chain: Any) -> list[str]:
        return ["".join([piece async for piece in chain.astream(one)]) for one in INPUTS]

    for run in (
        lambda chain: [chain.invoke(one) for one in INPUTS],
        lambda chain: chain.batch(INPUTS),
        lambda chain: ["".join(chain.stream(one)) for one in INPUTS],
        lambda chain: chain.abatch(INPUTS),
        streamed,
    ):
        engine = scripted("hi")
        answers = run(create_grounded_chain(ChatGroundspeed(engine=engine), PROMPT))
        assert (answers if isinstance(answers, list) else await answers) == ["hi"] * 3
        assert seen(engine) == WANTED


async def test_a_grounded_chain_serves_models_of_other_kinds_and_falls_back_to_them(scripted: Any) -> None:
    other = FakeListChatModel(responses=["from elsewhere"])
    broken = ChatGroundspeed(engine=scripted("x", finish_reason="timeout"), timeout=1)
    for llm in (other, broken.with_fallbacks([other])):
        chain = create_grounded_chain(llm, PROMPT)
        assert chain.invoke(INPUTS[0]) == "from elsewhere"
        assert await chain.abatch(INPUTS) == ["from elsewhere"] * 3


def test_the_traces_of_a_text_models_chain_hold_the_documents_only_where_they_come_in(scripted: Any) -> None:
    recorder = Recorder()
    secret = Document("short", metadata={"following": "secret"})
    chain = create_grounded_chain(GroundspeedLLM(engine=scripted()), PROMPT)
    chain.invoke({"input": "x", "context": [secret]}, {"callbacks": [recorder]})
    (run,) = recorder.runs
    assert "secret" in repr(run.inputs)
    assert [child.name for child in run.child_runs] == ["format_inputs", "GroundspeedLLM", "StrOutputParser"]
    model = run.child_runs[1]
    assert "secret" not in repr((model.inputs, model.extra, model.serialized))


def test_a_grounded_chain_streams(scripted: Any) -> None:
    chain = create_grounded_chain(ChatGroundspeed(engine=scripted("abc")), PROMPT)
    assert [piece for piece in chain.stream(INPUTS[0]) if piece] == ["a", "b", "c"]


def test_a_grounded_chain_formats_documents_as_told_and_takes_a_text_model(scripted: Any) -> None:
    engine = scripted("hi")
    chain = create_grounded_chain(
        GroundspeedLLM(engine=engine).bind(stop=["x"]),
        PromptTemplate.from_template("{docs}?"),
        document_prompt=PromptTemplate.from_template("<{source}: {page_content}>"),
        document_separator="+",
        document_variable_name="docs",
    )
    documents = [Document(text, metadata={"source": text.upper()}) for text in ("a", "b")]
    assert chain.invoke({"docs": documents}) == "hi"
    assert engine.prompt() == "<A: a>+<B: b>?"
    assert engine.requests[-1].stop == ("x",)


def test_a_prompt_without_a_place_for_documents_is_refused(scripted: Any) -> None:
    with pytest.raises(InputError, match="context"):
        create_grounded_chain(ChatGroundspeed(engine=scripted()), ChatPromptTemplate.from_template("{input}"))
    chain = create_grounded_chain(ChatGroundspeed(engine=scripted()), PROMPT)
    with pytest.raises(InputError, match="list of documents"):
        chain.invoke({"input": "x", "context": "a text"})


class Recorder(BaseTracer):
    def __init__(self) -> None:
        super().__init__()
        self.seen = ""
        self.runs: list[Run] = []

    def _persist_run(self, run: Run) -> None:
        self.runs.append(run)
        self.seen += repr(vars(run))


async def test_a_text_models_documents_stay_out_of_prompt_and_trace(scripted: Any) -> None:
    documents = [Document("the secret words")]
    for call in ("invoke", "stream", "batch", "ainvoke", "astream", "abatch"):
        engine, recorder = scripted("hi"), Recorder()
        given = ["x"] if "batch" in call else "x"
        model = GroundspeedLLM(engine=engine)
        result = getattr(model, call)(given, {"callbacks": [recorder]}, draft_documents=documents, top_k=3)
        if call == "stream":
            assert "".join(result) == "hi"
        elif call == "astream":
            assert "".join([piece async for piece in result]) == "hi"
        elif call.startswith("a"):
            await result
        (request,) = engine.requests
        assert (request.prompt, request.top_k, len(request.passages)) == ("x", 3, 1)
        assert recorder.seen
        assert "secret" not in recorder.seen


def test_a_text_models_prompts_go_through_the_engine_together(scripted: Any) -> None:
    engine = scripted("hi")
    batches: list[int] = []
    together = engine.generate_all
    engine.generate_all = lambda requests: batches.append(len(requests)) or together(requests)
    assert GroundspeedLLM(engine=engine).batch(["a", "b", "c"]) == ["hi"] * 3
    assert batches == [3]


def test_a_text_models_cache_knows_the_settings_of_a_call(scripted: Any) -> None:
    model = GroundspeedLLM(engine=scripted("first", "second"), cache=InMemoryCache())
    assert [model.invoke("x", temperature=t) for t in (0.5, 0.7, 0.5)] == ["first", "second", "first"]


def test_a_text_model_tells_its_usage_and_is_pickled_without_the_engine(scripted: Any) -> None:
    model = GroundspeedLLM(engine=scripted("hi"), seed=3)
    info = model.generate(["x"]).generations[0][0].generation_info
    assert info is not None
    assert info["finish_reason"] == "stop"
    assert info["usage_metadata"]["output_tokens"] == 2
    assert pickle.loads(pickle.dumps(model)).engine is model.engine
    assert len(dumps(model)) < 1000


def test_a_passage_comes_back_from_its_document() -> None:
    passage = Passage("a.md", "text", 7, 0.5, {"title": "A"}, following=" goes on")
    (back,) = to_passages([to_document(passage)])
    assert (back.document_id, back.text, back.start, back.following) == ("a.md", "text", 7, " goes on")
    assert back.metadata["title"] == "A"


@pytest.fixture
def store(tmp_path: Path) -> GroundspeedVectorStore:
    made = GroundspeedVectorStore(tmp_path / "store", DeterministicFakeEmbedding(size=32))
    made.add_texts(
        [f"text {n}" for n in range(12)], [{"even": n % 2 == 0} for n in range(12)], ids=list("abcdefghijkl")
    )
    return made


def test_a_search_finds_what_brute_force_finds(store: GroundspeedVectorStore) -> None:
    vectors = np.array(store.embeddings.embed_documents([f"text {n}" for n in range(12)]))
    query = np.array(store.embeddings.embed_query("question"))
    cosines = vectors @ query / np.linalg.norm(vectors, axis=1) / np.linalg.norm(query)
    best = np.argsort(-cosines)[:5]
    found = store.similarity_search_with_score("question", 5)
    assert [document.id for document, _ in found] == ["abcdefghijkl"[n] for n in best]
    assert np.allclose([score for _, score in found], cosines[best], atol=1e-5)
    by_vector = store.similarity_search_by_vector(list(3 * query), 5)
    assert by_vector == [document for document, _ in found]


def test_relevance_lies_between_0_and_1(store: GroundspeedVectorStore) -> None:
    found = store.similarity_search_with_relevance_scores("question", 12)
    scores = [score for _, score in found]
    assert scores == sorted(scores, reverse=True)
    assert 0 <= scores[-1] < 0.5 < scores[0] <= 1


def test_a_filter_holds_before_the_best_are_counted(store: GroundspeedVectorStore) -> None:
    by_dict = store.similarity_search("question", 6, filter={"even": True})
    by_function = store.similarity_search("question", 6, filter=lambda document: document.metadata["even"])
    assert by_dict == by_function
    assert [document.metadata["even"] for document in by_dict] == [True] * 6


def test_diverse_documents_are_preferred_when_asked_for(tmp_path: Path) -> None:
    class Plane(DeterministicFakeEmbedding):
        def embed_query(self, text: str) -> list[float]:
            return {"near": [1, 0.1], "twin": [1, 0.11], "other": [0.6, -0.8]}.get(text, [1.0, 0.0])

        def embed_documents(self, texts: list[str]) -> list[list[float]]:
            return [self.embed_query(text) for text in texts]

    store = GroundspeedVectorStore(tmp_path / "store", Plane(size=2))
    store.add_texts(["near", "twin", "other"])
    assert [d.page_content for d in store.similarity_search("q", 2)] == ["near", "twin"]
    diverse = store.max_marginal_relevance_search("q", 2, lambda_mult=0.3)
    assert [d.page_content for d in diverse] == ["near", "other"]


def test_what_is_written_is_there_for_the_next_reader(store: GroundspeedVectorStore, tmp_path: Path) -> None:
    again = GroundspeedVectorStore(tmp_path / "store", store.embeddings)
    assert again.get_by_ids(["c", "a", "z"]) == store.get_by_ids(["c", "a"])
    again.delete(["a", "z"])
    assert [stored.document.id for stored in DocumentStore(tmp_path / "store").read().documents] == list(
        "bcdefghijkl"
    )
    other = GroundspeedVectorStore(tmp_path / "store")
    with pytest.raises(StoreError, match="embedding model"):
        other.similarity_search("x")


def test_unchanged_documents_are_not_embedded_again(store: GroundspeedVectorStore) -> None:
    embedded: list[str] = []
    embed = store.embeddings.embed_documents
    object.__setattr__(
        store.embeddings, "embed_documents", lambda texts: embedded.extend(texts) or embed(texts)
    )
    store.add_texts(["text 0", "new"], [{"even": True}, {}], ids=["a", "b"])
    assert embedded == ["new"]


def test_bad_metadata_leaves_the_store_as_it_was(store: GroundspeedVectorStore) -> None:
    with pytest.raises(InputError, match="JSON"):
        store.add_texts(["x"], [{"when": object()}], ids=["a"])
    with pytest.raises(InputError, match="2 texts, 1 metadatas"):
        store.add_texts(["x", "y"], [{}])
    assert store.get_by_ids(["a"])[0].page_content == "text 0"


def test_indexing_a_folder_leaves_single_documents_alone(tmp_path: Path) -> None:
    class Toy:
        name, dimension = "toy", 4

        def embed(self, texts: Any, progress: Any = None) -> Any:
            return np.eye(4, dtype=np.float32)[[len(text) % 4 for text in texts]]

        def embed_query(self, text: str) -> Any:
            return self.embed([text])[0]

    from groundspeed.retrieval.updating import LiveStore
    from groundspeed.types import Document as StoreDocument

    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.txt").write_text("from a folder")
    store = DocumentStore(tmp_path / "store")
    LiveStore(store, Toy()).upsert([StoreDocument("single", "by itself")])
    report = index_corpus([tmp_path / "docs"], store, embedder=Toy())
    assert (report.added, report.unchanged, report.removed) == (1, 1, 0)
    assert [one.document.id for one in store.read().documents] == ["single", "a.txt"]


def test_a_retriever_is_pickled_without_what_it_has_read(tmp_path: Path) -> None:
    retriever = GroundspeedRetriever(store=str(tmp_path), k=3)
    retriever._opened = lambda: None  # type: ignore[assignment]
    again = pickle.loads(pickle.dumps(retriever))
    assert (again.store, again.k, again._opened) == (str(tmp_path), 3, None)
