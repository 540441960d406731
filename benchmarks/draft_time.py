"""What drafting costs: index build, one draft, one commit, by length of the prompt.

    python benchmarks/draft_time.py ../shared/traces/*.jsonl.gz

Recorded answers are decoded after their own prompts; prompts of other rows before them make up the length.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from groundspeed.drafting.base import DraftRequest
from groundspeed.drafting.blend import BlendDrafter, warm_up
from groundspeed.integrations.bench.traces import Row, in_fit_half, read_traces, tokenise
from groundspeed.verify.loading import load_tokenizer

LENGTHS = (1_000, 2_000, 8_000, 64_000)
BUDGETS = (16, 32, 64)
TOKENS_PER_STEP = 3


def percentiles(seconds: list[float]) -> str:
    microseconds = np.percentile(seconds, (50, 95)) * 1e6
    return f"p50 {microseconds[0]:6.1f}  p95 {microseconds[1]:6.1f}"


def measure(rows: list[Row], filler: NDArray[np.int32], length: int, budget: int) -> None:
    beginning, proposing, extending = [], [], []
    for row in rows:
        prompt = np.concatenate([filler, row.prompt])[-length:]
        drafter = BlendDrafter()
        start = time.perf_counter()
        drafter.begin(DraftRequest(prompt, (), vocab_size=1 << 30))
        beginning.append(time.perf_counter() - start)
        for at in range(0, len(row.response), TOKENS_PER_STEP):
            start = time.perf_counter()
            drafter.propose(budget)
            drafted = time.perf_counter()
            drafter.extend(row.response[at : at + TOKENS_PER_STEP])
            extending.append(time.perf_counter() - drafted)
            proposing.append(drafted - start)
    print(
        f"{length:7,} tokens, budget {budget:2}: begin {np.median(beginning) * 1e3:6.2f} ms | "
        f"draft us {percentiles(proposing)} | commit of {TOKENS_PER_STEP} us {percentiles(extending)}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("traces", nargs="+", type=Path, help="recorded answers, a data set a file")
    arguments = parser.parse_args()
    start = time.perf_counter()
    warm_up()
    print(f"kernels ready after {time.perf_counter() - start:.2f} s")
    tokenizer = load_tokenizer()
    rows: list[Row] = []
    for file in arguments.traces:
        held_out = [trace for trace in read_traces(file) if not in_fit_half(trace.question)]
        rows += tokenise(held_out[:60], tokenizer)
    filler = np.concatenate([row.prompt for row in rows[20:]])
    for length in LENGTHS:
        for budget in BUDGETS:
            measure(rows[:20], filler, length, budget)


if __name__ == "__main__":
    main()
