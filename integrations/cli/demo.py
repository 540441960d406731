"""``groundspeed demo``: one question with and without speculation, side by side."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from groundspeed.integrations.cli.console import printable, progress_bars, stdout
from groundspeed.integrations.cli.index import index
from groundspeed.integrations.cli.options import load_engine
from groundspeed.integrations.cli.render import describe_stats
from groundspeed.integrations.pipeline import Answer, RagPipeline

__all__ = ["demo"]

_QUESTION = "In retrieval-augmented generation, why does the draft need no second model?"


def demo(
    docs: Annotated[Path, typer.Option(help="Folder to index.")] = Path("docs"),
    store: Annotated[
        Path | None,
        typer.Option(help="Folder of the store; by default one in .demo for each folder indexed."),
    ] = None,
    question: Annotated[str, typer.Option(help="The question.")] = _QUESTION,
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest answer, in tokens.")] = 128,
) -> None:
    """Index a folder, ask one question with and without speculation, and compare."""
    from groundspeed.retrieval.retriever import Retriever

    if store is None:
        store = Path(".demo") / sha256(bytes(docs.resolve())).hexdigest()[:12]
    index([docs], store)
    engine = load_engine(None, "auto", "auto")
    pipeline = RagPipeline(engine, Retriever.open(store))

    answers: dict[bool, Answer] = {}
    with progress_bars() as report:
        # In turn and twice, the second time counts: the first also compiles and warms up.
        for done, speculate in enumerate((False, True, False, True)):
            report("Answering without and with speculation", done, 4)
            engine.forget_prefixes()
            answers[speculate] = pipeline.ask(question, k=1, max_tokens=max_tokens, speculate=speculate)
    plain, drafted = answers[False], answers[True]
    table = Table("without speculation", "with speculation", title=question, title_justify="left")
    table.add_row(printable(plain.text), printable(drafted.text), end_section=True)
    table.add_row(describe_stats(plain.result.stats), describe_stats(drafted.result.stats))
    console = stdout()
    console.print(table, markup=False)
    before, after = plain.result.stats, drafted.result.stats
    total = (before.prefill_s + before.decode_s) / (after.prefill_s + after.decode_s)
    same = "the same tokens" if plain.result.token_ids == drafted.result.token_ids else "other tokens"
    console.print(
        f"{engine.model_name} in {engine.dtype} on {engine.device}: {same}, decoding "
        f"{before.decode_s / after.decode_s:.2f} times as fast, {total:.2f} times with the prompt's reading",
        markup=False,
        soft_wrap=True,
    )
