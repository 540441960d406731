"""The page of a replay: its figures are those of the replay, and a log in it stays text."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections import Counter
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.pages import HOSTILE
from helpers.tokenizers import byte_tokenizer
from typer.testing import CliRunner, Result

from groundspeed.integrations.bench.drafters import DRAFTERS
from groundspeed.integrations.bench.log_rows import Trace
from groundspeed.integrations.bench.replay import measure_files
from groundspeed.integrations.bench.report.advice import advise, verdict
from groundspeed.integrations.bench.report.charts import Bar, columns, curves, rows, stacked
from groundspeed.integrations.bench.report.figures import LENGTHS, Figures, figures
from groundspeed.integrations.bench.report.page import report_page
from groundspeed.integrations.bench.tally import Measured, Replayed, Tally
from groundspeed.integrations.bench.traces import Row
from groundspeed.integrations.cli.app import app
from groundspeed.types import Source

SUBJECT = "The Meridian bridge was opened by Ida Norling"
VOID = {"meta", "br", "img", "link", "input"}
TOKENIZER = byte_tokenizer()
TOKENIZER.name_or_path = "bytes"


def log(count: int = 14) -> list[dict[str, Any]]:
    """Rows that quote more and less, of two models, some with hostile text and one without passages."""
    return [
        {
            "id": f"{HOSTILE}{n}",
            "question": f"Who opened the bridge in year {n}? {HOSTILE}",
            "passages": [f"{SUBJECT} in {n}. {HOSTILE}", "Nothing of it."] if n else [],
            "response": f"{SUBJECT if n % 3 else 'I have no idea who it was'} in {n}. {HOSTILE} It is so.",
            "model": f"model {n % 2} {HOSTILE}",
        }
        for n in range(count)
    ]


def write(path: Path, rows: Sequence[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


class Elements(HTMLParser):
    """Tags with their attributes, and the texts under an element by its class or id."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[tuple[str, set[str]]] = []
        self.texts: list[tuple[frozenset[str], str]] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self.found.append((tag, attributes))
        if tag not in VOID:
            self.open.append((tag, {tag, *(attributes.get("class") or "").split()}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop()[0] == tag

    def handle_data(self, data: str) -> None:
        self.texts.append((frozenset().union(*(names for _, names in self.open)), data))

    def text(self, *within: str) -> list[str]:
        return [text for names, text in self.texts if names >= set(within)]


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> list[Measured]:
    file = write(tmp_path_factory.mktemp("log") / "mine.jsonl", log())
    names = ("blend", "single-match", "prompt-lookup")
    return measure_files([file], TOKENIZER, {name: DRAFTERS[name].build for name in names}, [16])


@pytest.fixture(scope="module")
def found(measured: list[Measured]) -> Figures:
    return figures(measured)


@pytest.fixture(scope="module")
def page(measured: list[Measured]) -> str:
    return report_page(measured, TOKENIZER, bad=[f"mine.jsonl, line 3: {HOSTILE}"])


def command(monkeypatch: pytest.MonkeyPatch, *arguments: str | Path) -> Result:
    monkeypatch.setattr("groundspeed.verify.loading.load_tokenizer", lambda *_: TOKENIZER)
    return CliRunner().invoke(app, ["bench", "replay", *map(str, arguments)])


def test_the_page_says_what_the_json_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [
        write(tmp_path / "one.jsonl", log()),
        write(tmp_path / "two.jsonl", [*log()[:5], {"question": 1}]),
    ]
    report = tmp_path / "report.html"
    result = command(monkeypatch, *files, "--html", report, "--json")
    assert result.exit_code == 0, result.output
    assert "two.jsonl, line 6: `question` is 1" in result.stderr
    told = json.loads(result.stdout)["rows"]
    assert {row["budget"] for row in told} == {32}
    read = Elements(report.read_text(encoding="utf-8"))
    names = {"blend": "groundspeed", "single-match": "single match", "none": "no speculation"}
    values = read.text("bars", "value")
    shown = [text for text in read.text("bars", "name") if text in (*names.values(), "prompt lookup")]
    assert shown == ["groundspeed", "single match", "prompt lookup", "no speculation"]
    for drafter, name in (*names.items(), ("prompt-lookup", "prompt lookup")):
        mean = np.mean([row["tokens_per_step"] for row in told if row["drafter"] == drafter])
        assert values[shown.index(name)] == f"{mean:.2f}"
    assert read.text("lead", "dd")[0] == values[0]
    assert "line 6" in "".join(read.text("bad"))


def test_the_figures_are_those_of_a_count_by_hand(measured: list[Measured], found: Figures) -> None:
    blend = next(one for one in measured if one.drafter == "blend").tally
    lengths: Counter[int] = Counter()
    sources: Counter[int] = Counter()
    starts: dict[int, list[int]] = {}
    for one in blend.replayed:
        at = 0
        for accepted in one.accepted.tolist():
            wrote = min(accepted + 1, len(one.sources) - at)
            lengths[next(i for i, (_, last) in enumerate(LENGTHS) if last is None or accepted <= last)] += 1
            starts.setdefault(at, []).append(wrote)
            at += wrote
        assert at == len(one.row.response)
        sources.update(one.sources.tolist())
    assert dict(enumerate(found.lengths)) == {i: lengths[i] for i in range(len(LENGTHS))}
    assert {int(source): count for source, count in found.sources.items() if count} == dict(sources)
    assert found.share(*Source) == pytest.approx(1)
    edges = [*(int(part.name) for part in found.positions), 1 << 30]
    assert edges[:3] == [0, 8, 16]
    for part, first, end in zip(found.positions, edges, edges[1:], strict=False):
        here = [wrote for at, all_wrote in starts.items() if first <= at < end for wrote in all_wrote]
        assert part.value == pytest.approx(np.mean(here))
        assert part.count == len(here)
    assert sum(part.value for part in found.ranks) == sources[Source.PASSAGE] > 0
    assert [part.count for part in found.ranks] == [13, 13]
    assert found.summaries["blend"] == blend.summary()
    assert (found.tokens, found.steps, found.without_passages) == (blend.tokens, blend.steps, 1)
    fewer, more = found.ahead["prompt-lookup"]
    assert fewer > more


def test_kinds_of_rows_are_told_apart_where_there_are_enough_of_each(found: Figures) -> None:
    (group,) = found.groups
    assert group.field == "model"
    assert sorted(part.count for part in group.parts) == [7, 7]
    assert [part.value for part in group.parts] == sorted((part.value for part in group.parts), reverse=True)


def test_examples_are_of_different_questions_and_ordered(found: Figures) -> None:
    questions = [one.row.question for one in (*found.most, *found.least)]
    assert len(questions) == len(set(questions)) == 6
    rates = [one.tokens_per_step for one in found.most]
    assert rates == sorted(rates, reverse=True)
    assert max(one.tokens_per_step for one in found.least) <= min(rates)


def test_an_answer_stands_in_the_page_word_for_word(page: str, found: Figures) -> None:
    read = Elements(page)
    shown = "".join(read.text("examples", "answer"))
    assert shown == "".join(
        one.row.trace.response for one in (*found.most, *found.least) if one.row.trace is not None
    )
    by_source = {source: len("".join(read.text("answer", source.label)).encode()) for source in Source}
    tokens = np.concatenate([one.sources for one in (*found.most, *found.least)])
    plain = by_source[Source.TARGET] - int((tokens == Source.TARGET).sum())
    assert abs(plain) <= 12  # a character of several tokens goes to the last of them


def test_whatever_a_log_holds_stays_text(page: str) -> None:
    read = Elements(page)
    assert {tag for tag, _ in read.found}.isdisjoint({"script", "img", "iframe", "a", "link"})
    assert HOSTILE in "".join(read.text("examples", "h3"))
    assert HOSTILE in "".join(read.text("bad"))
    assert not any(name.startswith("on") or name == "style" for _, attrs in read.found for name in attrs)


def test_the_page_asks_for_nothing_and_lets_its_own_style_in_alone(page: str) -> None:
    read = Elements(page)
    (policy,) = (str(attributes["content"]) for _, attributes in read.found if "http-equiv" in attributes)
    (style,) = read.text("style")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert policy == (f"default-src 'none'; base-uri 'none'; form-action 'none'; style-src 'sha256-{digest}'")
    assert not any({"src", "href"} & set(attributes) for _, attributes in read.found)
    assert not re.search(r"url\(|@import", style)


def test_with_the_cost_of_passes_the_page_says_how_fast_the_answers_would_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    speed = {"model": HOSTILE, "dtype": "bfloat16", "device": "cpu", "cost_of_nodes": {"0": 1, "16": 2}}
    (tmp_path / "speed.json").write_text(json.dumps(speed))
    file, report = write(tmp_path / "mine.jsonl", log()), tmp_path / "report.html"
    options = ("--cost", tmp_path / "speed.json", "--html", report, "--json", "--budget", "16")
    rows = json.loads(command(monkeypatch, file, *options).stdout)["rows"]
    fast = {row["drafter"]: row["times_as_fast"] for row in rows}
    assert 1 < fast["prompt-lookup"] < fast["blend"] < max(row["tokens_per_step"] for row in rows)
    read = Elements(report.read_text(encoding="utf-8"))
    assert f"{HOSTILE} in bfloat16 on cpu" in "".join(read.text("article", "p"))
    assert read.text("lead", "dd")[0] == f"{fast['blend']:.2f}"
    assert read.text("bars", "value")[4:8] == [f"{fast[row['drafter']]:.2f}" for row in rows]


def test_one_short_answer_makes_a_page_too(tmp_path: Path) -> None:
    file = write(tmp_path / "mine.jsonl", [{"question": "q", "response": "r"}])
    measured = measure_files([file], TOKENIZER, {"none": DRAFTERS["none"].build}, [4, 8])
    read = Elements(report_page(measured, TOKENIZER))
    assert read.text("lead", "dd") == ["1.00", "0%", "1", "1"]
    assert "A few rows say little" in "".join(read.text("verdict"))
    assert not read.text("examples")


def told(sources: Sequence[Source], accepted: Sequence[int], passages: int = 1) -> list[Measured]:
    """A replay of one row that went so."""
    ids = np.zeros(len(sources), np.int32)
    row = Row("q", ids, (ids,) * passages, ids, Trace("1", "q", "", (), ""))
    counts = np.array(accepted, np.int32)
    ranks = np.where(np.array(sources) == Source.PASSAGE, passages - 1, -1).astype(np.int32)
    one = Replayed(row, counts, counts, np.array(sources, np.uint8), ranks)
    tally = Tally(1, len(sources), len(accepted), sum(accepted), sum(accepted), [1.0], [one])
    return [Measured("set", "blend", 8, tally)]


@pytest.mark.parametrize(
    ("replayed", "history", "titles", "missing"),
    [
        (
            told([Source.TARGET] * 50, [0] * 50, 0),
            0,
            ["Hand over", "See what earlier", "Add a draft"],
            "Short",
        ),
        (told([Source.OUTPUT] * 9 + [Source.TARGET], [9]), 0, ["Answers repeat", "Short answers"], "Add a"),
        (told([Source.DATASTORE] * 9 + [Source.TARGET], [9]), 1, ["Keep a datastore"], "Hand over"),
        (told([Source.PASSAGE] * 9 + [Source.TARGET], [9], 5), 1, ["not worth", "Retrieve more"], "Keep a"),
    ],
)
def test_advice_follows_the_counts(
    replayed: list[Measured], history: float, titles: list[str], missing: str
) -> None:
    given = " | ".join(title for title, _ in advise(figures(replayed), history))
    assert all(title in given for title in titles), given
    assert missing not in given


def test_the_verdict_follows_the_tokens_per_step() -> None:
    verdicts = [
        verdict(figures(told([Source.PASSAGE] * n + [Source.TARGET] * 10, [n, *[0] * 9]))).split(":")[0]
        for n in (0, 5, 20)
    ]
    assert verdicts == ["There is little to gain", "There is something to gain", "There is much to gain"]


def test_charts_draw_nothing_outside_their_frame() -> None:
    bars = [Bar("a<b", 0.0, "0"), Bar("b", 3.0, "3", spread=(1.0, 12.0)), Bar("c", 6.0, "6")]
    drawn = rows(bars, "t") + columns(bars, "t", "below") + columns(bars[:1], "t", "below")
    drawn += stacked([("a", "passage", 0.25), ("b", "target", 0.75)], "t")
    across = [float(share) for share in re.findall(r'(?:x|x1|x2|width)="([\d.]+)%"', drawn)]
    assert max(across) <= 100
    assert "a&lt;b" in drawn
    assert "a<b" not in drawn
    lines = {"one": np.array([1.0, 2.0, 9.0]), "two": np.array([1.0, 1.0, 1.0]), "single": np.array([4.0])}
    drawn = curves(lines, dict.fromkeys(lines, "line"), "t", "below")
    points = [tuple(map(float, point.split(","))) for point in re.findall(r"[\d.]+,[\d.]+", drawn)]
    assert len(points) == 7
    assert all(0 <= x <= 1000 and 0 <= y <= 150 for x, y in points)
    assert re.findall(r'class="tick"[^>]*>(\d+)<', drawn) == ["1", "2", "4", "8", "16"]
