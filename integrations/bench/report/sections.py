"""What stands in the parts of the page, as HTML."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING

import groundspeed
from groundspeed.integrations.bench.pass_cost import PassCost
from groundspeed.integrations.bench.report.advice import advise, verdict
from groundspeed.integrations.bench.report.charts import Bar, columns, curves, rows, stacked
from groundspeed.integrations.bench.report.figures import LENGTHS, Figures, Group
from groundspeed.integrations.bench.report.words import answer_html
from groundspeed.integrations.bench.tally import Replayed
from groundspeed.types import Source

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = [
    "advice",
    "by_answer",
    "by_kind",
    "by_position",
    "examples",
    "headline",
    "lengths",
    "measured_how",
    "methods",
    "sources",
    "time_saved",
]

_NAMES: Mapping[str, tuple[str, str]] = {
    "blend": ("groundspeed", "all sources blended"),
    "suffix-decoding": ("SuffixDecoding", "its best setting, a tree"),
    "suffix-decoding-vllm": ("SuffixDecoding", "vLLM's setting"),
    "single-match": ("single match", "the longest match alone"),
    "prompt-lookup": ("prompt lookup", "as in transformers"),
    "vllm-ngram": ("n-gram", "as in vLLM"),
    "rest": ("REST", "earlier answers alone"),
    "draftretriever": ("REST", "draftretriever"),
    "none": ("no speculation", "one token a step"),
}

_SOURCES: Mapping[Source, str] = {
    Source.PASSAGE: "passages",
    Source.PROMPT: "the rest of the prompt",
    Source.OUTPUT: "the answer so far",
    Source.DATASTORE: "earlier answers",
    Source.RECYCLED: "what the model held possible",
    Source.GRAMMAR: "a grammar",
    Source.MODEL: "a draft model",
    Source.TARGET: "the model itself",
}


_SHOWN_BAD = 20
_QUESTION_CHARS = 300
_NAME_CHARS = 90


def _text(text: str, kind: str = "") -> str:
    """A paragraph; what stands in backticks is code."""
    shown = re.sub("`([^`]+)`", r"<code>\1</code>", escape(text))
    return f'<p class="{kind}">{shown}</p>'


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def headline(found: Figures, where: str) -> str:
    """What it comes to, for those who read no further."""
    rate = found.summaries[found.subject]["tokens_per_step"]
    few = " A few rows say little: replay a hundred or more." if len(found.rows) < 30 else ""
    summary = found.summaries[found.subject]
    shown = [
        *([(f"{summary['times_as_fast']:.2f}", "times as fast")] if "times_as_fast" in summary else []),
        (f"{rate:.2f}", "tokens per step"),
        (f"{1 - 1 / rate:.0%}" if rate else "0%", "of the model's steps saved"),
        (f"{len(found.rows):,}", "answers replayed"),
        (f"{found.tokens:,}", "tokens in them"),
    ]
    cells = "".join(f"<div><dt>{escape(name)}</dt><dd>{value}</dd></div>" for value, name in shown)
    return (
        f'<div class="lead"><h1>What {escape(_name(found.subject))} would gain on {escape(where)}</h1>'
        + _text(f"{verdict(found)}{few}", "verdict")
        + f'<dl class="figures">{cells}</dl>'
        + _text(
            "A language model writes one token a step, and each step reads all of its weights. With a draft "
            "it checks several tokens in one step and keeps those that it would have written itself: the "
            f"answer stays the same. These answers would have taken {found.steps:,} steps instead of "
            f"{found.tokens:,}."
        )
        + "</div>\n"
    )


def _name(drafter: str) -> str:
    return _NAMES.get(drafter, (drafter, ""))[0]


def methods(found: Figures) -> str:
    """Tokens per step beside what others would have had."""
    bars = [
        Bar(
            _name(drafter),
            summary["tokens_per_step"],
            f"{summary['tokens_per_step']:.2f}",
            "subject" if drafter == found.subject else "plain",
            (summary["row_p10"], summary["row_p90"]) if summary["row_p10"] < summary["row_p90"] else None,
            _NAMES.get(drafter, ("", ""))[1],
        )
        for drafter, summary in found.summaries.items()
    ]
    if "none" not in found.summaries:
        bars.append(Bar("no speculation", 1.0, "1.00", note="one token a step"))
    ahead = [
        f"It took fewer steps than {_name(drafter)} on {fewer:,} of {len(found.rows):,} answers and more on "
        f"{more:,}."
        for drafter, (fewer, more) in found.ahead.items()
        if drafter in ("suffix-decoding", "prompt-lookup")
    ]
    return (
        rows(bars, "Tokens per step by method")
        + _text("The line spans the middle eight tenths of the answers, each taken alone.", "note")
        + _text(" ".join(ahead), "note")
    )


def time_saved(found: Figures, cost: PassCost | None) -> str:
    """What the tokens per step come to in time: at costs that are known, or between bounds."""
    rate = found.summaries[found.subject]["tokens_per_step"]
    if cost is None:
        told = _text(
            f"Writing an answer is sped up {rate:.2f} times at most: that much if a step with a draft takes "
            "as long as one without, as it nearly does on a GPU that serves few requests at once."
        ) + _text(
            f"If a step with a draft takes a quarter longer, it is {rate / 1.25:.2f} times; if it takes half "
            f"as long again, as on a processor with few cores, {rate / 1.5:.2f} times. Groundspeed measures "
            "what a step takes and drafts no more than pays. What steps cost with your model on your machine "
            "was not known here: `groundspeed bench speed --json` measures it, and `--cost FILE` takes it "
            "into account."
        )
    else:
        bars = [
            Bar(
                _name(drafter),
                summary["times_as_fast"],
                f"{summary['times_as_fast']:.2f}",
                "subject" if drafter == found.subject else "plain",
                note=f"{summary['drafted_per_step']:.1f} drafted a step",
            )
            for drafter, summary in found.summaries.items()
        ]
        told = (
            _text(f"Writing, times as fast as without drafts, at what a step costs with {cost.measured_on}:")
            + rows(bars, "Times as fast by method")
            + _text(
                "Every draft was cut to what pays at these costs, so that a method may take more steps and "
                "less time. The time that drafting itself takes is left out.",
                "note",
            )
        )
    return told + _text(
        "Retrieval and the reading of the prompt take as long as before. No model ran for this page."
    )


def sources(found: Figures, history: float) -> str:
    """The share of each source, and of each passage by its rank."""
    there = [source for source in _SOURCES if found.sources[source]]
    parts = [(_SOURCES[source], source.label, found.share(source)) for source in there]
    legend = "".join(
        f'<li><span class="words {kind}">{escape(name)}</span><span class="count">{share:.1%}</span></li>'
        for name, kind, share in parts
    )
    ranks = f"<h3>Passages by their rank</h3>{_ranks(found)}" if found.ranks else ""
    return (
        _text(
            "Of all tokens of the answers, those that came as accepted drafts, by what they were drafted "
            "from."
        )
        + stacked(parts, "Tokens by source")
        + f'<ul class="legend">{legend}</ul>'
        + ranks
        + _text(
            "The model itself writes at least one token a step, so its share is never nothing. A text that "
            "stands in a passage and in the prompt counts for the passage."
            + ("" if history else " Earlier answers took no part."),
            "note",
        )
    )


def _ranks(found: Figures) -> str:
    offered = found.ranks[0].count
    bars = [
        Bar(
            part.name,
            part.value,
            f"{part.value / found.tokens:.1%}",
            Source.PASSAGE.label,
            note="" if part.count == offered else f"of {part.count:,} answers",
        )
        for part in found.ranks
    ]
    return rows(bars, "Tokens drafted from passages, by rank")


def lengths(found: Figures) -> str:
    """How many draft tokens the steps accepted."""

    def name(first: int, last: int | None) -> str:
        return f"{first}+" if last is None else f"{first}" if first == last else f"{first}-{last}"

    bars = [
        Bar(name(*bounds), count, f"{count / max(found.steps, 1):.0%}", "subject" if bounds[0] else "plain")
        for bounds, count in zip(LENGTHS, found.lengths, strict=True)
    ]
    return columns(
        bars,
        "Steps by accepted draft tokens",
        "accepted draft tokens of a step; above, the share of the steps",
    )


def by_answer(found: Figures) -> str:
    """Tokens per step of all answers, method by method."""
    lines = {
        name: found.curves[name]
        for name in (found.subject, *("suffix-decoding", "single-match", "prompt-lookup"))
        if name in found.curves
    }
    kinds = dict(zip(lines, ("line first", "line second", "line third", "line fourth"), strict=False))
    return curves(
        {_name(name): line for name, line in lines.items()},
        {_name(name): kind for name, kind in kinds.items()},
        "Tokens per step by answer, from the least to the most",
        "answers from few to many, for each method in its own order; the height is tokens per step",
    )


def by_position(found: Figures) -> str:
    """Tokens per step along an answer."""
    bars = [Bar(part.name, part.value, f"{part.value:.1f}", "subject") for part in found.positions]
    return columns(
        bars,
        "Tokens per step by place in the answer",
        "token of the answer from which on; above, tokens per step there",
    )


def by_kind(group: Group) -> str:
    """Tokens per step by what tells rows apart."""
    bars = [
        Bar(
            _cut(part.name, _NAME_CHARS),
            part.value,
            f"{part.value:.2f}",
            "subject",
            note=f"{part.count:,} answers",
        )
        for part in group.parts
    ]
    left_out = f"{group.left_out:,} with fewer answers left out." if group.left_out else ""
    return rows(bars, f"Tokens per step by {group.field}") + _text(left_out, "note")


def advice(found: Figures, history: float) -> str:
    """What to change."""
    pieces = "".join(
        f"<li><h3>{escape(title)}</h3>{_text(text)}</li>" for title, text in advise(found, history)
    )
    return f'<ol class="advice">{pieces}</ol>'


def examples(chosen: Sequence[Replayed], tokenizer: PreTrainedTokenizerBase) -> str:
    """Questions with their answers in the colours of the sources."""
    shown = []
    for one in chosen:
        question = _cut(one.row.question, _QUESTION_CHARS)
        name = f"{one.row.trace.id}, " if one.row.trace else ""
        shown.append(
            f'<li><h3 dir="auto">{escape(question)}</h3>'
            f'<p class="where">{escape(name)}{one.tokens_per_step:.2f} tokens per step: '
            f"{len(one.sources):,} tokens in {len(one.accepted):,} steps</p>"
            f"{answer_html(one, tokenizer)}</li>"
        )
    key = _text(
        "Words have the colour and the line of the source they were drafted from; the model's own are plain. "
        "A thin bar begins a step.",
        "note",
    )
    return f'<ol class="examples">{"".join(shown)}</ol>{key}'


def measured_how(found: Figures, tokenizer_name: str, history: float, bad: Sequence[str]) -> str:
    """What was done, with what, and which rows were left out."""
    several = len(found.datasets) > 1
    used = f"{history:.0%} of the answers to other questions" if history else "no earlier answers"
    text = _text(
        "The recorded answers were written again without a model: at each step the drafter proposes, the "
        "longest path that agrees with the recorded answer is accepted, and the next recorded token joins "
        f"it. At most {found.budget} drafted tokens a step; {used} to draft from; tokens as {tokenizer_name} "
        f"has them; groundspeed {groundspeed.__version__}."
        + (" Figures of methods are averages over the files, each weighing the same." if several else "")
        + " The examples quote the log: mind whom you send this page."
    )
    if bad:
        listed = "".join(f"<li>{escape(one)}</li>" for one in bad[:_SHOWN_BAD])
        more = f"<li>and {len(bad) - _SHOWN_BAD:,} more</li>" if len(bad) > _SHOWN_BAD else ""
        what = "One row" if len(bad) == 1 else f"{len(bad):,} rows"
        text += f'<h3>{what} could not be used</h3><ul class="bad">{listed}{more}</ul>'
    return text
