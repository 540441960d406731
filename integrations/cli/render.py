"""An answer on a terminal: streamed, marked by source, and followed by what it rests on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from groundspeed.integrations.cli.console import printable
from groundspeed.integrations.view.tokens import Pieces
from groundspeed.types import GenerationResult, GenerationStats, Passage, Source, StepEvent

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["AnswerPrinter", "describe_stats", "line", "print_sources", "source_style"]

_PASSAGE_STYLES = (
    "green",
    "cyan",
    "yellow",
    "magenta",
    "blue",
    "bright_green",
    "bright_cyan",
    "bright_yellow",
)
_SOURCE_STYLES = {
    Source.TARGET: "",
    Source.PROMPT: "bright_magenta",
    Source.OUTPUT: "bright_black",
    Source.DATASTORE: "bright_blue",
    Source.RECYCLED: "",
    Source.MODEL: "",
    Source.GRAMMAR: "bright_yellow",
}
_QUOTE_CHARS = 72


class AnswerPrinter:
    """Prints an answer as its tokens are accepted."""

    def __init__(self, console: Console, tokenizer: PreTrainedTokenizerBase | None) -> None:
        """Print to a console; with a tokenizer, in a colour per source."""
        self._console = console
        self._pieces = None if tokenizer is None else Pieces(tokenizer)
        self._last = ""

    def step(self, event: StepEvent) -> None:
        """Print what a step added."""
        if self._pieces is None:
            self._print(event.text)
            return
        for piece in self._pieces.step(event):
            self._print(piece.text, source_style(piece.source, piece.passage))

    def end_line(self) -> None:
        """Leave the line that the answer ended on."""
        if self._last and not self._last.endswith("\n"):
            self._console.out("")

    def _print(self, text: str, style: str = "") -> None:
        if text:
            self._console.out(printable(text), style=style or None, highlight=False, end="")
            self._console.file.flush()
            self._last = text


def source_style(source: Source, passage: int | None = None) -> str:
    """The style of a token: passages have one each, the target's own words none."""
    return _SOURCE_STYLES[source] if passage is None else _PASSAGE_STYLES[passage % len(_PASSAGE_STYLES)]


def print_sources(
    console: Console, passages: Sequence[Passage], shown: int, result: GenerationResult, color: bool
) -> None:
    """Print the passages, the spans copied from them and the statistics."""
    if color and console.is_terminal:
        legend = Text("\ncolours: ")
        for index in range(len(passages)):
            legend.append(f"passage {index + 1}", source_style(Source.PASSAGE, index)).append(", ")
        for source in (Source.PROMPT, Source.OUTPUT, Source.DATASTORE, Source.GRAMMAR):
            legend.append(source.label, source_style(source)).append(", ")
        line(console, legend.append("the model's own words plain"))
    if passages:
        line(console, "\nSources")
    for index, passage in enumerate(passages):
        where = f"{passage.document_id}, characters {passage.start} to {passage.end}"
        unread = "" if index < shown else " (draft source only: the prompt had no room for it)"
        style = source_style(Source.PASSAGE, index) if color else ""
        line(console, Text(printable(f"  {index + 1}  {where}{unread}"), style))
    if result.grounding:
        line(console, "\nQuoted word for word")
    for span in result.grounding:
        quote = " ".join(span.text.split())
        if len(quote) > _QUOTE_CHARS:
            quote = quote[: _QUOTE_CHARS - 1] + "…"
        where = f"{span.document_id}, characters {span.document_start} to {span.document_end}"
        line(console, Text(printable(f'  {span.passage + 1}  "{quote}" ({where})')))
    line(console, f"\n{describe_stats(result.stats)}")
    if result.seed is not None:
        line(console, f"drawn with seed {result.seed}")


def describe_stats(stats: GenerationStats) -> str:
    """The statistics in two or three lines."""
    text = (
        f"{stats.completion_tokens} tokens in {stats.steps} steps: {stats.tokens_per_step:.2f} tokens per "
        f"step, {stats.tokens_per_second:.1f} tokens/s\nprompt of {stats.prompt_tokens} tokens read in "
        f"{stats.prefill_s:.2f} s; {stats.accepted} of {stats.drafted} drafted tokens accepted"
    )
    by_source = [f"{label} {count}" for label, count in stats.accepted_by_source.items() if count]
    if by_source:
        text += f" ({', '.join(by_source)})"
    if stats.decoding_reason:
        text += f"\n{stats.decoding} decoding: {stats.decoding_reason}"
    return text


def line(console: Console, text: str | Text) -> None:
    """Print one line or more, however wide the terminal is."""
    console.print(text, markup=False, soft_wrap=True)
