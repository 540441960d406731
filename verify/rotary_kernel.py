"""Rotary position embeddings on the CPU, in bfloat16 and in place (Su et al. 2021, "RoFormer", 3.4.2).

Dimensions are turned in pairs of one in the first half of a head and one in the second, as Llama lays them
out; each product is rounded before the sum, as PyTorch's operations round it.
"""
# mypy: allow-untyped-defs

from __future__ import annotations

from functools import cache

import numba
import numpy as np

from groundspeed.datastores.views import view
from groundspeed.jit import c_kernel, kernel
from groundspeed.verify.vectors import fetch_add, narrow, widen

__all__ = ["rotate"]

# What a call is handed, int64 [CALL_COLUMNS].
NEXT_SHARE, SHARES = 0, 1  # so far, and in how many the rows are cut
ROWS, HEADS, SIZE = 2, 3, 4
STRIDE = 5  # entries from a row to the next
STATES = 6  # address of bfloat16 [ROWS, HEADS, SIZE], rows STRIDE apart
COSINES, SINES = 7, 8  # addresses of bfloat16 [ROWS, SIZE]
CALL_COLUMNS = 9


@cache
def rotate() -> int:
    """Compile the rotation.

    Returns:
        Address of a C function of one pointer, to int64 [CALL_COLUMNS]; it takes shares until none is left.
    """

    def rotate_shares(pointer):  # pragma: no cover - runs as machine code
        run_shares(numba.carray(pointer, (CALL_COLUMNS,)))

    return c_kernel(rotate_shares)


@kernel
def run_shares(call):
    """Turn shares of the rows until none is left, see ``rotate``.

    Args:
        call: int64 [CALL_COLUMNS].
    """
    like = np.uint16
    rows, heads, size, stride = call[ROWS], call[HEADS], call[SIZE], call[STRIDE]
    half = size // 2
    cosines, sines = view(call[COSINES], rows * size, like), view(call[SINES], rows * size, like)
    states = view(call[STATES], rows * stride, like)
    while True:
        share = fetch_add(call.ctypes.data)
        if share >= call[SHARES]:
            break
        for row in range(share * rows // call[SHARES], (share + 1) * rows // call[SHARES]):
            for head in range(heads):
                first, angle = row * stride + head * size, row * size
                for i in range(half):
                    a, b = widen(states[first + i]), widen(states[first + half + i])
                    along = widen(narrow(a * widen(cosines[angle + i]), like))
                    across = widen(narrow(-b * widen(sines[angle + i]), like))
                    states[first + i] = narrow(along + across, like)
                    along = widen(narrow(b * widen(cosines[angle + half + i]), like))
                    across = widen(narrow(a * widen(sines[angle + half + i]), like))
                    states[first + half + i] = narrow(along + across, like)
