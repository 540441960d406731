"""Kernels are compiled before the tests, so that no test is charged for it."""

from __future__ import annotations

import numpy as np
import pytest

from groundspeed.datastores.snapshot import Snapshot
from groundspeed.drafting.base import RunnerUps
from groundspeed.drafting.blend import warm_up
from groundspeed.drafting.recycled import RecycledTokens


@pytest.fixture(scope="session", autouse=True)
def kernels_compiled() -> None:
    token = np.zeros(1, np.int32)
    warm_up(Snapshot.of([token], 50_000))
    table = RecycledTokens(capacity=8)
    table.store(0, RunnerUps(token, token - 1, token[None]))
    table.lookup(0, 0)
