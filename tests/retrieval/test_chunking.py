from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from groundspeed.datastores.documents import Chunking
from groundspeed.errors import InputError
from groundspeed.retrieval.chunking import chunk
from groundspeed.types import Document

PIECES = st.sampled_from(
    [
        "word ",
        "word ",
        "\n\n",
        "\n",
        "  ",
        "\t",
        ". ",
        "# Head\n",
        "```\n",
        "---\n",
        "é",
        "漢字",
        "🙂",
        "\r\n",
        "\u2028",
    ]
)
NASTY = [
    "same paragraph\n\n" * 50,
    "a" * 1000,
    " " * 500 + "x" + " " * 500,
    "\n# H\n" * 100,
    "漢字かな" * 100,
    "word " * 300,
    "e\u0301" * 300,
    "```\n```\n\n---\n***\n" * 40,
]


def check(text: str, name: str, chunking: Chunking) -> None:
    spans = chunk(Document(name, text), chunking)
    covered = [False] * len(text)
    for start, end in spans:
        assert 0 <= start < end <= len(text)
        assert end - start <= chunking.size
        assert text[start:end] == text[start:end].strip()
        covered[start:end] = [True] * (end - start)
    assert all(done or character.isspace() for done, character in zip(covered, text, strict=True))
    for before, after in itertools.pairwise(spans):
        assert before.start < after.start
        assert before.end < after.end
        assert before.end - after.start <= chunking.overlap


@pytest.mark.parametrize("text", NASTY)
@pytest.mark.parametrize("name", ["a.txt", "a.md"])
@pytest.mark.parametrize("chunking", [Chunking(60, 0), Chunking(60, 20), Chunking(100, 49)])
def test_chunks_of_nasty_texts_cover_them_in_order(text: str, name: str, chunking: Chunking) -> None:
    check(text, name, chunking)


@settings(max_examples=200, deadline=None)
@given(st.lists(PIECES, max_size=120).map("".join), st.sampled_from(["a.txt", "a.md"]), st.integers(0, 14))
def test_chunks_of_any_text_cover_it_in_order(text: str, name: str, overlap: int) -> None:
    check(text, name, Chunking(30, overlap))


def test_chunks_end_where_paragraphs_do() -> None:
    text = "First paragraph, short.\n\nSecond paragraph, short.\n\nThird."
    spans = chunk(Document("a.txt", text), Chunking(40, 0))
    assert [text[start:end] for start, end in spans] == [
        *text.split("\n\n")[:1],
        "Second paragraph, short.\n\nThird.",
    ]


def test_markdown_is_cut_before_headings() -> None:
    text = "# One\n\nSome text here.\n\n# Two\n\nOther text here."
    spans = chunk(Document("a.md", text), Chunking(30, 0))
    assert [text[start:end] for start, end in spans] == [
        "# One\n\nSome text here.",
        "# Two\n\nOther text here.",
    ]


def test_the_overlap_begins_with_a_whole_word() -> None:
    text = "alpha beta gamma delta epsilon zeta eta theta iota kappa"
    spans = chunk(Document("a.txt", text), Chunking(24, 10))
    assert all(start == 0 or text[start - 1] == " " for start, _ in spans)
    assert any(after.start < before.end for before, after in itertools.pairwise(spans))


@pytest.mark.parametrize("chunking", [Chunking(0, 0), Chunking(10, 5), Chunking(10, -1), Chunking(-5, 0)])
def test_an_overlap_that_does_not_go_with_the_size_is_refused(chunking: Chunking) -> None:
    with pytest.raises(InputError, match="less than half the size"):
        chunk(Document("a", "text"), chunking)
