"""An answer ends before the first stop string, and nothing that was shown is taken back."""

from __future__ import annotations

import threading

import pytest
from helpers.drafters import ADVERSARIES, RightAnswer
from helpers.engines import FREE, engine_for
from helpers.families import TREE_FAMILIES, tiny_model
from helpers.tokenizers import byte_tokenizer
from hypothesis import given
from hypothesis import strategies as st

from groundspeed.errors import InputError
from groundspeed.types import GenerationRequest, StepEvent
from groundspeed.verify.engine import Engine
from groundspeed.verify.stops import AnswerText, StopStrings
from groundspeed.verify.target import TransformersTarget

TOKENIZER = byte_tokenizer("ab", "bab", "bb")
LETTERS = st.text("abé", max_size=24)
STOPS = st.lists(st.text("abé", min_size=1, max_size=5), min_size=1, max_size=18)


def first_stop(text, stops):
    """Where a text is cut, and by which stop string: of those that end first the longest. Tries them all."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            stop = max(ending, key=len)
            return end - len(stop), stop
    return len(text), None


def pieces_of(text, cuts):
    start = 0
    for cut in cuts:
        yield text[start : start + cut]
        start += cut
    yield text[start:]


@given(LETTERS, STOPS, st.lists(st.integers(0, 4), max_size=30))
def test_the_shown_text_ends_before_the_first_stop_however_it_comes(text, stops, cuts):
    watch = StopStrings(stops)
    shown = ""
    for piece in pieces_of(text, cuts):
        shown += watch.push(piece)
        if watch.found is not None:
            break
    else:
        shown += watch.finish()
    end, stop = first_stop(text, stops)
    assert (shown, watch.found) == (text[:end], stop)


def test_of_two_stops_the_one_that_ends_first_counts_and_then_the_longer_one():
    for cuts in ([], [1] * 5, [2, 2]):
        watch = StopStrings(("abcd", "bc", "c"))
        assert "".join(watch.push(piece) for piece in pieces_of("xabcd", cuts)) == "xa"
        assert watch.found == "bc"


@given(LETTERS, STOPS, st.lists(st.integers(1, 4), max_size=30))
def test_no_more_is_held_back_than_may_begin_a_stop(text, stops, cuts):
    watch = StopStrings(stops)
    shown = read = ""
    for piece in pieces_of(text, cuts):
        read += piece
        shown += watch.push(piece)
        if watch.found is not None:
            return
        begun = (read[at:] for at in range(len(read)) if any(s.startswith(read[at:]) for s in stops))
        assert read == shown + next(begun, "")


@given(LETTERS, STOPS, st.lists(st.integers(1, 4), max_size=30))
def test_the_token_ids_end_with_the_token_that_completes_the_stop(text, stops, cuts):
    ids = TOKENIZER(text)["input_ids"]
    answer = AnswerText(TOKENIZER, stops)
    shown, kept = "", []
    for step in pieces_of(ids, cuts):
        count, more = answer.push(step)
        shown += more
        kept += step[:count]
        if answer.stop is not None:
            break
    else:
        shown += answer.finish()
    end, stop = first_stop(text, stops)
    assert (shown, answer.stop) == (text[:end], stop)
    # The text is that of whole characters: the shortest beginning of the ids that holds the stop string.
    whole = [TOKENIZER.decode(ids[:n]).rstrip("\ufffd") for n in range(len(ids) + 1)]
    assert len(kept) == next((n for n, held in enumerate(whole) if stop and stop in held), len(ids))


def test_an_answer_that_breaks_off_in_a_character_may_still_hold_a_stop():
    ids = TOKENIZER("xaé")["input_ids"][:-1]
    merged = byte_tokenizer()
    answer = AnswerText(merged, ("a\ufffd",))
    assert answer.push(ids) == (3, "x")
    assert (answer.finish(), answer.stop) == ("", "a\ufffd")


@pytest.fixture(scope="module")
def engine():
    config = TREE_FAMILIES["llama"]()
    config.vocab_size = 300
    return Engine(TransformersTarget(tiny_model(config)), TOKENIZER, drafter=lambda: None, cost=FREE)


PROMPT = "once more, "


@pytest.fixture(scope="module")
def spoken(engine):
    """What the model says, and its tokens; it knows of no end."""
    result = engine.generate(GenerationRequest(PROMPT, max_tokens=60, speculate=False))
    return result.text, result.token_ids


@pytest.mark.parametrize("drafter", ADVERSARIES)
@pytest.mark.parametrize("length", [1, 2, 5])
def test_an_answer_with_drafts_ends_where_it_ends_without(engine, spoken, drafter, length):
    text, ids = spoken
    engine.drafter = lambda: drafter(ids)
    for start in range(5, 40, 7):
        stop = text[start : start + length]
        request = GenerationRequest(PROMPT, max_tokens=60, stop=("never said", stop))
        events = list(engine.stream(request))
        plain = engine.generate(GenerationRequest(PROMPT, max_tokens=60, stop=(stop,), speculate=False))
        result = events[-1]
        assert result.text == plain.text == text[: text.index(stop)]
        assert result.token_ids == plain.token_ids == ids[: len(result.token_ids)]
        assert result.finish_reason == plain.finish_reason == "stop"
        assert result.stop == plain.stop == stop
        steps = [event for event in events if isinstance(event, StepEvent)]
        assert "".join(event.text for event in steps) == result.text
        assert tuple(token for event in steps for token in event.token_ids) == result.token_ids
        assert len(result.sources) == len(result.token_ids)


def test_what_ends_an_answer_is_told_apart(engine, spoken):
    text, ids = spoken
    engine.drafter = lambda: RightAnswer(ids)
    without = engine.generate(GenerationRequest(PROMPT, max_tokens=60, stop=("never said",)))
    assert (without.text, without.finish_reason, without.stop) == (text, "length", None)
    engine.target.model.generation_config.eos_token_id = [ids[20], ids[30]]
    try:
        ended = engine.generate(GenerationRequest(PROMPT, max_tokens=60, stop=("never said",)))
    finally:
        engine.target.model.generation_config.eos_token_id = None
    assert ended.token_ids == ids[: min(ids.index(ids[20]), ids.index(ids[30]))]
    assert (ended.finish_reason, ended.stop) == ("stop", None)
    request = GenerationRequest(PROMPT, max_tokens=60, ignore_eos=True, stop_token_ids=(ids[30], ids[20]))
    first = min((ids.index(ids[20]), ids[20]), (ids.index(ids[30]), ids[30]))
    for engine.drafter in (lambda: None, lambda: RightAnswer(ids)):
        ended = engine.generate(request)
        assert (ended.token_ids, ended.finish_reason, ended.stop) == (ids[: first[0]], "stop", first[1])
    with pytest.raises(InputError, match="stop_token_ids holds -1"):
        engine.generate(GenerationRequest(PROMPT, stop_token_ids=(-1,)))


def cancelled_behind(engine, tokens, stop):
    """The events of a request that is cancelled while its ``tokens``-th token is chosen."""
    chosen, streams, begun = [], [], threading.Event()

    def cancel(input_ids, scores):
        chosen.append(1)
        if len(chosen) == tokens:
            assert begun.wait(60)
            streams[0].cancel()
        return scores

    request = GenerationRequest(
        PROMPT, max_tokens=60, stop=(stop,), logits_processors=(cancel,), speculate=False
    )
    streams.append(engine.stream(request))
    begun.set()
    return list(streams[0])


def test_a_cancelled_answer_shows_what_was_held_back_for_a_stop_string(engine, spoken):
    _, ids = spoken
    texts = [engine.decode(ids[:n]) for n in range(len(ids) + 1)]
    tokens = next(n for n in range(20, 60) if texts[n][-1].isascii() and texts[n][:-1] == texts[n - 1])
    *_, before, last, result = cancelled_behind(engine, tokens, texts[tokens][-1] + "never said")
    assert result.token_ids == ids[:tokens]
    assert (before.text, last.text, last.token_ids) == ("", texts[tokens][-1], ())
    assert (result.text, result.finish_reason, result.stop) == (texts[tokens], "cancelled", None)


def test_a_stop_string_in_what_was_held_back_ends_an_answer_that_is_cancelled_there(engine, spoken):
    _, ids = spoken
    texts = [engine.decode(ids[:n]) for n in range(len(ids) + 1)]
    tokens = next(n for n, text in enumerate(texts) if "\ufffd" in text)
    events = cancelled_behind(engine, tokens, "\ufffd")
    result = events[-1]
    assert result.token_ids == ids[:tokens]
    assert result.text == "".join(e.text for e in events if isinstance(e, StepEvent)) == texts[tokens][:-1]
    assert (result.finish_reason, result.stop) == ("stop", "\ufffd")


@pytest.mark.parametrize(
    ("stop", "says"),
    [
        ("end", r"stop is the string 'end'; give a tuple of strings, \('end',\)"),
        (("end", ""), "stop holds ''"),
        ((3,), "stop holds 3"),
    ],
)
def test_stop_strings_that_are_none_are_refused(stop, says):
    engine = engine_for(TransformersTarget(tiny_model(TREE_FAMILIES["llama"]())))
    with pytest.raises(InputError, match=says):
        engine.stream(GenerationRequest((1, 2), stop=stop))
