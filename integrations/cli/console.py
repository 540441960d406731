"""Where output goes: answers to stdout, everything about them to stderr, bars only to a terminal."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from groundspeed.types import ProgressCallback

__all__ = [
    "print_error",
    "print_json",
    "print_note",
    "printable",
    "progress_bars",
    "quiet_libraries",
    "stderr",
    "stdout",
]


def stdout() -> Console:
    """The console for answers."""
    return Console(file=sys.stdout, highlight=False)


def stderr() -> Console:
    """The console for everything else."""
    return Console(file=sys.stderr, highlight=False)


def print_error(message: str) -> None:
    """Print one line on stderr, red on a terminal."""
    line = " ".join(printable(message).split())
    stderr().print(Text(f"error: {line}", style="red"), soft_wrap=True)


def print_note(message: str) -> None:
    """Print one line about the answer on stderr."""
    stderr().print(printable(message), markup=False, soft_wrap=True)


def print_json(value: Mapping[str, Any]) -> None:
    """Print one JSON object on stdout."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False, indent=2) + "\n")


def printable(text: str) -> str:
    """Replace control characters, which documents and models may hold and a terminal would obey."""
    return "".join(char if char in "\n\t" or char.isprintable() or char == "\xa0" else "�" for char in text)


class _Rate(ProgressColumn):
    """How many a second."""

    def __init__(self, unit: str) -> None:
        self._unit = unit
        super().__init__()

    def render(self, task: Task) -> Text:
        return Text(f"{task.speed:,.0f} {self._unit}/s" if task.speed else "")


@contextmanager
def progress_bars(unit: str | None = None) -> Iterator[ProgressCallback]:
    """Give a callback that draws a bar per stage on stderr; it draws nothing where that is no terminal.

    Args:
        unit: What is counted; shows how many a second and the time left as well.
    """
    console = stderr()
    columns: tuple[ProgressColumn, ...] = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    if unit is not None:
        columns = (*columns, _Rate(unit), TimeRemainingColumn())
    tasks: dict[str, TaskID] = {}
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:

        def report(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = progress.add_task(what, total=total or None)
            progress.update(tasks[what], completed=done, total=total or None)

        yield report


def quiet_libraries() -> None:
    """Keep the warnings and bars of the model libraries out of the terminal."""
    from transformers.utils import logging

    warnings.simplefilter("ignore")
    logging.set_verbosity_error()
    logging.disable_progress_bar()
