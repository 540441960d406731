"""The page as text: what can be known of it without a browser."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from helpers.pages import HOSTILE, drafted_answer, plain_answer

import groundspeed.integrations.view.page
from groundspeed.integrations.view import html_page
from groundspeed.integrations.view.html import CONTENT_SECURITY_POLICY, PAGE_FILES, page_file
from groundspeed.types import Source

FOLDER = Path(groundspeed.integrations.view.page.__file__).parent
SCRIPTS = [name for name in PAGE_FILES if name.endswith(".js")]


class Elements(HTMLParser):
    """The elements of a page with their attributes, and the text of each that holds none."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[int, str]] = []
        self.closed = 0
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        self.closed = len(self.found)

    def handle_data(self, data: str) -> None:
        if self.closed != len(self.found):
            self.texts.append((len(self.found) - 1, data))

    def text_of(self, number: int) -> str:
        return "".join(text for at, text in self.texts if at == number)


@pytest.fixture(scope="module")
def page() -> Elements:
    return Elements(html_page([drafted_answer(), plain_answer()]))


def test_the_files_listed_are_the_files_there() -> None:
    there = {path.name for path in FOLDER.iterdir() if path.suffix in (".html", ".css", ".js")}
    assert set(PAGE_FILES) == there
    asked = re.findall(r'(?:src|href)="page/([^"]+)"', page_file("index.html"))
    assert set(asked) == there - {"index.html"}
    assert all(len(page_file(name).splitlines()) <= 400 for name in there)


def test_the_file_holds_the_answers_as_they_are_whatever_stands_in_them(page: Elements) -> None:
    (number,) = (i for i, (_, attributes) in enumerate(page.found) if attributes.get("id") == "answers-data")
    assert page.found[number][1]["type"] == "application/json"
    shown = json.loads(page.text_of(number))
    assert [one["speculate"] for one in shown] == [True, False]
    assert {one["text"] for one in shown} == {drafted_answer()["text"]}
    assert HOSTILE in shown[0]["text"]
    assert shown[0]["steps"][1]["tokens"] == drafted_answer()["steps"][1]["tokens"]


def test_nothing_that_is_shown_becomes_an_element(page: Elements) -> None:
    empty = Elements(html_page([]))
    assert [tag for tag, _ in page.found] == [tag for tag, _ in empty.found]


def test_the_file_asks_for_nothing_and_its_policy_lets_its_own_scripts_run_and_no_others(
    page: Elements,
) -> None:
    (policy,) = (str(attributes["content"]) for _, attributes in page.found if "http-equiv" in attributes)
    for tag in ("script", "style"):
        own = [
            page.text_of(i)
            for i, (name, attributes) in enumerate(page.found)
            if name == tag and attributes.get("type") != "application/json"
        ]
        hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in own]
        (allowed,) = re.findall(rf"{tag}-src ([^;]+)", policy)
        assert allowed.split() == [f"'sha256-{one}'" for one in hashes]
    assert "default-src 'none'" in policy
    assert "connect-src" not in policy
    asked = [attributes.get(name) for _, attributes in page.found for name in ("src", "href")]
    assert all(one is None or str(one).startswith("data:") for one in asked)
    assert (
        page.found.index(("meta", {"charset": "utf-8"}))
        < next(i for i, (_, attributes) in enumerate(page.found) if "http-equiv" in attributes)
        < next(i for i, (tag, _) in enumerate(page.found) if tag in ("script", "style", "link"))
    )


def test_a_served_page_runs_its_own_files_and_talks_to_its_own_server_only() -> None:
    for directive in CONTENT_SECURITY_POLICY.split("; "):
        name, *allowed = directive.split()
        assert set(allowed) <= {"'none'", "'self'"} or (name, allowed) == ("img-src", ["data:"])
    assert "default-src 'none'" in CONTENT_SECURITY_POLICY


@pytest.mark.parametrize("name", SCRIPTS)
def test_no_script_makes_markup_or_code_of_text(name: str) -> None:
    text = page_file(name)
    for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "DOMParser", "eval(",
                "new Function", "srcdoc", "javascript:", "</", "<!--"):  # fmt: skip
        assert way not in text
    assert not re.findall(r"https?://(?!www\.w3\.org/2000/svg)", text)


def test_the_page_has_no_inline_styles_and_handlers() -> None:
    for _, attributes in Elements(page_file("index.html")).found:
        assert not [name for name in attributes if name == "style" or name.startswith("on")]


def test_every_field_has_a_label() -> None:
    text = page_file("index.html")
    for tag, attributes in Elements(text).found:
        if tag in ("input", "textarea"):
            name = attributes["id"]
            assert f'for="{name}"' in text or re.search(rf'<label[^>]*>[^\n]*id="{name}"', text)


def test_every_source_has_a_name_a_colour_and_a_line_of_its_own() -> None:
    css, names = page_file("page.css"), page_file("dom.js")
    looks = set()
    for source in Source:
        assert f"  {source.label}: " in names
        assert f".kept .{source.label}" in css or source is Source.TARGET
        (look,) = re.findall(rf"\.words\.{source.label} {{ ([^}}]+) }}", css)
        looks.add(re.sub(r"color: [^;]+;", "", look).strip())
    assert len(looks) == len(Source), "not by colour alone"


@pytest.mark.parametrize("mode", [0, 1], ids=["light", "dark"])
def test_texts_stand_out_from_what_is_behind_them(mode: int) -> None:
    palette = {
        name: values.split(", ")[mode]
        for name, values in re.findall(r"--([\w-]+): light-dark\(([^)]+)\)", page_file("page.css"))
    }
    texts = ["ink", "accent", *(source.label for source in Source)]
    for text in texts:
        for behind in ("card", "page", "marker", "chosen"):
            assert contrast(palette[text], palette[behind]) >= 4.5, (text, behind)
    for behind in ("card", "page"):
        assert contrast(palette["soft"], palette[behind]) >= 4.5
        assert contrast(palette["wrong"], palette[behind]) >= 4.5
        assert contrast(palette["field"], palette[behind]) >= 3
    assert contrast(palette["on-accent"], palette["accent"]) >= 4.5


def contrast(one: str, other: str) -> float:
    """The contrast of two colours, as WCAG 2.2 has it."""

    def luminance(colour: str) -> float:
        channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    bright, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)
