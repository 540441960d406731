"""What a draft model wins on recorded answers, alone and with retrieved text: replay, tokens per step.

    python benchmarks/draft_models.py ../shared/traces/*.jsonl.gz [--model NAME] [--rows 12] [--budget 32]

Forced decoding as in ``groundspeed bench replay``; the draft model is the embedded one by default, the
answers are those of larger models. No row's question is one that the shipped priors were fitted on. What the
drafters learn from one row they keep for the next ones of the file. Every draft is grown to its full depth,
as a replay has no target whose time could be weighed.

Steps are counted, so the figures are exact for their rows; how far other rows may lie from them, the 90%
interval of the last column says (bootstrap over rows).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from groundspeed.drafting.base import DrafterFactory
from groundspeed.drafting.blend import Blend
from groundspeed.drafting.draft_model import DraftModel
from groundspeed.integrations.bench.replay import Vocabulary, replay
from groundspeed.integrations.bench.traces import Row, data_set_name, in_fit_half, read_traces, tokenise
from groundspeed.verify.draft_lm import TargetAsDraftLM
from groundspeed.verify.loading import load_model
from groundspeed.verify.target import TransformersTarget


def of_the_better(steps: dict[str, NDArray[np.int64]]) -> tuple[float, float, float]:
    """Tokens per step of both together, of the better one's alone; with its 90% interval."""
    both = steps["blend + model"]
    alone = np.stack([steps["blend"], steps["model"]])
    rows = np.random.default_rng(0).integers(0, len(both), (2000, len(both)))
    ratios = alone[:, rows].sum(2).min(0) / both[rows].sum(1)
    return alone.sum(1).min() / both.sum(), *np.quantile(ratios, (0.05, 0.95)).tolist()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("traces", nargs="+", type=Path)
    parser.add_argument("--model", help="hub id, folder or GGUF file; by default the embedded model")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--rows", type=int, default=12)
    parser.add_argument("--budget", type=int, default=32)
    parser.add_argument("--depth", type=int, default=8)
    parser.add_argument("--longest", type=int, default=1500, help="longest prompt with its answer, in tokens")
    parser.add_argument("--tokens", type=int, default=96, help="of each answer, from its beginning")
    parser.add_argument("--json", type=Path, help="file for the rows of the table")
    arguments = parser.parse_args()

    loaded = load_model(arguments.model, dtype=arguments.dtype)
    lm = TargetAsDraftLM(TransformersTarget.packed(loaded.model))
    vocabulary = Vocabulary.of(loaded.tokenizer)
    how = {"depth": arguments.depth, "adapts": False}
    drafters: dict[str, Callable[[], DrafterFactory]] = {
        "blend": Blend,
        "model": lambda: DraftModel(lm, **how),
        "blend + model": lambda: DraftModel(lm, first=Blend(), **how),
    }
    Blend().warm_up()
    found = []
    print(f"| data set | rows | {' | '.join(drafters)} | of the better one | 90% of other rows |")
    print("|---" * (len(drafters) + 4) + "|")
    for file in arguments.traces:
        traces = [trace for trace in read_traces(file) if not in_fit_half(trace.question)]
        rows: list[Row] = []
        while traces and len(rows) < arguments.rows:
            some, traces = tokenise(traces[:100], loaded.tokenizer), traces[100:]
            rows += [row for row in some if len(row.prompt) + len(row.response) < arguments.longest]
        if not rows:
            parser.error(f"{file} has no row of fewer than {arguments.longest} tokens; raise --longest")
        rows = [replace(row, response=row.response[: arguments.tokens]) for row in rows[: arguments.rows]]
        steps = {name: np.zeros(len(rows), np.int64) for name in drafters}
        for name, make in drafters.items():
            factory = make()
            for place, row in enumerate(rows):
                with torch.inference_mode():
                    tally = replay([row], lambda *_, f=factory: f, [arguments.budget], vocabulary)
                steps[name][place] = tally[arguments.budget].steps
        tokens = sum(len(row.response) for row in rows)
        per_step = {name: tokens / int(counts.sum()) for name, counts in steps.items()}
        ratio, low, high = of_the_better(steps)
        found.append({"set": data_set_name(file), "rows": len(rows), **per_step, "of_the_better": ratio})
        cells = " | ".join(f"{figure:.2f}" for figure in (*per_step.values(), ratio))
        print(f"| {data_set_name(file)} | {len(rows)} | {cells} | {low:.2f} to {high:.2f} |", flush=True)
    if arguments.json:
        setting = {"tokens": arguments.tokens, "budget": arguments.budget, "depth": arguments.depth}
        arguments.json.write_text(json.dumps({**setting, "rows": found}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
