"""Replay recorded answers through drafters: how many tokens per step would each have won?

    python benchmarks/replay.py [--rows 200] [--budget 16 --budget 32] [--drafter blend]

Forced decoding: the drafter proposes, the longest path that agrees with the recorded answer is accepted, the
next recorded token is the bonus token. Rows are of the reporting half, which no constant was fitted on.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from traces import DATA_SETS, Row, load_rows

from groundspeed.drafting.base import Drafter, DraftRequest, DraftTree
from groundspeed.drafting.blend import BlendDrafter
from groundspeed.drafting.prompt_lookup import PromptLookupDrafter
from groundspeed.drafting.reference import ReferenceDrafter

DRAFTERS: dict[str, Callable[[], Drafter]] = {
    "blend": BlendDrafter,
    "prompt-lookup": PromptLookupDrafter,
    "reference": ReferenceDrafter,
}


@dataclass
class Tally:
    """What a replay adds up. ``believed`` and ``accepted`` hold one array a tree."""

    tokens: list[int] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    microseconds: list[float] = field(default_factory=list)
    believed: list[NDArray[np.float32]] = field(default_factory=list)
    accepted: list[NDArray[np.bool_]] = field(default_factory=list)

    @property
    def tokens_per_step(self) -> float:
        """All tokens over all steps."""
        return sum(self.tokens) / sum(self.steps)

    @property
    def mean_of_rows(self) -> float:
        """Tokens per step of each row, averaged over rows."""
        return float(np.mean(np.array(self.tokens) / self.steps))


def accept(tree: DraftTree, following: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Which nodes lie on the path that agrees with ``following``, bool [n]."""
    accepted = np.zeros(len(tree), bool)
    node, depth = -1, 0
    for i, (token, parent) in enumerate(zip(tree.token_ids.tolist(), tree.parents.tolist(), strict=True)):
        if parent == node and depth < len(following) and token == following[depth]:
            accepted[i] = True
            node, depth = i, depth + 1
    return accepted


def replay(row: Row, drafter: Drafter, budget: int, tally: Tally) -> None:
    """Decode the recorded answer with the drafter's help."""
    drafter.begin(DraftRequest(row.prompt, row.passages, vocab_size=1 << 30))
    at = steps = 0
    while at < len(row.response):
        start = time.perf_counter()
        tree = drafter.propose(budget)
        tally.microseconds.append((time.perf_counter() - start) * 1e6)
        accepted = accept(tree, row.response[at:])
        tally.believed.append(tree.probs)
        tally.accepted.append(accepted)
        committed = row.response[at : at + int(accepted.sum()) + 1]
        drafter.extend(committed)
        at += len(committed)
        steps += 1
    drafter.end()
    tally.tokens.append(len(row.response))
    tally.steps.append(steps)


def print_calibration(tallies: list[Tally]) -> None:
    believed = np.concatenate([probs for tally in tallies for probs in tally.believed])
    accepted = np.concatenate([nodes for tally in tallies for nodes in tally.accepted])
    print("  path probability      nodes  believed  accepted")
    for low in np.arange(10) / 10:
        here = (believed > low) & (believed <= low + 0.1)
        if here.any():
            means = f"{believed[here].mean():9.3f} {accepted[here].mean():9.3f}"
            print(f"  {low:.1f} to {low + 0.1:.1f} {here.sum():15,} {means}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=200, help="rows per data set")
    parser.add_argument("--budget", type=int, action="append", help="draft nodes per step")
    parser.add_argument("--drafter", choices=DRAFTERS, action="append")
    arguments = parser.parse_args()
    for name in arguments.drafter or DRAFTERS:
        for budget in arguments.budget or (16, 32, 64):
            tallies = []
            for data_set in DATA_SETS:
                tally = Tally()
                drafter = DRAFTERS[name]()
                for row in load_rows(data_set, arguments.rows, fit=False):
                    replay(row, drafter, budget, tally)
                tallies.append(tally)
            times = np.concatenate([tally.microseconds for tally in tallies])
            print(
                f"{name} budget {budget}: "
                + " ".join(f"{d} {t.tokens_per_step:.3f}" for d, t in zip(DATA_SETS, tallies, strict=True))
                + f" | average {np.mean([t.tokens_per_step for t in tallies]):.3f}"
                + f" (mean of rows {np.mean([t.mean_of_rows for t in tallies]):.3f})"
                + f" | draft us p50 {np.percentile(times, 50):.0f} p95 {np.percentile(times, 95):.0f}"
            )
            if name == "blend" and budget == 32:
                print_calibration(tallies)


if __name__ == "__main__":
    main()
