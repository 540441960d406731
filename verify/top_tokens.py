"""The most probable tokens of a row of logits, without sorting it."""
# mypy: allow-untyped-defs

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.weak import WeakTensorKeyDictionary

from groundspeed.drafting.features import ROW
from groundspeed.jit import kernel

__all__ = ["fetch_leading", "leading"]

_BLOCK = 128
"""Logits that are looked at together."""

_BITS = {torch.float32: torch.int32, torch.bfloat16: torch.int16, torch.float16: torch.int16}

_read: MutableMapping[torch.Tensor, NDArray[np.int32]] = WeakTensorKeyDictionary()
"""By logits, int32 [n, 1 + ROW] that was read ahead: the most probable token, and then the leading ones."""


def fetch_leading(
    passes: Sequence[tuple[torch.Tensor, Sequence[torch.Tensor]]],
    fetch: Callable[[torch.Tensor], NDArray[Any]],
) -> None:
    """Read what ``leading`` will be asked for of all texts of a pass at once, as a device is waited for.

    Args:
        passes: Logits [n, vocab], with those of each text: views of the first rows, one after the other.
        fetch: Reads a tensor.
    """
    found = fetch(torch.cat([_indices(logits) for logits, _ in passes]))
    start = 0
    for logits, texts in passes:
        row = start
        for text in texts:
            _read[text] = found[row : row + len(text)]
            row += len(text)
        start += len(logits)


def _indices(logits: torch.Tensor) -> torch.Tensor:
    best = logits.argmax(-1, keepdim=True)  # of equals the first, which topk does not promise
    return torch.cat((best, logits.topk(min(ROW, logits.shape[1])).indices), 1).to(torch.int32)


def leading(logits: torch.Tensor, k: int) -> NDArray[np.int32]:
    """The most probable tokens of each row, best first; of equals the first ones.

    PyTorch's own ``argmax`` and ``topk`` on the CPU take many times as long as reading the row does, together
    a twentieth of a forward pass.

    Args:
        logits: [n, vocab], on any device.
        k: How many; fewer where the vocabulary has fewer.

    Returns:
        int32 [n, k].
    """
    k = min(k, logits.shape[1])
    read = _read.get(logits)
    if read is not None and k < read.shape[1]:
        return read[:, :1] if k == 1 else read[:, 1 : 1 + k]
    bits = _BITS.get(logits.dtype)
    if logits.device.type != "cpu" or bits is None:
        best = logits.argmax(-1, keepdim=True) if k == 1 else logits.topk(k).indices
        return best.to(device="cpu", dtype=torch.int32).numpy()
    rows = logits.detach().contiguous().view(bits).numpy()
    tokens = np.empty((len(rows), k), np.int32)
    kind = rows.dtype.type
    _leading(rows, kind(np.iinfo(kind).min), kind(8 * rows.itemsize - 1), tokens)
    return tokens


@kernel
def _leading(rows, lowest, sign, tokens):
    """See ``leading``.

    The k largest values lie in the k blocks whose maxima are largest, so only those are looked through.

    Args:
        rows: Integers [n, vocab], the bits of floats.
        lowest: The smallest integer of their kind.
        sign: Which of their bits is the sign.
        tokens: int32 [n, k], written.
    """
    n, vocab = rows.shape
    maxima = np.empty((vocab + _BLOCK - 1) // _BLOCK, rows.dtype)
    best = np.empty(tokens.shape[1], rows.dtype)
    blocks = np.empty(min(tokens.shape[1], len(maxima)), np.int32)
    for r in range(n):
        row = rows[r]
        for block in range(vocab // _BLOCK):  # of constant length, so that it becomes vector instructions
            maxima[block] = _highest(row[block * _BLOCK : (block + 1) * _BLOCK], lowest, sign)
        if vocab % _BLOCK:
            maxima[-1] = _highest(row[vocab // _BLOCK * _BLOCK :], lowest, sign)
        count = 0
        for block in range(len(maxima)):
            count = _insert(best, blocks, count, maxima[block], block)
        blocks.sort()  # so that of equal tokens the first is met first
        count = 0
        for block in blocks:
            for i in range(block * _BLOCK, min((block + 1) * _BLOCK, vocab)):
                count = _insert(best, tokens[r], count, _key(row[i], lowest, sign), i)


@kernel
def _key(bits, lowest, sign):
    """What orders floats as the numbers do: the bits of negative ones rise as the numbers fall; -0 is 0."""
    return bits ^ ((bits >> sign) & ~lowest) if bits != lowest else 0


@kernel
def _highest(row, lowest, sign):
    top = lowest
    for i in range(len(row)):
        top = max(top, _key(row[i], lowest, sign))
    return top


@kernel
def _insert(values, items, count, value, item):
    """Take in a value among the largest ``len(items)``, ``count`` so far, largest first; their count then."""
    if count == len(items):
        if value <= values[count - 1]:
            return count
    else:
        count += 1
    at = count - 1
    while at and value > values[at - 1]:
        values[at], items[at] = values[at - 1], items[at - 1]
        at -= 1
    values[at], items[at] = value, item
    return count
