"""The picture of README: an answer of the embedded model, its words coloured by the source they came from.

    python benchmarks/draw_answer.py docs/assets/answer.svg

Each box is a verification step, one pass of the model.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from groundspeed import Engine, GenerationRequest, Passage
from groundspeed.integrations.pipeline import RetrievalEvent
from groundspeed.integrations.prompts import GroundedPrompt
from groundspeed.integrations.view import Recorder, whole_answer

QUESTION = "What are the rules for flights, trains and receipts?"
PASSAGES = (
    Passage(
        "travel-policy.md",
        "Flights of less than six hours are booked in economy class. Business class may be booked for "
        "flights of more than six hours if the manager has approved it before the ticket is bought. Hotels "
        "are reimbursed up to 180 euros a night.",
    ),
    Passage(
        "expenses.md",
        "Receipts are handed in within thirty days of the end of the trip, together with the form. What "
        "comes later is reimbursed only if the head of finance agrees.",
    ),
    Passage(
        "rail.md",
        "Trips of less than four hours are made by train, in first class if the journey takes more than two "
        "hours.",
    ),
)
STOP = "\n4"

COLUMNS, WIDTH, LINE = 74, 9.6, 36  # characters a line, pixels a character and a line
LEFT, TOP, ACROSS = 36, 132, 784
NAMES = {
    "passage": "drafted from a passage",
    "prompt": "from the prompt",
    "output": "from the answer so far",
    "recycled": "from what the model held possible",
    "target": "the model itself",
}
STYLE = """
svg { color-scheme: light dark; }
text { fill: #1b1e20; font: 14px system-ui, "Segoe UI", Roboto, "Liberation Sans", sans-serif; }
.w { font: 16px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; }
.h { font-size: 20px; font-weight: 600; }
.s { fill: #565d62; }
.back { fill: #ffffff; stroke: #e0e1de; }
.step { fill: #eff0ed; }
.u { stroke-width: 2; }
.passage { fill: #0b6b4f; stroke: #0b6b4f; }
.prompt { fill: #6336c4; stroke: #6336c4; stroke-dasharray: 6 3; }
.output { fill: #155a9c; stroke: #155a9c; stroke-dasharray: 2 2; }
.recycled { fill: #9c1d68; stroke: #9c1d68; stroke-dasharray: 8 2 2 2; }
text.w, text.n { stroke: none; }
@media (prefers-color-scheme: dark) {
  text { fill: #e7e9ea; }
  .s { fill: #a3abb1; }
  .back { fill: #171b1e; stroke: #2b3135; }
  .step { fill: #262c30; }
  .passage { fill: #5cd6ac; stroke: #5cd6ac; }
  .prompt { fill: #bda5ff; stroke: #bda5ff; }
  .output { fill: #7cc0ff; stroke: #7cc0ff; }
  .recycled { fill: #ff9fcb; stroke: #ff9fcb; }
}
"""


class Cell(NamedTuple):
    """A character of the answer."""

    char: str
    source: str
    step: int


def answer() -> dict[str, Any]:
    """Ask the embedded model and record what it did."""
    with Engine.from_pretrained() as engine:
        ids, shown = GroundedPrompt(engine.tokenizer).fit(QUESTION, PASSAGES, None)
        recorder = Recorder(engine.tokenizer)
        request = GenerationRequest(ids, passages=PASSAGES, max_tokens=120, stop=(STOP,))
        events = [RetrievalEvent(PASSAGES, shown), *engine.stream(request)]
        return whole_answer(map(recorder.take, events))


def lines(cells: Iterable[Cell]) -> list[list[Cell]]:
    """Cells broken into lines between words."""
    broken: list[list[Cell]] = [[]]
    for _, found in groupby(cells, key=lambda cell: cell.char.isspace()):
        word = list(found)
        for cell in [cell for cell in word if cell.char == "\n"]:
            broken.append([])
            word.remove(cell)
        if len(broken[-1]) + len(word) > COLUMNS:
            broken.append([])
            word = [cell for cell in word if not cell.char.isspace()]
        broken[-1] += word
    return [line for line in broken if line]


def drawn(whole: dict[str, Any]) -> str:
    """The picture as SVG."""
    cells = [
        Cell(char, token["source"], number)
        for number, step in enumerate(whole["steps"])
        for token in step["tokens"]
        for char in token["text"]
    ]
    shapes = []
    laid = lines(cells)
    for row, line in enumerate(laid):
        y = TOP + row * LINE
        x = 0
        for _, step in groupby(line, key=lambda cell: cell.step):
            of_step = list(step)
            shapes.append(
                f'<rect class="step" x="{LEFT + x * WIDTH + 1:.1f}" y="{y - 20}" '
                f'width="{len(of_step) * WIDTH - 2:.1f}" height="29" rx="5"/>'
            )
            for source, run in groupby(of_step, key=lambda cell: cell.source):
                text = "".join(cell.char for cell in run)
                body = text.strip(" ")
                start = LEFT + (x + len(text) - len(text.lstrip(" "))) * WIDTH
                end = start + len(body) * WIDTH
                if body:
                    shapes.append(
                        f'<text class="w {source}" x="{start:.1f}" y="{y}" textLength="{end - start:.1f}">'
                        f"{escape(body)}</text>"
                    )
                    if source != "target":
                        shapes.append(f'<path class="u {source}" d="M{start:.1f} {y + 5}H{end:.1f}"/>')
                x += len(text)
    below = TOP + len(laid) * LINE + 8
    x = LEFT
    tokens = [token["source"] for step in whole["steps"] for token in step["tokens"]]
    for source, name in NAMES.items():
        if source in tokens:
            words = f"{name}: {tokens.count(source)}"
            shapes.append(f'<text class="n {source}" x="{x}" y="{below}">{words}</text>')
            x += round(len(words) * 7.2) + 24
    passes = sum(bool(step["tokens"]) for step in whole["steps"])
    count = len(tokens)
    summary = f"Each box is one pass of the model: {count} tokens in {passes} passes instead of {count}."
    height = below + 52
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {ACROSS} {height}" width="{ACROSS}" '
        f'height="{height}" role="img" aria-labelledby="t d"><title id="t">{escape(QUESTION)}</title>'
        f'<desc id="d">{escape(whole["text"])} {escape(summary)}</desc><style>{STYLE}</style>'
        f'<rect class="back" x="0.5" y="0.5" width="{ACROSS - 1}" height="{height - 1}" rx="12"/>'
        f'<text class="s" x="{LEFT}" y="42">Question</text>'
        f'<text class="h" x="{LEFT}" y="68">{escape(QUESTION)}</text>'
        f'<text class="s" x="{LEFT}" y="100">Answer</text>{"".join(shapes)}'
        f'<text class="s" x="{LEFT}" y="{below + 26}">{escape(summary)}</text></svg>\n'
    )


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    Path(sys.argv[1]).write_text(drawn(answer()), encoding="utf-8")
