from __future__ import annotations

import gzip
import json

import numpy as np
import pytest
import torch
from helpers.engines import engine_for
from helpers.families import TREE_FAMILIES, tiny_model

from groundspeed.errors import InputError
from groundspeed.integrations.bench.datastore import measure_datastore
from groundspeed.integrations.bench.prompts import BenchPrompt, read_prompts
from groundspeed.integrations.bench.speed import GENERATE, GROUNDSPEED, PEERS, PLAIN, measure_speed
from groundspeed.types import Passage
from groundspeed.verify.target import TransformersTarget


class Encoded(list):
    @property
    def input_ids(self):
        return list(self)


class Letters:
    """Stands in for a tokenizer without a chat template: a token is a character."""

    chat_template = None
    added_tokens_decoder: dict[int, str] = {}  # noqa: RUF012

    def __call__(self, text, add_special_tokens=True):
        return Encoded(ord(c) for c in text)


def write(path, rows):
    text = "".join(json.dumps(row) + "\n" for row in rows)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return path


def test_prompts_come_evenly_from_all_files_and_all_their_parts(tmp_path):
    plain = write(tmp_path / "plain.jsonl", [{"id": i, "prompt": "x" * (i + 1)} for i in range(100)])
    rag = write(
        tmp_path / "rag.jsonl.gz",
        [{"id": i, "question": "Why?", "passages": [f"Because {i}."], "history": []} for i in range(40)],
    )
    prompts = read_prompts([plain, rag], Letters(), 7, range(1, 1001))
    assert [p.id for p in prompts] == [
        *("plain/0", "plain/33", "plain/66"),
        *("rag/0", "rag/10", "rag/20", "rag/30"),
    ]
    assert prompts[3].passages == (Passage("passage 1", "Because 0."),)
    assert "Because 0." in "".join(map(chr, prompts[3].token_ids))


def test_rows_that_do_not_serve_are_passed_over(tmp_path):
    rows = [
        {"question": "And then?", "passages": ["x"], "history": [{"role": "user", "text": "Why?"}]},
        {"question": "Why?", "passages": []},
        {"prompt": "y" * 2000},
        {"id": "good", "prompt": "z"},
    ]
    file = write(tmp_path / "a.jsonl", rows)
    assert [p.id for p in read_prompts([file], Letters(), 1, range(1, 1001))] == ["a/good"]
    with pytest.raises(InputError, match="2 prompts of 1 to 1000 tokens are wanted"):
        read_prompts([file], Letters(), 2, range(1, 1001))


def test_without_a_number_a_short_file_will_do_but_not_an_empty_one(tmp_path):
    file = write(tmp_path / "a.jsonl", [{"prompt": "x"}, {"prompt": "y"}])
    assert len(read_prompts([file], Letters(), 20, range(1, 9), at_most=True)) == 2
    empty = write(tmp_path / "b.jsonl", [])
    with pytest.raises(InputError, match="gave 0"):
        read_prompts([empty], Letters(), 20, range(1, 9), at_most=True)


@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b"[1]\n",
        b'{"text": "x"}\n',
        b'{"question": "q", "passages": "one text"}\n',
        b'{"prompt": 3}\n',
        b"\xff\xfe",
        None,
    ],
)
def test_a_file_of_another_form_is_refused_by_name(tmp_path, content):
    file = tmp_path / "bad.jsonl"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(InputError, match=r"bad\.jsonl"):
        read_prompts([file], Letters(), 1, range(1, 1001))


def test_a_damaged_gzip_file_is_refused_by_name_and_an_empty_line_is_no_row(tmp_path):
    whole = gzip.compress(b'{"prompt": "x"}\n\n{"prompt": "y"}\n')
    file = tmp_path / "bad.jsonl.gz"
    file.write_bytes(whole)
    assert [p.id for p in read_prompts([file], Letters(), 2, range(1, 9))] == ["bad/1", "bad/2"]
    file.write_bytes(whole[:12] + b"\xff" * 8 + whole[20:])
    with pytest.raises(InputError, match=r"bad\.jsonl\.gz"):
        read_prompts([file], Letters(), 2, range(1, 9))


@pytest.fixture(scope="module")
def model():
    torch.set_num_threads(1)
    return tiny_model(TREE_FAMILIES["llama"]())


def test_every_method_answers_every_prompt_and_is_held_against_generate(model):
    prompts = [BenchPrompt(str(i), (5, 6, 7, 8 + i, 5, 6), ()) for i in range(3)]
    engine = engine_for(TransformersTarget(model))
    report = measure_speed(engine, model, prompts, max_tokens=20, rounds=2)
    assert set(report.seconds) == {*PEERS, GROUNDSPEED}
    assert all(len(rounds) == 2 and min(rounds) > 0 for rounds in report.seconds.values())
    assert set(report.tokens.values()) == {60}
    assert set(report.identical.values()) == {3}
    assert not report.flips
    assert report.as_plain == 3
    assert report.per_token(GENERATE) == pytest.approx(
        sorted(report.ratios(GENERATE))[0] / 2 + sorted(report.ratios(GENERATE))[1] / 2
    )
    assert report.accepted + report.steps == 2 * 3 * 19
    assert sum(tokens * steps for tokens, steps in report.lengths.items()) == 2 * 3 * 19
    assert sum(report.lengths.values()) == report.steps
    assert set(report.profile) == {"draft", "forward", "accept", "commit", "other"}
    assert report.prefill > 0
    assert report.beside_forward == pytest.approx(
        1 - report.profile["forward"] / sum(report.profile.values())
    )
    assert all(seconds >= 0 for seconds in report.profile.values())
    json.dumps(report.as_json())


def test_an_answer_that_differs_is_reported_with_its_margin(model):
    other = tiny_model(TREE_FAMILIES["llama"](), seed=1)
    prompts = [BenchPrompt("p", (5, 6, 7), ())]
    engine = engine_for(TransformersTarget(model))
    report = measure_speed(engine, other, prompts, max_tokens=20, rounds=1, peers=[PLAIN])
    assert report.identical == {GENERATE: 1, PLAIN: 0, GROUNDSPEED: 0}
    plain, ours = report.flips
    assert (plain.method, ours.method) == (PLAIN, GROUNDSPEED)
    assert plain.position == ours.position
    assert plain.margin == ours.margin > 0


def test_a_method_that_does_not_exist_is_refused(model):
    with pytest.raises(InputError, match="no method magic"):
        measure_speed(engine_for(TransformersTarget(model)), model, [], 1, 1, ["magic"])


@pytest.mark.parametrize(("vocab_size", "bytes_a_token"), [(49_152, 6.5), (262_144, 8.5)])
def test_a_datastore_is_measured_and_takes_few_bytes_a_token(tmp_path, vocab_size, bytes_a_token):
    base = np.random.default_rng(0).integers(0, vocab_size, 20_000)
    rows = list(measure_datastore(base, vocab_size, 200_000, tmp_path / "store", queries=100, peers=()))
    built, opened, *asked = rows
    assert built["bytes_per_token"] <= bytes_a_token
    assert 0 < built["added_private_mb"] < built["peak_resident_mb"]
    assert opened["resident_mb"] < 100
    assert len(asked) == 5
    assert all(0 < row["us_p50"] <= row["us_p95"] <= row["us_max"] for row in asked)
    drafts = {row["what"]: row for row in asked}["context to 64 nodes"]
    assert 2 < drafts["accepted"] < 24  # of texts stitched from the same spans of twelve tokens
