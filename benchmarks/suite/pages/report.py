"""The pages: what stands between markers is made from the results files and from nothing else."""

from __future__ import annotations

import re
from pathlib import Path

from suite.pages.blocks import BLOCKS
from suite.pages.cells import Found, Missing
from suite.part import Json
from suite.results import Results

__all__ = ["BLOCK", "filled", "found_in", "pages", "write_pages"]

BLOCK = re.compile(r"(<!-- results: ([a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
"""A block and, in its groups, the marker before it, its name, and the marker behind it."""


def found_in(results: Results, names: list[str]) -> Found:
    """What was measured or left out, by part, in the order of the parts."""
    read: dict[str, Json | None] = {name: results.read(name) for name in names}
    return {name: result for name, result in read.items() if result is not None}


def pages(root: Path) -> list[Path]:
    """README.md, the documentation and the notes on peers: those with blocks."""
    files = [root / "README.md", *sorted((root / "docs").rglob("*.md")), root / "benchmarks" / "peers.md"]
    return [file for file in files if file.exists() and BLOCK.search(file.read_text(encoding="utf-8"))]


def filled(text: str, found: Found) -> str:
    """A page with its blocks made anew.

    Raises:
        KeyError: A marker names no block.
    """

    def block(match: re.Match[str]) -> str:
        try:
            body = BLOCKS[match[2]](found)
        except Missing as reason:
            body = f"*{reason}*"
        return f"{match[1]}\n{body}\n\n{match[3]}"

    return BLOCK.sub(block, text)


def write_pages(root: Path, found: Found) -> list[Path]:
    """Make all blocks anew; the pages that changed."""
    changed = []
    for file in pages(root):
        before = file.read_text(encoding="utf-8")
        after = filled(before, found)
        if after != before:
            file.write_text(after, encoding="utf-8")
            changed.append(file)
    return changed
