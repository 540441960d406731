"""Joining what the chunks of a text come to, for each row of a pass on the CPU (see ``attention_kernel``)."""
# mypy: allow-untyped-defs

from __future__ import annotations

from functools import cache

import numba
import numpy as np

from groundspeed.datastores.views import view
from groundspeed.jit import c_kernel, kernel
from groundspeed.verify.attention_tables import (
    CALL_COLUMNS,
    CLAIMS,
    HEADS,
    OUT,
    PARTIALS,
    PASS_ROWS,
    POSITIONS,
    ROW_SEGMENTS,
    SINKS,
    VALUE_SIZE,
    WINDOW,
    partial_floats,
    place_of,
    segment_of,
)
from groundspeed.verify.cache import CHUNK
from groundspeed.verify.claims import claim, home
from groundspeed.verify.vectors import exp, fma, narrow

__all__ = ["combine"]


@cache
def combine(bits: int) -> int:
    """Compile what joins the partial results, once all tasks of a layer are done.

    Args:
        bits: As of ``attend``.

    Returns:
        Address of a C function of one pointer, to int64 [CALL_COLUMNS]; it takes rows until none is left.
    """

    def join_single(pointer):  # pragma: no cover - runs as machine code
        join_rows(numba.carray(pointer, (CALL_COLUMNS,)), np.empty(0, np.float32))

    def join_half(pointer):  # pragma: no cover - runs as machine code
        join_rows(numba.carray(pointer, (CALL_COLUMNS,)), np.empty(0, np.uint16))

    return c_kernel(join_single if bits == 32 else join_half)


@kernel
def add_row(sums, weight, row):
    """Add a weighted row, fused."""
    for d in range(len(sums)):
        sums[d] = fma(weight, row[d], sums[d])


@kernel
def join_rows(call, like):
    """Join the partial results of rows and write them, until none is left, see ``combine``."""
    far = np.int64(1) << 40
    positions = view(call[POSITIONS], far, np.int32)
    partials = view(call[PARTIALS], far, np.float32)
    segments = view(call[ROW_SEGMENTS], call[PASS_ROWS], np.int64)
    sinks, out = view(call[SINKS], far, np.float32), view(call[OUT], far, like)
    heads, value_size, window = call[HEADS], call[VALUE_SIZE], call[WINDOW]
    floats = partial_floats(value_size)
    sums = np.empty(value_size, np.float32)
    own_rows = home(call[CLAIMS])
    while True:
        row = claim(call[CLAIMS], len(segments), own_rows)
        if row >= len(segments):
            break
        if segments[row] < 0:
            continue
        segment = segment_of(call, segments[row])
        past = positions[row] // CHUNK + 1
        begin = max(0, positions[row] + 1 - window) // CHUNK if window > 0 else 0
        for head in range(heads):
            base = place_of(segment, head, row, 0, floats)
            best = sinks[head] if call[SINKS] else np.float32(-np.inf)
            for chunk in range(begin, past):
                best = max(best, partials[base + chunk * floats])
            mass = exp(sinks[head] - best) if call[SINKS] else np.float32(0)
            sums[:] = np.float32(0)
            for chunk in range(begin, past):
                at = base + chunk * floats
                weight = exp(partials[at] - best)
                mass = fma(weight, partials[at + 1], mass)
                add_row(sums, weight, partials[at + 2 : at + 2 + value_size])
            target = out[(row * heads + head) * value_size : (row * heads + head + 1) * value_size]
            for d in range(value_size):
                target[d] = narrow(sums[d] / mass, like)
