"""What drafting costs: index build, one draft, one commit, by length of the prompt.

    python benchmarks/draft_time.py ../shared/traces/*.jsonl.gz [--stored 5000000]

Recorded answers are decoded after their own prompts; prompts of other rows before them make up the length.
What is stored are answers and prompts of yet other rows.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from groundspeed.datastores.snapshot import Snapshot
from groundspeed.drafting.base import DraftRequest
from groundspeed.drafting.blend import BlendDrafter, warm_up
from groundspeed.integrations.bench.replay import Vocabulary
from groundspeed.integrations.bench.traces import Row, in_fit_half, read_traces, tokenise
from groundspeed.verify.loading import load_tokenizer

LENGTHS = (1_000, 2_000, 8_000, 64_000)
BUDGETS = (16, 32, 64)
TOKENS_PER_STEP = 3


def percentiles(seconds: list[float]) -> str:
    microseconds = np.percentile(seconds, (50, 95)) * 1e6
    return f"p50 {microseconds[0]:6.1f}  p95 {microseconds[1]:6.1f}"


def measure(
    rows: list[Row],
    filler: NDArray[np.int32],
    vocabulary: Vocabulary,
    stored: Snapshot,
    length: int,
    budget: int,
) -> None:
    beginning, proposing, extending = [], [], []
    for row in rows:
        prompt = np.concatenate([filler, row.prompt])[-length:]
        drafter = BlendDrafter(stored)
        request = DraftRequest(prompt, (), vocabulary.size, vocabulary.forms)
        start = time.perf_counter()
        drafter.begin(request)
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
    parser.add_argument("--stored", type=int, default=0, help="tokens of stored text")
    arguments = parser.parse_args()
    start = time.perf_counter()
    warm_up()
    print(f"kernels ready after {time.perf_counter() - start:.2f} s")
    tokenizer = load_tokenizer()
    vocabulary = Vocabulary.of(tokenizer)
    rows: list[Row] = []
    others: list[NDArray[np.int32]] = []
    left = arguments.stored
    for file in arguments.traces:
        traces = read_traces(file)
        rows += tokenise([trace for trace in traces if not in_fit_half(trace.question)][:60], tokenizer)
        fit_half = [trace for trace in traces if in_fit_half(trace.question)]
        for start in range(0, len(fit_half), 100):
            if left > 0:
                for row in tokenise(fit_half[start : start + 100], tokenizer):
                    others += [row.response, row.prompt]
                    left -= len(row.response) + len(row.prompt)
    rows = rows[:: len(rows) // 20]
    filler = np.concatenate([row.prompt for row in rows])
    filler = np.tile(filler, LENGTHS[-1] // len(filler) + 1)
    stored = Snapshot.of(others, len(tokenizer))
    print(f"{stored.tokens:,} tokens stored")
    for length in LENGTHS:
        for budget in BUDGETS:
            measure(rows[:20], filler, vocabulary, stored, length, budget)


if __name__ == "__main__":
    main()
