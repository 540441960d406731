"""Recorded answers: read from JSON lines, checked, and tokenised for replay."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from groundspeed.errors import InputError
from groundspeed.integrations.bench.json_lines import json_lines
from groundspeed.types import ProgressCallback

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["Row", "Trace", "data_set_name", "encode", "in_fit_half", "read_traces", "tokenise"]

_BATCH = 256  # texts a call of the tokenizer, so that progress moves and memory stays small


@dataclass(frozen=True, slots=True)
class Trace:
    """One recorded answer as text.

    Attributes:
        id: Unique in its file.
        question: The last turn; answers to the same question are never history of one another.
        prompt: Passages, earlier turns and question, joined by blank lines.
        passages: What had been retrieved, best first.
        response: The recorded answer.
    """

    id: str
    question: str
    prompt: str
    passages: tuple[str, ...]
    response: str


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """One recorded answer as token ids.

    Attributes:
        question: Of the trace.
        prompt: int32 [p].
        passages: int32 [m_i] each.
        response: int32 [r].
    """

    question: str
    prompt: NDArray[np.int32]
    passages: tuple[NDArray[np.int32], ...]
    response: NDArray[np.int32]


def data_set_name(path: Path) -> str:
    """Name of the data set in a file: the file's name without endings."""
    return path.name.partition(".")[0]


def in_fit_half(question: str) -> bool:
    """Whether rows with this question are for fitting constants; the others are for reporting."""
    return hashlib.sha256(question.encode()).digest()[0] % 2 == 0


def read_traces(path: Path) -> list[Trace]:
    """Read the recorded answers of a file, in an order that depends on their ids only.

    A row is a JSON object with ``id``, ``question``, ``passages`` (texts) and ``response``; ``history``, a
    list of objects with a ``text``, may be there too. Rows with an empty response are left out.

    Args:
        path: JSON lines, ``.gz`` or not.

    Raises:
        InputError: The file cannot be read, or a row has another form; the message names file and line.
    """
    found = [trace for trace in (_trace(row, where) for where, row in json_lines(path)) if trace.response]
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
    return Row(trace.question, prompt, tuple(next(ids) for _ in trace.passages), response)


def _trace(row: dict[str, Any], where: str) -> Trace:
    for field in ("id", "question", "response"):
        if not isinstance(row.get(field), str):
            raise InputError(f"{where}: `{field}` is {_shown(row, field)}; it must be a text")
    passages, turns = row.get("passages"), row.get("history") or []
    if not isinstance(passages, list) or not all(isinstance(passage, str) for passage in passages):
        raise InputError(f"{where}: `passages` is {_shown(row, 'passages')}; it must be a list of texts")
    if not isinstance(turns, list) or not all(
        isinstance(turn, dict) and isinstance(turn.get("text"), str) for turn in turns
    ):
        raise InputError(
            f"{where}: `history` is {_shown(row, 'history')}; it must be a list of objects with a `text`"
        )
    try:
        "".join(
            [row["id"], row["question"], row["response"], *passages, *(t["text"] for t in turns)]
        ).encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"{where}: half of a character stands alone (\\ud800 to \\udfff); mend the text"
        ) from error
    prompt = "\n\n".join([*passages, *(turn["text"] for turn in turns), row["question"]])
    return Trace(row["id"], row["question"], prompt, tuple(passages), row["response"])


def _shown(row: dict[str, Any], field: str) -> str:
    """The value in an error message, cut short."""
    return f"{json.dumps(row[field]):.60}" if field in row else "missing"
