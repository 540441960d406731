"""The options that commands share, and the engine that most of them ask for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from groundspeed.integrations.cli.console import progress_bars, quiet_libraries
from groundspeed.retrieval.retriever import Mode

if TYPE_CHECKING:
    from groundspeed.verify.engine import Engine

Model: TypeAlias = Annotated[
    str | None,
    typer.Option(help="Hub id, folder or GGUF file; by default the embedded SmolLM2-135M-Instruct."),
]
Device: TypeAlias = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, ...")]
Dtype: TypeAlias = Annotated[
    str, typer.Option(help="auto, float32 or bfloat16; auto is bfloat16 where the hardware has it.")
]
MaxTokens: TypeAlias = Annotated[int, typer.Option(min=1, help="Longest answer, in tokens.")]
Temperature: TypeAlias = Annotated[
    float, typer.Option(min=0.0, help="0 is greedy decoding; above, tokens are drawn.")
]
TopP: TypeAlias = Annotated[
    float,
    typer.Option(max=1.0, help="Draw from the most probable tokens that together have this probability."),
]
TopK: TypeAlias = Annotated[
    int, typer.Option(min=0, help="Draw from so many of the most probable tokens; 0 for all.")
]
MinP: TypeAlias = Annotated[
    float,
    typer.Option(min=0.0, max=1.0, help="Draw from tokens this times as probable as the best, or more."),
]
RepetitionPenalty: TypeAlias = Annotated[
    float, typer.Option(help="Above 1 discourages tokens that the prompt or the answer holds already.")
]
Seed: TypeAlias = Annotated[
    int | None, typer.Option(min=0, help="Of the draws; by default a fresh one, which is shown.")
]
Json: TypeAlias = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]
NoSpeculation: TypeAlias = Annotated[
    bool, typer.Option("--no-speculation", help="Decode plainly, one token a pass, through the same engine.")
]
Color: TypeAlias = Annotated[
    bool, typer.Option("--color", help="Mark in the terminal which words came from which source.")
]
Html: TypeAlias = Annotated[
    Path | None, typer.Option(help="Write the answer as a page to this file too.", metavar="FILE")
]
Passages: TypeAlias = Annotated[
    int, typer.Option("-k", "--passages", min=1, help="Most passages to retrieve.")
]
SearchMode: TypeAlias = Annotated[Mode, typer.Option("--mode", help="How to search.")]
Store: TypeAlias = Annotated[Path, typer.Option(help="Folder of the store.")]
EmbeddingModel: TypeAlias = Annotated[
    str | None, typer.Option(help="Hub id or folder; by default the one that built the store.")
]
Datastore: TypeAlias = Annotated[
    Path | None, typer.Option(help="Folder of a token datastore to draft from as well.")
]
Learn: TypeAlias = Annotated[
    str | None,
    typer.Option(help="Namespace of the datastore that the answer is added to.", metavar="NAMESPACE"),
]
DraftModel: TypeAlias = Annotated[
    str | None,
    typer.Option(help="Smaller model with the same tokens that drafts as well: hub id, folder or GGUF file."),
]
Drafter: TypeAlias = Annotated[
    str,
    typer.Option(
        help="What drafts: blend, lookahead, first-layers (of the model itself), or a folder of Medusa heads."
    ),
]
BridgeTokenizers: TypeAlias = Annotated[
    bool,
    typer.Option("--bridge-tokenizers", help="Let a draft model with other tokens draft as text."),
]


def load_engine(
    model: str | None,
    device: str,
    dtype: str,
    datastore: Path | None = None,
    draft_model: str | None = None,
    bridge_tokenizers: bool = False,
    drafter: str = "blend",
    most_active: int = 16,
) -> Engine:
    """Load the target model behind a progress bar."""
    from groundspeed.verify.engine import Engine

    quiet_libraries()
    with progress_bars() as report:
        return Engine.from_pretrained(
            model,
            device=device,
            dtype=dtype,
            drafter=drafter,
            datastore=datastore,
            draft_model=draft_model,
            bridge_tokenizers=bridge_tokenizers,
            most_active=most_active,
            on_progress=report,
        )
