"""Files of JSON lines, as all measurements take them."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from groundspeed.errors import InputError

__all__ = ["json_lines"]


def json_lines(
    file: Path, on_bad: Callable[[str], None] | None = None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of a file, each with where it stands, for messages; empty lines are passed over.

    Args:
        file: JSON lines, ``.gz`` or not.
        on_bad: Told of a line that is no object, which is then passed over; without it that is an error.

    Raises:
        InputError: The file cannot be read, or a line is no object; the message names file and line.
    """
    try:
        with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                where = f"{file}, line {number}"
                try:
                    row = _object(line, where) if line.strip() else None
                except InputError as error:
                    if on_bad is None:
                        raise
                    on_bad(str(error))
                    continue
                if row is not None:
                    yield where, row
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"cannot read {file}: {error}; give a file of JSON lines, .gz or not") from error


def _object(line: bytes, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:  # no JSON or text, or a number or depth that Python refuses
        raise InputError(f"{where}: {error}; a row is a JSON object on a line of its own") from error
    if not isinstance(row, dict):
        raise InputError(f"{where}: got {type(row).__name__}; a row is a JSON object on a line of its own")
    return row
