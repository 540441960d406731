"""``groundspeed bench``: measurements on your own prompts."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Column, Table

from groundspeed.errors import InputError
from groundspeed.integrations.cli import options
from groundspeed.integrations.cli.console import print_json, progress_bars, stdout
from groundspeed.integrations.cli.options import load_engine
from groundspeed.integrations.cli.replay import replay

if TYPE_CHECKING:
    from groundspeed.integrations.bench.speed import SpeedReport
    from groundspeed.verify.engine import Engine

__all__ = ["bench"]

bench = typer.Typer(help="Measure on your own prompts and recorded answers.", no_args_is_help=True)
bench.command()(replay)


@bench.command()
def speed(
    files: Annotated[
        list[Path],
        typer.Argument(
            exists=True,
            dir_okay=False,
            help="JSON lines (.gz or not): `prompt`, or `question` and `passages`.",
            metavar="FILE",
        ),
    ],
    prompts: Annotated[
        int | None, typer.Option(min=1, help="Prompts to take, spread over the files; by default up to 20.")
    ] = None,
    min_prompt_tokens: Annotated[int, typer.Option(min=1, help="Shortest prompt.")] = 1,
    max_prompt_tokens: Annotated[int, typer.Option(min=1, help="Longest prompt.")] = 1200,
    method: Annotated[
        list[str] | None,
        typer.Option(
            help="generate, prompt-lookup or groundspeed-plain to compare with; may be repeated; default all."
        ),
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Measured rounds.")] = 3,
    model: options.Model = None,
    drafter: options.Drafter = "blend",
    draft_model: options.DraftModel = None,
    bridge_tokenizers: options.BridgeTokenizers = False,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    max_tokens: options.MaxTokens = 96,
    as_json: options.Json = False,
) -> None:
    """Compare whole answers, prefill included, with transformers' generate and its prompt lookup, in turn."""
    from groundspeed.integrations.bench.prompts import read_prompts
    from groundspeed.integrations.bench.speed import PEERS, check_peers, measure_speed
    from groundspeed.verify.loading import load_model

    lengths = range(min_prompt_tokens, max_prompt_tokens + 1)
    if not lengths:
        raise InputError(
            f"no prompt has {min_prompt_tokens} tokens or more and {max_prompt_tokens} or fewer; swap them"
        )
    check_peers(method or PEERS)
    engine = load_engine(model, device, dtype, None, draft_model, bridge_tokenizers, drafter)
    chosen = read_prompts(files, engine.tokenizer, prompts or 20, lengths, at_most=prompts is None)
    with progress_bars() as report:
        reference = load_model(model, device, dtype, report).model
        measured = measure_speed(engine, reference, chosen, max_tokens, rounds, method or PEERS, report)
    setting = _setting(engine, len(chosen), sum(len(p.token_ids) for p in chosen), max_tokens, rounds)
    if as_json:
        print_json({**setting, **measured.as_json()})
    else:
        _print(setting, measured)


@bench.command()
def datastore(
    paths: Annotated[list[Path], typer.Argument(help="Text to make up the store from, as `index` reads it.")],
    tokens: Annotated[
        list[int] | None, typer.Option(min=100_000, help="Size of the store; may be repeated; default 20M.")
    ] = None,
    folder: Annotated[Path, typer.Option(help="Where to build; emptied first.")] = Path("bench-datastore"),
    tokenizer: Annotated[
        str | None, typer.Option(help="Hub id, folder or GGUF file; by default the embedded model's.")
    ] = None,
    queries: Annotated[int, typer.Option(min=100, help="Contexts to ask for.")] = 2000,
    memory_gb: Annotated[float, typer.Option(min=0.001, help="Most memory that the build sorts in.")] = 8,
    peers: Annotated[
        bool, typer.Option(help="Measure draftretriever and infini-gram where installed.")
    ] = True,
    as_json: options.Json = False,
) -> None:
    """Build, open, ask and change a token datastore, beside its peers in the same run."""
    import numpy as np

    from groundspeed.integrations.bench.datastore import PEERS, measure_datastore
    from groundspeed.integrations.tokenizing import tokenize
    from groundspeed.retrieval.loaders import load_documents
    from groundspeed.verify.loading import load_tokenizer

    rows: list[dict[str, Any]] = []
    with progress_bars("tokens") as report:
        loaded = load_tokenizer(tokenizer, report)
        base = np.concatenate([a.token_ids for a in tokenize(load_documents(paths), loaded, report)])
        for size in tokens or [20_000_000]:
            rows += measure_datastore(
                base,
                len(loaded),
                size,
                folder,
                queries=queries,
                memory_bytes=int(memory_gb * 1e9),
                peers=PEERS if peers else (),
            )
    if as_json:
        print_json({"base_tokens": len(base), "rows": rows})
        return
    table = Table("system", "tokens", "what", "figures", box=None)
    for row in rows:
        figures = ", ".join(
            f"{name} {row[name]:,.4g}" for name in row if name not in ("system", "tokens", "what")
        )
        table.add_row(row["system"], f"{row['tokens']:,}", row["what"], figures)
    stdout().print(table)


def _setting(
    engine: Engine, prompts: int, prompt_tokens: int, max_tokens: int, rounds: int
) -> dict[str, Any]:
    import platform

    import torch
    import transformers

    cost = engine.cost.relative(prompt_tokens // prompts)
    return {
        "model": engine.model_name,
        "dtype": engine.dtype,
        "device": engine.device,
        "decoding": engine.target.capability.decoding,
        "processor": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "prompts": prompts,
        "prompt_tokens": prompt_tokens,
        "max_tokens": max_tokens,
        "rounds": rounds,
        "cost_of_nodes": dict(zip(engine.cost.nodes.tolist(), cost[engine.cost.nodes].tolist(), strict=True)),
    }


def _print(setting: dict[str, Any], report: SpeedReport) -> None:
    from groundspeed.integrations.bench.speed import GENERATE, PLAIN

    def line(text: str) -> None:
        stdout().print(text, markup=False, soft_wrap=True)

    line("{model} in {dtype} on {device}, {threads} threads, {decoding} decoding".format(**setting))
    line("{prompts} prompts, {prompt_tokens} tokens together; {rounds} rounds in turn".format(**setting))
    table = Table(
        Column("method", no_wrap=True), "seconds", "tokens", "groundspeed is", "per token", "same answer"
    )
    for method, rounds in report.seconds.items():
        middle = statistics.median(rounds)
        table.add_row(
            method,
            f"{middle:.1f} ({min(rounds):.1f}-{max(rounds):.1f})",
            f"{report.tokens[method]}",
            f"{statistics.median(report.ratios(method)):.2f}x as fast",
            f"{report.per_token(method):.2f}x",
            f"{report.identical[method]}/{setting['prompts']}",
        )
    stdout().print(table)
    line(
        "{tokens_per_step:.2f} tokens and {drafted_per_step:.1f} drafted per step".format(**report.as_json())
    )
    decoding = sum(report.profile.values())
    line(
        f"{report.prefill / (report.prefill + decoding):.0%} of groundspeed's time reads prompts; of a step:"
    )
    steps = Table("part", "milliseconds", "share")
    for part, seconds in report.profile.items():
        steps.add_row(part, f"{1e3 * seconds / max(report.steps, 1):.2f}", f"{seconds / decoding:.1%}")
    steps.add_section()
    steps.add_row("beside the forward pass", "", f"{report.beside_forward:.1%}")
    stdout().print(steps)
    if PLAIN in report.seconds:
        line(f"{report.as_plain}/{setting['prompts']} answers are the same with drafts and without")
    for method in report.seconds:
        margins = [flip.margin for flip in report.flips if flip.method == method]
        if margins:
            line(
                f"{method}: {len(margins)} answers part from those of {GENERATE}, at tokens whose logits are "
                f"{statistics.median(margins):.3g} apart in the middle and {max(margins):.3g} at most"
            )
