"""Documents are cut into chunks that know where in the document they stand."""

from __future__ import annotations

import re
from typing import NamedTuple

from groundspeed.datastores.documents import Chunking
from groundspeed.errors import InputError
from groundspeed.types import Document

__all__ = ["DEFAULT_CHUNKING", "Span", "chunk"]

DEFAULT_CHUNKING = Chunking(size=1000, overlap=120)
_SEPARATORS = ["\n\n", "\n", ". ", " ", ""]
_MARKDOWN = (".md", ".markdown")
_WORD_START = re.compile(r"(?<=\s)\S")


class Span(NamedTuple):
    """A chunk, ``document.text[start:end]``.

    Attributes:
        start: Character offset of the first character.
        end: Just past the last character.
    """

    start: int
    end: int


def chunk(document: Document, chunking: Chunking = DEFAULT_CHUNKING) -> list[Span]:
    """Cut a document at the coarsest borders that keep chunks within ``chunking.size`` characters.

    The borders are those of langchain-text-splitters (headings for Markdown, then paragraphs, lines,
    sentences, words). The splitter is asked for pieces without overlap and without stripping: such pieces
    add up to the text, so their offsets are sums of lengths. (Its own start index searches for the piece
    and errs where text repeats.) The overlap is put in front of each piece here, from a word's start on,
    and white space at the ends is cut off.

    Returns:
        Spans in order, none empty; every character but white space is in at least one.

    Raises:
        InputError: The overlap is not smaller than half the size.
    """
    if not 0 <= chunking.overlap < chunking.size / 2:
        raise InputError(
            f"A chunk overlap of {chunking.overlap} does not go with a chunk size of {chunking.size}: "
            "it must be at least 0 and less than half the size."
        )
    text, spans, position = document.text, list[Span](), 0
    for piece in _split(document, chunking.size - chunking.overlap):
        # index() finds the piece right at ``position`` as long as the pieces add up to the text.
        start = text.index(piece, position)
        position = start + len(piece)
        if piece.isspace():
            continue
        if spans:
            earliest = max(start - chunking.overlap, spans[-1].start + 1)
            word = _WORD_START.search(text, earliest, start)
            start = word.start() if word else start
        stretch = text[start:position]
        start += len(stretch) - len(stretch.lstrip())
        spans.append(Span(start, start + len(stretch.strip())))
    return spans


def _split(document: Document, size: int) -> list[str]:
    from langchain_text_splitters import Language, RecursiveCharacterTextSplitter

    if document.id.lower().endswith(_MARKDOWN):
        splitter = RecursiveCharacterTextSplitter.from_language(
            Language.MARKDOWN,
            chunk_size=size,
            chunk_overlap=0,
            strip_whitespace=False,
            keep_separator="start",
        )
    else:
        splitter = RecursiveCharacterTextSplitter(
            _SEPARATORS, chunk_size=size, chunk_overlap=0, strip_whitespace=False, keep_separator="end"
        )
    return splitter.split_text(document.text)
