"""Inside vLLM: drafts from each request's documents, prompt and answer, and from a datastore of the node.

``Proposer`` is what ``speculative_config`` names, ``Worker`` what ``--worker-cls`` names.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["Proposer", "Worker"]

_HOMES = {"Proposer": "proposer", "Worker": "worker"}


def __getattr__(name: str) -> Any:
    """Load what is asked for: a client needs ``documents`` alone, and neither numba nor vLLM."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
