"""The record of an answer is the answer: its text, its sources, what was drafted and what was rejected."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from helpers.drafters import ADVERSARIES, RandomTrees, RightAnswerLast
from helpers.engines import FREE
from helpers.families import TREE_FAMILIES, tiny_model
from helpers.tokenizers import byte_tokenizer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from groundspeed.integrations.pipeline import RetrievalEvent
from groundspeed.integrations.view import Recorder, answer_as_json, whole_answer
from groundspeed.types import GenerationRequest, GenerationResult, Passage, Source, StepEvent
from groundspeed.verify.engine import Engine
from groundspeed.verify.target import TransformersTarget
from groundspeed.verify.text import token_text

PROMPT = "once more, "
LENGTH = 48


class Recorded:
    """An answer: its events, the records of them, and its result."""

    def __init__(self, engine: Engine, drafter: Any, request: GenerationRequest) -> None:
        engine.drafter = drafter
        recorder = Recorder(engine.tokenizer, trace=True)
        self.events = [RetrievalEvent(request.passages, len(request.passages)), *engine.stream(request)]
        self.records = [recorder.take(event) for event in self.events]
        self.whole = whole_answer(self.records)
        result = self.events[-1]
        assert isinstance(result, GenerationResult)
        self.result = result

    def steps(self) -> Iterator[tuple[StepEvent, dict[str, Any]]]:
        steps = [event for event in self.events if isinstance(event, StepEvent)]
        return zip(steps, self.whole["steps"], strict=True)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    config = TREE_FAMILIES["llama"]()
    config.vocab_size = 257
    with Engine(TransformersTarget(tiny_model(config)), byte_tokenizer(), cost=FREE) as made:
        yield made


@pytest.fixture(scope="module")
def answer(engine: Engine) -> GenerationResult:
    """What the model says by itself: many bytes that are no whole characters."""
    return engine.generate(GenerationRequest(PROMPT, max_tokens=LENGTH, speculate=False))


@pytest.mark.parametrize("drafter", ADVERSARIES)
def test_the_texts_of_the_steps_are_the_answer_and_the_counts_are_those_of_the_result(
    engine: Engine, answer: GenerationResult, drafter: Any
) -> None:
    request = GenerationRequest(PROMPT, max_tokens=LENGTH)
    one = Recorded(engine, lambda: drafter(answer.token_ids), request)
    steps = one.whole["steps"]
    assert "".join(token["text"] for step in steps for token in step["tokens"]) == answer.text
    assert sum(step["committed"] for step in steps) == len(answer.token_ids)
    assert sum(step["drafted"] for step in steps) == one.result.stats.drafted
    assert sum(step["accepted"] for step in steps) == one.result.stats.accepted
    assert len(steps) == one.result.stats.steps + 1
    times = [record["at_s"] for record in one.records]
    assert times == sorted(times)


def test_a_stop_string_is_in_no_token_and_what_was_held_back_for_one_is(
    engine: Engine, answer: GenerationResult
) -> None:
    for start in range(3, len(answer.text) - 4, 5):
        stop = answer.text[start : start + 4]
        request = GenerationRequest(PROMPT, max_tokens=LENGTH, stop=(stop, answer.text[:2] + "?"))
        one = Recorded(engine, lambda: RightAnswerLast(answer.token_ids), request)
        texts = [token["text"] for step in one.whole["steps"] for token in step["tokens"]]
        assert "".join(texts) == one.result.text
        assert all(texts)


@pytest.mark.parametrize("drafter", ADVERSARIES)
def test_what_is_rejected_is_the_draft_tree_without_the_accepted_path(
    engine: Engine, answer: GenerationResult, drafter: Any
) -> None:

    def text(token: int) -> str:
        return token_text(engine.tokenizer, token)

    rejected = 0
    request = GenerationRequest(PROMPT, max_tokens=LENGTH)
    for event, step in Recorded(engine, lambda: drafter(answer.token_ids), request).steps():
        assert event.tree is not None
        paths: list[tuple[int, ...]] = []
        for token, parent in zip(event.tree.token_ids.tolist(), event.tree.parents.tolist(), strict=True):
            paths.append((*(paths[parent] if parent >= 0 else ()), token))
        kept = {event.token_ids[:n] for n in range(1, event.accepted + 1)}
        lost = {path for path in paths if path not in kept}
        assert kept <= set(paths)
        assert sum(branch["nodes"] for branch in step["rejected"]) == len(lost)
        written = [text(token) for token in event.token_ids]
        for branch in step["rejected"]:
            at, drafted = branch["at"], [token["text"] for token in branch["tokens"]]
            assert (*written[:at], *drafted) in {tuple(map(text, path)) for path in lost}
            assert branch["instead"] == (written[at] if at < len(written) else None)
            assert drafted[0] != branch["instead"] or drafted[0] == "\ufffd"  # half of a character
        assert [one["prob"] for one in step["rejected"]] == sorted(
            (one["prob"] for one in step["rejected"]), reverse=True
        )
        rejected += len(lost)
    assert drafter.__name__ == "RightAnswer" or rejected


def test_spans_stand_in_answer_and_passage_where_the_record_says(
    engine: Engine, answer: GenerationResult
) -> None:
    passages = (
        Passage("a", "some text, " + answer.text[3:20], 100, following=answer.text[20:30]),
        Passage("b", answer.text[32:44] + " and more", 7, 0.5, {"title": "B"}),
    )
    request = GenerationRequest(PROMPT, max_tokens=LENGTH, passages=passages, min_span=8)
    whole = Recorded(engine, lambda: RandomTrees(answer.token_ids), request).whole
    assert len(whole["grounding"]) == 2
    for span in whole["grounding"]:
        passage = passages[span["passage"]]
        document = "-" * passage.start + passage.text + passage.following
        assert whole["text"][span["start"] : span["end"]] == span["text"]
        assert document[span["document_start"] : span["document_end"]] == span["text"]


def test_the_whole_is_the_plain_answer_and_its_steps_and_can_be_written_as_json(
    engine: Engine, answer: GenerationResult
) -> None:
    request = GenerationRequest(PROMPT, max_tokens=LENGTH, passages=(Passage("a", "text"),))
    one = Recorded(engine, lambda: RandomTrees(answer.token_ids), request)
    plain = answer_as_json(one.result, request.passages, 1)
    assert {name: one.whole[name] for name in plain} == plain
    assert set(one.whole) - set(plain) == {"steps", "at_s"}
    assert json.loads(json.dumps(one.whole)) == one.whole


def test_without_a_trace_nothing_is_said_of_rejected_drafts(engine: Engine) -> None:
    recorder = Recorder(engine.tokenizer)
    records = [recorder.take(event) for event in engine.stream(GenerationRequest(PROMPT, max_tokens=8))]
    assert not any("rejected" in record for record in records)


def test_a_token_drafted_from_a_passage_names_it() -> None:
    tokenizer = byte_tokenizer()
    ids = tuple(tokenizer("ab")["input_ids"])
    event = StepEvent(ids, (Source.PASSAGE, Source.TARGET), (3 << 32 | 9, -1), "ab", 1, 1, 0, 0, 0, 0)
    assert Recorder(tokenizer).take(event)["tokens"] == [
        {"text": "a", "source": "passage", "passage": 3},
        {"text": "b", "source": "target"},
    ]


def test_a_token_alone_keeps_its_space_and_a_special_one_its_name() -> None:
    pieces = ["▁a", "▁the", "the", "<end>"]
    backend = Tokenizer(models.Unigram([(piece, -1.0) for piece in pieces], unk_id=0))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<end>")
    assert tokenizer.decode([1]) == "the"
    assert [token_text(tokenizer, token) for token in range(1, 4)] == [" the", "the", "<end>"]
