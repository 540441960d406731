"""Finding a context in stored text: which tokens followed its longest match, and those of shorter ones.

The rows of a segment are the positions of its text sorted by the context that ends there, read backwards: a
suffix array (Manber & Myers 1993) of the reversed text, the order of the Burrows-Wheeler transform. One
binary search for a context then finds all its suffixes at once: the rows beside the insertion point have the
longest match, and going outward matches only become shorter. What followed stands next to what is compared.

A small table of packed keys, one every ``STRIDE`` rows, takes most steps of the search.
"""
# mypy: allow-untyped-defs

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from groundspeed.datastores.views import prefetch
from groundspeed.jit import inlined, kernel

__all__ = ["LONGEST", "find", "key_layout", "levels", "separator", "top_keys", "widen"]

LONGEST = 24
"""Longest context, in tokens, that is told apart from longer ones."""

STRIDE = 32
"""Rows between two keys of the top table."""

SPAN = 64
"""Keys between two that stand in its second part too, which is small enough to stay in the cache."""

_PROBES = 16  # rows whose texts are fetched at once to search among them
_LINE = 64  # bytes of a line of the cache
_NEAR = 16  # rows whose texts are fetched at once to find the end of the matches among them
_STEPS = 6  # of doubling length from a match, whose ends are fetched before they are looked at


def separator(text: NDArray[Any]) -> int:
    """What stands before, between and after the documents of a text: the largest value of its dtype."""
    return int(np.iinfo(text.dtype).max)


@kernel
def top_keys(text, rows):
    """Keys of every ``STRIDE``-th row, behind them every ``SPAN``-th of these again; uint64, both rising."""
    bits, width = key_layout(text)
    count = (len(rows) + STRIDE - 1) // STRIDE
    keys = np.empty(count + (count + SPAN - 1) // SPAN, np.uint64)
    for i in range(count):
        position = np.int64(rows[i * STRIDE])
        key = np.uint64(0)
        for k in range(width):
            token = np.uint64(text[position - k]) if position >= k else np.uint64(0)
            key = (key << np.uint64(bits)) | (token & np.uint64((1 << bits) - 1))
        keys[i] = key
    keys[count:] = keys[:count:SPAN]
    return keys


@kernel
def key_layout(text):
    """Bits of a token in a key, and tokens of a key."""
    if text.itemsize == 2:
        return 16, 4
    return 21, 3


@inlined
def lower_bound(keys, key, low, high):
    """First of the rising ``keys[low:high]`` that is not below ``key``; ``high`` when all are."""
    while low < high:
        middle = (low + high) // 2
        if keys[middle] < key:
            low = middle + 1
        else:
            high = middle
    return low


@inlined
def overlap(text, row, context, size):
    """Tokens of the context, last first, that stand before and at position ``row``."""
    if row >= len(text):  # a damaged file must not lead out of the array
        return 0
    n = 0
    while n < size and text[row - n] == context[n]:
        n += 1
    return n


@inlined
def fetch(text, rows, low, high, step):
    """Begin to load the text at every so many rows, so that the waits overlap."""
    for row in range(max(low, 0), min(high, len(rows)), step):
        prefetch(text, rows[row])


@inlined
def approach(text, rows, row, step):
    """Begin to load what ``edge`` looks at first."""
    for k in range(_STEPS):
        prefetch(text, rows[min(max(row + step * (1 << k), 0), len(rows) - 1)])


@inlined
def sorts_below(text, row, context, size):
    """Whether the context at a row sorts before the one asked for."""
    row = min(np.int64(row), len(text) - 1)
    n = overlap(text, row, context, size)
    return n < size and np.int64(text[row - n]) < context[n]


@kernel
def find(text, rows, keys, context, size):
    """First row that does not sort before the context, in [0, n].

    Args:
        text: uint16 or uint32 [n], starts and ends with a separator.
        rows: uint32 [n], of ``sort_contexts``.
        keys: uint64 [k], of ``top_keys``.
        context: int64 [at least size], the last token first.
        size: Tokens of the context, at least 1.
    """
    bits, width = key_layout(text)
    key = np.uint64(0)
    for k in range(width):
        key = (key << np.uint64(bits)) | np.uint64(context[k] if k < size else 0)
    # Rows under smaller keys sort before the context, rows under larger ones do not.
    count = (len(rows) + STRIDE - 1) // STRIDE
    mark = lower_bound(keys, key, count, len(keys)) - count
    near, far = max(mark - 1, 0) * SPAN, min(mark * SPAN, count)
    for k in range(near, far, _LINE // keys.itemsize):
        prefetch(keys, k)
    block = lower_bound(keys, key, near, far)
    low = max(block - 1, 0) * STRIDE
    for row in range(low, low + 2 * STRIDE, _LINE // rows.itemsize):
        prefetch(rows, row)
    # Few rows share a key: the end of theirs is near, and looking further and further touches less memory.
    near, far = block, block + 1
    while far < count and keys[far - 1] <= key:
        near, far = far, far + 2 * (far - block)
    beyond = lower_bound(keys, key + np.uint64(1), near, min(far, count))
    high = min(beyond * STRIDE, len(rows))
    while low < high:
        # The texts of rows lie far apart. Waiting for many at once takes little longer than waiting for one.
        step = (high - low + _PROBES - 1) // _PROBES
        begin = low + step - 1
        fetch(text, rows, begin, high, step)
        few = 0
        many = (high - begin + step - 1) // step
        while few < many:
            middle = (few + many) // 2
            probe = begin + middle * step
            if sorts_below(text, rows[probe], context, size):
                few = middle + 1
                low = probe + 1
            else:
                many = middle
                high = probe
    return low


@inlined
def edge(text, rows, context, length, inside, step, reach):
    """Last row towards ``step`` (1 or -1), at most ``reach`` rows far, that matches ``length`` tokens."""
    last = min(len(rows) - 1, inside + reach) if step > 0 else max(0, inside - reach)
    stride = 1
    outside = inside + step
    while (outside - last) * step <= 0 and overlap(text, np.int64(rows[outside]), context, length) == length:
        inside = outside
        outside = inside + step * stride
        stride *= 2
    if (outside - last) * step > 0:
        outside = last + step
    fetch(text, rows, min(inside, outside), max(inside, outside), abs(outside - inside) // _NEAR + 1)
    while abs(outside - inside) > 1:
        middle = (inside + outside) // 2
        if overlap(text, np.int64(rows[middle]), context, length) == length:
            inside = middle
        else:
            outside = middle
    return inside


@kernel
def levels(text, rows, keys, context, size, found):
    """The longest matches of a context: how long they are and which rows have them.

    Args:
        text: uint16 or uint32 [n].
        rows: uint32 [n].
        keys: uint64 [k].
        context: int64 [at least size], the last token first.
        size: Tokens of the context; of more than ``LONGEST`` the last ones count.
        found: int64 [m, 3], filled with (length, first row, last row), longest first. Rows of one level are
            among those of the next, which has more.

    Returns:
        Number of levels found, at most m.
    """
    size = min(size, LONGEST)
    if len(rows) == 0 or size == 0:
        return 0
    first = find(text, rows, keys, context, size)
    last = first - 1
    n = 0
    while n < len(found):
        length, first, last = widen(text, rows, context, size, first, last, 1, len(rows))
        if length == 0:
            break
        found[n, 0] = length
        found[n, 1] = first
        found[n, 2] = last
        n += 1
    return n


@kernel
def widen(text, rows, context, size, first, last, shortest, reach):
    """The next shorter match round the rows of a longer one.

    Args:
        text: uint16 or uint32 [n].
        rows: uint32 [n].
        context: int64 [at least size], the last token first.
        size: Tokens of the context, at most ``LONGEST``.
        first: First row of the longer match; ``find``'s row to begin with.
        last: Last row of the longer match; ``find``'s row - 1 to begin with.
        shortest: Tokens that a match must have.
        reach: Rows that are looked for on each side, about; there may be more.

    Returns:
        Length of the match, 0 when there is none; its first and last row, the longer match's among them.
    """
    left = overlap(text, np.int64(rows[first - 1]), context, size) if first > 0 else 0
    right = overlap(text, np.int64(rows[last + 1]), context, size) if last + 1 < len(rows) else 0
    length = max(left, right)
    if length < shortest:
        return 0, first, last
    approach(text, rows, first - 1, -1)
    approach(text, rows, last + 1, 1)
    if left == length:
        first = edge(text, rows, context, length, first - 1, -1, reach)
    if right == length:
        last = edge(text, rows, context, length, last + 1, 1, reach)
    return length, first, last
