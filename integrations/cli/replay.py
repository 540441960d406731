"""``groundspeed bench replay``: drafters beside each other on recorded answers, without a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from groundspeed.integrations.cli import options
from groundspeed.integrations.cli.console import (
    print_json,
    print_note,
    progress_bars,
    quiet_libraries,
    stdout,
)

__all__ = ["replay"]

_BUDGETS = (16, 32, 64)


def replay(
    traces: Annotated[
        list[Path],
        typer.Argument(
            exists=True,
            dir_okay=False,
            help="JSON lines (.gz or not): `id`, `question`, `passages`, `response`, perhaps `history`.",
            metavar="TRACES",
        ),
    ],
    drafter: Annotated[
        list[str] | None, typer.Option(help="Drafter to replay; may be repeated; default all installed.")
    ] = None,
    budget: Annotated[
        list[int] | None,
        typer.Option(min=1, help="Draft nodes per step; may be repeated; default 16, 32, 64."),
    ] = None,
    tokenizer: Annotated[
        str | None, typer.Option(help="Hub id, folder or GGUF file; by default that of the embedded model.")
    ] = None,
    history: Annotated[
        float,
        typer.Option(
            min=0.0, max=1.0, help="Fraction of the other questions' answers that may be drafted from."
        ),
    ] = 0.0,
    rows: Annotated[int | None, typer.Option(min=1, help="Rows to replay, at most, of each file.")] = None,
    held_out: Annotated[
        bool, typer.Option("--held-out", help="Only rows that the shipped priors were not fitted on.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Count the tokens per step that drafters would have won on recorded answers."""
    from groundspeed.integrations.bench.drafters import DRAFTERS, check, installed
    from groundspeed.integrations.bench.replay import replay_files
    from groundspeed.verify.loading import load_tokenizer

    check(drafter or ())
    names = list(dict.fromkeys(drafter or installed()))
    budgets = list(dict.fromkeys(budget or _BUDGETS))
    for name in DRAFTERS if not drafter else ():
        if name not in names:
            print_note(f"{name} is left out: {DRAFTERS[name].package} is not installed (benchmarks/peers.md)")
    quiet_libraries()
    with progress_bars() as report:
        measured = replay_files(
            traces,
            load_tokenizer(tokenizer, report),
            {name: DRAFTERS[name].build for name in names},
            budgets,
            history=history,
            rows=rows,
            held_out=held_out,
            on_progress=report,
        )
    if as_json:
        print_json({"rows": measured})
    else:
        _print(measured, names, budgets)


def _print(measured: list[dict[str, Any]], names: list[str], budgets: list[int]) -> None:
    from groundspeed.integrations.bench.replay import average

    data_sets = list(dict.fromkeys(row["dataset"] for row in measured))
    for budget in budgets:
        table = Table(title=f"budget {budget}", title_justify="left")
        for heading in ("data set", "drafter"):
            table.add_column(heading, no_wrap=True)
        for heading in ("tokens per step", "drafted per step", "accepted", "draft us p50", "p95", "rows"):
            table.add_column(heading, justify="right")
        for data_set in data_sets:
            for row in measured:
                if (row["dataset"], row["budget"]) == (data_set, budget):
                    table.add_row(data_set, row["drafter"], *_cells(row))
            table.add_section()
        if len(data_sets) > 1:
            for name in names:
                rows = [row for row in measured if (row["drafter"], row["budget"]) == (name, budget)]
                table.add_row("average", name, *_cells(average(rows)))
        stdout().print(table)


def _cells(row: dict[str, Any]) -> list[str]:
    return [
        f"{row['tokens_per_step']:.3f}",
        f"{row['drafted_per_step']:.1f}",
        f"{row['acceptance_rate']:.1%}",
        f"{row['draft_us_p50']:.0f}",
        f"{row['draft_us_p95']:.0f}",
        f"{row['rows']}",
    ]
