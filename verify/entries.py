"""What the attention kernel multiplies: entries of 4 bytes, each a float32 or a pair of bfloat16.

A pair takes half the memory, and its two products one instruction where the processor has it. The dtype of
the array that a function fills says which of the two it makes, float32 or uint32. Pairs lie along the terms
of a sum: two dimensions of a key, or two positions of a text, always the same two.
"""
# mypy: allow-untyped-defs

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numba import types
from numba.extending import overload

from groundspeed.datastores.views import view
from groundspeed.jit import kernel
from groundspeed.verify.vectors import narrow, widen

__all__ = ["in_place", "pack", "per_entry", "pick", "settle", "widen_all"]


def per_entry(entries: Any) -> Any:
    """Terms of a sum that an entry holds, 1 or 2."""


def in_place(stored: Any, entries: Any) -> Any:
    """Whether entries are what a cache holds, rather than made of it."""


def widen_all(numbers: Any, address: Any) -> Any:
    """Write float32 or bfloat16 numbers to an address as float32."""


def pack(terms: Any, address: Any, entry: Any) -> Any:
    """Write terms, float32 or bfloat16, that follow one another to an address, as entries of ``entry``."""


def pick(values: Any, one: Any, other: Any, entries: Any) -> Any:
    """Fill the entries of a row, or of a pair of rows, with the rows of these numbers.

    Args:
        values: Entries of rows or of pairs of them, as long as ``entries`` each.
        one: The number of a row.
        other: That of the pair's second one, -1 for none; of no account for floats.
        entries: Filled.
    """


def settle(term: Any, entries: Any) -> Any:
    """A float32 as an entry can hold it."""


_overload = partial(overload, jit_options={"error_model": "numpy"})


def _in_pairs(entries: Any) -> bool:
    """Whether an array type holds pairs."""
    return bool(entries.dtype == types.uint32)


@_overload(per_entry, inline="always")
def _per_entry(entries):
    number = 2 if _in_pairs(entries) else 1
    return lambda entries: number


@_overload(in_place, inline="always")
def _in_place(stored, entries):
    same = stored.dtype == entries.dtype or _in_pairs(entries)
    return lambda stored, entries: same


@_overload(widen_all)
def _widen_all(numbers, address):
    def widened(numbers, address):
        written = view(address, len(numbers), np.float32)
        for i in range(len(numbers)):
            written[i] = widen(numbers[i])

    return widened


@kernel
def _half(term, like):
    """The bits of a bfloat16, or of the one nearest to a float32."""
    return narrow(widen(term), like)


@_overload(pack)
def _pack(terms, address, entry):
    def pairs(terms, address, entry):
        # The first of a pair is the lower half, which comes first in memory.
        halves = view(address, len(terms) + len(terms) % 2, np.uint16)
        for i in range(len(terms)):
            halves[i] = _half(terms[i], np.uint16)
        if len(terms) % 2:
            halves[len(terms)] = np.uint16(0)

    def floats(terms, address, entry):
        widened = view(address, len(terms), np.float32)
        for i in range(len(terms)):
            widened[i] = widen(terms[i])

    return pairs if _in_pairs(entry) else floats


@_overload(pick)
def _pick(values, one, other, entries):
    def pairs(values, one, other, entries):
        low, high = np.uint32(one % 2 * 16), np.uint32(other % 2 * 16)
        mask = np.uint32(0xFFFF if other >= 0 else 0)
        first = values[one // 2 * len(entries) : (one // 2 + 1) * len(entries)]
        second = values[max(other, 0) // 2 * len(entries) : (max(other, 0) // 2 + 1) * len(entries)]
        for i in range(len(entries)):
            entries[i] = (first[i] >> low & np.uint32(0xFFFF)) | (second[i] >> high & mask) << np.uint32(16)

    def floats(values, one, other, entries):
        row = values[one * len(entries) : (one + 1) * len(entries)]
        for i in range(len(entries)):
            entries[i] = row[i]

    return pairs if _in_pairs(entries) else floats


@_overload(settle, inline="always")
def _settle(term, entries):
    if _in_pairs(entries):
        return lambda term, entries: widen(narrow(term, np.uint16))
    return lambda term, entries: term
