"""Fit the weights of the blend's predictor on recorded answers and write them to ``drafting/priors.npy``.

    python benchmarks/fit_priors.py ../shared/traces/*.jsonl.gz [--recorded FILE.npz] [--rows 150]

Only rows of the fitting half are used (see ``in_fit_half``), three in four with the answers to other
questions of that half as history. ``--recorded`` takes answers of ``record_answers.py``, which alone show
what recycled logits are worth. Every data set weighs the same, the two groups of recorded answers half.
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from groundspeed.datastores.snapshot import Snapshot
from groundspeed.drafting.base import DraftRequest, RunnerUps
from groundspeed.drafting.blend import BlendDrafter
from groundspeed.drafting.calibration import Calibration
from groundspeed.drafting.features import WEIGHTS
from groundspeed.integrations.bench.replay import FOLDS, Vocabulary, deal
from groundspeed.integrations.bench.traces import (
    Row,
    data_set_name,
    encode,
    in_fit_half,
    read_traces,
    tokenise,
)
from groundspeed.verify.loading import load_tokenizer

RIDGE = 1e-5  # penalty on half the squared weights, against the mean log-likelihood of a position

Observed = tuple[np.ndarray, np.ndarray, int, float]
"""Features [c, FEATURES], features of none [NONE_FEATURES], index of the true token or -1, weight."""


def observe(
    row: Row, request: DraftRequest, weight: float, stored: Snapshot | None, top: np.ndarray | None = None
) -> Iterator[Observed]:
    """What the predictor sees at every position of an answer, and what came.

    Args:
        row: The answer.
        request: What the drafter is told.
        weight: Of each position.
        stored: Earlier answers.
        top: int32 [r, k], what the target showed at each position, the answer's token first.
    """
    drafter = BlendDrafter(stored, Calibration(np.zeros(WEIGHTS), learn=False))
    drafter.begin(request)
    last = request.prompt_ids[-1:]
    for i, token in enumerate(row.response.tolist()):
        candidates, features, none_features = drafter.offers()
        hits = np.flatnonzero(candidates == token)
        yield features.copy(), none_features, int(hits[0]) if len(hits) else -1, weight
        if top is not None:
            drafter.recycle(RunnerUps(last, np.array([-1], np.int32), top[i : i + 1]))
        last = row.response[i : i + 1]
        drafter.extend(last)


def observe_traces(file: Path, count: int, tokenizer: Any, forms: np.ndarray) -> Iterator[Observed]:
    """The observations of a file of recorded answers."""
    traces = read_traces(file)
    fold_of = deal([trace.question for trace in traces])
    answers = encode([trace.response for trace in traces], tokenizer)
    rows = tokenise([trace for trace in traces if in_fit_half(trace.question)][:count], tokenizer)
    weight = 1 / sum(len(row.response) for row in rows)
    for fold in range(FOLDS):
        others = [
            answer
            for trace, answer in zip(traces, answers, strict=True)
            if fold_of[trace.question] != fold and in_fit_half(trace.question)
        ]
        stored = Snapshot.of(others, len(tokenizer))
        for row in rows:
            if fold_of[row.question] == fold:
                alone = hashlib.sha256(row.response.tobytes()).digest()[0] % 4 == 0
                request = DraftRequest(row.prompt, row.passages, len(tokenizer), forms)
                yield from observe(row, request, weight, None if alone else stored)


def observe_recorded(file: Path, vocab_size: int, forms: np.ndarray) -> Iterator[Observed]:
    """The observations of ``record_answers.py``, those for fitting."""
    data = np.load(file)

    def pieces(name: str) -> list[np.ndarray]:
        return np.split(data[name], np.cumsum(data[f"{name}_length"])[:-1])

    prompts, answers, passages = pieces("prompt"), pieces("answer"), iter(pieces("passage"))
    tops = np.split(data["top"], np.cumsum(data["answer_length"])[:-1])
    groups = data["group"].tolist()
    sizes = {
        group: sum(len(a) for a, g in zip(answers, groups, strict=True) if g == group) for group in groups
    }
    for i, group in enumerate(groups):
        own = tuple(next(passages) for _ in range(int(data["passages"][i])))
        if group.endswith("-fit"):
            row = Row("", prompts[i], own, answers[i])
            request = DraftRequest(row.prompt, own, vocab_size, forms)
            yield from observe(row, request, 0.5 / sizes[group], None, tops[i])


def fit(observed: list[Observed]) -> np.ndarray:
    """Maximise the weighted log-likelihood, with a ridge, by L-BFGS."""
    counts = torch.tensor([len(features) for features, *_ in observed])
    features = torch.tensor(np.concatenate([features for features, *_ in observed]))
    none_features = torch.tensor(np.stack([none for _, none, _, _ in observed]))
    truth = torch.tensor([hit for _, _, hit, _ in observed])
    weight = torch.tensor([w for *_, w in observed])
    position = torch.repeat_interleave(torch.arange(len(observed)), counts)
    chosen = (torch.cumsum(counts, 0) - counts + truth.clamp(min=0)).clamp(max=len(features) - 1)
    weights = torch.zeros(WEIGHTS, requires_grad=True)
    optimizer = torch.optim.LBFGS([weights], max_iter=80, history_size=20, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        scores = torch.nn.functional.embedding_bag(features, weights[:, None], mode="sum")[:, 0]
        none = torch.nn.functional.embedding_bag(none_features, weights[:, None], mode="sum")[:, 0]
        total = none.exp().index_add(0, position, scores.exp()).log()
        likelihood = ((torch.where(truth >= 0, scores[chosen], none) - total) * weight).sum()
        value = RIDGE / 2 * weights.square().sum() - likelihood / weight.sum()
        value.backward()
        return value

    optimizer.step(loss)
    print(f"loss {loss().item():.4f}")
    return weights.detach().numpy()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("traces", nargs="+", type=Path, help="recorded answers, a data set a file")
    parser.add_argument("--recorded", type=Path, help="answers of record_answers.py")
    parser.add_argument("--rows", type=int, default=150, help="rows per data set")
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parents[1] / "drafting" / "priors.npy", help="where to"
    )
    arguments = parser.parse_args()
    tokenizer = load_tokenizer()
    forms = Vocabulary.of(tokenizer).forms
    observed: list[Observed] = []
    for file in arguments.traces:
        observed += observe_traces(file, arguments.rows, tokenizer, forms)
        print(f"{data_set_name(file)}: {len(observed):,} positions in all", flush=True)
    if arguments.recorded:
        observed += observe_recorded(arguments.recorded, len(tokenizer), forms)
        print(f"{arguments.recorded.name}: {len(observed):,} positions in all", flush=True)
    np.save(arguments.out, fit(observed).astype(np.float32))


if __name__ == "__main__":
    main()
