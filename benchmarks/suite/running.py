"""Parts one after the other, each in a process of its own; what is there already is not measured again."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Sequence
from datetime import UTC, datetime
from multiprocessing.connection import Connection

from suite.part import Json, LeftOut, Part, Size
from suite.results import Results, key_of, provenance

__all__ = ["LIMIT", "run_parts"]

LIMIT = 900.0
"""Seconds after which a part is given up."""


def run_parts(
    parts: Sequence[Part], results: Results, size: Size, *, again: bool = False, limit: float = LIMIT
) -> list[str]:
    """Measure what has no results yet.

    Each part's results are written as soon as it ends, so a run that is stopped goes on where it was. What
    fails leaves its former results as they are, and the other parts are measured all the same.

    Args:
        parts: In order.
        results: Where to.
        size: How much to measure.
        again: Measure also what has results from this code, these inputs and this machine.
        limit: Seconds for a part.

    Returns:
        The names of the parts that failed.
    """
    failed = []
    for place, part in enumerate(parts, start=1):
        head = f"[{place}/{len(parts)}] {part.name}"
        if not again and results.has(part, size):
            print(f"{head}: measured already", flush=True)
            continue
        print(f"{head}: about {part.minutes:g} min", flush=True)
        begun = time.monotonic()
        result, error = _measure_apart(part, size, limit)
        if result is None:
            failed.append(part.name)
            print(f"{head}: FAILED: {error}", flush=True)
            continue
        results.write(part.name, result)
        left_out = f"left out, as {result['left_out']}" if "left_out" in result else "done"
        print(f"{head}: {left_out} ({time.monotonic() - begun:.0f} s)", flush=True)
    return failed


def _measure_apart(part: Part, size: Size, limit: float) -> tuple[Json | None, str]:
    """The result, or None and what went wrong."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_measure, args=(part, size, theirs), name=part.name)
    process.start()
    theirs.close()
    try:
        if not ours.poll(limit):
            return None, f"not done after {limit:.0f} s"
        result, error = ours.recv()
        process.join(10)  # what it cleans up
    except EOFError:
        process.join()
        return None, f"its process ended with exit code {process.exitcode} and no result"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid or 0, signal.SIGKILL)
        process.join()
    return result, error


def _measure(part: Part, size: Size, pipe: Connection) -> None:
    """In the part's process, which leads a group of its own: whatever the part starts ends with it."""
    os.setsid()
    date, begun = datetime.now(UTC).isoformat(timespec="seconds"), time.perf_counter()
    key = key_of(part, size)  # before, as the code may be edited meanwhile
    what: Json
    try:
        missing = [file for file in part.inputs if not file.exists()]
        if missing:
            raise LeftOut(
                f"{missing[0].name} is not there: see the data in the documentation of the benchmark"
            )
        what = {"data": part.measure(size)}
    except LeftOut as reason:
        what = {"left_out": str(reason)}
    except Exception:
        pipe.send((None, traceback.format_exc()))
        return
    where = provenance(part, size, date=date, seconds=time.perf_counter() - begun) if "data" in what else {}
    pipe.send(({"part": part.name, "key": key, "provenance": where, **what}, ""))
