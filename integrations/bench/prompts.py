"""Prompts to measure with, from JSON lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from groundspeed.errors import InputError
from groundspeed.integrations.bench.json_lines import json_lines
from groundspeed.integrations.bench.traces import data_set_name
from groundspeed.integrations.prompts import GroundedPrompt
from groundspeed.integrations.turns import TurnPrompt
from groundspeed.types import Passage

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["BenchPrompt", "read_prompts"]


@dataclass(frozen=True, slots=True)
class BenchPrompt:
    """A prompt to measure with.

    Attributes:
        id: Of the row, with its file's name.
        token_ids: The prompt.
        passages: What may be drafted from.
    """

    id: str
    token_ids: tuple[int, ...]
    passages: tuple[Passage, ...]


def read_prompts(
    files: Sequence[Path],
    tokenizer: PreTrainedTokenizerBase,
    count: int,
    lengths: range,
    *,
    at_most: bool = False,
) -> list[BenchPrompt]:
    """Take prompts from files, the same number from each and evenly spread over its rows.

    A row is a JSON object with ``question`` and ``passages`` (texts), put into the prompt that ``ask`` uses,
    or with ``prompt``, put into the chat template as the user's turn. Rows with a ``history``, without
    passages or of another length are passed over.

    Args:
        files: JSON lines, ``.gz`` or not.
        tokenizer: The target model's.
        count: Prompts wanted in all.
        lengths: Tokens a prompt may have.
        at_most: Fewer than ``count`` will do, as long as there is one.

    Raises:
        InputError: A file that cannot be read, a row of another form, or fewer usable rows than ``count``.
    """
    chosen: list[BenchPrompt] = []
    for place, file in enumerate(files):
        wanted = count * (place + 1) // len(files) - count * place // len(files)
        rows = [_checked(row, where) for where, row in json_lines(file)]
        # Evenly spaced starting points; from each, the first row that is of use and not taken yet.
        taken: set[int] = set()
        for start in range(wanted):
            for row in range(start * len(rows) // wanted, len(rows)):
                prompt = None if row in taken else _prompt(file, row, rows[row], tokenizer, lengths)
                taken.add(row)
                if prompt is not None:
                    chosen.append(prompt)
                    break
    if len(chosen) < (1 if at_most else count):
        names = ", ".join(str(file) for file in files)
        raise InputError(
            f"{count} prompts of {lengths[0]} to {lengths[-1]} tokens are wanted and {names} gave "
            f"{len(chosen)}; ask for fewer, allow other lengths, or add files"
        )
    return chosen


def _checked(row: dict[str, Any], where: str) -> dict[str, Any]:
    passages = row.get("passages")
    texts = isinstance(passages, list) and all(isinstance(passage, str) for passage in passages)
    if not isinstance(row.get("prompt"), str) and not (texts and isinstance(row.get("question"), str)):
        raise InputError(
            f"{where}: a row is a JSON object with `prompt`, or with `question` and `passages`, a list of "
            "texts"
        )
    return row


def _prompt(
    file: Path, number: int, row: dict[str, Any], tokenizer: PreTrainedTokenizerBase, lengths: range
) -> BenchPrompt | None:
    name = f"{data_set_name(file)}/{row.get('id', number + 1)}"
    if "prompt" in row:
        text = str(row["prompt"])
        if tokenizer.chat_template:
            ids = TurnPrompt(tokenizer).ids([{"role": "user", "content": text}])
        else:
            ids = tuple(tokenizer(text).input_ids)
        return BenchPrompt(name, ids, ()) if len(ids) in lengths else None
    if row.get("history") or not row["passages"]:
        return None
    passages = tuple(
        Passage(f"passage {place}", str(text)) for place, text in enumerate(row["passages"], start=1)
    )
    ids, shown = GroundedPrompt(tokenizer).fit(str(row["question"]), passages, lengths[-1])
    return BenchPrompt(name, ids, passages) if shown and len(ids) in lengths else None
