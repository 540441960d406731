"""groundspeed in LangChain: chat model, text model, retriever, vector store, chains and agent middleware."""

from typing import TYPE_CHECKING, Any

from langchain_core.load.load import ALL_SERIALIZABLE_MAPPINGS

from groundspeed.errors import MissingDependencyError
from groundspeed.integrations.langchain.chains import create_grounded_chain
from groundspeed.integrations.langchain.chat import ChatGroundspeed
from groundspeed.integrations.langchain.embeddings import GroundspeedEmbeddings
from groundspeed.integrations.langchain.llm import GroundspeedLLM
from groundspeed.integrations.langchain.retriever import GroundspeedRetriever
from groundspeed.integrations.langchain.vectorstore import GroundspeedVectorStore

if TYPE_CHECKING:
    from groundspeed.integrations.langchain.middleware import GroundspeedMiddleware

__all__ = [
    "ChatGroundspeed",
    "GroundspeedEmbeddings",
    "GroundspeedLLM",
    "GroundspeedMiddleware",
    "GroundspeedRetriever",
    "GroundspeedVectorStore",
    "create_grounded_chain",
]

# ``load`` makes objects only of classes that this table lists, and of those only where the caller names their
# package in ``valid_namespaces``.
for _model in (ChatGroundspeed, GroundspeedLLM):
    ALL_SERIALIZABLE_MAPPINGS[tuple(_model.lc_id())] = tuple(_model.lc_id())


def __getattr__(name: str) -> Any:
    # Agents need more than langchain-core.
    if name != "GroundspeedMiddleware":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from groundspeed.integrations.langchain.middleware import GroundspeedMiddleware
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            "GroundspeedMiddleware needs LangChain's agents: pip install 'groundspeed[langchain]'"
        ) from error
    return GroundspeedMiddleware
