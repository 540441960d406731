"""The house stands as CONTRIBUTING says."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import groundspeed

ROOT = Path(__file__).parents[1]
ROOMS = ("datastores", "retrieval", "drafting", "verify", "integrations")
MAY_IMPORT = {
    "front": {"front"},
    "datastores": {"front", "datastores"},
    "retrieval": {"front", "datastores", "retrieval"},
    "drafting": {"front", "datastores", "drafting"},
    "verify": {"front", "datastores", "retrieval", "drafting", "verify"},
    "integrations": {"front", *ROOMS},
}
MAX_LINES = 400

PUBLIC = [
    "Answer",
    "ContextLengthError",
    "Document",
    "DraftError",
    "DraftTree",
    "Drafter",
    "Engine",
    "GenerationRequest",
    "GenerationResult",
    "GenerationStats",
    "GenerationTimeoutError",
    "Grammar",
    "GroundedSpan",
    "GroundspeedError",
    "IndexReport",
    "InputError",
    "MissingDependencyError",
    "ModelError",
    "Passage",
    "PrefillEvent",
    "RagPipeline",
    "RetrievalEvent",
    "Retriever",
    "Source",
    "StepEvent",
    "StoreError",
    "TokenLogprob",
    "groundspeed_generate",
    "index_corpus",
]


def sources() -> Iterator[tuple[str, Path]]:
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            yield room, path
    for path in sorted((ROOT / "src/groundspeed").glob("*.py")):
        yield "front", path


def imports_that_run(tree: ast.AST) -> Iterator[str]:
    """Modules imported anywhere but under TYPE_CHECKING."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide the direction"
            yield node.module or ""
        yield from imports_that_run(node)


def room_of(module: str) -> str | None:
    parts = module.split(".")
    if parts[0] != "groundspeed":
        return None
    return parts[1] if len(parts) > 1 and parts[1] in ROOMS else "front"


def test_imports_go_one_way() -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {module}"
        for room, path in sources()
        for module in imports_that_run(ast.parse(path.read_text(encoding="utf-8")))
        if (target := room_of(module)) and target not in MAY_IMPORT[room]
    ]
    assert not wrong


def test_no_file_is_too_long() -> None:
    folders = [*ROOMS, "src", "tests", "benchmarks", "examples"]
    files = {path.resolve() for folder in folders for path in (ROOT / folder).rglob("*.py")}
    long = {str(path): count for path in files if (count := len(path.read_text().splitlines())) > MAX_LINES}
    assert not long


def test_the_public_surface_is_exactly_this() -> None:
    assert groundspeed.__all__ == sorted(groundspeed.__all__)
    assert sorted(groundspeed.__all__) == sorted(PUBLIC)
    assert set(PUBLIC) <= set(dir(groundspeed))
    for name in PUBLIC:
        assert getattr(groundspeed, name).__name__ == name


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = groundspeed.Nothing


@pytest.mark.parametrize(
    "statement",
    [
        "import groundspeed",
        "from groundspeed import GenerationRequest, GroundspeedError, RagPipeline, Retriever",
        "import groundspeed.integrations.cli",
        "import groundspeed.verify.loading",
    ],
)
def test_importing_loads_nothing_heavy(statement: str) -> None:
    heavy = {"torch", "transformers", "faiss", "sentence_transformers", "langchain_core", "fastapi", "vllm"}
    code = f"{statement}\nimport sys\nprint(*sorted({heavy} & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == ""


@pytest.mark.parametrize("room", ROOMS)
def test_the_linter_refuses_a_room_imported_by_its_folder_name(room: str) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--stdin-filename", "snippet.py", "-"],
        input=f"import {room}\n\n{room}.base\n",
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert "TID251" in run.stdout
    assert f"import groundspeed.{room}" in run.stdout
