"""Recorded answers: read from JSON lines, checked, and tokenised for replay."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from groundspeed.errors import InputError
from groundspeed.integrations.bench.json_lines import json_lines
from groundspeed.integrations.bench.log_rows import Trace, read_row
from groundspeed.types import ProgressCallback

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["Row", "Trace", "data_set_name", "encode", "in_fit_half", "read_traces", "tokenise"]

_BATCH = 256  # texts a call of the tokenizer, so that progress moves and memory stays small


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """One recorded answer as token ids.

    Attributes:
        question: Of the trace.
        prompt: int32 [p].
        passages: int32 [m_i] each.
        response: int32 [r].
        trace: As text; None for a row that was never one.
    """

    question: str
    prompt: NDArray[np.int32]
    passages: tuple[NDArray[np.int32], ...]
    response: NDArray[np.int32]
    trace: Trace | None = None


def data_set_name(path: Path) -> str:
    """Name of the data set in a file: the file's name without endings."""
    return path.name.partition(".")[0]


def in_fit_half(question: str) -> bool:
    """Whether rows with this question are for fitting constants; the others are for reporting."""
    return hashlib.sha256(question.encode()).digest()[0] % 2 == 0


def read_traces(path: Path, on_bad: Callable[[str], None] | None = None) -> list[Trace]:
    """Read the recorded answers of a file, in an order that depends on their ids only.

    Rows are as ``read_row`` takes them; those with an empty response are left out.

    Args:
        path: JSON lines, ``.gz`` or not.
        on_bad: Told what is wrong with a row, with file and line, which is then left out; without it such a
            row is an error.

    Raises:
        InputError: The file cannot be read, holds no answer, or a row has another form.
    """
    found: list[Trace] = []
    for where, row in json_lines(path, on_bad):
        try:
            trace = read_row(row, where)
        except InputError as error:
            if on_bad is None:
                raise
            on_bad(str(error))
        else:
            if trace.response:
                found.append(trace)
    if not found:
        raise InputError(f"{path} holds no recorded answer; give rows with a `response` that is not empty")
    return sorted(found, key=lambda trace: hashlib.sha256(trace.id.encode()).digest())


def encode(
    texts: Sequence[str], tokenizer: PreTrainedTokenizerBase, on_progress: ProgressCallback | None = None
) -> list[NDArray[np.int32]]:
    """Token ids of texts, int32 [n_i] each, without special tokens."""
    ids: list[NDArray[np.int32]] = []
    for start in range(0, len(texts), _BATCH):
        batch = tokenizer(list(texts[start : start + _BATCH]), add_special_tokens=False).input_ids
        ids += [np.array(one, np.int32) for one in batch]
        if on_progress:
            on_progress("Tokenising", len(ids), len(texts))
    return ids


def tokenise(
    traces: Sequence[Trace], tokenizer: PreTrainedTokenizerBase, on_progress: ProgressCallback | None = None
) -> list[Row]:
    """Tokenise traces; one whose response has no tokens is left out."""
    texts = [text for trace in traces for text in (trace.prompt, trace.response, *trace.passages)]
    ids = iter(encode(texts, tokenizer, on_progress))
    rows = [_row(trace, ids) for trace in traces]
    return [row for row in rows if len(row.response)]


def _row(trace: Trace, ids: Iterator[NDArray[np.int32]]) -> Row:
    prompt, response = next(ids), next(ids)
    return Row(trace.question, prompt, tuple(next(ids) for _ in trace.passages), response, trace)
