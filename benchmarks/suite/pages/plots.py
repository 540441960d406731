"""Pictures from results, as small SVG files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from suite.pages.answers import TASKS, mean_of
from suite.pages.cells import Found, Missing, data_of

__all__ = ["PLOTS", "draw"]

BLUE, ORANGE, GREY, GREEN = "#2563a8", "#d97706", "#8a8f98", "#3f8f5f"
PEERS = {
    "generate": ("transformers generate", GREY),
    "prompt-lookup": ("generate, prompt lookup", ORANGE),
    "groundspeed-plain": ("groundspeed without drafts", GREEN),
}


def speed(axes: Any, found: Found) -> None:
    """How many times as fast groundspeed is, by task."""
    tasks = [task for task in TASKS if "data" in found.get(f"speed-{task}", {})]
    if not tasks:
        raise Missing("no part of speed has been measured")
    height = 0.8 / len(PEERS)
    for place, (peer, (label, colour)) in enumerate(PEERS.items()):
        ones = [
            next(one for one in data_of(found, f"speed-{task}")["comparisons"] if one["peer"] == peer)
            for task in tasks
        ]
        middles = [one["median"] for one in ones]
        spreads = [[o["median"] - o["low"] for o in ones], [o["high"] - o["median"] for o in ones]]
        at = [row + (place - 1) * height for row in range(len(tasks))]
        axes.barh(at, middles, height, xerr=spreads, label=label, color=colour, error_kw={"lw": 0.8})
    axes.set_yticks(range(len(tasks)), [TASKS[task] for task in tasks])
    axes.invert_yaxis()
    axes.axvline(1, color="black", lw=0.8)
    axes.set_xlabel("groundspeed is so many times as fast, per token")
    axes.legend(frameon=False, loc="lower center", bbox_to_anchor=(0.3, 1), ncols=3, fontsize=8)


def acceptance(axes: Any, found: Found) -> None:
    """Share of steps by the tokens that they committed."""
    tasks = [task for task in ("rag", "summarization", "code", "nothing-to-copy") if f"speed-{task}" in found]
    longest = 16
    for task, colour in zip(tasks, (BLUE, ORANGE, GREEN, GREY), strict=False):
        steps = {int(n): count for n, count in data_of(found, f"speed-{task}")["steps_by_tokens"].items()}
        whole = sum(steps.values()) or 1
        shares = [
            sum(c for n, c in steps.items() if n == at or (at == longest and n > at)) / whole
            for at in range(1, longest + 1)
        ]
        axes.plot(range(1, longest + 1), shares, marker="o", ms=3, color=colour, label=TASKS[task])
    axes.set_xticks(range(1, longest + 1), [*map(str, range(1, longest)), f"{longest}+"])
    axes.set_xlabel("tokens that a step committed")
    axes.set_ylabel("share of steps")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)


def replay(axes: Any, found: Found) -> None:
    """Tokens per step by budget, averaged over the sets; dashed with earlier answers."""
    colours = {"blend": BLUE, "suffix-decoding": ORANGE, "prompt-lookup": GREY, "draftretriever": GREEN}
    for part, line in (("replay", "-"), ("replay-history", "--")):
        data = data_of(found, part)
        budgets = sorted({row["budget"] for row in data["rows"]})
        there = {row["drafter"] for row in data["rows"]}
        for name, colour in colours.items():
            if name in there:
                label = name + (" with earlier answers" if part == "replay-history" else "")
                means = [mean_of(data, name, budget) for budget in budgets]
                axes.plot(budgets, means, line, marker="o", ms=3, color=colour, label=label)
        axes.set_xticks(budgets)
    axes.set_xlabel("draft nodes per step")
    axes.set_ylabel("tokens per step")
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5), fontsize=8)


def throughput(axes: Any, found: Found) -> None:
    """Tokens a second by requests at once."""
    rows = data_of(found, "throughput")["rows"]
    _two(axes, [{"active": row["active"], **row["whole"]} for row in rows], "active")
    axes.set_xlabel("requests at once")


def contexts(axes: Any, found: Found) -> None:
    """Tokens a second by tokens of context."""
    _two(axes, data_of(found, "contexts")["rows"], "context")
    axes.set_xlabel("tokens of context")


def _two(axes: Any, rows: list[dict[str, Any]], across: str) -> None:
    at = [row[across] for row in rows]
    for way, label, colour in (("plain", "without drafts", GREY), ("drafts", "with drafts", BLUE)):
        axes.plot(at, [row[way]["median"] for row in rows], marker="o", ms=3, color=colour, label=label)
        axes.fill_between(
            at, [row[way]["low"] for row in rows], [row[way]["high"] for row in rows], color=colour, alpha=0.2
        )
    axes.set_xscale("log", base=2)
    axes.set_xticks(at, [f"{one:,}" for one in at])
    axes.set_ylim(bottom=0)
    axes.set_ylabel("tokens a second")
    axes.legend(frameon=False)


PLOTS: dict[str, Callable[[Any, Found], None]] = {
    "speed": speed,
    "acceptance": acceptance,
    "replay": replay,
    "throughput": throughput,
    "contexts": contexts,
}


def draw(folder: Path, found: Found) -> list[Path]:
    """Draw what was measured; a picture whose parts are missing stays as it is.

    The same results give the same bytes.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    folder.mkdir(parents=True, exist_ok=True)
    drawn = []
    settings = {"svg.fonttype": "none", "svg.hashsalt": "groundspeed", "font.size": 9}
    for name, plot in PLOTS.items():
        with mpl.rc_context(settings):
            figure = Figure(figsize=(6.4, 4.4 if name == "speed" else 3.0), layout="constrained")
            axes = figure.subplots()
            axes.spines[["top", "right"]].set_visible(False)
            try:
                plot(axes, found)
            except Missing:
                continue
            file = folder / f"{name}.svg"
            figure.savefig(file, metadata={"Date": None})
            drawn.append(file)
    return drawn
