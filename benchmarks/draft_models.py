"""What a draft model wins on recorded answers, alone and with retrieved text: replay, tokens per step.

    python benchmarks/draft_models.py ../shared/traces/*.jsonl.gz [--model NAME] [--rows 12] [--budget 32]

Forced decoding as in ``groundspeed bench replay``; the draft model is the embedded one by default, the
answers are those of larger models. No row's question is one that the shipped priors were fitted on. What the
drafters learn from one row they keep for the next ones of the file. Every draft is grown to its full depth,
as a replay has no target whose time could be weighed.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import torch

from groundspeed.drafting.base import DrafterFactory
from groundspeed.drafting.blend import Blend
from groundspeed.drafting.draft_model import DraftModel
from groundspeed.integrations.bench.replay import Vocabulary, average, replay
from groundspeed.integrations.bench.traces import data_set_name, in_fit_half, read_traces, tokenise
from groundspeed.verify.draft_lm import TargetAsDraftLM
from groundspeed.verify.loading import load_model
from groundspeed.verify.target import TransformersTarget


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("traces", nargs="+", type=Path)
    parser.add_argument("--model", help="hub id, folder or GGUF file; by default the embedded model")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--rows", type=int, default=12)
    parser.add_argument("--skip", type=int, default=0, help="rows left out at the beginning of each file")
    parser.add_argument("--budget", type=int, default=32)
    parser.add_argument("--depth", type=int, default=8)
    parser.add_argument("--longest", type=int, default=2000, help="longest prompt, in tokens")
    parser.add_argument("--drafter", action="append", help="by default all")
    arguments = parser.parse_args()

    loaded = load_model(arguments.model, dtype=arguments.dtype)
    lm = TargetAsDraftLM(TransformersTarget.packed(loaded.model))
    vocabulary = Vocabulary.of(loaded.tokenizer)
    how = {"depth": arguments.depth, "adapts": False}
    drafters: dict[str, Callable[[], DrafterFactory]] = {
        "blend": Blend,
        "model, chain": lambda: DraftModel(lm, width=1, **how),
        "model": lambda: DraftModel(lm, **how),
        "blend + model": lambda: DraftModel(lm, first=Blend(), **how),
    }
    Blend().warm_up()
    summaries: dict[str, list[dict[str, float]]] = {}
    for file in arguments.traces:
        traces = [trace for trace in read_traces(file) if not in_fit_half(trace.question)]
        rows = tokenise(traces[: 20 * arguments.rows], loaded.tokenizer)
        rows = [row for row in rows if len(row.prompt) + len(row.response) < arguments.longest]
        rows = rows[arguments.skip : arguments.skip + arguments.rows]
        for name, make in drafters.items():
            if arguments.drafter and name not in arguments.drafter:
                continue
            factory = make()
            start = time.perf_counter()
            with torch.inference_mode():
                tally = replay(rows, lambda *_, f=factory: f, [arguments.budget], vocabulary)
            summary = tally[arguments.budget].summary()
            summaries.setdefault(name, []).append(summary)
            print(
                f"{data_set_name(file):10} {name:14} {summary['tokens_per_step']:.3f} tokens per step, "
                f"{summary['acceptance_rate']:.1%} accepted, {summary['draft_us_p50'] / 1e3:.1f} ms a draft, "
                f"{len(rows)} rows, {time.perf_counter() - start:.0f} s",
                flush=True,
            )
    for name, found in summaries.items():
        print(f"{'average':10} {name:14} {average(found)['tokens_per_step']:.3f} tokens per step")


if __name__ == "__main__":
    main()
