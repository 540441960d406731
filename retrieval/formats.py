"""File formats: the bytes of a file become plain text. One function a format."""

from __future__ import annotations

import gzip
import io
import json
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from groundspeed.types import Document

__all__ = ["Parsed", "Unreadable", "is_jsonl", "is_known", "known_suffixes", "parse", "parse_jsonl"]


class Unreadable(Exception):  # noqa: N818 - a fact about a file; callers make an InputError of it
    """A file or row that gives no document; the message says why and fits behind a file name and a colon."""


class Parsed(NamedTuple):
    r"""What a file holds.

    Attributes:
        text: Plain text, lines ended by ``\n``.
        metadata: What the format knows besides (a title).
    """

    text: str
    metadata: Mapping[str, Any]


def is_jsonl(name: str) -> bool:
    """Whether a file of this name holds a document per line."""
    return name.lower().endswith((".jsonl", ".jsonl.gz"))


def is_known(name: str) -> bool:
    """Whether files of this name can be read."""
    return is_jsonl(name) or Path(name).suffix.lower() in _PARSERS


def known_suffixes() -> str:
    """The suffixes for messages."""
    return " ".join([*_PARSERS, ".jsonl", ".jsonl.gz"])


def parse(name: str, data: bytes) -> Parsed:
    """Read a file of a known format other than JSONL.

    Raises:
        Unreadable: Saying why.
    """
    return _PARSERS[Path(name).suffix.lower()](data)


def parse_jsonl(path: Path, max_bytes: int) -> Iterator[Document | Unreadable]:
    """Read a document per line: ``id`` and ``text``, all other keys are metadata.

    A bad row comes out as a value, so that the caller can go on with the next one.

    Raises:
        Unreadable: The file as a whole is not what its name says.
    """
    try:
        with gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb") as lines:
            number = 0
            while line := lines.readline(max_bytes + 1):
                number += 1
                if len(line) > max_bytes:
                    yield Unreadable(
                        f"line {number} is longer than {max_bytes / 1e6:g} MB; "
                        "raise --max-document-mb or split it"
                    )
                    while line and not line.endswith(b"\n"):
                        line = lines.readline(max_bytes)
                elif line.strip():
                    yield _parse_row(number, line)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise Unreadable(f"the gzip data is damaged ({error}); pack the file again") from error


def _parse_row(number: int, line: bytes) -> Document | Unreadable:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        return Unreadable(f"line {number} is not JSON ({error}); write one JSON object a line")
    if not isinstance(row, dict):
        return Unreadable(f"line {number} is not an object; {_WANTED_ROW}")
    identity, text = row.pop("id", None), row.pop("text", None)
    if type(identity) is int:
        identity = str(identity)
    for key, value in {"id": identity, "text": text}.items():
        if not isinstance(value, str):
            return Unreadable(f"line {number} has no string under {key!r}; {_WANTED_ROW}")
    return Document(identity, text, row)


def _decode(data: bytes, encoding: str = "utf-8") -> str:
    nul = data.find(0)
    if nul >= 0:
        raise Unreadable(f"it holds a NUL byte at offset {nul}, so it is not UTF-8 text; convert it to UTF-8")
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        raise Unreadable(
            f"byte 0x{data[error.start]:02x} at offset {error.start} is not valid {encoding.upper()}; "
            "convert the file to UTF-8"
        ) from error
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")


def _parse_text(data: bytes) -> Parsed:
    return Parsed(_decode(data), {})


def _parse_html(data: bytes) -> Parsed:
    """Keep what a reader sees: paragraphs apart, white space folded but in ``pre``, no scripts or styles."""
    from bs4 import BeautifulSoup
    from bs4.dammit import EncodingDetector
    from bs4.element import NavigableString

    declared = EncodingDetector.find_declared_encoding(data, is_html=True)
    try:
        markup = _decode(data)
    except Unreadable:
        if declared is None or declared.lower() in {"utf-8", "utf8"}:
            raise
        try:
            markup = _decode(data, declared)
        except (LookupError, UnicodeError) as error:
            raise Unreadable(f"it declares the unusable encoding {declared}; convert it to UTF-8") from error
    try:
        soup = BeautifulSoup(markup, "html.parser")
    except Exception as error:  # broken markup makes the parser raise its own errors and others
        raise Unreadable(
            f"its markup cannot be parsed ({type(error).__name__}: {error}); repair it or save it as text"
        ) from error
    title = " ".join(soup.title.get_text().split()) if soup.title else ""
    for element in soup(["script", "style", "template", "noscript", "head", "svg"]):
        element.decompose()
    for text in soup.find_all(string=True):
        if type(text) is NavigableString:
            # NUL, which no text holds, stands for the spaces that the folding below must leave alone.
            kept = text.find_parent(["pre", "textarea"]) is not None
            text.replace_with(text.replace(" ", "\0") if kept else re.sub(r"\s+", " ", text))
    for element in soup(["br", "tr", "li", "dt", "dd", "option"]):
        element.insert_before("\n")
    for element in soup(["td", "th"]):
        element.append(" ")
    for element in soup(_BLOCKS):
        element.insert_before("\n\n")
        element.insert_after("\n\n")
    lines = re.sub(r"[ \t]*\n[ ]?", "\n", soup.get_text())
    visible = re.sub(r"\n{3,}", "\n\n", lines).strip().replace("\0", " ")
    return Parsed(visible, {"title": title} if title else {})


def _parse_pdf(data: bytes) -> Parsed:
    """Join the text of the pages by empty lines."""
    from pypdf import PdfReader

    try:
        reader = PdfReader(io.BytesIO(data))
        pages = [page.extract_text() for page in reader.pages]
        title = reader.metadata.title if reader.metadata else None
    except Exception as error:  # broken files make pypdf raise nearly anything
        raise Unreadable(
            f"pypdf cannot read it ({type(error).__name__}: {error}); repair the PDF or remove its password"
        ) from error
    text = "\n\n".join(pages)
    if not text.strip():
        raise Unreadable("the PDF holds no text, only images; run text recognition (OCR) over it")
    # Some fonts map glyphs to halves of surrogate pairs, which no encoding can store.
    text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return Parsed(text, {"title": str(title)} if title else {})


_WANTED_ROW = 'write {"id": ..., "text": ...}'

# fmt: off
_BLOCKS = [
    "address", "article", "aside", "blockquote", "details", "dialog", "div", "dl", "fieldset", "figcaption",
    "figure", "footer", "form", "h1", "h2", "h3", "h4", "h5", "h6", "header", "hr", "main", "nav", "ol", "p",
    "pre", "section", "table", "ul",
]
# fmt: on

_PARSERS: dict[str, Callable[[bytes], Parsed]] = {
    ".txt": _parse_text,
    ".text": _parse_text,
    ".md": _parse_text,
    ".markdown": _parse_text,
    ".rst": _parse_text,
    ".html": _parse_html,
    ".htm": _parse_html,
    ".xhtml": _parse_html,
    ".pdf": _parse_pdf,
}
