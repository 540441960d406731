"""Stand-ins for a device: one that records passes as a CUDA graph does, one that has no values at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves

from groundspeed.verify.devices import Driver

WAITS = (
    "aten._local_scalar_dense",
    "aten.equal",
    "aten.is_nonzero",
    "aten.item",
    "aten.lift_fresh",  # torch.tensor of a list
    "aten.masked_select",
    "aten.nonzero",
    "aten.repeat_interleave.Tensor",
    "aten.unique",
    "aten._unique2",
)
"""Operations that wait for a CUDA device, or bring numbers to it."""


class WaitError(RuntimeError):
    """What a pass must not do."""


def refuse_waiting(func: Any, args: Any) -> None:
    """Raise where an operation would wait for a CUDA device."""
    masked = str(func).startswith(("aten.index", "aten._index")) and any(
        one.dtype in (torch.bool, torch.uint8) for one in tensors(args[1:2])
    )
    if masked or str(func).startswith(WAITS):
        raise WaitError(str(func))


def tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def memory_of(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


class Counting(Driver):
    """Counts what passes to and fro.

    Attributes:
        uploads: To the device.
        fetches: From it.
    """

    def __init__(self) -> None:
        self.uploads = self.fetches = 0

    def upload(self, values: NDArray[np.int64], into: torch.Tensor) -> None:
        self.uploads += 1
        super().upload(values, into)

    def fetch(self, values: torch.Tensor) -> NDArray[Any]:
        self.fetches += 1
        return super().fetch(values)


class Recorder(Counting):
    """Records each pass operation by operation, and replays it on the memory that it had.

    Attributes:
        tapes: What was recorded.
    """

    def __init__(self) -> None:
        super().__init__()
        self.tapes: list[Tape] = []

    def capture(self, run: Callable[[], object]) -> Callable[[], object]:
        run()
        tape = Tape()
        with tape:
            run()
        self.tapes.append(tape)
        return tape.replay


class Tape(TorchDispatchMode):
    """The operations of a pass.

    Attributes:
        replays: How often it was replayed.
        found: Tensors that were there before it, whose memory it read or wrote.
    """

    def __init__(self) -> None:
        super().__init__()
        self.replays = 0
        self.found: list[torch.Tensor] = []
        self._steps: list[tuple[Any, Any, Any, list[tuple[int, torch.Tensor]]]] = []
        self._made: dict[int, torch.Tensor] = {}  # held, so that no memory is used twice

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        refuse_waiting(func, args)
        given = {memory_of(one) for one in tensors((args, kwargs))}
        self.found += [one for one in tensors((args, kwargs)) if memory_of(one) not in self._made]
        result = func(*args, **kwargs)
        fresh = [
            (place, leaf)
            for place, leaf in enumerate(tree_flatten(result)[0])
            if isinstance(leaf, torch.Tensor) and memory_of(leaf) not in given
        ]
        for _, leaf in fresh:
            self._made[memory_of(leaf)] = leaf
        if fresh or func._schema.is_mutable:
            self._steps.append((func, args, kwargs, fresh))
        return result

    def replay(self) -> None:
        """Do all of it again; what it made the last time is spoilt first."""
        self.replays += 1
        for _, _, _, fresh in self._steps:
            for _, leaf in fresh:
                leaf.fill_(float("nan") if leaf.is_floating_point() else 77)
        for func, args, kwargs, fresh in self._steps:
            leaves = tree_flatten(func(*args, **kwargs))[0]
            for place, leaf in fresh:
                leaf.copy_(leaves[place])


class NoValues(Counting):
    """A device whose tensors have no values: reading one is an error. What is fetched is zeros."""

    def upload(self, values: NDArray[np.int64], into: torch.Tensor) -> None:
        self.uploads += 1
        assert len(values) == len(into)

    def fetch(self, values: torch.Tensor) -> NDArray[Any]:
        self.fetches += 1
        return np.zeros(values.shape, np.int32)


class OnDeviceOnly(TorchDispatchMode):
    """Raises where an operation waits, or mixes tensors of the device ``meta`` with others but scalars."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        refuse_waiting(func, args)
        result = func(*args, **(kwargs or {}))
        for one in tensors((args, kwargs, result)):
            if one.device.type != "meta" and one.dim():
                raise WaitError(f"{func} with a tensor {list(one.shape)} on {one.device}")
        return result


def outside(tapes: list[Tape], allowed: Iterator[torch.Tensor]) -> list[torch.Tensor]:
    """What tapes found that lies in none of the allowed tensors."""
    memory = {memory_of(one) for one in allowed}
    return [one for tape in tapes for one in tape.found if memory_of(one) not in memory]
