"""Forms: tokens that are alike but for case, spaces and punctuation."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from groundspeed.drafting.forms import FormIndex, follow_form, token_forms


def test_tokens_alike_but_for_case_spaces_and_marks_share_a_form() -> None:
    the, space_the, upper, quoted, other = token_forms(["the", " the", " The", '"the', " then"]).tolist()
    assert the == space_the == upper == quoted != other


def test_tokens_without_letters_and_parts_of_characters_have_no_form() -> None:
    assert token_forms([" ", "\n\n", "**", "-", "\N{REPLACEMENT CHARACTER}a", ""]).tolist() == [-1] * 6


def test_forms_of_other_scripts_are_kept() -> None:
    assert len(set(token_forms(["\N{CYRILLIC SMALL LETTER A}", "a", "7", "\u4e2d"]).tolist())) == 4


@settings(deadline=None)  # the first call compiles
@given(
    st.lists(st.lists(st.integers(0, 7), max_size=25), min_size=1, max_size=3),
    st.lists(st.integers(0, 7), max_size=12),
)
def test_the_longest_match_of_forms_is_that_of_brute_force(texts: list[list[int]], output: list[int]) -> None:
    forms = np.array([0, 0, 1, 1, 2, 2, -1, -1], np.int32)
    starts = np.cumsum([1, *(len(text) + 1 for text in texts)])[:-1].tolist()
    index = FormIndex(forms)
    index.add([np.array(text, np.int32) for text in texts], starts)
    context = [int(forms[token]) for token in texts[-1] if forms[token] >= 0]
    for token in output:
        place, length = follow_form(index.arrays(1), token)
        if forms[token] < 0:
            assert (place, length) == (-1, 0)
            continue
        context.append(int(forms[token]))
        best, places = longest(texts, starts, forms.tolist(), context)
        if length:
            assert length == best
            assert place - 1 in places
        else:
            assert place == -1


def longest(
    texts: list[list[int]], starts: list[int], forms: list[int], context: list[int]
) -> tuple[int, list[int]]:
    """Length of the longest suffix of the context that some form follows, and all places where it ends."""
    ends: list[tuple[int, int, bool]] = []  # forms that match, position, whether a form follows
    for number, (text, start) in enumerate(zip(texts, starts, strict=True)):
        kept = [(forms[token], start + i) for i, token in enumerate(text) if forms[token] >= 0]
        if number == len(texts) - 1:  # the answer goes on from it
            kept += [(form, -1) for form in context[len(kept) :]]
        for end in range(len(kept)):
            n = 0
            while n < min(len(context), end + 1) and kept[end - n][0] == context[-1 - n]:
                n += 1
            ends.append((n, kept[end][1], end + 1 < len(kept)))
    best = max((n for n, _, followed in ends if followed), default=0)
    return best, [place for n, place, _ in ends if n >= best]
