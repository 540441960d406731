"""``groundspeed index``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from groundspeed.integrations.cli.console import (
    print_json,
    print_note,
    progress_bars,
    quiet_libraries,
    stdout,
)

__all__ = ["index"]

_STAGES = {"load": "Loading documents", "chunk": "Cutting passages", "embed": "Embedding passages"}


def index(
    paths: Annotated[list[Path], typer.Argument(help="Files and folders: text, Markdown, HTML, PDF, JSONL.")],
    store: Annotated[Path, typer.Option(help="Folder of the store; made if it is missing.")],
    embedding_model: Annotated[
        str | None,
        typer.Option(help="Hub id or folder; by default the store's own, or the embedded MiniLM."),
    ] = None,
    skip_unreadable: Annotated[
        bool, typer.Option("--skip-unreadable", help="Leave out what cannot be read instead of stopping.")
    ] = False,
    max_document_mb: Annotated[float, typer.Option(min=0.001, help="Larger documents are refused.")] = 32,
    tokenizer: Annotated[
        str | None,
        typer.Option(help="Also keep the corpus as tokens of this hub id, folder or GGUF, to draft from."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as one JSON object.")] = False,
) -> None:
    """Index a corpus, or bring its store up to date: only what changed is embedded again."""
    from groundspeed.retrieval.index import index_corpus

    quiet_libraries()
    with progress_bars() as report_progress:

        def report_stage(stage: str, done: int, total: int) -> None:
            report_progress(_STAGES.get(stage, stage), done, total)

        report = index_corpus(
            paths,
            store,
            embedder=embedding_model,
            max_document_bytes=int(max_document_mb * 1e6),
            skip_unreadable=skip_unreadable,
            on_progress=report_stage,
        )
    if tokenizer is not None:
        from groundspeed.integrations.tokenizing import index_tokens
        from groundspeed.verify.loading import load_tokenizer

        with progress_bars("tokens") as report_progress:
            index_tokens(store, load_tokenizer(tokenizer, report_progress), report_progress)
    for message in report.skipped:
        print_note(f"skipped: {message}")
    if as_json:
        print_json({"store": str(store), **asdict(report)})
        return
    if report.passed_over:
        kinds = ", ".join(f"{count} {suffix}" for suffix, count in report.passed_over.items())
        print_note(f"passed over files of other kinds: {kinds}")
    stdout().print(
        f"{store}: {report.chunks} passages; {report.added} documents added, {report.changed} changed, "
        f"{report.removed} removed, {report.unchanged} unchanged ({sum(report.seconds.values()):.1f} s, "
        f"of which embedding {report.seconds.get('embed', 0.0):.1f} s)",
        markup=False,
        soft_wrap=True,
    )
