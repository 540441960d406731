"""``groundspeed explain``: what every verification step drafted, and what became of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import groupby
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from groundspeed.integrations.cli import options
from groundspeed.integrations.cli.console import print_json, printable, stdout
from groundspeed.integrations.cli.html import check_html, write_html
from groundspeed.integrations.cli.options import load_engine
from groundspeed.integrations.cli.render import line, print_sources, source_style
from groundspeed.integrations.pipeline import RagPipeline, RetrievalEvent
from groundspeed.integrations.view import Record, Recorder, whole_answer
from groundspeed.types import GenerationResult, Source

__all__ = ["explain"]

_PASSAGE_CHARS = 60
_BRANCHES = 3
"""Rejected branches of a step that are printed; the page and the JSON hold all of them."""


def explain(
    question: Annotated[str, typer.Argument(help="The question.")],
    store: options.Store,
    passages: options.Passages = 5,
    mode: options.SearchMode = "hybrid",
    datastore: options.Datastore = None,
    model: options.Model = None,
    drafter: options.Drafter = "blend",
    draft_model: options.DraftModel = None,
    bridge_tokenizers: options.BridgeTokenizers = False,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    max_tokens: options.MaxTokens = 256,
    temperature: options.Temperature = 0.0,
    seed: options.Seed = None,
    html: options.Html = None,
    as_json: options.Json = False,
) -> None:
    """Answer a question and show, step by step, what was drafted, accepted and rejected."""
    from groundspeed.retrieval.retriever import Retriever

    check_html(html)
    retriever = Retriever.open(store)
    engine = load_engine(model, device, dtype, datastore, draft_model, bridge_tokenizers, drafter)
    pipeline = RagPipeline(engine, retriever)
    recorder = Recorder(pipeline.engine.tokenizer, trace=True)
    records = [recorder.asked(question, pipeline.engine, speculate=True)]
    console = stdout()
    step = 0
    for event in pipeline.stream(
        question, k=passages, mode=mode, max_tokens=max_tokens, temperature=temperature, seed=seed
    ):
        records.append(recorder.take(event))
        if isinstance(event, RetrievalEvent):
            found = event
            if not as_json:
                _print_head(console, records[0], found)
        if records[-1]["type"] == "step" and not as_json:
            for text in describe_step(step, records[-1]):
                line(console, text)
            step += 1
    if as_json:
        print_json(whole_answer(records))
    else:
        assert isinstance(event, GenerationResult)
        _print_answer(console, found, event)
    if html is not None:
        write_html(html, records)


def _print_head(console: Console, asked: Record, found: RetrievalEvent) -> None:
    """What answers, the passages that the steps speak of, and how to read the steps."""
    line(console, "{model} in {dtype} on {device}".format(**asked))
    for number, passage in enumerate(found.passages, start=1):
        text = " ".join(passage.text.split())
        start = text if len(text) <= _PASSAGE_CHARS else f"{text[: _PASSAGE_CHARS - 1]}…"
        style = source_style(Source.PASSAGE, number - 1)
        line(console, Text(printable(f"passage {number}  {passage.document_id}: {start}"), style))
    line(console, "+ accepted from the draft, = the model's own token, - drafted and rejected\n")


def _print_answer(console: Console, found: RetrievalEvent, result: GenerationResult) -> None:
    line(console, f"\n{printable(result.text)}")
    print_sources(console, found.passages, found.shown, result, color=True)


def describe_step(number: int, step: Record) -> Iterator[Text]:
    """A step in lines: ``+`` what was accepted, ``=`` the model's own token, ``-`` what was rejected.

    Args:
        number: 0 for the token that comes with the prompt.
        step: A record of ``Recorder`` with its trace.
    """
    seconds = sum(step[f"{part}_s"] for part in ("draft", "forward", "accept", "commit"))
    forward = f", {1000 * step['forward_s']:.1f} of them the pass" if number else ""
    counts = f"{step['drafted']} drafted, {step['accepted']} accepted, " if number else ""
    head = f"step {number}" if number else "with the prompt"
    yield Text(f"{head}: {counts}{1000 * seconds:.1f} ms{forward}", style="bold")
    for _, run in groupby(step["tokens"], key=lambda token: (token["source"], token.get("passage"))):
        tokens = list(run)
        sign = "=" if tokens[0]["source"] == Source.TARGET.label else "+"
        yield _tokens(sign, tokens).append(f"  {_source(tokens[0])}", "dim")
    for branch in step.get("rejected", ())[:_BRANCHES]:
        others = branch["nodes"] - len(branch["tokens"])
        instead = branch["instead"]
        yield _tokens("-", branch["tokens"], "dim strike").append(
            f"{f' and {others} beside it' if others else ''}  {_source(branch['tokens'][0])}, "
            f"{branch['prob']:.0%} expected; "
            + (f"the model wrote {_quoted(instead)}" if instead is not None else "the answer ends there"),
            "dim",
        )
    more = len(step.get("rejected", ())) - _BRANCHES
    if more > 0:
        yield Text(f"  - and {more} more", "dim")


def _tokens(sign: str, tokens: list[Record], style: str | None = None) -> Text:
    text = "".join(token["text"] for token in tokens)
    first = tokens[0]
    if style is None:
        style = source_style(Source[first["source"].upper()], first.get("passage"))
    return Text(f"  {sign} ").append(_quoted(text), style)


def _quoted(text: str) -> str:
    """In quotes, so that spaces are seen; line breaks and quotes are escaped."""
    return printable(json.dumps(text, ensure_ascii=False))


def _source(token: Record) -> str:
    if "passage" in token:
        return f"passage {token['passage'] + 1}"
    return "the model itself" if token["source"] == Source.TARGET.label else str(token["source"])
