"""The code blocks of the documentation, and how each kind of them is run."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from typer.testing import CliRunner

from groundspeed.integrations.cli.app import app

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
SERVED = "http://127.0.0.1:8000"
"""Where the pages say that a server listens."""

_FENCE = re.compile(
    r"^(?:<!-- not run: (?P<reason>.+) -->\n)?```(?P<language>.*)\n(?P<text>(?:.*\n)*?)```$", re.MULTILINE
)


class Snippet(NamedTuple):
    """A fenced block; ``reason`` says why it is not run, if it is not."""

    line: int
    language: str
    text: str
    reason: str | None


def snippets(page: Path) -> list[Snippet]:
    text = page.read_text(encoding="utf-8")
    return [
        Snippet(text.count("\n", 0, found.start()) + 1, found["language"], found["text"], found["reason"])
        for found in _FENCE.finditer(text)
    ]


def prose(page: Path) -> str:
    """The page without its fenced blocks."""
    return _FENCE.sub("", page.read_text(encoding="utf-8"))


def run(snippet: Snippet, names: dict[str, Any], address: str, where: str) -> None:
    """Run Python, or commands, with the server of the page at ``address``."""
    text = snippet.text.replace(SERVED, address)
    if snippet.language == "python":
        # As many lines down as in the page, so that an error tells the line.
        exec(compile("\n" * snippet.line + text, where, "exec"), names)
        return
    for command in _commands(text):
        if command.startswith("groundspeed "):
            called = CliRunner().invoke(app, shlex.split(command)[1:])
            assert called.exit_code == 0, f"{where}: {command}\n{called.output}\n{called.exception!r}"
        else:
            subprocess.run(["bash", "-euo", "pipefail", "-c", command], check=True, capture_output=True)


def look_at(snippet: Snippet) -> None:
    """See that what a block names is there: options, targets, extras, files; and that Python parses."""
    if snippet.language == "python":
        compile(snippet.text, "snippet", "exec")
        return
    for command in _commands(snippet.text):
        for line in command.splitlines():
            _look_at_command(line.removeprefix("$ "))


def _look_at_command(line: str) -> None:
    if line.startswith("groundspeed "):
        # Options are read before help is given, and an unknown one is an error.
        called = CliRunner().invoke(app, [*shlex.split(line, comments=True)[1:], "--help"])
        assert called.exit_code == 0, called.output
    elif line.startswith("make "):
        target = line.split()[1]
        assert re.search(rf"^{re.escape(target)}:", (ROOT / "Makefile").read_text(), re.MULTILINE), line
    elif line.startswith("pip "):
        for extra in re.findall(r"[\w-]+", "".join(re.findall(r"\[(.*?)\]", line))):
            assert re.search(rf"^{extra} = \[", (ROOT / "pyproject.toml").read_text(), re.MULTILINE), line
    elif line.startswith("python "):
        assert (ROOT / line.split()[1]).is_file(), line


def _commands(text: str) -> Iterator[str]:
    """Each call of groundspeed by itself, what stands between as it is."""
    others: list[str] = []
    for line in text.replace("\\\n", " ").splitlines():
        if line.startswith("groundspeed "):
            if others:
                yield "\n".join(others)
            others = []
            yield line
        else:
            others.append(line)
    if others:
        yield "\n".join(others)
