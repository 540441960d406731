"""Fit the weights of the blend's predictor on recorded answers and write them to ``drafting/priors.npy``.

    python benchmarks/fit_priors.py ../shared/traces/*.jsonl.gz [--rows 150]

Only rows of the fitting half are used (see ``in_fit_half``). Every data set weighs the same.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch

from groundspeed.drafting.base import DraftRequest
from groundspeed.drafting.blend import BlendDrafter
from groundspeed.drafting.offers import WEIGHTS
from groundspeed.integrations.bench.traces import Row, data_set_name, in_fit_half, read_traces, tokenise
from groundspeed.verify.loading import load_tokenizer

RIDGE = 1e-5  # penalty on half the squared weights, against the mean log-likelihood of a position


def observe(row: Row, weight: float) -> list[tuple[np.ndarray, np.ndarray, int, float]]:
    """(features, features of none, index of the true token or -1, weight) at every position of the answer."""
    drafter = BlendDrafter(np.zeros(WEIGHTS))
    drafter.begin(DraftRequest(row.prompt, row.passages, vocab_size=1 << 30))
    observed = []
    for i, token in enumerate(row.response):
        candidates, features, none_features = drafter.offers()
        hits = np.flatnonzero(candidates == token)
        observed.append((features, none_features, int(hits[0]) if len(hits) else -1, weight))
        drafter.extend(row.response[i : i + 1])
    return observed


def fit(observed: list[tuple[np.ndarray, np.ndarray, int, float]]) -> np.ndarray:
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
    parser.add_argument("--rows", type=int, default=150, help="rows per data set")
    arguments = parser.parse_args()
    tokenizer = load_tokenizer()
    observed = []
    for file in arguments.traces:
        chosen = [trace for trace in read_traces(file) if in_fit_half(trace.question)][: arguments.rows]
        rows = tokenise(chosen, tokenizer)
        weight = 1 / sum(len(row.response) for row in rows)
        for row in rows:
            observed += observe(row, weight)
        print(f"{data_set_name(file)}: {len(rows)} rows, {len(observed):,} positions in all")
    np.save(Path(__file__).parents[1] / "drafting" / "priors.npy", fit(observed).astype(np.float32))


if __name__ == "__main__":
    main()
