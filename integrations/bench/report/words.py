"""An answer of the log in words, by the step that wrote them and the source they were drafted from."""

from __future__ import annotations

from html import escape
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from groundspeed.integrations.bench.tally import Replayed
from groundspeed.types import Source
from groundspeed.verify.text import Detokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["answer_html"]

_MOST_TOKENS = 320


def answer_html(one: Replayed, tokenizer: PreTrainedTokenizerBase) -> str:
    """The answer as HTML, cut short where it is long: an element a step, in it one a run of a source."""
    steps = np.repeat(np.arange(len(one.accepted)), one.accepted + 1)
    detokenizer = Detokenizer(tokenizer)
    tokens = one.row.response[:_MOST_TOKENS].tolist()
    pieces = [detokenizer.push([token]) for token in tokens]
    pieces[-1] += detokenizer.finish()
    written = zip(steps.tolist(), one.sources.tolist(), one.passages.tolist(), pieces, strict=False)
    shown = []
    for _, step in groupby(written, key=lambda token: token[0]):
        runs = []
        for (source, passage), run in groupby(step, key=lambda token: token[1:3]):
            title = f' title="passage {passage + 1}"' if passage >= 0 else ""
            text = escape("".join(piece for *_, piece in run))
            runs.append(f'<span class="words {Source(source).label}"{title}>{text}</span>')
        shown.append(f'<span class="step">{"".join(runs)}</span>')
    cut = ' <span class="soft">and so on</span>' if len(one.row.response) > _MOST_TOKENS else ""
    return f'<p class="answer" dir="auto">{"".join(shown)}{cut}</p>'
