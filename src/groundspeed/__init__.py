"""Retrieval-augmented speculative decoding for RAG pipelines: the same answer, sooner."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from groundspeed.drafting.base import Drafter, DraftTree
    from groundspeed.errors import (
        ContextLengthError,
        DraftError,
        GenerationTimeoutError,
        GroundspeedError,
        InputError,
        MissingDependencyError,
        ModelError,
        StoreError,
    )
    from groundspeed.integrations.pipeline import Answer, RagPipeline, RetrievalEvent
    from groundspeed.integrations.transformers import groundspeed_generate
    from groundspeed.retrieval.index import IndexReport, index_corpus
    from groundspeed.retrieval.retriever import Retriever
    from groundspeed.types import (
        Document,
        GenerationRequest,
        GenerationResult,
        GenerationStats,
        Grammar,
        GroundedSpan,
        Passage,
        PrefillEvent,
        Source,
        StepEvent,
        TokenLogprob,
    )
    from groundspeed.verify.engine import Engine

__all__ = [
    "Answer",
    "ContextLengthError",
    "Document",
    "DraftError",
    "DraftTree",
    "Drafter",
    "Engine",
    "GenerationRequest",
    "GenerationResult",
    "GenerationStats",
    "GenerationTimeoutError",
    "Grammar",
    "GroundedSpan",
    "GroundspeedError",
    "IndexReport",
    "InputError",
    "MissingDependencyError",
    "ModelError",
    "Passage",
    "PrefillEvent",
    "RagPipeline",
    "RetrievalEvent",
    "Retriever",
    "Source",
    "StepEvent",
    "StoreError",
    "TokenLogprob",
    "groundspeed_generate",
    "index_corpus",
]

__version__ = "0.1.0"

# Names are imported when first used (PEP 562), so that `import groundspeed` costs next to nothing.
_HOMES = {
    "groundspeed.drafting.base": ["DraftTree", "Drafter"],
    "groundspeed.errors": [
        "ContextLengthError",
        "DraftError",
        "GenerationTimeoutError",
        "GroundspeedError",
        "InputError",
        "MissingDependencyError",
        "ModelError",
        "StoreError",
    ],
    "groundspeed.integrations.pipeline": ["Answer", "RagPipeline", "RetrievalEvent"],
    "groundspeed.integrations.transformers": ["groundspeed_generate"],
    "groundspeed.retrieval.index": ["IndexReport", "index_corpus"],
    "groundspeed.retrieval.retriever": ["Retriever"],
    "groundspeed.types": [
        "Document",
        "GenerationRequest",
        "GenerationResult",
        "GenerationStats",
        "Grammar",
        "GroundedSpan",
        "Passage",
        "PrefillEvent",
        "Source",
        "StepEvent",
        "TokenLogprob",
    ],
    "groundspeed.verify.engine": ["Engine"],
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
