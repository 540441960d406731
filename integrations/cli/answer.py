"""``groundspeed ask`` and ``groundspeed generate``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from groundspeed.errors import InputError
from groundspeed.integrations.cli import options
from groundspeed.integrations.cli.console import print_json, progress_bars, stdout
from groundspeed.integrations.cli.html import check_html, write_html
from groundspeed.integrations.cli.options import load_engine
from groundspeed.integrations.cli.render import AnswerPrinter, print_sources
from groundspeed.integrations.pipeline import AnswerEvent, RagPipeline, RetrievalEvent
from groundspeed.integrations.view import Record, Recorder, answer_as_json
from groundspeed.types import GenerationRequest, GenerationResult, Grammar, Passage, PrefillEvent, StepEvent

if TYPE_CHECKING:
    from groundspeed.verify.engine import Engine

__all__ = ["ask", "generate"]


def ask(
    question: Annotated[str, typer.Argument(help="The question.")],
    store: options.Store,
    passages: options.Passages = 5,
    mode: options.SearchMode = "hybrid",
    rerank: Annotated[
        str | None, typer.Option(help="Cross-encoder that orders the passages anew: hub id or folder.")
    ] = None,
    embedding_model: options.EmbeddingModel = None,
    datastore: options.Datastore = None,
    learn: options.Learn = None,
    model: options.Model = None,
    drafter: options.Drafter = "blend",
    draft_model: options.DraftModel = None,
    bridge_tokenizers: options.BridgeTokenizers = False,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    max_tokens: options.MaxTokens = 256,
    temperature: options.Temperature = 0.0,
    top_p: options.TopP = 1.0,
    top_k: options.TopK = 0,
    min_p: options.MinP = 0.0,
    repetition_penalty: options.RepetitionPenalty = 1.0,
    seed: options.Seed = None,
    no_speculation: options.NoSpeculation = False,
    color: options.Color = False,
    html: options.Html = None,
    as_json: options.Json = False,
) -> None:
    """Answer a question from a store, drafting the answer from the passages found."""
    from groundspeed.retrieval.retriever import Retriever

    _check_learning(learn, datastore)
    check_html(html)
    retriever = Retriever.open(store, embedding_model)
    engine = load_engine(model, device, dtype, datastore, draft_model, bridge_tokenizers, drafter)
    events = RagPipeline(engine, retriever).stream(
        question,
        k=passages,
        mode=mode,
        rerank=rerank,
        max_tokens=max_tokens,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        seed=seed,
        speculate=not no_speculation,
    )
    records: list[Record] = []
    if html is not None:
        recorder = Recorder(engine.tokenizer, trace=True)
        records.append(recorder.asked(question, engine, speculate=not no_speculation))
        events = _recorded(events, recorder, records)
    result = _show(engine, events, color=color, as_json=as_json)
    if html is not None:
        write_html(html, records)
    _learn(engine, datastore, learn, result)


def generate(
    prompt_file: Annotated[Path, typer.Option(help="File with the prompt, used as it is.")],
    document: Annotated[
        list[Path] | None, typer.Option(help="Text file to draft from and to ground in; may be repeated.")
    ] = None,
    datastore: options.Datastore = None,
    learn: options.Learn = None,
    model: options.Model = None,
    drafter: options.Drafter = "blend",
    draft_model: options.DraftModel = None,
    bridge_tokenizers: options.BridgeTokenizers = False,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    max_tokens: options.MaxTokens = 256,
    temperature: options.Temperature = 0.0,
    top_p: options.TopP = 1.0,
    top_k: options.TopK = 0,
    min_p: options.MinP = 0.0,
    repetition_penalty: options.RepetitionPenalty = 1.0,
    seed: options.Seed = None,
    stop: Annotated[
        list[str] | None, typer.Option(help="Text that the answer ends before; may be repeated.")
    ] = None,
    json_schema: Annotated[
        Path | None, typer.Option(help="File with a JSON schema that the answer must follow.")
    ] = None,
    no_speculation: options.NoSpeculation = False,
    color: options.Color = False,
    as_json: options.Json = False,
) -> None:
    """Continue a prompt, drafting from it and from the documents given; they do not change the prompt."""
    prompt = _read_text(prompt_file)
    passages = tuple(Passage(str(path), _read_text(path)) for path in document or ())
    _check_learning(learn, datastore)
    grammar = None if json_schema is None else Grammar.json_schema(_read_text(json_schema))
    engine = load_engine(model, device, dtype, datastore, draft_model, bridge_tokenizers, drafter)
    request = GenerationRequest(
        prompt=prompt,
        passages=passages,
        max_tokens=max_tokens,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        seed=seed,
        stop=tuple(stop or ()),
        grammar=grammar,
        speculate=not no_speculation,
    )

    def events() -> Iterator[AnswerEvent]:
        yield RetrievalEvent(passages, len(passages))  # nothing was left out: the prompt is given
        yield from engine.stream(request)

    result = _show(engine, events(), color=color, as_json=as_json)
    _learn(engine, datastore, learn, result)


def _recorded(
    events: Iterator[AnswerEvent], recorder: Recorder, records: list[Record]
) -> Iterator[AnswerEvent]:
    for event in events:
        records.append(recorder.take(event))
        yield event


_LEARNED_TOKENS = 5_000_000  # of answers that a namespace keeps; the oldest make room


def _check_learning(namespace: str | None, datastore: Path | None) -> None:
    if namespace is not None and datastore is None:
        raise InputError("--learn adds the answer to a datastore; name it with --datastore")


def _learn(engine: Engine, datastore: Path | None, namespace: str | None, result: GenerationResult) -> None:
    """Add the answer where that is wanted; the store is held for writing only now, and not for the answer."""
    if datastore is None or namespace is None:
        return
    from groundspeed.datastores.fingerprint import TokenizerFingerprint
    from groundspeed.datastores.writer import TokenDatastoreWriter

    tokenizer = TokenizerFingerprint.of(engine.tokenizer)
    with TokenDatastoreWriter.open(datastore, tokenizer, background=False) as writer:
        writer.learn(namespace, result.token_ids, max_tokens=_LEARNED_TOKENS)


def _show(engine: Engine, events: Iterator[AnswerEvent], *, color: bool, as_json: bool) -> GenerationResult:
    console = stdout()
    printer = None if as_json else AnswerPrinter(console, engine.tokenizer if color else None)
    found, result = _follow(events, printer)
    if as_json:
        answer = answer_as_json(result, found.passages, found.shown)
        print_json({**answer, "model": engine.model_name, "device": engine.device, "dtype": engine.dtype})
    else:
        print_sources(console, found.passages, found.shown, result, color)
    return result


def _follow(
    events: Iterator[AnswerEvent], printer: AnswerPrinter | None
) -> tuple[RetrievalEvent, GenerationResult]:
    """Show the events as they come; returns the first and the last."""
    found = result = None
    with ExitStack() as bars:
        report = bars.enter_context(progress_bars())
        try:
            for event in events:
                if isinstance(event, RetrievalEvent):
                    found = event
                elif isinstance(event, PrefillEvent):
                    report("Reading the prompt", event.done, event.total)
                elif isinstance(event, StepEvent):
                    bars.close()
                    if printer:
                        printer.step(event)
                else:
                    result = event
        finally:
            if printer:
                printer.end_line()
    assert found is not None
    assert result is not None
    return found, result


_MAX_BYTES = 4_000_000
"""A longer text would be tokenised and indexed for minutes; a store serves what is larger."""


def _read_text(path: Path) -> str:
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise InputError(
                f"{path} has {path.stat().st_size:,} bytes and at most {_MAX_BYTES:,} are read as one text; "
                "give the part that matters, or index the document and `ask` its store"
            )
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(
            f"cannot read {path}: {error.strerror}; give a text file that can be read"
        ) from error
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path} is not UTF-8 text (byte {error.start}); convert it, for example with `iconv -t UTF-8`"
        ) from error
    if not text.strip():
        raise InputError(f"{path} holds no text; give a file with some")
    return text
