"""What a part of the benchmark is, and what it is told."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

__all__ = ["BENCHMARKS", "DATA_SETS", "ROOT", "SHARED", "Json", "LeftOut", "Part", "Size"]

Json: TypeAlias = dict[str, Any]

BENCHMARKS = Path(__file__).resolve().parents[1]
ROOT = BENCHMARKS.parent
SHARED = Path(os.environ.get("GROUNDSPEED_SHARED", ROOT.parent / "shared")).resolve()
DATA_SETS = ("mtrag", "mtragun", "northwind", "hf_docs", "aragog")
"""Of recorded answers, see the README of the shared data."""


class LeftOut(Exception):  # noqa: N818
    """A part cannot be measured here; the message says why and what to install."""


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured.

    Attributes:
        quick: The least that goes through everything, to try the benchmark itself; no figure means anything.
    """

    quick: bool = False

    def of(self, whole: int, quick: int = 1) -> int:
        """A number of prompts, rounds, tokens or rows."""
        return quick if self.quick else whole


@dataclass(frozen=True, slots=True)
class Part:
    """One comparison, measured in a process of its own.

    Attributes:
        name: Also of its results file.
        minutes: Expected on two cores.
        measure: Measures and gives plain data for JSON; raises ``LeftOut`` where it cannot. It is imported by
            name in the other process.
        inputs: The files it reads.
    """

    name: str
    minutes: float
    measure: Callable[[Size], Json]
    inputs: tuple[Path, ...] = ()
