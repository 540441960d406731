"""Each benchmark figure of the pages is one that the results files hold."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from suite.pages.blocks import BLOCKS
from suite.pages.plots import PLOTS, draw
from suite.pages.report import BLOCK, filled, found_in, pages, write_pages
from suite.part import BENCHMARKS, ROOT
from suite.parts import PARTS
from suite.results import Results

RESULTS = Results(BENCHMARKS / "results")
NAMES = [part.name for part in PARTS]
NUMBER = re.compile(r"\b\d")


def measured():
    found = found_in(RESULTS, NAMES)
    if not found:
        pytest.skip("nothing has been measured yet: run `make bench`")
    return found


@pytest.mark.parametrize("page", pages(ROOT), ids=lambda page: page.name)
def test_each_table_is_the_one_that_the_results_give(page):
    text = page.read_text(encoding="utf-8")
    assert filled(text, measured()) == text, "run `python benchmarks/run.py --write`"


@pytest.mark.parametrize(
    ("page", "section"), [("README.md", "## Measured"), ("docs/benchmarks.md", "# Benchmarks")]
)
def test_no_figure_stands_outside_the_tables(page, section):
    text = (ROOT / page).read_text(encoding="utf-8")
    level = section.split()[0]
    body = re.split(rf"^{level} ", text.split(section + "\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]
    assert not [line for line in BLOCK.sub("", body).splitlines() if NUMBER.search(line)]


def test_every_marker_has_its_end_and_names_a_block():
    for page in pages(ROOT):
        text = page.read_text(encoding="utf-8")
        blocks = [match[2] for match in BLOCK.finditer(text)]
        assert len(blocks) == text.count("<!-- results: ") == text.count("<!-- end -->")
        assert set(blocks) <= set(BLOCKS)


def test_every_block_and_picture_is_shown_somewhere():
    shown = {match[2] for page in pages(ROOT) for match in BLOCK.finditer(page.read_text(encoding="utf-8"))}
    assert shown == set(BLOCKS)
    assert {name.removeprefix("picture-") for name in BLOCKS if name.startswith("picture-")} == set(PLOTS)


SAMPLE = json.loads((Path(__file__).parent / "sample.json").read_text(encoding="utf-8"))
"""Results of all parts, of tiny sizes and made up; the figures mean nothing."""


def test_every_part_has_a_place_on_the_pages():
    assert set(SAMPLE) == set(NAMES)
    for name, block in BLOCKS.items():
        body = block(SAMPLE)
        assert body.strip(), name
        assert "None" not in body


def test_a_page_is_made_from_the_results_alone_and_made_twice_is_the_same(tmp_path):
    (tmp_path / "docs").mkdir()
    page = tmp_path / "README.md"
    page.write_text("Before 1.\n<!-- results: throughput -->\nold 99\n<!-- end -->\nAfter 2.\n")
    assert write_pages(tmp_path, SAMPLE) == [page]
    text = page.read_text()
    assert "old 99" not in text
    assert text.startswith("Before 1.\n<!-- results: throughput -->\n\n8 requests"[:38])
    assert text.endswith("\n<!-- end -->\nAfter 2.\n")
    assert write_pages(tmp_path, SAMPLE) == []
    page.write_text(text.replace("| 1 |", "| 7 |", 1))
    assert write_pages(tmp_path, SAMPLE) == [page], "a figure that was changed by hand is put right"


def test_a_part_that_was_not_measured_is_said_not_to_be():
    page = "<!-- results: idle -->\n<!-- end -->"
    assert "`idle` has not been measured" in filled(page, {})
    left_out = {"idle": {"part": "idle", "left_out": "there is no engine"}}
    assert "left out: there is no engine" in filled(page, left_out)


def test_what_a_peer_did_better_is_listed_worst_first():
    def one(peer, *ratios):
        low, middle, high = sorted(ratios)
        figures = {"median": middle, "low": low, "high": high}
        return {"what": "thing", "peer": peer, "unit": "speed", **figures}

    compared = [one("slower", 1.5, 1.4, 1.6), one("near", 0.9, 0.99, 1.1), one("faster", 0.5, 0.6, 0.7)]
    rows = BLOCKS["losses"]({"idle": {"part": "idle", "data": {"comparisons": compared}}}).splitlines()[2:]
    assert [row.split(" | ")[1] for row in rows] == ["faster", "near"]
    assert rows[0].endswith("| 0.60 (0.50-0.70) | yes |")


def test_the_same_results_give_the_same_small_pictures(tmp_path):
    first, second = (draw(tmp_path / name, SAMPLE) for name in ("first", "second"))
    assert {file.stem for file in first} == set(PLOTS)
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes() == other.read_bytes()
        assert one.stat().st_size < 60_000
