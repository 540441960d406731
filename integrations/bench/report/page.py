"""The page: one file without scripts that asks for nothing."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING

from groundspeed.integrations.bench.pass_cost import PassCost
from groundspeed.integrations.bench.report.figures import figures
from groundspeed.integrations.bench.report.sections import (
    advice,
    by_answer,
    by_kind,
    by_position,
    examples,
    headline,
    lengths,
    measured_how,
    methods,
    sources,
    time_saved,
)
from groundspeed.integrations.bench.tally import Measured
from groundspeed.integrations.view.html import page_file

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["report_page"]

_FIELDS = {
    "file": "By file",
    "type": "By type",
    "config": "By configuration",
    "model": "By the model that answered",
}
_SHORT_NAME = 30  # longer ones take the whole width


def report_page(
    measured: Sequence[Measured],
    tokenizer: PreTrainedTokenizerBase,
    *,
    history: float = 0.0,
    cost: PassCost | None = None,
    bad: Sequence[str] = (),
) -> str:
    """What a log's replay says, for those who were not there: figures, charts, advice and examples.

    Args:
        measured: Of ``measure_files``.
        tokenizer: That it was replayed with.
        history: Fraction of the other answers that could be drafted from.
        cost: That it was replayed with.
        bad: What was wrong with rows that were left out.
    """
    found = figures(measured)
    where = ", ".join(found.datasets)
    styles = page_file("page.css") + (files(__package__) / "report.css").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(styles.encode()).digest()).decode()
    wide = [group for group in found.groups if any(len(part.name) > _SHORT_NAME for part in group.parts)]
    charts = [
        ("How much a step brings", lengths(found)),
        ("Answer by answer", by_answer(found)),
        ("Along an answer", by_position(found)),
        *((_FIELDS[group.field], by_kind(group)) for group in found.groups if group not in wide),
    ]
    paired = len(charts) // 2 * 2
    charts += [(_FIELDS[group.field], by_kind(group)) for group in wide]
    body = [
        headline(found, where),
        _card("Tokens per step", methods(found)),
        _card("What that means in time", time_saved(found, cost)),
        _card("What gave the drafts", sources(found, history), "wide"),
        *(_card(title, content) for title, content in charts[:paired]),
        *(_card(title, content, "wide") for title, content in charts[paired:]),
        _card("What to do", advice(found, history), "wide"),
        *(
            _card(title, examples(chosen, tokenizer), "wide")
            for title, chosen in (("Where it helps most", found.most), ("Where it helps least", found.least))
            if chosen
        ),
        _card("How this was measured", measured_how(found, tokenizer.name_or_path, history, bad), "wide"),
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f"<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; base-uri 'none'; "
        f"form-action 'none'; style-src 'sha256-{digest}'\">\n"
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<meta name="referrer" content="no-referrer">\n'
        f"<title>Replay of {escape(where)}</title>\n<style>{styles}</style>\n</head>\n<body>\n"
        f'<header><p class="brand">groundspeed</p><p id="model">replay of {escape(where)}</p></header>\n'
        f'<main id="report">\n{"".join(body)}</main>\n</body>\n</html>\n'
    )


def _card(title: str, content: str, kind: str = "") -> str:
    return f'<article class="{kind}"><h2>{escape(title)}</h2>{content}</article>\n'
