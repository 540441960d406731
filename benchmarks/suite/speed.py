"""Whole answers against ``generate`` and its prompt lookup, by kind of task."""

from __future__ import annotations

import json
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from suite.figures import comparison
from suite.part import BENCHMARKS, DATA_SETS, SHARED, Json, Part, Size

if TYPE_CHECKING:
    from groundspeed.integrations.bench.prompts import BenchPrompt
    from groundspeed.integrations.bench.speed import SpeedReport
    from groundspeed.verify.engine import Engine

__all__ = ["PARTS", "RECORDED", "SPEC_BENCH", "prompts_of", "setting_of"]

LONGEST = 1_200  # tokens of a prompt
TOKENS = 48
OWN = BENCHMARKS / "prompts"
SPEC_BENCH = SHARED / "prompts" / "spec_bench.jsonl.gz"
RECORDED = tuple(SHARED / "traces" / f"{name}.jsonl.gz" for name in DATA_SETS)


def measure(
    size: Size, *, files: tuple[Path, ...], count: int, task: str | None = None, longest: int = TOKENS
) -> Json:
    """Answer prompts by every method in turn.

    Args:
        size: How much.
        files: The prompts' files.
        count: Prompts in all.
        task: Only rows of this ``task``.
        longest: Tokens of an answer, at most.
    """
    from groundspeed.integrations.bench.speed import measure_speed
    from groundspeed.verify.engine import Engine
    from groundspeed.verify.loading import load_model

    engine = Engine.from_pretrained()
    prompts = prompts_of(engine, files, size.of(count), task)
    reference = load_model().model
    tokens, rounds = size.of(longest, 8), size.of(3)
    report = measure_speed(engine, reference, prompts, tokens, rounds)
    return {
        **setting_of(engine, prompts, tokens, rounds),
        **report.as_json(),
        "comparisons": comparisons(report),
    }


def comparisons(report: SpeedReport) -> list[Json]:
    """Against each method, by the time per token."""
    from groundspeed.integrations.bench.speed import GROUNDSPEED, PEERS

    ours = report.tokens[GROUNDSPEED]
    return [
        comparison(
            "whole answers", peer, [ratio * ours / report.tokens[peer] for ratio in report.ratios(peer)]
        )
        for peer in PEERS
    ]


def setting_of(engine: Engine, prompts: list[BenchPrompt], tokens: int, rounds: int) -> Json:
    """What was asked, and of which model."""
    return {
        "model": engine.model_name,
        "dtype": engine.dtype,
        "device": engine.device,
        "decoding": engine.target.capability.decoding,
        "prompts": len(prompts),
        "prompt_tokens": sum(len(prompt.token_ids) for prompt in prompts),
        "max_tokens": tokens,
        "rounds": rounds,
    }


def prompts_of(
    engine: Engine, files: tuple[Path, ...], count: int, task: str | None = None, longest: int = LONGEST
) -> list[BenchPrompt]:
    """Prompts spread evenly over the files, or over their rows of one task."""
    from groundspeed.integrations.bench.json_lines import json_lines
    from groundspeed.integrations.bench.prompts import read_prompts

    lengths = range(1, longest + 1)
    if task is None:
        return read_prompts(files, engine.tokenizer, count, lengths)
    with tempfile.TemporaryDirectory() as folder:
        chosen = Path(folder) / f"{task}.jsonl"
        rows = (row for file in files for _, row in json_lines(file) if row["task"] == task)
        chosen.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return read_prompts([chosen], engine.tokenizer, count, lengths)


def _part(name: str, minutes: float, files: tuple[Path, ...], count: int, **how: Any) -> Part:
    return Part(f"speed-{name}", minutes, partial(measure, files=files, count=count, **how), files)


PARTS = (
    _part("rag", 5.0, RECORDED, 8, longest=64),
    _part("summarization", 2.2, (SPEC_BENCH,), 4, task="summarization"),
    _part("extractive", 1.7, (OWN / "extractive.jsonl",), 4),
    _part("abstractive", 1.7, (OWN / "abstractive.jsonl",), 4),
    _part("no-answer", 1.2, (OWN / "no_answer.jsonl",), 4),
    _part("chat", 1.7, (OWN / "chat.jsonl",), 4),
    _part("code", 1.7, (OWN / "code.jsonl",), 4),
    _part("nothing-to-copy", 1.7, (BENCHMARKS / "nothing_to_copy.jsonl",), 4),
)
