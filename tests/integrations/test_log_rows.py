"""What a log may look like, and what is said of rows that cannot be used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from groundspeed.errors import InputError
from groundspeed.integrations.bench.log_rows import read_row
from groundspeed.integrations.bench.traces import read_traces

SYSTEM = {"role": "system", "content": "Answer from the text: a bridge is a bridge."}
USER = {
    "role": "user",
    "content": [{"type": "text", "text": "What is "}, {"type": "text", "text": "a bridge?"}],
}
CALL = {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}
ANSWER = {"role": "assistant", "content": "A bridge is a bridge."}
REPLY = {"object": "chat.completion", "choices": [{"index": 0, "message": ANSWER}]}


@pytest.mark.parametrize(
    "row",
    [
        {"messages": [SYSTEM, USER], "response": ANSWER["content"]},
        {"messages": [SYSTEM, USER], "response": REPLY},
        {"messages": [SYSTEM, USER], "response": {"choices": [{"text": ANSWER["content"]}]}},
        {"messages": [SYSTEM, USER, ANSWER]},
        {"messages": [SYSTEM, USER, CALL], "response": REPLY},
    ],
)
def test_a_chat_is_read_with_its_answer_wherever_that_stands(row: dict[str, Any]) -> None:
    trace = read_row(row, "my.jsonl, line 7")
    assert trace.id == "line 7"
    assert trace.prompt == "Answer from the text: a bridge is a bridge.\n\nWhat is a bridge?"
    assert trace.question == "What is a bridge?"
    assert trace.response == "A bridge is a bridge."
    assert trace.passages == ()


def test_passages_of_a_chat_are_drafted_from_and_not_put_into_its_prompt_again() -> None:
    trace = read_row({"messages": [SYSTEM, USER, ANSWER], "passages": ["a text"]}, "f, line 1")
    assert trace.passages == ("a text",)
    assert "a text" not in trace.prompt


def test_a_question_needs_its_answer_only_and_says_what_kind_it_is() -> None:
    row = {"id": 12, "question": "q", "response": "r", "model": "m", "type": "", "config": ["x"]}
    trace = read_row(row, "f, line 1")
    assert (trace.id, trace.prompt, trace.passages) == ("12", "q", ())
    assert trace.labels == {"model": "m"}


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ({"question": "q"}, "`response` is missing"),
        ({"messages": "hi", "response": "r"}, '`messages` is "hi"'),
        ({"messages": [], "response": "r"}, r"`messages` is \[\]"),
        ({"messages": [{"role": "user"}], "response": "r"}, "`messages` is"),
        ({"messages": [{"role": "user", "content": [1]}], "response": "r"}, "`messages` is"),
        ({"messages": [SYSTEM, USER]}, "`response` is missing"),
        ({"messages": [USER], "response": {"choices": []}}, "`response` is {"),
        ({"messages": [USER], "response": {"choices": [3]}}, "`response` is {"),
        ({"messages": [USER], "response": 3}, "`response` is 3"),
        ({"messages": [USER, ANSWER], "passages": {"a": "b"}}, "`passages` is {"),
        ({"messages": [{"role": "user", "content": "\ud800"}], "response": "r"}, "half of a character"),
        ({"question": "q", "response": "r", "id": None}, "`id` is null"),
    ],
)
def test_what_is_wrong_with_a_row_is_said_with_its_line(row: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InputError, match=rf"^my\.jsonl, line 3: .*{complaint}"):
        read_row(row, "my.jsonl, line 3")


def test_rows_that_cannot_be_used_are_named_and_the_others_read(tmp_path: Path) -> None:
    file = tmp_path / "my.jsonl"
    good = [json.dumps({"id": f"{n}", "question": "q", "response": f"r{n}"}).encode() for n in range(3)]
    file.write_bytes(
        b"\n".join([good[0], b"{", b"\xff\xfe", good[1], b"[]", b'{"question": 1}', b"", good[2]])
    )
    bad: list[str] = []
    assert {trace.response for trace in read_traces(file, bad.append)} == {"r0", "r1", "r2"}
    assert [one.partition(": ")[0] for one in bad] == [f"{file}, line {n}" for n in (2, 3, 5, 6)]


def test_a_file_without_a_row_of_use_is_refused_after_all(tmp_path: Path) -> None:
    file = tmp_path / "my.jsonl"
    file.write_text('{\n{"question": "q", "response": ""}\n')
    bad: list[str] = []
    with pytest.raises(InputError, match=r"my\.jsonl holds no recorded answer"):
        read_traces(file, bad.append)
    assert len(bad) == 1
