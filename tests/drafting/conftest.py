"""Kernels are compiled before the tests, so that no test is charged for it."""

from __future__ import annotations

import pytest

from groundspeed.drafting.blend import warm_up


@pytest.fixture(scope="session", autouse=True)
def kernels_compiled() -> None:
    warm_up()
