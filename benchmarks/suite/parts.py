"""All parts, in the order in which they are measured."""

from __future__ import annotations

from suite import engines, peers, replays, speed, stores

__all__ = ["PARTS"]

PARTS = (*speed.PARTS, *replays.PARTS, *stores.PARTS, *engines.PARTS, *peers.PARTS)
