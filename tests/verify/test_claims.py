"""Who takes which task of a kernel call."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from groundspeed.verify.claims import Claims, claim, home


def take_all(claims: Claims, tasks: int) -> list[int]:
    """What one thread takes, in order."""
    own, taken = home(claims.address), []
    while (task := claim(claims.address, tasks, own)) < tasks:
        taken.append(task)
    return taken


def beside(call: Callable[..., Any], *arguments: Any) -> Any:
    """What a call gives in a thread that lives no longer."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call, *arguments).result()


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
@pytest.mark.parametrize("tasks", [0, 1, 2, 7, 1000])
def test_every_task_is_taken_once(threads, tasks):
    claims = Claims(threads)
    claims.renew()
    start = threading.Barrier(threads)

    def take() -> list[int]:
        start.wait()
        return take_all(claims, tasks)

    with ThreadPoolExecutor(threads) as pool:
        taken = [job.result() for job in [pool.submit(take) for _ in range(threads)]]
    assert sorted(task for some in taken for task in some) == list(range(tasks))


def test_a_thread_begins_with_its_own_stretch_and_then_helps():
    claims = beside(Claims, 2)  # of a team of its own
    claims.renew()
    assert take_all(claims, 10) == list(range(10))
    claims.renew()
    other = beside(home, claims.address)
    assert other == 1
    assert [claim(claims.address, 10, other) for _ in range(6)] == [5, 6, 7, 8, 9, 0]
    assert take_all(claims, 10) == [1, 2, 3, 4]


def test_a_thread_keeps_its_home_from_pass_to_pass():
    def homes() -> list[int]:
        return [home(Claims(4).address) for _ in range(3)]

    assert homes() == homes() == [homes()[0]] * 3
    first = Claims(4)
    assert beside(Claims, 4).address != first.address  # another thread has another team


def test_a_team_that_was_replaced_is_forgotten():
    def tables() -> tuple[Claims, Claims, Claims]:
        claims, same = Claims(2), Claims(2)
        alive = threading.Barrier(3)

        def work() -> int:
            alive.wait()
            return int(home(claims.address))

        with ThreadPoolExecutor(3) as pool:  # more threads than the team has
            homes = [job.result() for job in [pool.submit(work) for _ in range(3)]]
        assert set(homes) == {0, 1}
        return claims, same, Claims(2)

    claims, same, renewed = beside(tables)
    assert claims.address == same.address != renewed.address
    assert home(renewed.address) == 0
