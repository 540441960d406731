"""Root mean square norms on the CPU, from bfloat16, in one go over each row."""
# mypy: allow-untyped-defs

from __future__ import annotations

from functools import cache

import numba
import numpy as np

from groundspeed.datastores.views import view
from groundspeed.jit import c_kernel, kernel
from groundspeed.verify.vectors import fetch_add, narrow, widen

__all__ = ["normalize"]

# What a call is handed, int64 [CALL_COLUMNS].
NEXT_SHARE, SHARES = 0, 1  # so far, and in how many the rows are cut
ROWS, SIZE = 2, 3
INPUTS = 4  # address of bfloat16 [ROWS, SIZE]
FACTORS = 5  # address of float32 [SIZE]
EPSILON = 6  # address of a float32
ROUNDED = 7  # 1 to round to bfloat16 before the factors as well
OUT = 8  # address of bfloat16 [ROWS, SIZE]
CALL_COLUMNS = 9


@cache
def normalize() -> int:
    """Compile the norm.

    Returns:
        Address of a C function of one pointer, to int64 [CALL_COLUMNS]; it takes shares until none is left.
    """

    def normalize_shares(pointer):  # pragma: no cover - runs as machine code
        run_shares(numba.carray(pointer, (CALL_COLUMNS,)))

    return c_kernel(normalize_shares)


@kernel
def run_shares(call):
    """Normalise shares of the rows until none is left, see ``normalize``.

    Args:
        call: int64 [CALL_COLUMNS].
    """
    half, single = np.uint16, np.float32
    rows, size, shares = call[ROWS], call[SIZE], call[SHARES]
    inputs, out = view(call[INPUTS], rows * size, half), view(call[OUT], rows * size, half)
    factors, epsilon = view(call[FACTORS], size, single), view(call[EPSILON], 1, single)[0]
    wide = np.empty(size, np.float32)
    while True:
        share = fetch_add(call.ctypes.data)
        if share >= shares:
            break
        for row in range(share * rows // shares, (share + 1) * rows // shares):
            given, target = inputs[row * size : (row + 1) * size], out[row * size : (row + 1) * size]
            for i in range(size):
                wide[i] = widen(given[i])
            scale = np.float32(1) / np.sqrt(squares(wide) / np.float32(size) + epsilon)
            if call[ROUNDED]:
                for i in range(size):
                    target[i] = narrow(factors[i] * widen(narrow(wide[i] * scale, half)), half)
            else:
                for i in range(size):
                    target[i] = narrow(wide[i] * scale * factors[i], half)


@numba.njit(cache=True, nogil=True, fastmath={"reassoc", "nsz", "contract"})
def squares(values):
    """The sum of the squares of float32 values, in an order that depends on their number only."""
    result = np.float32(0)
    for i in range(len(values)):
        result += values[i] * values[i]
    return result
