"""A replay at the cost of passes drafts what pays, and takes the time that its steps take."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from groundspeed.errors import InputError
from groundspeed.integrations.bench.drafters import DRAFTERS
from groundspeed.integrations.bench.pass_cost import read_pass_cost
from groundspeed.integrations.bench.replay import Vocabulary, replay
from groundspeed.integrations.bench.traces import Row

LOOKUP = DRAFTERS["prompt-lookup"].build
VOCABULARY = Vocabulary(50_000)
ROWS = [
    Row(f"{n}", np.array([1, 2, 3, 4, 1, 2, 5], np.int32), (), np.array([1, 2, 3, 4, n], np.int32))
    for n in range(6)
]


def test_where_nodes_cost_nothing_it_is_as_fast_as_it_has_tokens_per_step() -> None:
    plain = replay(ROWS, LOOKUP, [4], VOCABULARY)[4].summary()
    free = replay(ROWS, LOOKUP, [4], VOCABULARY, cost=np.ones(9))[4].summary()
    assert free.pop("times_as_fast") == pytest.approx(plain["tokens_per_step"])
    assert free["tokens_per_step"] == plain["tokens_per_step"] > 1
    assert free["drafted_per_step"] == plain["drafted_per_step"]


def test_where_nodes_cost_more_than_they_bring_none_are_drafted() -> None:
    tally = replay(ROWS, LOOKUP, [4], VOCABULARY, cost=np.arange(1.0, 20, 2))[4]
    assert tally.summary()["times_as_fast"] == tally.summary()["tokens_per_step"] == 1
    assert tally.drafted == 0


def test_the_time_of_an_answer_is_that_of_its_steps() -> None:
    cost = np.array([1.0, 1.1, 1.15, 1.2, 1.6])
    tally = replay(ROWS, LOOKUP, [4], VOCABULARY, cost=cost)[4]
    took = sum(cost[n] for one in tally.replayed for n in one.drafted.tolist())
    assert tally.summary()["times_as_fast"] == pytest.approx(tally.tokens / took)
    assert tally.drafted > 0


def test_costs_are_read_from_what_bench_speed_printed(tmp_path: Path) -> None:
    file = tmp_path / "speed.json"
    setting = {"model": "m", "dtype": "bfloat16", "device": "cpu"}
    file.write_text(json.dumps({**setting, "cost_of_nodes": {"0": 2.0, "2": 3.0, "4": 6.0}}))
    paid = read_pass_cost(file)
    assert paid.relative.tolist() == [1.0, 1.25, 1.5, 2.25, 3.0]
    assert paid.measured_on == "m in bfloat16 on cpu"
    for wrong in ([], {}, setting, {**setting, "cost_of_nodes": {}}, {**setting, "cost_of_nodes": {"0": 0}}):
        file.write_text(json.dumps(wrong))
        with pytest.raises(InputError, match=r"speed\.json .*bench speed prompts\.jsonl --json"):
            read_pass_cost(file)
    with pytest.raises(InputError, match="cannot read"):
        read_pass_cost(tmp_path / "missing.json")
