"""What drafting costs: index build, one draft, one commit, by length of the prompt.

    python benchmarks/draft_time.py

The prompts are passages of recorded answers, one after the other, and the answers are decoded at the end of them.
"""

from __future__ import annotations

import time

import numpy as np
from groundspeed.drafting.base import DraftRequest
from groundspeed.drafting.blend import BlendDrafter, warm_up
from numpy.typing import NDArray
from traces import DATA_SETS, load_rows

LENGTHS = (1_000, 2_000, 8_000, 64_000)
BUDGETS = (16, 32, 64)
TOKENS_PER_STEP = 3
STEPS = 1_500


def percentiles(seconds: list[float]) -> str:
    microseconds = np.percentile(seconds, (50, 95)) * 1e6
    return f"p50 {microseconds[0]:6.1f}  p95 {microseconds[1]:6.1f}"


def measure(prompt: NDArray[np.int32], answer: NDArray[np.int32], budget: int) -> None:
    drafter = BlendDrafter()
    start = time.perf_counter()
    drafter.begin(DraftRequest(prompt, (), vocab_size=1 << 30))
    begin = time.perf_counter() - start
    proposing, extending = [], []
    for at in range(0, min(len(answer), STEPS * TOKENS_PER_STEP), TOKENS_PER_STEP):
        start = time.perf_counter()
        drafter.propose(budget)
        drafted = time.perf_counter()
        drafter.extend(answer[at : at + TOKENS_PER_STEP])
        proposing.append(drafted - start)
        extending.append(time.perf_counter() - drafted)
    print(
        f"{len(prompt):7,} tokens, budget {budget:2}: begin {begin * 1e3:6.2f} ms | "
        f"draft us {percentiles(proposing)} | commit of {TOKENS_PER_STEP} us {percentiles(extending)}"
    )


def main() -> None:
    start = time.perf_counter()
    warm_up()
    print(f"kernels ready after {time.perf_counter() - start:.2f} s")
    rows = [row for data_set in DATA_SETS for row in load_rows(data_set, 60, fit=False)]
    # A prompt ends with its row's own passages, so that the answers have something to copy.
    text = np.concatenate([part for row in rows for part in (*row.passages, row.response)])
    answers = np.concatenate([row.response for row in rows[-100:]])
    for length in LENGTHS:
        prompt = np.ascontiguousarray(text[-length:])
        for budget in BUDGETS:
            measure(prompt, answers, budget)


if __name__ == "__main__":
    main()
