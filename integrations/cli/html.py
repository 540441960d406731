"""``--html``: the answer as a page in a file."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from groundspeed.errors import InputError
from groundspeed.integrations.cli.console import print_note
from groundspeed.integrations.view import Record, html_page, whole_answer

__all__ = ["check_html", "write_html", "write_page"]


def check_html(file: Path | None) -> None:
    """Refuse a file that cannot be written, before anything is computed.

    Raises:
        InputError: It is a folder, or stands in one that is not there.
    """
    if file is not None and (file.is_dir() or not file.absolute().parent.is_dir()):
        raise InputError(f"--html is {file}; give a file in a folder that is there")


def write_html(file: Path, records: Iterable[Record]) -> None:
    """Write the records of an answer as a page, and say where it is.

    Raises:
        InputError: The file cannot be written.
    """
    write_page(file, html_page([whole_answer(records)]))


def write_page(file: Path, page: str) -> None:
    """Write a page, and say where it is.

    Raises:
        InputError: The file cannot be written.
    """
    try:
        file.write_text(page, encoding="utf-8")
    except OSError as error:
        raise InputError(f"the page cannot be written: {error}; give another file") from error
    print_note(f"The page is {file}: open it in a browser.")
