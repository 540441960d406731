"""Medians and spreads, and comparisons with a peer."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from suite.part import Json

__all__ = ["comparison", "spread"]


def spread(values: Sequence[float]) -> Json:
    """Median, lowest and highest."""
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}


def comparison(what: str, peer: str, ratios: Sequence[float], unit: str = "speed") -> Json:
    """One thing done by us and by a peer.

    Args:
        what: What was done, and on what.
        peer: Who else did it.
        ratios: How many times as good we were, round by round; below 1 the peer was better.
        unit: Of what: "speed", "tokens per step", "size".
    """
    return {"what": what, "peer": peer, "unit": unit, **spread(ratios)}
