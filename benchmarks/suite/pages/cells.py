"""What all tables are made with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from suite.part import Json

__all__ = ["Found", "Missing", "data_of", "machine", "table", "within"]

Found = Mapping[str, Json]
"""What was measured, by part."""


class Missing(Exception):  # noqa: N818
    """A part that a block needs has no results; the message says which, or why it was left out."""


def data_of(found: Found, name: str) -> Json:
    """What a part measured."""
    result = found.get(name)
    if result is None:
        raise Missing(f"Part `{name}` has not been measured.")
    if "data" not in result:
        raise Missing(f"Part `{name}` was left out: {result['left_out']}.")
    data: Json = result["data"]
    return data


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def within(figures: Json, digits: int = 2) -> str:
    """Median with the lowest and the highest, as "2.16 (2.10-2.20)"."""
    low, high = (f"{figures[side]:,.{digits}f}" for side in ("low", "high"))
    return f"{figures['median']:,.{digits}f}" + (f" ({low}-{high})" if low != high else "")


def machine(found: Found, *names: str) -> str:
    """The machine that parts were measured on, and of which code."""
    where = next((found[name]["provenance"] for name in names if "data" in found.get(name, {})), None)
    if where is None:
        raise Missing(f"Part `{names[0]}` has not been measured.")
    facts = where["machine"]
    commit = (where["commit"] or "no commit")[:7] + (", changed" if where["dirty"] else "")
    return (
        f"{facts['processor']}, {facts['cores']} cores, {facts['memory_gib']:.0f} GiB, {where['threads']} "
        "threads; "
        f"torch {where['versions']['torch']}, transformers {where['versions']['transformers']}; "
        f"commit {commit}, {where['date'][:10]}"
    )
