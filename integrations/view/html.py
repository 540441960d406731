"""The page: its files for a server, and all of them in one for a folder."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from groundspeed.integrations.view.record import Record

__all__ = ["CONTENT_SECURITY_POLICY", "PAGE_FILES", "html_page", "page_file"]

PAGE_FILES: Mapping[str, str] = {
    "index.html": "text/html",
    "page.css": "text/css",
    "dom.js": "text/javascript",
    "passages.js": "text/javascript",
    "steps.js": "text/javascript",
    "answer.js": "text/javascript",
    "main.js": "text/javascript",
}
"""The files of the page, and what each is. ``index.html`` asks for the others in the folder ``page``."""

_NOTHING = "default-src 'none'; base-uri 'none'; form-action 'none'; img-src data:"

CONTENT_SECURITY_POLICY = (
    f"{_NOTHING}; script-src 'self'; style-src 'self'; connect-src 'self'; frame-ancestors 'none'"
)
"""What a server lets the page do: run and show its own files, and ask this server."""

_STYLE = re.compile(r'<link rel="stylesheet" href="page/([\w.]+)">')
_SCRIPT = re.compile(r'<script src="page/([\w.]+)"></script>')


def page_file(name: str) -> str:
    """One of ``PAGE_FILES``."""
    return (files(__package__) / "page" / name).read_text(encoding="utf-8")


def html_page(answers: Sequence[Record]) -> str:
    """The page with answers in it, as one file that needs no server and asks for nothing.

    Args:
        answers: Of ``whole_answer``: one, or several to one question that are shown side by side.
    """
    hashes: dict[str, list[str]] = {"style": [], "script": []}

    def inline(tag: str) -> Any:
        def element(match: re.Match[str]) -> str:
            text = page_file(match[1])
            digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
            hashes[tag].append(f"'sha256-{digest}'")
            return f"<{tag}>{text}</{tag}>"

        return element

    page = _STYLE.sub(inline("style"), page_file("index.html"))
    page = _SCRIPT.sub(inline("script"), page)
    policy = "; ".join([_NOTHING, *(f"{tag}-src {' '.join(found)}" for tag, found in hashes.items())])
    head, scripts, rest = page.partition("<script>")
    head = head.replace(
        '<meta charset="utf-8">',
        f'<meta charset="utf-8">\n<meta http-equiv="Content-Security-Policy" content="{policy}">',
    )
    data = f'<script type="application/json" id="answers-data">{_embedded(answers)}</script>\n'
    return head + data + scripts + rest


def _embedded(value: Any) -> str:
    """JSON that cannot end the element it stands in, nor begin one or a comment."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
