"""Whether counts agree with probabilities."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray
from scipy.stats import chisquare


def chi_square(counts: NDArray[Any], probabilities: NDArray[Any]) -> float:
    """The probability of counts at least this far off; outcomes that cannot be must not have been."""
    assert not counts[probabilities == 0].any()
    possible = probabilities > 0
    return float(chisquare(counts[possible], counts.sum() * probabilities[possible]).pvalue)
