"""The CUDA half of the seam, as far as it goes without a device: which calls it makes, in which order."""

from __future__ import annotations

import inspect
from contextlib import contextmanager
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch

from groundspeed.verify.devices import CudaDriver, driver_for

DEVICE = torch.device("cuda:1")


@pytest.fixture
def calls(monkeypatch):
    """What happens, in order; streams are called by their names."""
    noted = []
    current = ["usual"]

    class Stream:
        def __init__(self, device=None, name="own"):
            self.name = name

        def wait_stream(self, other):
            noted.append(f"{self.name} waits for {other.name}")

    class Graph:
        def replay(self):
            noted.append(f"replay on {devices[-1]}")

    class Event:
        def record(self):
            noted.append(f"event on {devices[-1]}")

        def synchronize(self):
            noted.append("wait")

    devices = ["cuda:0"]

    @contextmanager
    def on_device(device):
        devices.append(str(device))
        yield
        devices.pop()

    @contextmanager
    def on_stream(stream):
        current.append(stream.name)
        yield
        current.pop()

    arguments = inspect.signature(torch.cuda.graph)  # of the real one

    def recording(*args, **options):
        given = arguments.bind(*args, **options).arguments
        noted.append(f"record into {given['pool']} on {given['stream'].name}, {given['capture_error_mode']}")
        return on_stream(given["stream"])

    handles = iter(range(9))
    empty = torch.empty

    def pinned(*args, pin_memory=False, **options):
        noted.append("pinned" if pin_memory else "not pinned")
        return empty(*args, **options)

    for name, stand_in in {
        "Stream": Stream,
        "CUDAGraph": Graph,
        "Event": Event,
        "device": on_device,
        "stream": on_stream,
        "graph": recording,
        "current_stream": lambda: Stream(name=current[-1]),
        "graph_pool_handle": lambda: next(handles),
    }.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    monkeypatch.setattr(torch, "empty", pinned)
    return noted


def test_a_pass_is_run_once_on_the_stream_that_it_is_recorded_on_and_then_recorded(calls):
    driver = CudaDriver(DEVICE)
    replay = driver.capture(lambda: calls.append(f"run on {torch.cuda.current_stream().name}"))
    assert calls == [
        "own waits for usual",
        "run on own",
        "usual waits for own",
        "record into 0 on own, thread_local",
        "run on own",
    ]
    calls.clear()
    replay()
    assert calls == ["replay on cuda:1"]


def test_graphs_share_memory_as_long_as_there_is_one(calls):
    driver = CudaDriver(DEVICE)
    replays = [driver.capture(lambda: None) for _ in range(2)]
    replays.clear()
    driver.capture(lambda: None)
    assert [call for call in calls if call.startswith("record")] == [
        f"record into {memory} on own, thread_local" for memory in (0, 0, 1)
    ]


def test_a_failed_recording_leaves_the_usual_stream_and_lets_others_record(calls):
    driver = CudaDriver(DEVICE)
    with pytest.raises(ZeroDivisionError):
        driver.capture(lambda: 1 / 0)
    driver.capture(lambda: None)


def test_numbers_pass_through_pinned_memory_and_the_host_waits_for_reading_only(calls):
    driver = CudaDriver(DEVICE)
    into = MagicMock()
    driver.upload(np.array([4, 5, 6]), into)
    [(sent,), options] = into.copy_.call_args
    assert sent.tolist() == [4, 5, 6]
    assert options == {"non_blocking": True}
    assert calls == ["pinned"]
    calls.clear()
    assert driver.fetch(torch.arange(6, dtype=torch.int32).view(2, 3)).tolist() == [[0, 1, 2], [3, 4, 5]]
    assert calls == ["pinned", "event on cuda:1", "wait"]


def test_the_cpu_has_no_driver(calls):
    assert driver_for(torch.device("cpu")) is None
    assert isinstance(driver_for(DEVICE), CudaDriver)
