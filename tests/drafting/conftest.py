"""Kernels are compiled before the tests, so that no test is charged for it."""

from __future__ import annotations

import numpy as np
import pytest

from groundspeed.drafting.base import RunnerUps
from groundspeed.drafting.blend import warm_up
from groundspeed.drafting.recycled import RecycledTokens


@pytest.fixture(scope="session", autouse=True)
def kernels_compiled() -> None:
    warm_up()
    token = np.zeros(1, np.int32)
    table = RecycledTokens(capacity=8)
    table.store(0, RunnerUps(token, token - 1, token[None]))
    table.lookup(0, 0)
