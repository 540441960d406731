"""The page of a replay in Chromium: `make test-browser`."""

from __future__ import annotations

import json

import pytest
from helpers.browser import IN_BROWSER, LOOKS, Watched, picture
from helpers.pages import HOSTILE
from helpers.tokenizers import byte_tokenizer

from groundspeed.integrations.bench.drafters import DRAFTERS
from groundspeed.integrations.bench.replay import measure_files
from groundspeed.integrations.bench.report import report_page

pytestmark = IN_BROWSER

LONG = "an_identifier_that_goes_on_and_on_" * 6
FACT = "The Meridian bridge was opened on the fourth of March 1911 by the harbour master Ida Norling."


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("report")
    rows = [
        {
            "id": f"{LONG}{n}",
            "question": f"{n}. Who opened the bridge? {HOSTILE} {LONG}",
            "passages": [FACT, f"{LONG} {HOSTILE}"],
            "response": f"{FACT if n % 4 else 'I cannot say who did that or when'} {n} {LONG} {HOSTILE}",
            "model": ("a small model", LONG)[n % 2],
        }
        for n in range(12)
    ]
    (folder / "my-log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    names = ("blend", "single-match", "prompt-lookup", "none")
    tokenizer = byte_tokenizer()
    measured = measure_files(
        [folder / "my-log.jsonl"], tokenizer, {name: DRAFTERS[name].build for name in names}, [16]
    )
    page = report_page(measured, tokenizer, bad=[f"my-log.jsonl, line 13: {HOSTILE}"])
    (folder / "report.html").write_text(page, encoding="utf-8")
    return (folder / "report.html").as_uri()


@pytest.mark.parametrize("look", LOOKS)
def test_a_report_fits_every_look_and_asks_for_nothing(watched: Watched, report: str, look: str) -> None:
    page = watched.open(report, **LOOKS[look])
    picture(page, f"report-{look}")
    assert watched.requests == [report]
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    outside = page.evaluate(
        """[...document.querySelectorAll("article, article *:not(svg *)")].filter((one) => {
          const box = one.getBoundingClientRect();
          return box.width && (box.left < -1 || box.right > innerWidth + 1);
        }).map((one) => one.outerHTML.slice(0, 120))"""
    )
    assert outside == []
    assert page.locator("script, img").count() == 0
    assert page.evaluate("window.broken") is None
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(16, 19, 21)") == (look == "dark")


def test_texts_of_a_chart_do_not_cover_each_other_on_a_phone(watched: Watched, report: str) -> None:
    page = watched.open(report, **LOOKS["phone"])
    covered = page.evaluate(
        """[...document.querySelectorAll("svg.columns, svg.curves")].flatMap((chart) => {
          const boxes = [...chart.querySelectorAll("text")].map((one) => one.getBoundingClientRect());
          return boxes.flatMap((a, i) => boxes.slice(i + 1).filter((b) =>
            a.left < b.right && b.left < a.right && a.top < b.bottom - 2 && b.top < a.bottom - 2));
        }).length"""
    )
    assert covered == 0
    drawn = page.evaluate(
        """[...document.querySelector(".bars").children].map((one) => [
          one.querySelector(".value").textContent,
          one.querySelector("rect").getBoundingClientRect().width])"""
    )
    (longest, width), *others = [(float(value), wide) for value, wide in drawn]
    assert longest > 1
    for value, wide in others:
        assert wide == pytest.approx(width * value / longest, rel=0.02)
