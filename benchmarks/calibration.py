"""Are the blend's path probabilities what is accepted? Believed and accepted nodes, by tenths.

python benchmarks/calibration.py ../shared/traces/*.jsonl.gz [--rows 200] [--budget 32]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from groundspeed.drafting.blend import BlendDrafter
from groundspeed.integrations.bench.replay import Vocabulary, decode
from groundspeed.integrations.bench.traces import in_fit_half, read_traces, tokenise
from groundspeed.verify.loading import load_tokenizer


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("traces", nargs="+", type=Path, help="recorded answers, a data set a file")
    parser.add_argument("--rows", type=int, default=200, help="rows per data set")
    parser.add_argument("--budget", type=int, default=32, help="draft nodes per step")
    arguments = parser.parse_args()
    tokenizer = load_tokenizer()
    vocabulary = Vocabulary.of(tokenizer)
    steps = []
    for file in arguments.traces:
        held_out = [trace for trace in read_traces(file) if not in_fit_half(trace.question)]
        for row in tokenise(held_out[: arguments.rows], tokenizer):
            steps += decode(row, BlendDrafter(), arguments.budget, vocabulary)
    believed = np.concatenate([step.tree.probs for step in steps])
    accepted = np.concatenate([step.accepted for step in steps])
    print("path probability      nodes  believed  accepted")
    for low in np.arange(10) / 10:
        here = (believed > low) & (believed <= low + 0.1)
        if here.any():
            means = f"{believed[here].mean():9.3f} {accepted[here].mean():9.3f}"
            print(f"{low:.1f} to {low + 0.1:.1f} {here.sum():15,} {means}")


if __name__ == "__main__":
    main()
