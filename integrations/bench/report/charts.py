"""Charts as SVG that grows with the page while its text does not; colours come from the style sheet.

Positions across are shares of the width, so no chart needs a script to fit a phone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
from numpy.typing import NDArray

__all__ = ["Bar", "columns", "curves", "rows", "stacked"]

_HEIGHT = 150  # of columns and curves, in pixels
_POINTS = 120  # of a curve at most


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar.

    Attributes:
        name: What it is of.
        value: Its length.
        shown: The value as it is written.
        kind: Class of the style sheet, which gives the colour.
        spread: A line across the end of the bar, from and to, of the same unit; None for none.
        note: Told beneath the name; empty for nothing.
    """

    name: str
    value: float
    shown: str
    kind: str = "plain"
    spread: tuple[float, float] | None = None
    note: str = ""


def rows(bars: Sequence[Bar], title: str) -> str:
    """Bars that lie, a line each, with their names before and their values behind them.

    Args:
        bars: The bars, the first at the top.
        title: What is seen, for those who cannot see it.
    """
    longest = max([bar.value for bar in bars] + [bar.spread[1] for bar in bars if bar.spread]) or 1.0
    lines = []
    for bar in bars:
        shapes = f'<rect class="{bar.kind}" y="5" width="{_percent(bar.value, longest)}" height="14" rx="2"/>'
        if bar.spread is not None:
            low, high = (_percent(end, longest) for end in bar.spread)
            shapes += f'<line class="spread" x1="{low}" x2="{high}" y1="12" y2="12"/>'
            shapes += "".join(
                f'<line class="spread" x1="{end}" x2="{end}" y1="8" y2="16"/>' for end in (low, high)
            )
        note = f'<span class="note">{escape(bar.note)}</span>' if bar.note else ""
        lines.append(
            f'<li><span class="name">{escape(bar.name)}{note}</span>'
            f'<svg class="lying" height="24" aria-hidden="true">{shapes}</svg>'
            f'<span class="value">{escape(bar.shown)}</span></li>'
        )
    return f'<ul class="bars" aria-label="{escape(title)}">{"".join(lines)}</ul>'


def columns(bars: Sequence[Bar], title: str, below: str) -> str:
    """Bars that stand side by side, with their values above and their names below them.

    Args:
        bars: The bars, from the left.
        title: What is seen, for those who cannot see it.
        below: What the names are.
    """
    highest = max(bar.value for bar in bars) or 1.0
    width = 100 / len(bars)
    shapes = [f'<line class="axis" x1="0" x2="100%" y1="{_HEIGHT}" y2="{_HEIGHT}"/>']
    for place, bar in enumerate(bars):
        height = bar.value / highest * (_HEIGHT - 20)
        middle = f"{(place + 0.5) * width:.3f}%"
        shapes.append(
            f'<rect class="{bar.kind}" x="{(place + 0.12) * width:.3f}%" width="{0.76 * width:.3f}%" '
            f'y="{_HEIGHT - height:.1f}" height="{height:.1f}" rx="2"/>'
            f'<text class="value" x="{middle}" y="{_HEIGHT - height - 6:.1f}">{escape(bar.shown)}</text>'
            f'<text x="{middle}" y="{_HEIGHT + 16}">{escape(bar.name)}</text>'
        )
    return (
        f'<svg class="columns" height="{_HEIGHT + 24}" role="img" aria-label="{escape(title)}">'
        f'{"".join(shapes)}</svg><p class="below">{escape(below)}</p>'
    )


def curves(
    values: Mapping[str, NDArray[np.float64]], kinds: Mapping[str, str], title: str, below: str
) -> str:
    """Rising values of 1 and above as lines over the width, each doubling at the same height.

    Args:
        values: By name, float64 [n_i] each, rising.
        kinds: By name, the class of the style sheet.
        title: What is seen, for those who cannot see it.
        below: What is laid out across.
    """
    doublings = max(1, int(np.ceil(np.log2(max(float(line[-1]) for line in values.values())))))
    grid = []
    for power in range(doublings + 1):
        y = _HEIGHT * (1 - power / doublings) + 16
        grid.append(
            f'<line class="{"grid" if power else "axis"}" x1="0" x2="100%" y1="{y:.1f}" y2="{y:.1f}"/>'
        )
        grid.append(f'<text class="tick" x="0" y="{y - 4:.1f}">{1 << power}</text>')
    lines = []
    for name, line in reversed([*values.items()]):  # the first one on top
        at = np.unique(np.linspace(0, len(line) - 1, _POINTS).round().astype(int))
        across = 1000 * at / max(len(line) - 1, 1)
        down = _HEIGHT * (1 - np.log2(line[at]) / doublings)
        points = " ".join(f"{x:.1f},{y:.2f}" for x, y in zip(across, down, strict=True))
        lines.append(f'<polyline class="{kinds[name]}" points="{points}"/>')
    legend = "".join(
        f'<li><svg class="key" width="22" height="10" aria-hidden="true"><line class="{kinds[name]}" '
        f'x1="0" x2="22" y1="5" y2="5"/></svg>{escape(name)}</li>'
        for name in values
    )
    return (
        f'<svg class="curves" height="{_HEIGHT + 20}" role="img" aria-label="{escape(title)}">{"".join(grid)}'
        f'<svg y="16" height="{_HEIGHT}" width="100%" viewBox="0 0 1000 {_HEIGHT}" '
        f'preserveAspectRatio="none" overflow="visible">{"".join(lines)}</svg></svg>'
        f'<p class="below">{escape(below)}</p><ul class="legend">{legend}</ul>'
    )


def stacked(parts: Sequence[tuple[str, str, float]], title: str) -> str:
    """One bar of parts that fill it.

    Args:
        parts: Name, class of the style sheet and share of each.
        title: What is seen, for those who cannot see it.
    """
    shapes, at = [], 0.0
    for name, kind, share in parts:
        shapes.append(
            f'<rect class="{kind}" x="{_percent(at, 1)}" width="{_percent(share, 1)}" height="36">'
            f"<title>{escape(name)}: {share:.1%}</title></rect>"
        )
        at += share
    return f'<svg class="stacked" height="36" role="img" aria-label="{escape(title)}">{"".join(shapes)}</svg>'


def _percent(value: float, of: float) -> str:
    return f"{100 * value / of:.3f}%"
