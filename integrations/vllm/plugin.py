"""Binding without a flag: an entry point of ``vllm.general_plugins``, called in each of vLLM's processes.

With ``--worker-cls`` it is not needed. ``VLLM_PLUGINS`` says which plugins vLLM loads.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

__all__ = ["follow", "register"]

_registered = False
_BOUND = "_groundspeed_binds"


def register() -> None:
    """Called by vLLM; changes nothing unless a ``Proposer`` is made."""
    global _registered
    _registered = True


def follow() -> None:
    """Let model runners show themselves to their proposer, where the plugin is loaded.

    vLLM hands a proposer the tokens of the rows and no more, so the runner's method that does is wrapped.
    """
    if not _registered:
        return
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    original = GPUModelRunner.propose_draft_token_ids
    if hasattr(original, _BOUND):
        return

    @wraps(original)
    def propose_draft_token_ids(self: Any, *args: Any, **kwargs: Any) -> Any:
        bind(self)
        return original(self, *args, **kwargs)

    setattr(propose_draft_token_ids, _BOUND, True)
    GPUModelRunner.propose_draft_token_ids = propose_draft_token_ids


def bind(runner: Any) -> None:
    """Show a model runner to its proposer, if that is ours."""
    from groundspeed.integrations.vllm.proposer import Proposer

    drafter = getattr(runner, "drafter", None)  # the last pipeline stage alone has one
    if isinstance(drafter, Proposer):
        drafter.bind(runner)
