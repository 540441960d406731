"""Replay of recorded answers: how many tokens per step would each drafter have won on them?

Forced decoding: the drafter proposes, the longest path that agrees with the recorded answer is accepted, and
the next recorded token is the bonus token. No model is needed.
"""

from __future__ import annotations

import gc
import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from groundspeed.drafting.base import Drafter, DrafterFactory, DraftRequest, DraftTree
from groundspeed.drafting.budget import share_budget
from groundspeed.drafting.forms import token_forms
from groundspeed.errors import InputError
from groundspeed.integrations.bench.tally import Measured, Step, Tally
from groundspeed.integrations.bench.traces import (
    Row,
    data_set_name,
    encode,
    in_fit_half,
    read_traces,
    tokenise,
)
from groundspeed.types import ProgressCallback

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = [
    "FOLDS",
    "Build",
    "Earlier",
    "Vocabulary",
    "accept",
    "deal",
    "decode",
    "measure_files",
    "replay",
    "replay_files",
]

Build: TypeAlias = Callable[[Sequence[NDArray[np.int32]], int], DrafterFactory]
"""Makes a drafter's factory from earlier answers, int32 [r_i] each, and the size of the vocabulary."""

FOLDS = 10
"""Parts that the questions are dealt to, see ``replay``."""


@dataclass(frozen=True, slots=True, eq=False)
class Vocabulary:
    """What drafters are told about the tokenizer.

    Attributes:
        size: Number of its ids.
        forms: int32 [size], of ``token_forms``.
    """

    size: int
    forms: NDArray[np.int32] | None = None

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase) -> Vocabulary:
        """That of a tokenizer."""
        size = len(tokenizer)
        return cls(size, token_forms(str(tokenizer.decode([i])) for i in range(size)))


@dataclass(frozen=True, slots=True, eq=False)
class Earlier:
    """An answer given earlier, which may be drafted from.

    Attributes:
        question: What it answers.
        response: int32 [r].
    """

    question: str
    response: NDArray[np.int32]


def accept(tree: DraftTree, following: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Which nodes lie on the path that agrees with ``following``, bool [n]."""
    accepted = np.zeros(len(tree), bool)
    node, depth = -1, 0
    for i, (token, parent) in enumerate(zip(tree.token_ids.tolist(), tree.parents.tolist(), strict=True)):
        if parent == node and depth < len(following) and token == following[depth]:
            accepted[i] = True
            node, depth = i, depth + 1
    return accepted


def decode(
    row: Row,
    drafter: Drafter,
    budget: int,
    vocabulary: Vocabulary,
    cost: NDArray[np.float64] | None = None,
) -> Iterator[Step]:
    """Decode the recorded answer with the drafter's help, step by step.

    Args:
        row: The answer.
        drafter: A fresh one.
        budget: Draft nodes per step.
        vocabulary: Of the row's tokenizer.
        cost: float64 [m + 1], of a pass by its draft nodes; drafts are cut to the nodes that pay, as the
            engine cuts them. None cuts nothing.
    """
    drafter.begin(DraftRequest(row.prompt, row.passages, vocabulary.size, vocabulary.forms))
    at = 0
    while at < len(row.response):
        start = time.perf_counter_ns()
        tree = drafter.propose(budget)
        draft_us = (time.perf_counter_ns() - start) / 1e3
        if cost is not None:
            (tree,) = share_budget([tree], cost)
        accepted = accept(tree, row.response[at:])
        committed = row.response[at : at + int(accepted.sum()) + 1]
        drafter.extend(committed)
        at += len(committed)
        yield Step(tree, accepted, len(committed), draft_us)
    drafter.end()


def replay_files(
    files: Sequence[Path],
    tokenizer: PreTrainedTokenizerBase,
    drafters: Mapping[str, Build],
    budgets: Sequence[int],
    **how: Any,
) -> list[dict[str, Any]]:
    """What ``measure_files`` finds, as JSON holds it: one summary a data set, drafter and budget."""
    return [one.as_json() for one in measure_files(files, tokenizer, drafters, budgets, **how)]


def measure_files(
    files: Sequence[Path],
    tokenizer: PreTrainedTokenizerBase,
    drafters: Mapping[str, Build],
    budgets: Sequence[int],
    *,
    history: float = 0.0,
    rows: int | None = None,
    held_out: bool = False,
    cost: NDArray[np.float64] | None = None,
    on_progress: ProgressCallback | None = None,
    on_bad: Callable[[str], None] | None = None,
) -> list[Measured]:
    """Replay files of recorded answers through drafters.

    Args:
        files: A data set each, see ``read_traces``.
        tokenizer: Of the target model to be.
        drafters: By name.
        budgets: Draft nodes per step.
        history: Fraction of a file's answers that may be drafted from where they answer another question,
            whatever part of the file is replayed.
        rows: Rows to replay of each file, at most; the first in the order of ``read_traces``.
        held_out: Only rows that the shipped priors were not fitted on.
        cost: See ``decode``.
        on_progress: Told after every row.
        on_bad: Told what is wrong with a row that cannot be used, which is then left out; without it such a
            row is an error.

    Returns:
        One a data set, drafter and budget; the rows are in the same order in all of a data set.

    Raises:
        InputError: A file cannot be read or has no row to replay.
    """
    names = [data_set_name(file) for file in files]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InputError(f"two files are named {twice}, as data sets are by their files; rename one of them")
    read = []
    for file in files:
        traces = read_traces(file, on_bad)
        chosen = [trace for trace in traces if not (held_out and in_fit_half(trace.question))][:rows]
        if not chosen:
            raise InputError(f"{file} has no rows that are held out; replay it without --held-out")
        read.append((data_set_name(file), traces, chosen))
    measured = []
    vocabulary = Vocabulary.of(tokenizer)
    for name, traces, chosen in read:
        chosen_rows = tokenise(chosen, tokenizer, on_progress)
        given = traces[: round(history * len(traces))]
        answers = encode([trace.response for trace in given], tokenizer, on_progress)
        earlier = [Earlier(trace.question, answer) for trace, answer in zip(given, answers, strict=True)]
        progress = _Progress(
            on_progress, f"Replaying {name}", len(chosen_rows) * len(drafters) * len(budgets)
        )
        for drafter, build in drafters.items():
            tallies = replay(chosen_rows, build, budgets, vocabulary, earlier, progress, cost)
            measured += [Measured(name, drafter, budget, tally) for budget, tally in tallies.items()]
    return measured


def replay(
    rows: Sequence[Row],
    build: Build,
    budgets: Sequence[int],
    vocabulary: Vocabulary,
    earlier: Sequence[Earlier] = (),
    on_row: Callable[[], None] = lambda: None,
    cost: NDArray[np.float64] | None = None,
) -> dict[int, Tally]:
    """Replay rows with a fresh drafter each, at every budget.

    Answers to a row's own question are never among the history it is replayed with: the questions are dealt
    to ten folds, and the rows of a fold get what answers the questions of the other nine. So a drafter's
    history is indexed once a fold.

    Args:
        rows: What to replay.
        build: Makes the drafter's factory from the history.
        budgets: Draft nodes per step.
        vocabulary: Of the rows' tokenizer.
        earlier: What may be history; without any, everything is replayed in one fold.
        on_row: Called after every row and budget.
        cost: See ``decode``.

    Returns:
        The tally by budget.
    """
    tallies = {budget: Tally(cost=cost) for budget in budgets}
    fold_of = deal([*(row.question for row in rows), *(answer.question for answer in earlier)])
    for fold in range(FOLDS) if earlier else [None]:
        chosen = [row for row in rows if fold in (None, fold_of[row.question])]
        if not chosen:
            continue
        factory = build(
            [answer.response for answer in earlier if fold_of[answer.question] != fold], vocabulary.size
        )
        for budget, tally in tallies.items():
            with _no_collection():
                for row in chosen:
                    tally.add(row, decode(row, factory(), budget, vocabulary, cost))
                    on_row()
    return tallies


def deal(questions: Sequence[str]) -> dict[str, int]:
    """Deal the questions to folds of equal size, in an order that depends on their text only."""
    ordered = sorted(set(questions), key=lambda question: hashlib.sha256(question.encode()).digest())
    return {question: place % FOLDS for place, question in enumerate(ordered)}


class _Progress:
    """Counts calls and reports them."""

    def __init__(self, report: ProgressCallback | None, what: str, total: int) -> None:
        self._report, self._what, self._done, self._total = report, what, 0, total

    def __call__(self) -> None:
        self._done += 1
        if self._report:
            self._report(self._what, self._done, self._total)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Keep pauses of the garbage collector out of what is timed."""
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
