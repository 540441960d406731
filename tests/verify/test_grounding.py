"""Grounded spans against a brute force that tries every stretch of the answer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groundspeed.errors import InputError
from groundspeed.types import GroundedSpan, Passage
from groundspeed.verify.grounding import ground


def brute_force(text: str, passages: list[Passage], min_chars: int) -> list[tuple[int, int, int]]:
    """(start, end, passage) of the spans, straight from the rule in the docstring of ``ground``."""

    def first_place(stretch: str) -> tuple[int, int] | None:
        return next(
            (
                (i, passage.text.find(stretch))
                for i, passage in enumerate(passages)
                if stretch in passage.text
            ),
            None,
        )

    copies = {}
    for start in range(len(text)):
        for end in range(start + min_chars, len(text) + 1):
            place = first_place(text[start:end])
            if place is not None:
                copies[start, end] = place
    candidates = [
        (start, end, *place)
        for (start, end), place in copies.items()
        if (start - 1, end) not in copies and (start, end + 1) not in copies
    ]
    taken: list[tuple[int, int, int]] = []
    while candidates:
        start, end, passage, _ = min(candidates, key=lambda c: (c[0] - c[1], c[2], c[3], c[0]))
        taken.append((start, end, passage))
        cut = []
        for s, e, p, o in candidates:
            for left, right in ((s, min(e, start)), (max(s, end), e)):
                if right - left >= min_chars:
                    cut.append((left, right, p, o + left - s))
        candidates = cut
    return sorted(taken)


def passages_of(*texts: str) -> list[Passage]:
    return [Passage(document_id=f"d{i}", text=text, start=100 * i) for i, text in enumerate(texts)]


alphabets = st.sampled_from(["a", "ab", "abc ", "héß𝄞\0"])


@st.composite
def answers_with_passages(draw: st.DrawFn) -> tuple[str, list[str]]:
    alphabet = draw(alphabets)
    texts = draw(st.lists(st.text(alphabet, max_size=30), max_size=4))
    pieces = draw(
        st.lists(st.one_of(st.text(alphabet, max_size=8), st.sampled_from([*texts, ""])), max_size=5)
    )
    return "".join(pieces), texts


@given(answers_with_passages(), st.integers(1, 8))
def test_spans_equal_those_of_the_brute_force(case: tuple[str, list[str]], min_chars: int) -> None:
    text, texts = case
    passages = passages_of(*texts)
    spans = ground(text, passages, min_chars)
    assert [(span.start, span.end, span.passage) for span in spans] == brute_force(text, passages, min_chars)


@given(answers_with_passages(), st.integers(1, 8))
def test_every_span_is_verbatim_in_answer_and_document(case: tuple[str, list[str]], min_chars: int) -> None:
    text, texts = case
    documents = {f"d{i}": "#" * (100 * i) + passage for i, passage in enumerate(texts)}
    for span in ground(text, passages_of(*texts), min_chars):
        assert span.text == text[span.start : span.end]
        assert span.text == documents[span.document_id][span.document_start : span.document_end]
        assert len(span.text) >= min_chars


def test_a_span_carries_its_document_and_offsets() -> None:
    passage = Passage(document_id="guide", text="Restart the server after each change.", start=40)
    assert ground("Please restart: Restart the server after it.", [passage]) == (
        GroundedSpan(16, 41, "guide", 40, 65, "Restart the server after ", 0),
    )


def test_a_copy_never_crosses_from_one_passage_into_the_next() -> None:
    assert [s.text for s in ground("alpha beta", passages_of("xx alpha", " beta yy"), 4)] == [
        "alpha",
        " beta",
    ]


def test_the_earlier_passage_wins_a_tie() -> None:
    assert [
        s.passage
        for s in ground("the same words", passages_of("none", "the same words", "the same words"), 4)
    ] == [1]


def test_an_answer_without_passages_has_no_spans() -> None:
    assert ground("anything at all", [], 1) == ()
    assert ground("", passages_of("text"), 1) == ()


def test_a_span_of_no_characters_is_refused() -> None:
    with pytest.raises(InputError, match="min_chars is 0"):
        ground("text", [], 0)


DOCUMENT = "".join(f"{number} bottles hang on the wall, " for number in range(30))


@pytest.mark.parametrize(
    ("borders", "answer"),
    [
        ([(0, 100), (60, 160)], (50, 120)),
        ([(60, 160), (0, 100)], (50, 120)),
        ([(0, 80), (80, 160)], (40, 140)),
        ([(0, 200), (60, 160), (150, 260)], (10, 250)),
        ([(300, 400), (0, 80), (70, 310)], (20, 390)),
    ],
)
def test_a_copy_runs_across_passages_that_overlap_or_touch(
    borders: list[tuple[int, int]], answer: tuple[int, int]
) -> None:
    passages = [Passage("d", DOCUMENT[start:end], start=start) for start, end in borders]
    [span] = ground(DOCUMENT[slice(*answer)], passages, 24)
    assert (span.start, span.end) == (0, answer[1] - answer[0])
    assert (span.document_start, span.document_end) == answer
    holds = [i for i, (start, end) in enumerate(borders) if start <= answer[0] < end]
    assert span.passage == holds[0]


def test_a_copy_runs_on_into_what_follows_a_passage_with_exact_offsets() -> None:
    passages = [
        Passage("d", DOCUMENT[300:340], start=300),
        Passage("d", DOCUMENT[:60], start=0, following=DOCUMENT[60:200]),
        Passage("d", DOCUMENT[150:180], start=150),
    ]
    spans = ground(f"{DOCUMENT[20:130]} and {DOCUMENT[100:150]} + {DOCUMENT[156:190]}", passages, 24)
    assert [(span.document_start, span.document_end, span.passage) for span in spans] == [
        (20, 130, 1),
        (100, 150, 1),
        (156, 190, 2),
    ]
    assert all(span.text == DOCUMENT[span.document_start : span.document_end] for span in spans)


def test_passages_with_a_gap_between_them_or_that_disagree_are_not_joined() -> None:
    gap = [Passage("d", DOCUMENT[:60], start=0), Passage("d", DOCUMENT[61:120], start=61)]
    spans = ground(DOCUMENT[20:100], gap, 24)
    assert [(span.document_start, span.document_end) for span in spans] == [(20, 60), (61, 100)]
    liar = [Passage("d", DOCUMENT[:60], start=0), Passage("d", "X" * 60, start=40)]
    assert ground(DOCUMENT[20:100], liar, 24)[0].document_end == 60
