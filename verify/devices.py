"""The one place that knows how a device is fed, read and told to replay a pass."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, cast
from weakref import WeakSet

import numpy as np
import torch
from numpy.typing import NDArray

__all__ = ["CudaDriver", "Driver", "driver_for"]

_capturing = threading.Lock()
"""CUDA takes one capture at a time in a process."""


class Driver:
    """Runs passes over fixed buffers on any device, each one anew."""

    def fetch(self, values: torch.Tensor) -> NDArray[Any]:
        """Read a tensor, once everything that was launched is done."""
        array: NDArray[Any] = values.cpu().numpy()
        return array

    def upload(self, values: NDArray[np.int64], into: torch.Tensor) -> None:
        """Copy values [n] to a tensor [n] of the device; what is launched later sees them."""
        into.copy_(torch.from_numpy(values))

    def capture(self, run: Callable[[], object]) -> Callable[[], object]:
        """What does again all that ``run`` does on the device, with what its buffers then hold.

        Args:
            run: Reads and writes tensors that stay where they are, does the same when it is called several
                times, and never asks the device for a value.
        """
        return run


class CudaDriver(Driver):
    """Records passes as CUDA graphs, which launch a whole pass at once.

    Args:
        device: A CUDA device.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = cast(Any, torch.cuda).Stream(device)
        self._memory: Any = None  # of all graphs that there are: they never run at the same time
        self._graphs: WeakSet[torch.cuda.CUDAGraph] = WeakSet()

    def upload(self, values: NDArray[np.int64], into: torch.Tensor) -> None:
        """See ``Driver``; the host does not wait. PyTorch keeps the pinned memory until it has been read."""
        pinned = torch.empty(len(values), dtype=torch.int64, pin_memory=True)
        pinned.numpy()[:] = values
        into.copy_(pinned, non_blocking=True)

    def fetch(self, values: torch.Tensor) -> NDArray[Any]:
        """See ``Driver``; waits for an event behind the copy."""
        pinned = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
        with torch.cuda.device(self._device):
            pinned.copy_(values, non_blocking=True)
            event = cast(Any, torch.cuda).Event()
            event.record()
            event.synchronize()
        array: NDArray[Any] = pinned.numpy()
        return array

    def capture(self, run: Callable[[], object]) -> Callable[[], object]:
        """See ``Driver``; ``run`` is called twice, to set up its libraries first and then to be recorded."""
        stream = self._stream
        with _capturing, torch.cuda.device(self._device), torch.cuda.stream(torch.cuda.current_stream()):
            stream.wait_stream(torch.cuda.current_stream())
            # On the stream that it is recorded on, as libraries make some handles once a stream. The current
            # one is set outside too: a capture that fails may leave the other one set.
            with torch.cuda.stream(stream):
                run()
            torch.cuda.current_stream().wait_stream(stream)
            if not self._graphs:  # a pool goes with the last of its graphs
                self._memory = torch.cuda.graph_pool_handle()
            graph = torch.cuda.CUDAGraph()
            # Other threads may go on using the device meanwhile.
            with torch.cuda.graph(graph, self._memory, stream, capture_error_mode="thread_local"):
                run()
        self._graphs.add(graph)

        def replay() -> None:
            with torch.cuda.device(self._device):
                graph.replay()

        return replay


def driver_for(device: torch.device) -> Driver | None:
    """What drives paged passes on a device; None where they are not worth it, as on the CPU."""
    return CudaDriver(device) if device.type == "cuda" else None
