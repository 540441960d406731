"""Pages in Chromium, and what they complain of and ask for."""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium")
PICTURES = Path(__file__).parents[2] / "screenshots"
ARGUMENTS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
)
LOOKS = {
    "light": {"viewport": {"width": 1280, "height": 900}},
    "dark": {"viewport": {"width": 1280, "height": 900}, "color_scheme": "dark"},
    "phone": {
        "viewport": {"width": 390, "height": 844},
        "device_scale_factor": 2,
        "is_mobile": True,
        "has_touch": True,
    },
}


Browser = Page = Any

IN_BROWSER = [
    pytest.mark.browser,
    pytest.mark.skipif(find_spec("playwright") is None, reason="pip install playwright"),
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium; apt-get install chromium, or set CHROMIUM"),
]


class Watched:
    """Opens pages and notes what they complain of and what they ask for."""

    def __init__(self, browser: Browser) -> None:
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self._browser = browser
        self._contexts: list[Any] = []

    def open(self, url: str, **options: Any) -> Page:
        context = self._browser.new_context(**{"reduced_motion": "reduce", **options})
        self._contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(60_000)
        page.on("console", lambda message: self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", lambda request: self.requests.append(request.url))
        page.goto(url)
        return page

    def close(self) -> None:
        for context in self._contexts:
            context.close()


def picture(page: Page, name: str) -> None:
    PICTURES.mkdir(exist_ok=True)
    page.screenshot(path=PICTURES / f"{name}.png", full_page=True)
