"""Files of JSON lines, as all measurements take them."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from groundspeed.errors import InputError

__all__ = ["json_lines"]


def json_lines(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of a file, each with where it stands, for messages; empty lines are passed over.

    Args:
        file: JSON lines, ``.gz`` or not.

    Raises:
        InputError: The file cannot be read, or a line is no object; the message names file and line.
    """
    try:
        with (
            gzip.open(file, "rt", encoding="utf-8")
            if file.suffix == ".gz"
            else file.open(encoding="utf-8") as lines
        ):
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    where = f"{file}, line {number}"
                    yield where, _object(line, where)
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise InputError(f"cannot read {file}: {error}; give a file of JSON lines, .gz or not") from error


def _object(line: str, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:  # not JSON, or a number or a depth that Python refuses
        raise InputError(f"{where}: {error}; a row is a JSON object on a line of its own") from error
    if not isinstance(row, dict):
        raise InputError(f"{where}: got {type(row).__name__}; a row is a JSON object on a line of its own")
    return row
