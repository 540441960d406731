"""What a model can verify, found out by looking at its configuration and by trying it.

A model gets trees only if a small tree gives the logits that its paths give one by one; chains likewise. So a
model that ignores the attention interface, or whose state cannot be rewound, falls back and never answers
wrongly.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from groundspeed.drafting.base import DraftTree
from groundspeed.verify.base import Capability, Segment, TargetSession

if TYPE_CHECKING:
    from groundspeed.verify.target import TransformersTarget

__all__ = ["examine", "try_tree"]

_TREE_LAYERS = {"full_attention", "sliding_attention"}

# A wrong mask or position moves logits by the order of their own spread; rounding moves them by far less, in
# bfloat16 by 0.06 of it on average behind the senseless text of the test, and by 0.2 at the worst.
_TOLERANCE = {torch.float32: (1e-3, 1e-3), torch.float64: (1e-6, 1e-6)}
"""By dtype, how far the logits of one row may be off, and those of all rows on average."""

_LOW_PRECISION_TOLERANCE = (0.4, 0.12)

_PROMPT = 20
_PARENTS = [-1, 0, 0, -1, 2]
_PATH = [0, 2, 4]
_STEPS = 3


def examine(target: TransformersTarget) -> Capability:
    """Find out what ``target`` can verify: trees, else chains, else nothing."""
    from groundspeed.verify.cache import KeyValueCache
    from groundspeed.verify.sessions import ChainSession, TreeSession

    kinds = set(_layer_types(target.config)) - _TREE_LAYERS
    if kinds:
        reason = f"its layers of kind {', '.join(sorted(kinds))} keep a state that a tree cannot branch from"
    else:
        fault = try_tree(target, lambda capacity: TreeSession(KeyValueCache(target.layout, capacity)))
        reason = _try_windows(target) or fault
        if not reason:
            return Capability("tree")
    fault = _try(target, ChainSession(target, rewind=True), list(range(-1, 4)), [0, 1])
    if not fault:
        return Capability("chain", reason)
    reason = f"{reason}; chains failed too: {fault}"
    fault = _try(target, ChainSession(target, rewind=False), [], [])
    if not fault:
        return Capability("plain", reason)
    return Capability("plain", f"{reason}; nor can its cache be driven: {fault}", cached=False)


def try_tree(target: TransformersTarget, opened: Callable[[int], TargetSession]) -> str:
    """Verify a small tree over a KV cache of our own; what is wrong with the outcome, in words.

    Args:
        target: The model.
        opened: Starts a text of so many tokens at most.
    """
    return _try(target, opened(_PROMPT + len(_PARENTS) + _STEPS), _PARENTS, _PATH)


def _layer_types(config: Any) -> list[str]:
    """The kind of each layer; configurations that do not say have one kind only."""
    kinds = getattr(config, "layer_types", None)
    if kinds:
        return list(kinds)
    windowed = getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True)
    return ["sliding_attention" if windowed else "full_attention"] * config.num_hidden_layers


def _try(target: TransformersTarget, session: TargetSession, parents: list[int], path: list[int]) -> str:
    """Verify a tree, commit a path, go on; the first difference to the bare model, in words."""
    rng = np.random.default_rng(0)
    n = len(parents)
    ids = rng.integers(0, target.vocab_size, _PROMPT + n + _STEPS).tolist()
    prompt, nodes, onwards = ids[:_PROMPT], ids[_PROMPT : _PROMPT + n], ids[_PROMPT + n :]
    tree = DraftTree(
        np.array(nodes, np.int32),
        np.array(parents, np.int32),
        np.ones(n, np.float32),
        np.zeros(n, np.uint16),
        np.zeros(n, np.int64),
    )
    errors: dict[str, float] = {}
    try:
        if n:
            # In two passes: verification goes on behind a cached prefix.
            target.verify([Segment(session, prompt[:-2], rows=0)])
        (logits,) = target.verify([Segment(session, prompt[session.length :], tree)])
        for node in range(-1, n):
            above: list[int] = []
            at = node
            while at >= 0:
                above.insert(0, nodes[at])
                at = parents[at]
            name = f"node {node} of a test draft" if n else "its first token"
            errors[name] = _difference(logits[node + 1], target.forward(prompt + above, 1)[0])
        session.commit(path)
        text = [*prompt, *(nodes[node] for node in path)]
        for step, token in enumerate(onwards, start=1):
            text.append(token)
            (logits,) = target.verify([Segment(session, [token])])
            errors[f"step {step} after it"] = _difference(logits[0], target.forward(text, 1)[0])
            session.commit([])
        return _judge(errors, target.dtype)
    except Exception as error:  # whatever a model's own code raises, it means the same: not this way
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}"


def _difference(got: torch.Tensor, want: torch.Tensor) -> float:
    """Root mean square of what logits are off by, relative to their spread."""
    spread = (want.double() - want.double().mean()).pow(2).mean().sqrt()
    return float((got.double() - want.double()).pow(2).mean().sqrt() / spread)


def _judge(errors: dict[str, float], dtype: torch.dtype) -> str:
    most, average = _TOLERANCE.get(dtype, _LOW_PRECISION_TOLERANCE)
    for name, error in errors.items():
        if not error <= most:
            return f"{name} is off by {error:.2g} of the logits' spread ({most} allowed)"
    mean = sum(errors.values()) / len(errors)
    return "" if mean <= average else f"a test draft is off by {mean:.2g} on average ({average} allowed)"


def _try_windows(target: TransformersTarget) -> str:
    """The test draft is shorter than any window, so look whether each layer handed over its own."""
    handed = target.windows
    if not handed:
        return "it does not go through the attention interface of transformers"
    for layer, kind in enumerate(_layer_types(target.config)):
        if layer in handed and (handed[layer] is not None) != (kind == "sliding_attention"):
            return f"layer {layer} is of kind {kind} and was called with window {handed[layer]}"
    return ""
