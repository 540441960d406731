"""An answer on a terminal: streamed, marked by source, and followed by what it rests on."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from groundspeed.integrations.cli.console import printable
from groundspeed.types import GenerationResult, GenerationStats, Passage, Source, StepEvent
from groundspeed.verify.text import Detokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["AnswerPrinter", "answer_as_json", "describe_stats", "print_sources"]

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
        self._pieces = Detokenizer(tokenizer) if tokenizer is not None else None
        self._waiting: deque[tuple[str, str]] = (
            deque()
        )  # text that may turn out to be a stop string, and style
        self._printed = ""

    def step(self, event: StepEvent) -> None:
        """Print what a step added."""
        if self._pieces is None:
            self._print(event.text)
            return
        for token, source, origin in zip(event.token_ids, event.sources, event.origins, strict=True):
            self._waiting.append((self._pieces.push([token]), source_style(source, origin)))
        text = event.text
        while text and self._waiting:
            piece, style = self._waiting.popleft()
            if len(piece) > len(text):
                self._waiting.appendleft((piece[len(text) :], style))
            self._print(text[: len(piece)], style)
            text = text[len(piece) :]
        self._print(text)

    def finish(self, result: GenerationResult) -> None:
        """Print what is still owed of the answer, which ended in the middle of a character or word."""
        if result.text.startswith(self._printed):
            self._print(result.text[len(self._printed) :])

    def end_line(self) -> None:
        """Leave the line that the answer ended on."""
        if self._printed and not self._printed.endswith("\n"):
            self._console.out("")

    def _print(self, text: str, style: str = "") -> None:
        if text:
            self._console.out(printable(text), style=style or None, highlight=False, end="")
            self._console.file.flush()
            self._printed += text


def source_style(source: Source, origin: int) -> str:
    """The style of a token: passages have one each, the target's own words none."""
    if source is Source.PASSAGE:
        return _PASSAGE_STYLES[(origin >> 32) % len(_PASSAGE_STYLES)]
    return _SOURCE_STYLES[source]


def print_sources(
    console: Console, passages: Sequence[Passage], shown: int, result: GenerationResult, color: bool
) -> None:
    """Print the passages, the spans copied from them and the statistics."""
    if color and console.is_terminal:
        legend = Text("\ncolours: ")
        for index in range(len(passages)):
            legend.append(f"passage {index + 1}", source_style(Source.PASSAGE, index << 32)).append(", ")
        for source in (Source.PROMPT, Source.OUTPUT, Source.DATASTORE, Source.GRAMMAR):
            legend.append(source.label, source_style(source, 0)).append(", ")
        _line(console, legend.append("the model's own words plain"))
    if passages:
        _line(console, "\nSources")
    for index, passage in enumerate(passages):
        where = f"{passage.document_id}, characters {passage.start} to {passage.end}"
        unread = "" if index < shown else " (draft source only: the prompt had no room for it)"
        style = source_style(Source.PASSAGE, index << 32) if color else ""
        _line(console, Text(printable(f"  {index + 1}  {where}{unread}"), style))
    if result.grounding:
        _line(console, "\nQuoted word for word")
    for span in result.grounding:
        quote = " ".join(span.text.split())
        if len(quote) > _QUOTE_CHARS:
            quote = quote[: _QUOTE_CHARS - 1] + "…"
        where = f"{span.document_id}, characters {span.document_start} to {span.document_end}"
        _line(console, Text(printable(f'  {span.passage + 1}  "{quote}" ({where})')))
    _line(console, f"\n{describe_stats(result.stats)}")
    if result.seed is not None:
        _line(console, f"drawn with seed {result.seed}")


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


def answer_as_json(result: GenerationResult, passages: Sequence[Passage], shown: int) -> dict[str, Any]:
    """The answer with passages, grounding and statistics, as JSON can hold it."""
    return {
        "text": result.text,
        "token_ids": list(result.token_ids),
        "finish_reason": result.finish_reason,
        "stop": result.stop,
        "seed": result.seed,
        "passages": [
            {
                **{name: value for name, value in asdict(passage).items() if name != "following"},
                "end": passage.end,
                "in_prompt": index < shown,
            }
            for index, passage in enumerate(passages)
        ],
        "grounding": [asdict(span) for span in result.grounding],
        "stats": {
            **asdict(result.stats),
            "tokens_per_step": result.stats.tokens_per_step,
            "tokens_per_second": result.stats.tokens_per_second,
        },
    }


def _line(console: Console, text: str | Text) -> None:
    console.print(text, markup=False, soft_wrap=True)
