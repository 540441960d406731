"""An answer to show, with everything in it that a page could get wrong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from groundspeed.drafting.base import DraftTree
from groundspeed.integrations.pipeline import RetrievalEvent
from groundspeed.integrations.view import Recorder, whole_answer
from groundspeed.types import GenerationResult, GenerationStats, Passage, Source, StepEvent
from groundspeed.verify.grounding import ground
from helpers.tokenizers import byte_tokenizer

HOSTILE = "</script><!--<script><img src=x onerror='window.broken=1'>&lt;b&gt;\u2028"
QUESTION = f"Who opened the 🌉 bridge? {HOSTILE}"
PASSAGES = (
    Passage(
        "bridge.md",
        f"🦊 {HOSTILE} The Meridian bridge 🌉 was opened by Ida Norling.",
        40,
        0.9,
        {"title": HOSTILE},
        following=" It stands still today.",
    ),
    Passage(f"{HOSTILE}.txt", "A sourdough rests for twelve hours before it is baked. " * 8, 0, 0.5),
    Passage("locks.md", "A lock has two gates, and the bridge has none at all.", 3, 0.1),
)
STEPS = (
    ("The", Source.TARGET, ""),
    (" Meridian bridge 🌉 was", Source.PASSAGE, "harbour"),
    (" opened by Ida Norling. It stands still today.", Source.PASSAGE, ""),
    (" So and the bridge has none at all", Source.PROMPT, "lock"),
    (" bridge bridge", Source.OUTPUT, ""),
    (" so it was", Source.DATASTORE, "is"),
    (" or", Source.RECYCLED, "and"),
    (' {"a": 1}', Source.GRAMMAR, ""),
    (HOSTILE, Source.TARGET, f"x{HOSTILE}"),
)
"""Text, source, and what was drafted in vain, by step."""

TEXT = "".join(text for text, _, _ in STEPS)


def drafted_answer() -> dict[str, Any]:
    """An answer that drew on every source; its tokens are bytes."""
    return _answer(STEPS, speculate=True)


def plain_answer() -> dict[str, Any]:
    """The same without speculation, one character a step."""
    return _answer([(char, Source.TARGET, "") for char in TEXT], speculate=False)


def _answer(steps: Sequence[tuple[str, Source, str]], *, speculate: bool) -> dict[str, Any]:
    tokenizer = byte_tokenizer()
    recorder = Recorder(tokenizer, trace=True)
    engine: Any = type("Engine", (), {"model_name": "tiny", "device": "cpu", "dtype": "float32"})
    records = [
        recorder.asked(QUESTION, engine, speculate=speculate),
        recorder.take(RetrievalEvent(PASSAGES, 2)),
    ]
    ids: list[int] = []
    sources: list[Source] = []
    drafted = 0
    for text, source, wrong in steps:
        own = tokenizer(text)["input_ids"]
        tree = _tree([] if source is Source.TARGET else own, tokenizer(wrong)["input_ids"], source)
        accepted = 0 if source is Source.TARGET else len(own)
        codes = (source,) * len(own)
        times = (0.001, 0.02, 0.0005, 0.0005)
        event = StepEvent(tuple(own), codes, (0,) * len(own), text, len(tree), accepted, *times, tree=tree)
        records.append(recorder.take(event))
        ids += own
        sources += codes
        drafted += len(tree)
    by_source = {source.label: sources.count(source) for source in Source if source is not Source.TARGET}
    stats = GenerationStats(
        9, len(ids), len(steps) - 1, drafted, sum(by_source.values()), by_source, 0, 0.1, 0.5, "tree"
    )
    result = GenerationResult(TEXT, tuple(ids), tuple(sources), "stop", ground(TEXT, PASSAGES), stats, seed=7)
    return whole_answer([*records, recorder.take(result)])


def _tree(right: list[int], wrong: list[int], source: Source) -> DraftTree:
    """Two paths from the root."""
    n = len(right) + len(wrong)
    parents = [*range(-1, len(right) - 1), *([-1] if wrong else []), *range(len(right), n - 1)]
    return DraftTree(
        np.array([*right, *wrong], np.int32),
        np.array(parents, np.int32),
        np.full(n, 0.5, np.float32),
        np.full(n, source or Source.PROMPT, np.uint16),
        np.zeros(n, np.int64),
    )
