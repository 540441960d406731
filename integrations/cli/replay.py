"""``groundspeed bench replay``: drafters beside each other on recorded answers, without a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Column, Table

from groundspeed.integrations.cli import options
from groundspeed.integrations.cli.console import (
    print_json,
    print_note,
    progress_bars,
    quiet_libraries,
    stdout,
)
from groundspeed.integrations.cli.html import check_html, write_page

__all__ = ["replay"]

_BUDGETS = (16, 32, 64)
_REPORTED = ("blend", "suffix-decoding", "single-match", "prompt-lookup", "none")
"""Drafters of the page, where no others are asked for; at the middle budget."""
_BAD = 10  # bad rows that are named on the terminal


def replay(
    traces: Annotated[
        list[Path],
        typer.Argument(
            exists=True,
            dir_okay=False,
            help="JSON lines (.gz or not): `question`, `passages`, `response`; or `messages`, `response`.",
            metavar="TRACES",
        ),
    ],
    drafter: Annotated[
        list[str] | None,
        typer.Option(help="Drafter to replay; may be repeated; default all installed; with --html five."),
    ] = None,
    budget: Annotated[
        list[int] | None,
        typer.Option(
            min=1, max=4096, help="Draft nodes per step; may be repeated; default 16, 32, 64; with --html 32."
        ),
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
    cost: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            help="What `groundspeed bench speed --json` printed: draft what pays there, say how fast.",
            metavar="FILE",
        ),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(help="Write what it says of the log as a page to this file.", metavar="FILE"),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Count the tokens per step that drafters would have won on recorded answers."""
    from groundspeed.integrations.bench.drafters import DRAFTERS, check, installed
    from groundspeed.integrations.bench.pass_cost import read_pass_cost
    from groundspeed.integrations.bench.replay import measure_files
    from groundspeed.verify.loading import load_tokenizer

    check(drafter or ())
    check_html(html)
    known = [*DRAFTERS] if html is None else [*_REPORTED]
    names = list(dict.fromkeys(drafter or (name for name in known if name in installed())))
    budgets = list(dict.fromkeys(budget or (_BUDGETS if html is None else _BUDGETS[1:2])))
    for name in known if not drafter else ():
        if name not in names:
            print_note(f"{name} is left out: {DRAFTERS[name].package} is not installed (benchmarks/peers.md)")
    paid = None if cost is None else read_pass_cost(cost)
    quiet_libraries()
    bad: list[str] = []
    with progress_bars() as report:
        loaded = load_tokenizer(tokenizer, report)
        measured = measure_files(
            traces,
            loaded,
            {name: DRAFTERS[name].build for name in names},
            budgets,
            history=history,
            rows=rows,
            held_out=held_out,
            cost=None if paid is None else paid.relative,
            on_progress=report,
            on_bad=bad.append,
        )
    for complaint in bad[:_BAD]:
        print_note(f"left out: {complaint}")
    if len(bad) > _BAD:
        print_note(f"left out: {len(bad) - _BAD} more rows")
    summaries = [one.as_json() for one in measured]
    if as_json:
        print_json({"rows": summaries})
    else:
        _print(summaries)
    if html is not None:
        from groundspeed.integrations.bench.report import report_page

        write_page(html, report_page(measured, loaded, history=history, cost=paid, bad=bad))


def _print(measured: list[dict[str, Any]]) -> None:
    """A table a data set, and one of the averages over them."""
    from groundspeed.integrations.bench.tally import average

    tables: dict[str, list[dict[str, Any]]] = {}
    alike: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in measured:
        tables.setdefault(row["dataset"], []).append(row)
        alike.setdefault((row["drafter"], row["budget"]), []).append(row)
    headed = [*tables.items()]
    if len(tables) > 1:
        headed.append(("average", [{**rows[0], **average(rows)} for rows in alike.values()]))
    for name, rows in headed:
        table = Table(
            Column("drafter", no_wrap=True),
            title=escape(f"{name}, {rows[0]['rows']} rows"),
            title_justify="left",
        )
        last = "times as fast" if "times_as_fast" in rows[0] else "us p50/p95"  # more are too wide to read
        for heading in ("budget", "tokens per step", "p10-p90 of rows", "drafted", "accepted", last):
            table.add_column(heading, justify="right", min_width=7)
        for row in rows:
            table.add_row(
                row["drafter"],
                f"{row['budget']}",
                f"{row['tokens_per_step']:.3f}",
                f"{row['row_p10']:.1f}-{row['row_p90']:.1f}",
                f"{row['drafted_per_step']:.1f}",
                f"{row['acceptance_rate']:.1%}",
                f"{row['times_as_fast']:.2f}"
                if "times_as_fast" in row
                else f"{row['draft_us_p50']:.0f}/{row['draft_us_p95']:.0f}",
            )
        stdout().print(table)
