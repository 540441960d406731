"""The attention of a pass's small stretches on the CPU: the tables that the kernel works from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from groundspeed.openmp import run_parallel
from groundspeed.verify import attention_tables as tables
from groundspeed.verify.attention_joins import combine
from groundspeed.verify.attention_kernel import attend
from groundspeed.verify.cache import CHUNK, in_pairs
from groundspeed.verify.claims import Claims

if TYPE_CHECKING:
    from groundspeed.verify.attention import Stretch

__all__ = ["Scoring", "StepAttention"]

_DTYPES = (torch.float32, torch.bfloat16)
"""What the kernel computes from."""


class Scoring(NamedTuple):
    """How a layer makes weights of queries and keys.

    Attributes:
        scaling: Of the scores.
        window: Positions a row sees including its own, None for all.
        softcap: Scores are bent to stay below it; None leaves them.
        sinks: [H], a score for each head that takes part in the softmax and has no value; None without any.
    """

    scaling: float
    window: int | None = None
    softcap: float | None = None
    sinks: torch.Tensor | None = None

    @property
    def fused(self) -> bool:
        """Whether PyTorch's fused attention can do it."""
        return self.softcap is None and self.sinks is None


class StepAttention:
    """Attends for the short stretches of one pass, layer by layer."""

    def __init__(self, stretches: Sequence[Stretch]) -> None:
        """Lay out the pass.

        Args:
            stretches: Of texts, with at most ``LONGEST_STEP`` rows each.
        """
        self._stretches = stretches
        rows = max(stretch.first + stretch.rows for stretch in stretches)
        depth = max(int(stretch.offsets.max()) for stretch in stretches) + 1
        self._positions = np.zeros(rows, np.int32)
        self._row_segments = np.full(rows, -1, np.int64)
        self._paths = np.zeros((rows, depth), np.int32)
        table = np.zeros((len(stretches), tables.SEGMENT_COLUMNS), np.int64)
        for number, (row, stretch) in enumerate(zip(table, stretches, strict=True)):
            own = slice(stretch.first, stretch.first + stretch.rows)
            self._positions[own] = stretch.prefix + stretch.offsets
            self._row_segments[own] = number
            self._paths[own, : stretch.paths.shape[1]] = stretch.paths[:, :depth]
            row[tables.FIRST_ROW], row[tables.ROWS] = stretch.first, stretch.rows
            row[tables.PREFIX], row[tables.ROOM] = stretch.prefix, stretch.cache.chunks
            row[tables.CAUSAL], row[tables.HELD] = stretch.causal, stretch.held
            row[tables.CHUNKS] = self._positions[own].max() // CHUNK + 1
        per_head = table[:, tables.ROWS] * table[:, tables.CHUNKS]
        self._partials_per_head = int(per_head.sum())
        self._first_partial = per_head.cumsum() - per_head
        self._table = table
        self._tasks: dict[tuple[int, int], NDArray[np.int64]] = {}
        self._floats_per_row = 0  # of partial results, by the layer's kind
        self._settings = np.zeros(2, np.float32)
        self._call = np.zeros(tables.CALL_COLUMNS, np.int64)
        self._call_address = self._call.ctypes.data
        self._claims = Claims(torch.get_num_threads())
        self._call[tables.CLAIMS] = self._claims.address
        self._call[tables.SETTINGS] = self._settings.ctypes.data
        self._call[tables.SEGMENT_TABLE] = table.ctypes.data
        self._call[tables.POSITIONS] = self._positions.ctypes.data
        self._call[tables.PATHS], self._call[tables.PATH_STRIDE] = self._paths.ctypes.data, depth
        self._call[tables.PASS_ROWS] = rows
        self._call[tables.ROW_SEGMENTS] = self._row_segments.ctypes.data

    @staticmethod
    def takes(states: torch.Tensor) -> bool:
        """Whether the kernel computes with tensors like this one."""
        return states.device.type == "cpu" and states.dtype in _DTYPES

    def __call__(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        out: torch.Tensor,
        scoring: Scoring,
    ) -> None:
        """Write the new keys and values of the stretches to their caches, and what their rows attend to.

        Args:
            layer: Whose cache.
            query: [1, H, rows of the pass, dk].
            key: [1, G, rows, dk].
            value: [1, G, rows, dv].
            out: [1, rows, H, dv], contiguous, filled at the rows of the stretches.
            scoring: Of the layer.
        """
        window = scoring.window or 0
        heads, groups = query.shape[1], key.shape[1]
        table, call, k = self._table, self._call, tables
        self._make_room(heads, value.shape[3])
        table[:, k.KEY_CACHE : k.VALUE_CACHE + 1] = [
            stretch.cache.addresses(layer) for stretch in self._stretches
        ]
        tasks = self._tasks_of(groups, window)
        self._settings[:] = scoring.scaling, scoring.softcap or 0
        query, key, value = (_rows_in_order(states) for states in (query, key, value))
        call[k.TASKS], call[k.TASK_TABLE] = len(tasks), tasks.ctypes.data
        call[k.QUERY : k.VALUE_SIZE + 1] = (
            *(query.data_ptr(), query.stride(1), query.stride(2)),
            *(key.data_ptr(), key.stride(1), key.stride(2)),
            *(value.data_ptr(), value.stride(1), value.stride(2)),
            *(heads, groups, key.shape[3], value.shape[3]),
        )
        sinks = None if scoring.sinks is None else scoring.sinks.float().contiguous()
        call[k.WINDOW], call[k.OUT] = window, out.data_ptr()
        call[k.SINKS] = 0 if sinks is None else sinks.data_ptr()
        bits = query.dtype.itemsize * 8
        self._claims.renew()
        run_parallel(attend(bits, pairs=in_pairs(query.dtype)), self._call_address)
        self._claims.renew()
        run_parallel(combine(bits), self._call_address)

    def _make_room(self, heads: int, value_size: int) -> None:
        """For the partial results of a layer."""
        floats = heads * tables.partial_floats(value_size)
        if floats != self._floats_per_row:
            self._floats_per_row = floats
            self._table[:, tables.FIRST_PARTIAL] = self._first_partial * floats
            self._partials = np.empty(self._partials_per_head * floats, np.float32)
            self._call[tables.PARTIALS] = self._partials.ctypes.data

    def _tasks_of(self, groups: int, window: int) -> NDArray[np.int64]:
        """One task a text, key/value head and chunk in sight; the last chunk first, as it takes longest."""
        key = (groups, window)
        if key not in self._tasks:
            tasks = []
            for number, stretch in enumerate(self._stretches):
                prefix = stretch.prefix
                seen = max(0, prefix + 1 - window) if window else 0
                chunks = range(prefix // CHUNK, seen // CHUNK - 1, -1)
                tasks += [(number, group, chunk) for group in range(groups) for chunk in chunks]
            self._tasks[key] = np.array(tasks, np.int64)
        return self._tasks[key]


def _rows_in_order(states: torch.Tensor) -> torch.Tensor:
    """[1, heads, rows, d] whose last dimension lies in a piece."""
    return states if states.stride(3) == 1 else states.contiguous()
