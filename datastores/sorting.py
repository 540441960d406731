"""Sorting the positions of a text by the contexts that end there.

The order is that of a suffix array of the reversed text, but only so many tokens are compared as a search
tells apart. That takes a counting sort by the last token and, among the rows of each token, a multikey
quicksort (Bentley & Sedgewick 1997) on as many tokens at once as fit into 64 bits, which stand beside the
rows. The rows of a token are sorted without looking at others, so all cores take part.
"""
# mypy: allow-untyped-defs

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from groundspeed.datastores.search import LONGEST, key_layout, separator
from groundspeed.datastores.views import prefetch
from groundspeed.jit import kernel

__all__ = ["sort_contexts"]

FEW = 1 << 16  # rows up to which threads and a table of all tokens cost more than they bring
_SHARES = 64  # pieces of work, many more than cores, as some take longer
_SMALL = 20  # rows that insertion sort sorts faster
_MANY = 200  # rows of which a better pivot is worth its search
_STACK = 128  # ranges that wait: log2 of the rows, and the ties of small ranges


def sort_contexts(text: NDArray[Any]) -> NDArray[np.uint32]:
    """Positions of a text in the order of the contexts that end there, uint32 [n].

    At least the last ``LONGEST`` tokens are compared, the last first; where they are equal, positions rise.

    Args:
        text: uint16 or uint32 [n], starts with a separator.
    """
    n = len(text)
    padded = np.full(LONGEST + n, separator(text), text.dtype)  # contexts of the first positions begin before
    padded[LONGEST:] = text
    keys = np.empty(n, np.uint64)
    rows = np.empty(n, np.uint32)
    if n <= FEW:
        rows[:] = np.arange(n)
        sort_few(padded, keys, rows)
        return rows
    tokens = table_size(text)
    # Each has a table of all tokens; more of them than there are rows for would take more memory than rows.
    workers = max(1, min(os.cpu_count() or 1, n // max(FEW, tokens)))
    cuts = [n * i // workers for i in range(workers + 1)]
    counts = np.zeros((workers, tokens), np.uint32)
    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(partial(count_tokens, padded), cuts[:-1], cuts[1:], counts))
        # The rows of a token lie together, those of earlier stretches first.
        ends = np.cumsum(counts.T, dtype=np.uint32).reshape(counts.T.shape)
        places = np.ascontiguousarray(ends.T - counts)
        list(pool.map(partial(deal_rows, padded, keys, rows), cuts[:-1], cuts[1:], places))
        bounds = np.concatenate([[0], ends[:, -1]])
        shares = np.searchsorted(bounds, np.linspace(0, n, _SHARES + 1).astype(np.int64))
        parts = [bounds[first : last + 1] for first, last in pairwise(shares.tolist())]
        list(pool.map(partial(sort_tokens, padded, keys, rows), parts))
    return rows


@kernel
def sort_few(text, keys, rows):
    """Sort all rows of a small text."""
    for i in range(len(rows)):
        keys[i] = packed(text, rows[i], 0)
    sort_range(text, keys, rows, 0, len(rows), 0, new_stack(), np.empty(_STACK, np.uint64))


@kernel
def table_size(text):
    """Entries of a table of all tokens up to the largest of the text; the last one is the separator's."""
    size = 1
    for position in range(len(text)):
        if text[position] != text[0] and text[position] >= size:
            size = int(text[position]) + 1
    return size + 1


@kernel
def count_tokens(text, begin, end, counts):
    """Count how often each token occurs in a stretch."""
    for position in range(begin, end):
        counts[min(text[position + LONGEST], len(counts) - 1)] += 1


@kernel
def deal_rows(text, keys, rows, begin, end, places):
    """Write the positions of a stretch, and the tokens before them, to the places of their tokens."""
    for position in range(begin, end):
        token = min(text[position + LONGEST], len(places) - 1)
        place = places[token]
        places[token] = place + 1
        keys[place] = packed(text, position, 1)
        rows[place] = position


@kernel
def sort_tokens(text, keys, rows, bounds):
    """Sort the rows of each of some tokens, which lie between the bounds."""
    stack = new_stack()
    floors = np.empty(_STACK, np.uint64)
    for token in range(len(bounds) - 1):
        sort_range(text, keys, rows, bounds[token], bounds[token + 1], 1, stack, floors)


@kernel
def new_stack():
    """Room for the ranges that wait: first row, the one past the last, tokens known to be equal."""
    return np.empty((_STACK, 3), np.int64)


@kernel
def packed(text, position, depth):
    """The tokens of a position's context from ``depth`` on, as one number; behind all, its position."""
    if depth >= LONGEST:
        return np.uint64(position)
    last = np.uint64(position) + np.uint64(LONGEST - depth)
    a, b, c = text[last], text[last - np.uint64(1)], text[last - np.uint64(2)]
    if text.itemsize == 2:  # written out, four tokens become a single load
        d = text[last - np.uint64(3)]
        return (np.uint64(a) << 48) | (np.uint64(b) << 32) | (np.uint64(c) << 16) | np.uint64(d)
    mask = np.uint64((1 << 21) - 1)
    return ((a & mask) << 42) | ((b & mask) << 21) | (c & mask)


@kernel
def sort_range(text, keys, rows, low, high, depth, stack, floors):
    """Sort rows whose contexts agree in ``depth`` tokens; ``keys`` holds the tokens after those."""
    width = key_layout(text)[1]
    floor = np.uint64(0)  # no key of the range is below
    waiting = 0
    while True:
        if high - low <= _SMALL:
            for i in range(low, high):  # ties are likely, and the text they lead to is far away
                prefetch(text, np.int64(rows[i]) + LONGEST - depth - width)
            insertion_sort(keys[low:high], rows[low:high])
            first = low
            while first < high:
                end = first + 1
                while end < high and keys[end] == keys[first]:
                    end += 1
                if end - first > 1:
                    for i in range(first, end):
                        keys[i] = packed(text, rows[i], depth + width)
                    stack[waiting] = (first, end, depth + width)
                    floors[waiting] = 0
                    waiting += 1
                first = end
            if waiting == 0:
                return
            waiting -= 1
            low, high, depth = stack[waiting]
            floor = floors[waiting]
            continue
        pivot = middle_key(keys, low, high)
        # The smallest possible pivot cuts off the rows that are equal to it, which are told apart further on.
        equal = pivot == floor
        cut = low + partition(keys[low:high], rows[low:high], pivot if equal else pivot - np.uint64(1))
        deeper = depth
        if equal:
            deeper += width
            for i in range(low, cut):
                keys[i] = packed(text, rows[i], deeper)
            floor = np.uint64(0)
        # The larger side waits, so that few do.
        if cut - low > high - cut:
            stack[waiting] = (low, cut, deeper)
            floors[waiting] = floor
            low, floor = cut, pivot
        else:
            stack[waiting] = (cut, high, depth)
            floors[waiting] = pivot
            high, depth = cut, deeper
        waiting += 1


@kernel
def middle_key(keys, low, high):
    """A key near the median: of three, or of three such where there are many."""
    middle = (low + high) // 2
    eighth = (high - low) // 8
    if high - low < _MANY:
        return median(keys[low], keys[middle], keys[high - 1])
    return median(
        median(keys[low], keys[low + eighth], keys[low + 2 * eighth]),
        median(keys[middle - eighth], keys[middle], keys[middle + eighth]),
        median(keys[high - 1 - 2 * eighth], keys[high - 1 - eighth], keys[high - 1]),
    )


@kernel
def median(a, b, c):
    """The middle one of three."""
    return max(min(a, b), min(max(a, b), c))


@kernel
def partition(keys, rows, limit):
    """Bring the keys up to a limit to the front; returns how many they are."""
    cut = np.uint64(0)  # unsigned, as what is signed might count from the end, which takes time to tell
    for i in range(len(keys)):
        key, row = keys[i], rows[i]
        keys[i], rows[i] = keys[cut], rows[cut]
        keys[cut], rows[cut] = key, row
        cut += np.uint64(key <= limit)  # added, as a branch would be mispredicted
    return np.int64(cut)


@kernel
def insertion_sort(keys, rows):
    """Sort a few rows by their keys."""
    for i in range(1, len(keys)):
        key, row = keys[i], rows[i]
        at = np.uint64(i)
        while at > np.uint64(0) and keys[at - np.uint64(1)] > key:
            keys[at], rows[at] = keys[at - np.uint64(1)], rows[at - np.uint64(1)]
            at -= np.uint64(1)
        keys[at], rows[at] = key, row
