"""The replay against a replay by hand, and the files and options it takes."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from typer.testing import CliRunner, Result

from groundspeed.drafting.base import Drafter, DrafterFactory, DraftRequest, DraftTree
from groundspeed.drafting.prompt_lookup import PromptLookupDrafter
from groundspeed.drafting.tree import chain
from groundspeed.errors import InputError, MissingDependencyError
from groundspeed.integrations.bench.drafters import DRAFTERS, Named, check, installed
from groundspeed.integrations.bench.replay import Earlier, Vocabulary, decode, replay, replay_files
from groundspeed.integrations.bench.tally import Tally, average
from groundspeed.integrations.bench.traces import Row, in_fit_half, read_traces, tokenise
from groundspeed.integrations.cli.app import app
from groundspeed.types import Source

FIELDS = {
    "dataset",
    "drafter",
    "budget",
    "tokens_per_step",
    "row_p10",
    "row_p50",
    "row_p90",
    "drafted_per_step",
    "acceptance_rate",
    "draft_us_p50",
    "draft_us_p95",
    "rows",
    "accepted_by_source",
}


class Encoded(list[list[int]]):
    @property
    def input_ids(self) -> list[list[int]]:
        return self


class Letters:
    """Stands in for a tokenizer: a token is a character."""

    def __call__(self, texts: Sequence[str], add_special_tokens: bool) -> Encoded:
        assert not add_special_tokens
        return Encoded([ord(char) for char in text] for text in texts)

    def __len__(self) -> int:
        return 256

    def decode(self, token_ids: list[int]) -> str:
        return "".join(map(chr, token_ids))


LETTERS: Any = Letters()
VOCABULARY = Vocabulary(50_000)


def ids(tokens: Sequence[int]) -> NDArray[np.int32]:
    return np.array(tokens, np.int32)


def trace(number: int, question: str = "", **fields: Any) -> dict[str, Any]:
    return {
        "id": f"row {number}",
        "question": question or f"question {number}",
        "passages": ["one passage", "another"],
        "response": f"answer {number}",
        **fields,
    }


def write(path: Path, rows: Sequence[Any]) -> Path:
    text = "".join(json.dumps(row) + "\n" for row in rows)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def test_a_row_becomes_passages_earlier_turns_and_question_as_one_prompt(tmp_path: Path) -> None:
    row = trace(1, history=[{"role": "user", "text": "Hi."}, {"role": "assistant", "text": "Hello."}])
    (read,) = read_traces(write(tmp_path / "a.jsonl.gz", [row]))
    assert read.prompt == "one passage\n\nanother\n\nHi.\n\nHello.\n\nquestion 1"
    (tokens,) = tokenise([read], LETTERS)
    assert "".join(map(chr, tokens.prompt)) == read.prompt
    assert ["".join(map(chr, passage)) for passage in tokens.passages] == row["passages"]
    assert "".join(map(chr, tokens.response)) == "answer 1"


def test_the_order_of_rows_is_that_of_their_ids_and_empty_answers_are_left_out(tmp_path: Path) -> None:
    rows = [trace(number) for number in range(20)]
    forward = read_traces(write(tmp_path / "a.jsonl", [*rows, trace(20, response="")]))
    backward = read_traces(write(tmp_path / "b.jsonl.gz", rows[::-1]))
    assert forward == backward
    assert {read.id for read in forward} == {row["id"] for row in rows}
    assert [read.id for read in forward] != sorted(read.id for read in forward)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{", "JSON object"),
        ("[1]", "got list"),
        (json.dumps(trace(1) | {"id": [7]}), r"`id` is \[7\]"),
        (json.dumps({"id": "x", "question": "q", "passages": []}), "`response` is missing"),
        (json.dumps(trace(1, passages="one text")), '`passages` is "one text"'),
        (json.dumps(trace(1, passages=[1])), r"`passages` is \[1\]"),
        (json.dumps(trace(1, history=["hi"])), r'`history` is \["hi"\]'),
    ],
)
def test_a_row_of_another_form_is_refused_by_file_and_line(tmp_path: Path, line: str, complaint: str) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text(f"{json.dumps(trace(1))}\n\n{line}\n")
    with pytest.raises(InputError, match=rf"bad\.jsonl, line 3: .*{complaint}"):
        read_traces(file)


@pytest.mark.parametrize("content", [None, b"\xff\xfe", b""])
def test_a_file_that_holds_no_answers_is_refused_by_name(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "bad.jsonl"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(InputError, match=r"bad\.jsonl"):
        read_traces(file)


def test_a_gzip_file_cut_short_is_refused_by_name(tmp_path: Path) -> None:
    file = write(tmp_path / "cut.jsonl.gz", [trace(number) for number in range(50)])
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(InputError, match=r"cut\.jsonl\.gz"):
        read_traces(file)


class Told:
    """Drafts a path of the answer with a wrong sibling before each right node, or a wrong chain."""

    def __init__(self, answer: NDArray[np.int32], right: Sequence[int]) -> None:
        self.answer, self.right, self.at, self.asked = answer, right, 0, 0

    def begin(self, request: DraftRequest) -> None:
        self.at = 0

    def extend(self, token_ids: NDArray[np.int32]) -> None:
        assert token_ids.tolist() == self.answer[self.at : self.at + len(token_ids)].tolist()
        self.at += len(token_ids)

    def propose(self, budget: int) -> DraftTree:
        count = self.right[self.asked % len(self.right)]
        self.asked += 1
        ahead = self.answer[self.at : self.at + count]
        wrong = ids([-1 - token for token in self.answer[self.at + count :][:1]])
        return chain(np.concatenate([ahead, wrong]))

    def end(self) -> None:
        self.at = -1


@given(st.lists(st.integers(0, 9), min_size=1, max_size=30), st.lists(st.integers(0, 5), min_size=1))
def test_a_step_brings_the_accepted_tokens_and_one_more(answer: list[int], right: list[int]) -> None:
    row = Row("q", ids([1]), (), ids(answer))
    drafter = Told(row.response, right)
    tally = Tally()
    tally.add(row, decode(row, drafter, 64, VOCABULARY))
    at, steps, accepted, drafted = 0, 0, 0, 0
    while at < len(answer):
        good = min(right[steps % len(right)], len(answer) - at)
        drafted += good + (at + good < len(answer))
        accepted += good
        at += good + 1
        steps += 1
    assert (tally.rows, tally.tokens, tally.steps) == (1, len(answer), steps)
    assert (tally.accepted, tally.drafted) == (accepted, drafted)
    summary = tally.summary()
    assert summary["tokens_per_step"] == summary["row_p10"] == summary["row_p90"] == len(answer) / steps
    (one,) = tally.replayed
    assert (one.accepted.sum(), one.drafted.sum(), len(one.accepted)) == (accepted, drafted, steps)
    assert len(one.sources) == len(one.passages) == len(answer)
    assert (one.sources != Source.TARGET).sum() == accepted == sum(tally.accepted_by_source().values())
    assert drafter.at == -1


def test_of_a_tree_only_the_agreeing_path_is_accepted() -> None:
    class Bush(Told):
        def propose(self, budget: int) -> DraftTree:
            tree = chain(ids([8, 5, 9, 6, 7]))
            parents = ids([-1, -1, 1, 1, 3])
            return DraftTree(tree.token_ids, parents, tree.probs, tree.source, tree.origin)

    row = Row("q", ids([1]), (), ids([5, 6, 7, 5]))
    (step,) = decode(row, Bush(row.response, [0]), 8, VOCABULARY)
    assert step.accepted.tolist() == [False, True, False, True, True]
    assert step.committed == 4


def test_history_is_every_answer_of_other_folds_and_never_one_to_the_same_question() -> None:
    questions = [f"question {number % 30}" for number in range(90)]
    rows = [Row(question, ids([1]), (), ids([number])) for number, question in enumerate(questions)]
    earlier = [Earlier(row.question, row.response) for row in rows]
    answers_to = {question: {n for n, q in enumerate(questions) if q == question} for question in questions}
    histories: list[set[int]] = []
    replayed: list[int] = []

    def build(history: Sequence[NDArray[np.int32]], vocab_size: int) -> DrafterFactory:
        histories.append({int(answer[0]) for answer in history})

        class Spy(Told):
            def extend(self, token_ids: NDArray[np.int32]) -> None:
                replayed.append(int(token_ids[0]))
                assert not answers_to[questions[replayed[-1]]] & histories[-1]

        return lambda: Spy(ids([0]), [0])

    tallies = replay(rows, build, [4, 8], VOCABULARY, earlier)
    assert sorted(replayed) == sorted([*range(90), *range(90)])
    assert [len(history) for history in histories] == [81] * 10
    assert {budget: tally.rows for budget, tally in tallies.items()} == {4: 90, 8: 90}


def test_without_history_a_drafter_is_built_once_and_given_none() -> None:
    built = []

    def build(history: Sequence[NDArray[np.int32]], vocab_size: int) -> DrafterFactory:
        built.append(list(history))
        return PromptLookupDrafter

    replay([Row(str(n), ids([1, 2, 1]), (), ids([2, 1])) for n in range(20)], build, [4], VOCABULARY)
    assert built == [[]]


def test_options_choose_rows_and_history_comes_from_the_whole_file(tmp_path: Path) -> None:
    file = write(tmp_path / "set.v2.jsonl", [trace(number) for number in range(60)])
    held_out = [row for row in read_traces(file) if not in_fit_half(row.question)]
    seen: list[str] = []
    given_history: list[int] = []

    class Spy(PromptLookupDrafter):
        def begin(self, request: DraftRequest) -> None:
            seen.append("".join(map(chr, request.prompt_ids)))
            super().begin(request)

    def build(history: Sequence[NDArray[np.int32]], vocab_size: int) -> DrafterFactory:
        given_history.append(len(history))
        return Spy

    how: dict[str, Any] = {"rows": 7, "held_out": True}
    (measured,) = replay_files([file], LETTERS, {"spy": build}, [4], history=1.0, **how)
    assert sorted(seen) == sorted(row.prompt for row in held_out[:7])
    assert set(measured) == FIELDS
    assert (measured["dataset"], measured["drafter"], measured["budget"]) == ("set", "spy", 4)
    assert measured["rows"] == 7
    assert set(given_history) == {54}
    given_history.clear()
    replay_files([file], LETTERS, {"spy": build}, [4], history=0.5, **how)
    assert 20 < min(given_history) <= max(given_history) <= 30
    given_history.clear()
    replay_files([file], LETTERS, {"spy": build}, [4], **how)
    assert given_history == [0]


def test_a_file_without_held_out_rows_is_refused_by_name(tmp_path: Path) -> None:
    question = next(f"q{n}" for n in range(99) if in_fit_half(f"q{n}"))
    file = write(tmp_path / "fitted.jsonl", [trace(1, question)])
    with pytest.raises(InputError, match=r"fitted\.jsonl has no rows that are held out"):
        replay_files([file], LETTERS, {}, [4], held_out=True)


def test_the_average_weighs_data_sets_alike() -> None:
    one, two = Tally(1, 10, 5, 20, 4, [2.0]), Tally(3, 40, 10, 10, 5, [4.0])
    assert average([one.summary(), two.summary()]) == {
        "tokens_per_step": 3.0,
        "row_p10": 0.0,
        "row_p50": 0.0,
        "row_p90": 0.0,
        "drafted_per_step": 2.5,
        "acceptance_rate": pytest.approx(0.35),
        "draft_us_p50": 3.0,
        "draft_us_p95": 3.0,
        "rows": 4,
    }


@pytest.mark.parametrize("name", installed())
def test_every_drafter_that_can_run_gives_valid_trees_with_and_without_history(name: str) -> None:
    rng = np.random.default_rng(0)
    history = [rng.integers(0, 20, 60).astype(np.int32) for _ in range(5)]
    prompt, passage = (rng.integers(0, 20, 80).astype(np.int32) for _ in range(2))
    for earlier in ([], history):
        drafter: Drafter = DRAFTERS[name].build(earlier, VOCABULARY.size)()
        row = Row("q", prompt, (passage,), history[0][:30])
        for step in decode(row, drafter, 16, VOCABULARY):
            step.tree.validate(1 << 30)
            assert len(step.tree) <= 16


def test_what_is_not_installed_or_not_known_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DRAFTERS, "ghost", Named(DRAFTERS["none"].build, "ghost-package", "ghost_module"))
    assert "ghost" not in installed()
    with pytest.raises(MissingDependencyError, match="ghost needs ghost-package"):
        check(["none", "ghost"])
    with pytest.raises(InputError, match="no drafter magic"):
        check(["magic"])


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str | Path) -> Result:
    monkeypatch.setattr("groundspeed.verify.loading.load_tokenizer", lambda *_: LETTERS)
    return CliRunner().invoke(app, ["bench", "replay", *map(str, arguments)], env={"COLUMNS": "80"})


def test_the_command_prints_a_table_with_the_average(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [
        write(tmp_path / f"{name}.jsonl", [trace(number, response="one passage") for number in range(12)])
        for name in ("a", "b")
    ]
    options = ("--drafter", "none", "--drafter", "prompt-lookup", "--budget", "8", "--history", "1")
    result = run(monkeypatch, *files, *options)
    assert result.exit_code == 0, result.output
    titles = [line.strip() for line in result.stdout.splitlines() if line.strip().endswith("rows")]
    assert titles == ["a, 12 rows", "b, 12 rows", "average, 24 rows"]
    cells = [
        [cell.strip() for cell in line.split("│")[1:-1]]
        for line in result.stdout.splitlines()
        if line.startswith("│")
    ]
    assert [row[:2] for row in cells] == [["none", "8"], ["prompt-lookup", "8"]] * 3
    assert cells[-2][2:6] == ["1.000", "1.0-1.0", "0.0", "0.0%"]
    assert float(cells[-1][2]) > 1


def test_the_command_prints_json_and_says_who_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "groundspeed.integrations.bench.drafters.DRAFTERS",
        {"none": DRAFTERS["none"], "ghost": Named(DRAFTERS["none"].build, "ghost-package", "ghost_module")},
    )
    file = write(tmp_path / "a.jsonl", [trace(number) for number in range(3)])
    result = run(monkeypatch, file, "--json", "--budget", "4", "--budget", "4", "--budget", "9")
    rows = json.loads(result.stdout)["rows"]
    assert [(row["drafter"], row["budget"]) for row in rows] == [("none", 4), ("none", 9)]
    assert all(set(row) == FIELDS for row in rows)
    assert "ghost is left out: ghost-package is not installed" in result.stderr


@pytest.mark.parametrize(
    "line",
    [
        '{"id": "\\ud800", "question": "q", "passages": [], "response": "r"}',
        '{"id": "i", "question": "q", "passages": [], "response": "\\udfff"}',
        "[" * 200_000,
        '{"id": ' + "1" * 5_000 + "}",
    ],
    ids=["id", "response", "deep", "number"],
)
def test_a_row_that_cannot_be_read_is_named(tmp_path: Path, line: str) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text(f"{json.dumps(trace(1))}\n{line}\n", encoding="utf-8")
    with pytest.raises(InputError, match="line 2"):
        read_traces(file)


def test_damaged_compressed_data_is_named(tmp_path: Path) -> None:
    file = tmp_path / "bad.jsonl.gz"
    packed = bytearray(gzip.compress(b"x" * 100))
    packed[12] ^= 0xFF
    file.write_bytes(packed)
    with pytest.raises(InputError, match="bad"):
        read_traces(file)


def test_two_files_of_one_name_are_refused(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    files = [write(tmp_path / "a.jsonl", [trace(1)]), write(tmp_path / "d" / "a.jsonl", [trace(2)])]
    with pytest.raises(InputError, match="named a"):
        replay_files(files, LETTERS, {"none": DRAFTERS["none"].build}, [4])
