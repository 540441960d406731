from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from groundspeed.datastores import sorting
from groundspeed.datastores.search import LONGEST, separator
from groundspeed.datastores.sorting import sort_contexts


def random_text(
    size: int, alphabet: NDArray[np.int64], dtype: type, seed: int
) -> NDArray[np.unsignedinteger]:
    rng = np.random.default_rng(seed)
    text = rng.choice(alphabet, size + 2).astype(dtype)
    text[rng.random(size + 2) < 0.02] = separator(text)
    text[[0, -1]] = separator(text)
    return text


def check_order(text: NDArray[np.unsignedinteger], rows: NDArray[np.uint32]) -> None:
    """Each position once; contexts rise as far as searches tell them apart, and equal ones by position."""
    assert rows.dtype == np.uint32
    assert np.array_equal(np.sort(rows), np.arange(len(text)))
    padded = np.concatenate([np.full(LONGEST, separator(text), text.dtype), text]).astype(np.int64)
    undecided = np.ones(len(rows) - 1, np.bool_)
    for k in range(LONGEST):
        tokens = padded[rows.astype(np.int64) + LONGEST - k]
        assert not (undecided & (tokens[:-1] > tokens[1:])).any()
        undecided &= tokens[:-1] == tokens[1:]


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32])
@pytest.mark.parametrize("vocabulary", [1, 2, 50_000])
@pytest.mark.parametrize("size", [0, 1, 40, 3_000])
def test_the_order_is_that_of_sorting_the_contexts(dtype: type, vocabulary: int, size: int) -> None:
    text = random_text(size, np.random.default_rng(size).integers(0, vocabulary, 30), dtype, vocabulary)
    tokens = [separator(text)] * LONGEST + text.tolist()
    wanted = sorted(range(len(text)), key=lambda at: (tokens[at + 1 : at + 1 + LONGEST][::-1], at))
    assert sort_contexts(text).tolist() == wanted


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32])
@pytest.mark.parametrize("vocabulary", [1, 2, 50_000])
def test_a_text_sorted_by_several_threads_is_in_order(dtype: type, vocabulary: int) -> None:
    text = random_text(2 * sorting.FEW, np.arange(vocabulary), dtype, vocabulary)
    check_order(text, sort_contexts(text))


@pytest.mark.parametrize("period", [1, 2, 3, 7, 1_000])
def test_a_text_that_repeats_itself_is_in_order(period: int) -> None:
    text = np.tile(np.arange(period), 300_000 // period).astype(np.uint16)
    text[[0, -1]] = separator(text)
    check_order(text, sort_contexts(text))
