"""The figures of the page, all taken from what the replay counted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from groundspeed.integrations.bench.log_rows import LABELS
from groundspeed.integrations.bench.tally import Measured, Replayed, Summary, average
from groundspeed.types import Source

__all__ = ["LENGTHS", "Figures", "Group", "Part", "figures"]

LENGTHS = ((0, 0), (1, 1), (2, 2), (3, 3), (4, 4), (5, 7), (8, 15), (16, None))
"""Accepted draft tokens of a step, first and last of each bar of the histogram; None for no bound."""

_POSITIONS = (0, 8, 16, 32, 64, 128, 256, 512, 1024)  # first tokens of the stretches of an answer
_RANKS = 5  # passages that are shown by their rank; those behind them together
_MOST_GROUPS = 10
_LEAST_ROWS = 5  # of a kind; fewer say nothing of it
_FEW_TOKENS = 24  # an answer this short is no example
_EXAMPLES = 3


@dataclass(frozen=True, slots=True)
class Part:
    """Some of the tokens or steps, of a chart.

    Attributes:
        name: What they have in common.
        value: How many, or tokens per step.
        count: What the value rests on: tokens, steps or rows.
    """

    name: str
    value: float
    count: int


@dataclass(frozen=True, slots=True)
class Group:
    """Tokens per step by the kinds of rows that a field tells apart."""

    field: str
    parts: tuple[Part, ...]
    left_out: int


@dataclass(frozen=True, slots=True)
class Figures:
    """What the page shows.

    Attributes:
        subject: Name of the drafter that the details are of.
        budget: Draft nodes per step.
        summaries: By drafter, the subject first: averages over the data sets, as the terminal has them.
        datasets: By data set, the subject's summary.
        rows: Of the subject, all data sets together.
        tokens: In these rows' answers.
        steps: That the subject took for them.
        sources: Tokens by source, the target's own among them.
        ranks: Accepted tokens by the rank of their passage.
        lengths: Steps by accepted draft tokens, as ``LENGTHS`` has them.
        positions: Tokens per step by the place in the answer where the step began.
        groups: Tokens per step by file and by the fields of ``LABELS``, where they tell rows apart.
        curves: By drafter, float64 [rows], the rows' tokens per step, rising.
        ahead: Rows on which the subject needed fewer steps than each other drafter, and more, by drafter.
        most: Rows that it helped most.
        least: Rows that it helped least.
        without_passages: Rows that came without any.
    """

    subject: str
    budget: int
    summaries: dict[str, Summary]
    datasets: dict[str, Summary]
    rows: tuple[Replayed, ...]
    tokens: int
    steps: int
    sources: dict[Source, int]
    ranks: tuple[Part, ...]
    lengths: tuple[int, ...]
    positions: tuple[Part, ...]
    groups: tuple[Group, ...]
    curves: dict[str, NDArray[np.float64]]
    ahead: dict[str, tuple[int, int]]
    most: tuple[Replayed, ...]
    least: tuple[Replayed, ...]
    without_passages: int

    def share(self, *sources: Source) -> float:
        """Of all tokens, those that came from these sources."""
        return sum(self.sources[source] for source in sources) / max(self.tokens, 1)


def figures(measured: Sequence[Measured]) -> Figures:
    """Take the figures of the page from a replay.

    The details are of the blend, or of the first drafter where that was not replayed, at the middle budget.

    Args:
        measured: At least one, of ``measure_files``.
    """
    budgets = sorted({one.budget for one in measured})
    budget = budgets[len(budgets) // 2]
    at = [one for one in measured if one.budget == budget]
    names = list(dict.fromkeys(one.drafter for one in at))
    subject = "blend" if "blend" in names else names[0]
    own = [one for one in at if one.drafter == subject]
    rows = {name: _rows(one for one in at if one.drafter == name) for name in names}
    chosen = rows[subject]
    return Figures(
        subject,
        budget,
        {
            name: average([one.tally.summary() for one in at if one.drafter == name])
            for name in [subject, *(name for name in names if name != subject)]
        },
        {one.dataset: one.tally.summary() for one in own},
        chosen,
        sum(one.tally.tokens for one in own),
        sum(one.tally.steps for one in own),
        _by_source(chosen),
        _by_rank(chosen),
        _by_length(chosen),
        _by_position(chosen),
        tuple(_groups(own)),
        {name: np.sort([one.tokens_per_step for one in of]) for name, of in rows.items()},
        {name: _ahead(chosen, of) for name, of in rows.items() if name != subject},
        *_extremes(chosen),
        sum(not one.row.passages for one in chosen),
    )


def _rows(measured: Iterable[Measured]) -> tuple[Replayed, ...]:
    return tuple(one for part in measured for one in part.tally.replayed)


def _by_source(rows: Sequence[Replayed]) -> dict[Source, int]:
    counts = np.bincount(np.concatenate([one.sources for one in rows]), minlength=len(Source))
    return {source: int(counts[source]) for source in Source}


def _by_rank(rows: Sequence[Replayed]) -> tuple[Part, ...]:
    """One part a rank, those behind ``_RANKS`` together, up to the last one that there is."""
    offered = max((len(one.row.passages) for one in rows), default=0)
    drafted = np.concatenate([one.passages for one in rows])
    counts = np.bincount(np.minimum(drafted[drafted >= 0], _RANKS), minlength=_RANKS + 1).tolist()
    names = [*(f"passage {rank + 1}" for rank in range(_RANKS)), f"passage {_RANKS + 1} and on"]
    having = [sum(len(one.row.passages) > rank for one in rows) for rank in range(_RANKS + 1)]
    return tuple(Part(name, count, there) for name, count, there in zip(names, counts, having, strict=True))[
        :offered
    ]


def _by_length(rows: Sequence[Replayed]) -> tuple[int, ...]:
    accepted = np.concatenate([one.accepted for one in rows])
    edges = [first for first, _ in LENGTHS]
    return tuple(np.bincount(np.searchsorted(edges, accepted, "right") - 1, minlength=len(edges)).tolist())


def _by_position(rows: Sequence[Replayed]) -> tuple[Part, ...]:
    tokens, steps = np.zeros(len(_POSITIONS), np.int64), np.zeros(len(_POSITIONS), np.int64)
    for one in rows:
        ends = np.minimum(np.cumsum(one.accepted + 1), len(one.sources))
        starts = np.concatenate([[0], ends[:-1]])
        at = np.searchsorted(_POSITIONS, starts, "right") - 1
        np.add.at(tokens, at, ends - starts)
        np.add.at(steps, at, 1)
    return tuple(
        Part(f"{first}", tokens[i] / steps[i], int(steps[i]))
        for i, first in enumerate(_POSITIONS)
        if steps[i]
    )


def _groups(measured: Sequence[Measured]) -> Iterable[Group]:
    """The fields that tell at least two kinds apart, each with enough rows."""
    rows = [(one.dataset, row) for one in measured for row in one.tally.replayed]
    for field in ("file", *LABELS):
        kinds: dict[str, list[Replayed]] = {}
        for dataset, row in rows:
            kinds.setdefault(dataset if field == "file" else _label(row, field), []).append(row)
        largest = sorted(
            (kind for kind in kinds.items() if len(kind[1]) >= _LEAST_ROWS), key=lambda kind: -len(kind[1])
        )[:_MOST_GROUPS]
        if len(largest) > 1:
            parts = [Part(name, _rate(of), len(of)) for name, of in largest]
            yield Group(field, tuple(sorted(parts, key=lambda part: -part.value)), len(kinds) - len(largest))


def _label(row: Replayed, label: str) -> str:
    return row.row.trace.labels.get(label, "not said") if row.row.trace else "not said"


def _rate(rows: Sequence[Replayed]) -> float:
    return sum(len(one.sources) for one in rows) / sum(len(one.accepted) for one in rows)


def _ahead(rows: Sequence[Replayed], others: Sequence[Replayed]) -> tuple[int, int]:
    steps = np.array(
        [[len(one.accepted), len(other.accepted)] for one, other in zip(rows, others, strict=True)]
    )
    return int((steps[:, 0] < steps[:, 1]).sum()), int((steps[:, 0] > steps[:, 1]).sum())


def _extremes(rows: Sequence[Replayed]) -> tuple[tuple[Replayed, ...], tuple[Replayed, ...]]:
    """The rows with most and least tokens per step, one a question, very short answers left out."""
    long = [one for one in rows if len(one.sources) >= _FEW_TOKENS]
    ordered = sorted(long, key=lambda one: -one.tokens_per_step)
    most = list({one.row.question: one for one in reversed(ordered)}.values())[::-1]
    most = sorted(most, key=lambda one: -one.tokens_per_step)[
        : min(_EXAMPLES, len(most) // 2 + len(most) % 2)
    ]
    taken = {one.row.question for one in most}
    least = {one.row.question: one for one in ordered if one.row.question not in taken}
    return tuple(most), tuple(sorted(least.values(), key=lambda one: one.tokens_per_step)[:_EXAMPLES])
