from __future__ import annotations

import pytest
from helpers.tokenizers import byte_tokenizer
from hypothesis import given
from hypothesis import strategies as st

from groundspeed.verify.text import Detokenizer


@pytest.fixture(scope="module")
def tokenizer():
    return byte_tokenizer()


@given(text=st.text(max_size=30), cuts=st.lists(st.integers(1, 5), max_size=40))
def test_the_pieces_add_up_to_the_text_and_no_character_is_cut(tokenizer, text, cuts):
    ids = tokenizer(text)["input_ids"]
    detokenizer = Detokenizer(tokenizer)
    pieces = []
    start = 0
    for cut in [*cuts, len(ids)]:
        pieces.append(detokenizer.push(ids[start : start + cut]))
        start += cut
    assert "".join(pieces) + detokenizer.finish() == text
    if "\ufffd" not in text:
        assert "\ufffd" not in "".join(pieces)


def test_a_character_that_never_ends_is_shown_as_such_at_the_end(tokenizer):
    ids = tokenizer("aé")["input_ids"]
    detokenizer = Detokenizer(tokenizer)
    assert detokenizer.push(ids[:-1]) == ""
    assert detokenizer.finish() == "a\ufffd"
