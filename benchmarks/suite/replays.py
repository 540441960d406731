"""Recorded answers replayed: tokens per step against other people's drafters."""

from __future__ import annotations

from functools import partial

from suite.figures import comparison
from suite.part import Json, Part, Size
from suite.speed import RECORDED

__all__ = ["BUDGETS", "PARTS"]

BUDGETS = (16, 32, 64)
ROWS = 40


def measure(size: Size, *, history: float) -> Json:
    """Replay held-out rows of every set through every drafter that is installed."""
    from groundspeed.integrations.bench.drafters import DRAFTERS, installed
    from groundspeed.integrations.bench.replay import replay_files
    from groundspeed.verify.loading import load_tokenizer

    rows = replay_files(
        RECORDED,
        load_tokenizer(),
        {name: DRAFTERS[name].build for name in installed()},
        BUDGETS,
        history=history,
        rows=size.of(ROWS, 2),
        held_out=True,
    )
    return {
        "history": history,
        "rows": rows,
        "absent": {name: d.package for name, d in DRAFTERS.items() if not d.installed},
        "comparisons": comparisons(rows, "with earlier answers, " if history else ""),
    }


def comparisons(rows: list[Json], how: str) -> list[Json]:
    """The blend against everything else, set by set and budget by budget."""
    found = {(row["dataset"], row["budget"], row["drafter"]): row["tokens_per_step"] for row in rows}
    return [
        comparison(
            f"answers of {dataset}, {how}budget {budget}",
            drafter,
            [found[dataset, budget, "blend"] / theirs],
            "tokens per step",
        )
        for (dataset, budget, drafter), theirs in found.items()
        if drafter != "blend"
    ]


PARTS = (
    Part("replay", 1.7, partial(measure, history=0.0), RECORDED),
    Part("replay-history", 3.0, partial(measure, history=1.0), RECORDED),
)
