"""The record of an answer, as JSON can hold it: what the page, a file and the terminal show."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeAlias

from groundspeed.integrations.pipeline import AnswerEvent, RetrievalEvent
from groundspeed.integrations.view.tokens import Pieces, passage_of
from groundspeed.types import GenerationResult, GenerationStats, Passage, PrefillEvent, Source, StepEvent
from groundspeed.verify.text import token_text

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from groundspeed.drafting.base import DraftTree
    from groundspeed.verify.engine import Engine

__all__ = ["Record", "Recorder", "answer_as_json", "stats_as_json", "whole_answer"]

Record: TypeAlias = dict[str, Any]

_TIMES = ("draft_s", "forward_s", "accept_s", "commit_s")


class Recorder:
    """Turns the events of one answer into records, one each, as they come.

    Every record has a ``type`` and ``at_s``, the seconds since the recorder was made.

    - ``question``: what is asked, and what answers (``asked``).
    - ``retrieval``: ``passages``, as in ``answer_as_json``.
    - ``prefill``: ``done`` of ``total`` tokens of the prompt are read.
    - ``step``: ``tokens``, the text that became final by token, each with ``text``, ``source`` and, where it
      was drafted from one, ``passage``; ``committed``, ``drafted``, ``accepted`` and the seconds
      ``draft_s``, ``forward_s``, ``accept_s``, ``commit_s``. The first one is the token that comes with the
      prompt and counts as no step. The texts of all steps together are the answer.
    - ``result``: the rest of ``answer_as_json``.

    With ``trace`` a step has ``rejected`` too: the branches of its draft that were not accepted, the most
    probable first. Each has ``at``, how many tokens of the step come before it, ``tokens``, its most
    probable path, ``nodes``, how many it has with its other paths, ``prob``, how probable its first token
    was held, and ``instead``, what the model wrote in that token's place, None for nothing.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, *, trace: bool = False) -> None:
        """Start an answer.

        Args:
            tokenizer: The target model's.
            trace: Record what was drafted and rejected as well.
        """
        self._pieces = Pieces(tokenizer)
        self._tokenizer = tokenizer
        self._trace = trace
        self._begun = time.perf_counter()

    def asked(self, question: str, engine: Engine, *, speculate: bool) -> Record:
        """The record that comes first: the question, what answers it, and whether it drafts."""
        answering = {"model": engine.model_name, "device": engine.device, "dtype": engine.dtype}
        return self._at({"type": "question", "question": question, "speculate": speculate, **answering})

    def take(self, event: AnswerEvent) -> Record:
        """The record of an event."""
        return self._at(self._record(event))

    def _at(self, record: Record) -> Record:
        return {**record, "at_s": round(time.perf_counter() - self._begun, 6)}

    def _record(self, event: AnswerEvent) -> Record:
        if isinstance(event, RetrievalEvent):
            return {"type": "retrieval", "passages": _passages(event.passages, event.shown)}
        if isinstance(event, PrefillEvent):
            return {"type": "prefill", "done": event.done, "total": event.total}
        if isinstance(event, StepEvent):
            return self._step(event)
        return {"type": "result", **_result(event)}

    def _step(self, event: StepEvent) -> Record:
        record = {
            "type": "step",
            "tokens": [_token(piece.text, piece.source, piece.passage) for piece in self._pieces.step(event)],
            "committed": len(event.token_ids),
            "drafted": event.drafted,
            "accepted": event.accepted,
            **{name: round(getattr(event, name), 6) for name in _TIMES},
        }
        if self._trace and event.tree is not None:
            record["rejected"] = _rejected(event.tree, event, self._tokenizer)
        return record


def whole_answer(records: Iterable[Record]) -> Record:
    """One record of a finished answer: the question, ``passages``, ``steps`` and the fields of the result."""
    whole: Record = {"passages": [], "steps": []}
    for record in records:
        if record["type"] == "step":
            whole["steps"].append({name: value for name, value in record.items() if name != "type"})
        elif record["type"] != "prefill":
            whole |= {name: value for name, value in record.items() if name != "type"}
    return whole


def answer_as_json(result: GenerationResult, passages: Sequence[Passage], shown: int) -> Record:
    """The answer with passages, grounding and statistics, and without its steps.

    Args:
        result: The answer.
        passages: What was found.
        shown: How many of them, from the first, stood in the prompt.
    """
    return {"passages": _passages(passages, shown), **_result(result)}


def stats_as_json(stats: GenerationStats) -> Record:
    """The statistics with the rates that follow from them."""
    return {
        **asdict(stats),
        "tokens_per_step": stats.tokens_per_step,
        "tokens_per_second": stats.tokens_per_second,
    }


def _result(result: GenerationResult) -> Record:
    return {
        "text": result.text,
        "token_ids": list(result.token_ids),
        "finish_reason": result.finish_reason,
        "stop": result.stop,
        "seed": result.seed,
        "grounding": [asdict(span) for span in result.grounding],
        "stats": stats_as_json(result.stats),
    }


def _passages(passages: Sequence[Passage], shown: int) -> list[Record]:
    return [
        {
            **{name: value for name, value in asdict(passage).items() if name != "following"},
            "end": passage.end,
            "in_prompt": index < shown,
        }
        for index, passage in enumerate(passages)
    ]


def _token(text: str, source: Source, passage: int | None) -> Record:
    token = {"text": text, "source": source.label}
    return token if passage is None else {**token, "passage": passage}


def _rejected(tree: DraftTree, event: StepEvent, tokenizer: PreTrainedTokenizerBase) -> list[Record]:
    """The branches of a tree that hang off its accepted path."""
    token_ids, probs = tree.token_ids.tolist(), tree.probs.tolist()
    sources, origins = map(Source, tree.source.tolist()), tree.origin.tolist()
    tokens = [
        _token(token_text(tokenizer, token), source, passage_of(source, origin))
        for token, source, origin in zip(token_ids, sources, origins, strict=True)
    ]
    children: dict[int, list[int]] = {}
    for node, parent in enumerate(tree.parents.tolist()):
        children.setdefault(parent, []).append(node)

    def branch(node: int, at: int) -> Record:
        path = [node]
        while following := children.get(path[-1]):
            path.append(max(following, key=probs.__getitem__))
        return {
            "at": at,
            "tokens": [tokens[i] for i in path],
            "nodes": _size(node, children),
            "prob": round(probs[node], 4),
            "instead": token_text(tokenizer, event.token_ids[at]) if at < len(event.token_ids) else None,
        }

    found: list[Record] = []
    last = -1
    for at in range(event.accepted + 1):
        accepted = None
        for node in children.get(last, ()):
            if at < event.accepted and token_ids[node] == event.token_ids[at]:
                accepted = node  # no other child has this token
            else:
                found.append(branch(node, at))
        if accepted is None:
            break
        last = accepted
    return sorted(found, key=lambda one: -one["prob"])


def _size(node: int, children: Mapping[int, Sequence[int]]) -> int:
    return 1 + sum(_size(child, children) for child in children.get(node, ()))
