"""What a replay adds up: step by step, row by row, over a data set."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from groundspeed.drafting.base import DraftTree
from groundspeed.integrations.bench.traces import Row
from groundspeed.types import Source

__all__ = ["Measured", "Replayed", "Step", "Summary", "Tally", "average"]

Summary: TypeAlias = dict[str, Any]
"""Figures by name, numbers all of them."""


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One step of forced decoding.

    Attributes:
        tree: What was drafted, n nodes.
        accepted: bool [n], the nodes on the path that agrees with the recorded answer.
        committed: Tokens the step brought, the bonus token included.
        draft_us: Microseconds the draft took.
    """

    tree: DraftTree
    accepted: NDArray[np.bool_]
    committed: int
    draft_us: float


@dataclass(frozen=True, slots=True, eq=False)
class Replayed:
    """What became of one row: s steps that wrote its t tokens.

    Attributes:
        row: The row.
        accepted: int32 [s], draft tokens that each step accepted; it wrote one more, but for a last step
            that accepted all that was left.
        drafted: int32 [s], nodes of each step's draft.
        sources: uint8 [t], the ``Source`` of each token; ``TARGET`` for bonus tokens.
        passages: int32 [t], index of the passage that each token was drafted from, -1 for other sources.
    """

    row: Row
    accepted: NDArray[np.int32]
    drafted: NDArray[np.int32]
    sources: NDArray[np.uint8]
    passages: NDArray[np.int32]

    @property
    def tokens_per_step(self) -> float:
        """Of this row alone."""
        return len(self.sources) / len(self.accepted)


@dataclass(slots=True)
class Tally:
    """What a replay adds up: over a data set, for one drafter at one budget.

    ``cost`` is that of a step by its draft tokens, float64 [m + 1], relative to a plain one; None where it is
    not known.
    """

    rows: int = 0
    tokens: int = 0
    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    draft_us: list[float] = field(default_factory=list)
    replayed: list[Replayed] = field(default_factory=list)
    cost: NDArray[np.float64] | None = None

    def add(self, row: Row, steps: Iterator[Step]) -> None:
        """Count one replayed row."""
        accepted: list[int] = []
        drafted: list[int] = []
        sources: list[int] = []
        passages: list[int] = []
        for step in steps:
            kept = step.tree.source[step.accepted].tolist()
            origins = step.tree.origin[step.accepted].tolist()
            own = [Source.TARGET] * (step.committed - len(kept))
            accepted.append(len(kept))
            drafted.append(len(step.tree))
            sources += [*kept, *own]
            passages += [
                origin >> 32 if source == Source.PASSAGE else -1
                for source, origin in zip(kept, origins, strict=True)
            ]
            passages += [-1] * len(own)
            self.draft_us.append(step.draft_us)
        self.rows += 1
        self.steps += len(accepted)
        self.tokens += len(sources)
        self.drafted += sum(drafted)
        self.accepted += sum(accepted)
        counts = [np.array(one, np.int32) for one in (accepted, drafted, passages)]
        self.replayed.append(Replayed(row, counts[0], counts[1], np.array(sources, np.uint8), counts[2]))

    def summary(self) -> Summary:
        """The figures: all tokens over all steps, accepted nodes over drafted ones, times in microseconds.

        ``row_p10``, ``row_p50`` and ``row_p90`` are tokens per step that a tenth, half and nine tenths of the
        rows stay below. With ``cost``, ``times_as_fast`` is how many times as fast the steps wrote the
        answers as plain ones would: all tokens over the cost of all steps, the drafting itself left out.
        """
        return {
            "tokens_per_step": self.tokens / self.steps if self.steps else 0.0,
            **_percentiles("row", (10, 50, 90), [one.tokens_per_step for one in self.replayed]),
            "drafted_per_step": self.drafted / self.steps if self.steps else 0.0,
            "acceptance_rate": self.accepted / self.drafted if self.drafted else 0.0,
            **_percentiles("draft_us", (50, 95), self.draft_us),
            **({} if self.cost is None else {"times_as_fast": self._times_as_fast(self.cost)}),
            "rows": self.rows,
        }

    def _times_as_fast(self, cost: NDArray[np.float64]) -> float:
        took = sum(float(cost[one.drafted].sum()) for one in self.replayed)
        return self.tokens / took if took else 0.0

    def accepted_by_source(self) -> dict[str, int]:
        """Accepted draft tokens by the label of their source."""
        counts = np.zeros(len(Source), np.int64)
        for one in self.replayed:
            counts += np.bincount(one.sources, minlength=len(Source))
        return {source.label: int(counts[source]) for source in Source if source is not Source.TARGET}


@dataclass(frozen=True, slots=True)
class Measured:
    """One drafter at one budget on one data set."""

    dataset: str
    drafter: str
    budget: int
    tally: Tally

    def as_json(self) -> dict[str, Any]:
        """The summary with what was measured, and the accepted tokens by source."""
        return {
            "dataset": self.dataset,
            "drafter": self.drafter,
            "budget": self.budget,
            **self.tally.summary(),
            "accepted_by_source": self.tally.accepted_by_source(),
        }


def _percentiles(name: str, shares: Sequence[int], values: Sequence[float]) -> dict[str, float]:
    found = np.percentile(values, shares).tolist() if values else [0.0] * len(shares)
    return {f"{name}_p{share}": value for share, value in zip(shares, found, strict=True)}


def average(summaries: Sequence[Summary]) -> Summary:
    """The mean of summaries over data sets, each weighing the same; rows are added up."""
    keys = [key for key in (*Tally().summary(), "times_as_fast") if key in summaries[0]]
    mean = {key: float(np.mean([summary[key] for summary in summaries])) for key in keys}
    return {**mean, "rows": sum(summary["rows"] for summary in summaries)}
