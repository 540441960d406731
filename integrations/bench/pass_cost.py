"""What a verification pass costs by its draft tokens, as ``groundspeed bench speed --json`` measured it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from groundspeed.errors import InputError

__all__ = ["PassCost", "read_pass_cost"]


@dataclass(frozen=True, slots=True, eq=False)
class PassCost:
    """The cost of passes of one model on one machine.

    Attributes:
        relative: float64 [m + 1], c(n): the time of a pass with n draft tokens over that of a plain one.
        measured_on: The model and what it ran on, in words.
    """

    relative: NDArray[np.float64]
    measured_on: str


def read_pass_cost(file: Path) -> PassCost:
    """Read the costs in what ``groundspeed bench speed --json`` printed.

    Raises:
        InputError: The file cannot be read or holds none.
    """
    remedy = "give what `groundspeed bench speed prompts.jsonl --json` printed"
    try:
        report = json.loads(file.read_bytes())
        table = {int(nodes): float(cost) for nodes, cost in report["cost_of_nodes"].items()}
        where = "{model} in {dtype} on {device}".format(**report)
    except OSError as error:
        raise InputError(f"cannot read {file}: {error}; {remedy}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{file} does not hold the costs of passes ({error!r}); {remedy}") from error
    nodes = sorted(table)
    costs = np.array([table[n] for n in nodes])
    if not nodes or nodes[0] != 0 or not np.isfinite(costs).all() or costs.min() <= 0:
        raise InputError(
            f"{file} has costs {table} of passes; they begin at 0 nodes and are above 0: {remedy}"
        )
    return PassCost(np.interp(np.arange(nodes[-1] + 1), nodes, costs / costs[0]), where)
