"""What it takes to choose a token, by what is asked for: microseconds per visited row, on one core.

    python benchmarks/sampled_row.py [--model NAME]

The rows are what the model says along our own documentation, in bfloat16.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from transformers.generation import logits_process as library

from groundspeed.types import GenerationRequest
from groundspeed.verify.loading import load_model
from groundspeed.verify.processors import make_processors
from groundspeed.verify.sampling import ProcessedChooser
from groundspeed.verify.warpers import TopP, Typical

PROMPT = 700
ROWS = 300
SETTINGS: tuple[dict[str, float], ...] = (
    {"repetition_penalty": 1.2},
    {"temperature": 1.0},
    {"temperature": 0.8},
    {"temperature": 0.8, "top_k": 50},
    {"temperature": 0.8, "min_p": 0.05},
    {"temperature": 0.8, "top_p": 0.9},
    {"temperature": 0.8, "top_k": 50, "top_p": 0.9},
    {"temperature": 0.8, "typical_p": 0.9},
)


def librarys_own(processor: library.LogitsProcessor) -> library.LogitsProcessor:
    if isinstance(processor, TopP):
        return library.TopPLogitsWarper(processor.top_p)
    if isinstance(processor, Typical):
        return library.TypicalLogitsWarper(processor.mass)
    return processor


def microseconds(rows: torch.Tensor, ids: list[int], settings: dict[str, float], *, own: bool) -> list[float]:
    request = GenerationRequest("", max_tokens=ROWS, **settings)
    processors = make_processors(request, PROMPT, (), rows.device)
    if not own:
        processors = [librarys_own(processor) for processor in processors]
    seed = 1 if "temperature" in settings else None
    taken: list[float] = []
    for _ in range(2):  # the first time compiles and warms up
        choose = ProcessedChooser(processors, seed, ids[:PROMPT], ROWS, rows.device)(rows)
        taken.clear()
        for row in range(ROWS):
            begun = time.perf_counter()
            choose(row)
            taken.append((time.perf_counter() - begun) * 1e6)
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", help="as for `groundspeed generate`; the default is its default")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    loaded = load_model(arguments.model, "cpu", "bfloat16")
    text = (Path(__file__).parents[1] / "docs/verification.md").read_text(encoding="utf-8")
    ids = loaded.tokenizer(text)["input_ids"][: PROMPT + ROWS]
    with torch.no_grad():
        rows = loaded.model(torch.tensor([ids])).logits[0, PROMPT:]
    print(
        f"{rows.shape[1]:,} tokens, {len(rows)} rows, median and mean in us; with the library's own warpers"
    )
    for settings in SETTINGS:
        figures = [
            figure
            for own in (True, False)
            for taken in [microseconds(rows, ids, settings, own=own)]
            for figure in (np.median(taken), np.mean(taken))
        ]
        asked = ", ".join(f"{name} {value}" for name, value in settings.items())
        print(f"{asked:44} {figures[0]:6.0f} {figures[1]:6.0f}   {figures[2]:6.0f} {figures[3]:6.0f}")


if __name__ == "__main__":
    main()
