"""What the counts advise: each piece of advice rests on one that the page shows."""

from __future__ import annotations

import numpy as np

from groundspeed.integrations.bench.report.figures import Figures
from groundspeed.types import Source

__all__ = ["advise", "verdict"]

_BARELY, _WELL = 1.25, 1.8  # tokens per step
_SHORT_ANSWER = 40


def verdict(figures: Figures) -> str:
    """In one sentence, whether speculation is worth it on this log."""
    rate = figures.summaries[figures.subject]["tokens_per_step"]
    if rate < _BARELY:
        return "There is little to gain: these answers hardly repeat what they could be drafted from."
    if rate < _WELL:
        return "There is something to gain: part of what these answers say can be drafted."
    return (
        "There is much to gain: much of what these answers say stands in their passages and prompts already."
    )


def advise(figures: Figures, history: float) -> list[tuple[str, str]]:
    """Title and text of each piece of advice, the most important first.

    Args:
        figures: Of the page.
        history: Fraction of the other answers that could be drafted from.
    """
    advice: list[tuple[str, str]] = []
    rows = len(figures.rows)
    if figures.without_passages:
        advice.append(
            (
                "Hand over the passages",
                f"{figures.without_passages:,} of {rows:,} rows came without any. What retrieval found "
                "drafts best when it is handed over as passages, best first, beside the prompt: `passages` "
                "in the log; in use the pipeline and LangChain do it, and a client of the server sends "
                "`draft_documents`.",
            )
        )
    stored = figures.share(Source.DATASTORE)
    if not history:
        advice.append(
            (
                "See what earlier answers add",
                "Each answer was drafted from its own request alone. Replay once more with `--history 1` to "
                "see what the answers to other questions would give. In use a datastore does that: "
                "`--datastore DIR --learn NAMESPACE`.",
            )
        )
    elif stored >= 0.02:
        advice.append(
            (
                "Keep a datastore that learns",
                f"Earlier answers gave {stored:.0%} of all tokens. In use: "
                "`--datastore DIR --learn NAMESPACE`.",
            )
        )
    else:
        advice.append(
            (
                "A datastore is not worth its upkeep here",
                f"Earlier answers gave {stored:.1%} of all tokens.",
            )
        )
    ranked = sum(part.value for part in figures.ranks)
    behind = sum(part.value for part in figures.ranks[3:])
    if ranked and behind / ranked >= 0.1:
        advice.append(
            (
                "Retrieve more than you show",
                f"Passages behind the third gave {behind / ranked:.0%} of what was drafted from passages. "
                "Those that the prompt has no room for can be handed over as well: they change nothing in "
                "the answer.",
            )
        )
    nothing = figures.lengths[0] / max(figures.steps, 1)
    if nothing >= 0.4:
        advice.append(
            (
                "Add a draft model for what is said in other words",
                f"{nothing:.0%} of the steps accepted no draft: there the model says it in its own words, "
                "which no text holds. A smaller model of the same family drafts those: `--draft-model NAME`.",
            )
        )
    repeated = figures.share(Source.OUTPUT)
    if repeated >= 0.15:
        advice.append(
            (
                "Answers repeat themselves",
                f"{repeated:.0%} of all tokens were drafted from the same answer. Where they are JSON or "
                "keep to a form, a grammar (`Grammar.json_schema`) drafts what the form fixes, and holds "
                "them to it.",
            )
        )
    middle = float(np.median([len(one.sources) for one in figures.rows]))
    if middle < _SHORT_ANSWER:
        advice.append(
            (
                "Short answers: look at the prompt too",
                f"Half of the answers have fewer than {middle + 1:.0f} tokens, so much of the time goes into "
                "reading the prompt, which drafts do not shorten. Prompts that begin alike are read once.",
            )
        )
    return advice
