"""``groundspeed train``: what drafts for a model, trained on what the model says."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from groundspeed.errors import InputError
from groundspeed.integrations.cli import options
from groundspeed.integrations.cli.console import print_json, progress_bars, quiet_libraries, stdout
from groundspeed.types import ProgressCallback

if TYPE_CHECKING:
    from groundspeed.integrations.training.samples import Sample
    from groundspeed.verify.loading import LoadedModel

__all__ = ["train"]

train = typer.Typer(
    help="Train what drafts for a model: heads on it, or a smaller model.", no_args_is_help=True
)

_HELD_OUT = 6  # one text in so many is kept to measure with
_BLOCK = 256  # tokens of a piece of plain text
_PROMPT_FILES = (".jsonl", ".gz")

Files: TypeAlias = Annotated[
    list[Path],
    typer.Argument(
        exists=True,
        dir_okay=False,
        help="JSON lines (.gz or not) with `prompt`, or `question` and `passages`, which the model answers.",
        metavar="FILE",
    ),
]
Out: TypeAlias = Annotated[Path, typer.Option(help="Folder to write; made if it is missing.")]
Prompts: TypeAlias = Annotated[int, typer.Option(min=_HELD_OUT, help="Prompts to take, at most.")]
MaxPromptTokens: TypeAlias = Annotated[int, typer.Option(min=1, help="Longest prompt.")]
Epochs: TypeAlias = Annotated[int, typer.Option(min=1, help="Times that the answers are gone through.")]
LearningRate: TypeAlias = Annotated[float, typer.Option(min=0.0, help="At first; it falls to 0.")]


@train.command()
def medusa(
    files: Files,
    out: Out,
    heads: Annotated[int, typer.Option(min=1, help="Heads to train.")] = 3,
    prompts: Prompts = 200,
    max_prompt_tokens: MaxPromptTokens = 600,
    max_tokens: options.MaxTokens = 96,
    epochs: Epochs = 4,
    learning_rate: LearningRate = 1e-3,
    model: options.Model = None,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    as_json: options.Json = False,
) -> None:
    """Train Medusa heads on a model, which stays as it is; files that are no JSON lines are read as text."""
    from groundspeed.integrations.training.medusa import head_accuracy, train_heads
    from groundspeed.verify.loading import load_model

    quiet_libraries()
    with progress_bars() as report:
        loaded = load_model(model, device, dtype, report)
        target = loaded.model
        output = target.get_output_embeddings()
        learnt, held_out = _samples(files, loaded, prompts, max_prompt_tokens, max_tokens, report)
        # Answering packs the layers, which then have no gradients, and heads learn through this one.
        target.set_output_embeddings(output)
        trained = train_heads(
            target, learnt, count=heads, epochs=epochs, learning_rate=learning_rate, on_progress=report
        )
    trained.save(out)
    accuracy = head_accuracy(target, trained, held_out)
    _show(
        {"heads": str(out), "texts": len(learnt), "held_out": len(held_out), "accuracy": accuracy},
        f"{heads} heads in {out}, trained on {len(learnt)} texts; of {len(held_out)} others they guess right "
        + ", ".join(f"{share:.1%}" for share in accuracy),
        as_json,
    )


@train.command()
def draft(
    files: Files,
    out: Out,
    draft: Annotated[
        str | None, typer.Option(help="Hub id or folder of the draft model; by default the target's layers.")
    ] = None,
    layers: Annotated[int, typer.Option(min=1, help="First layers of the target to begin with.")] = 4,
    prompts: Prompts = 200,
    max_prompt_tokens: MaxPromptTokens = 600,
    max_tokens: options.MaxTokens = 96,
    epochs: Epochs = 6,
    learning_rate: LearningRate = 1e-3,
    model: options.Model = None,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    as_json: options.Json = False,
) -> None:
    """Train a draft model to say what a model says, and report how often they agree before and after."""
    from groundspeed.integrations.training.alignment import acceptance, align, first_layers
    from groundspeed.verify.loading import load_model

    quiet_libraries()
    with progress_bars() as report:
        target = load_model(model, device, dtype, report)
        if draft is None:
            small = first_layers(target.model, layers).to(target.model.device)
        else:
            small = load_model(draft, device, "float32", report).model
            sizes = [m.config.get_text_config().vocab_size for m in (target.model, small)]
            if sizes[0] != sizes[1]:
                raise InputError(
                    f"{draft} has {sizes[1]} tokens and {target.name} {sizes[0]}; give a draft model with "
                    "the target's vocabulary"
                )
        learnt, held_out = _samples(files, target, prompts, max_prompt_tokens, max_tokens, report)
        before = acceptance(small, held_out)
        align(small, learnt, epochs=epochs, learning_rate=learning_rate, on_progress=report)
    after = acceptance(small, held_out)
    small.save_pretrained(out)
    target.tokenizer.save_pretrained(out)
    counts = {"texts": len(learnt), "held_out": len(held_out)}
    _show(
        {"draft": str(out), **counts, "acceptance_before": before, "acceptance": after},
        f"the draft model in {out}, trained on {len(learnt)} answers, agrees with the target on {after:.1%} "
        f"of the tokens of {len(held_out)} others, on {before:.1%} before",
        as_json,
    )


def _samples(
    files: Sequence[Path],
    loaded: LoadedModel,
    prompts: int,
    max_prompt_tokens: int,
    max_tokens: int,
    report: ProgressCallback,
) -> tuple[list[Sample], list[Sample]]:
    """The model's answers to prompts, and plain text in pieces: to learn from, and held out."""
    from groundspeed.integrations.bench.prompts import read_prompts
    from groundspeed.integrations.training.samples import answers, blocks, split
    from groundspeed.verify.engine import Engine
    from groundspeed.verify.target import TransformersTarget

    asked = [file for file in files if file.suffix in _PROMPT_FILES]
    found: list[Sample] = []
    for file in files:
        if file not in asked:
            found += blocks(loaded.tokenizer(file.read_text(encoding="utf-8"))["input_ids"], _BLOCK)
    if asked:
        lengths = range(1, max_prompt_tokens + 1)
        chosen = read_prompts(asked, loaded.tokenizer, prompts, lengths, at_most=True)
        with Engine(TransformersTarget.packed(loaded.model), loaded.tokenizer) as engine:
            found += answers(engine, chosen, max_tokens, report)
    return split(found, _HELD_OUT)


def _show(figures: dict[str, Any], line: str, as_json: bool) -> None:
    if as_json:
        print_json(figures)
    else:
        stdout().print(line, markup=False, soft_wrap=True)
