"""What is installed is the tree: every module once, in the wheel and in the sdist."""

from __future__ import annotations

import ast
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections import Counter
from importlib.metadata import packages_distributions
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
ROOMS = ("datastores", "drafting", "integrations", "retrieval", "verify")
SHIPPED = {".py", ".typed", ".npy", ".html", ".css", ".js"}


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def modules() -> set[str]:
    """Every file of the package, by its path in the wheel."""
    front = ROOT / "src/groundspeed"
    files = {f"groundspeed/{path.name}" for path in front.iterdir() if path.suffix in SHIPPED}
    for room in ROOMS:
        inside = (path for path in (ROOT / room).rglob("*") if path.suffix in SHIPPED)
        files |= {f"groundspeed/{path.relative_to(ROOT).as_posix()}" for path in inside}
    return files


def build(kind: str, source: Path, out: Path) -> Path:
    command = [
        sys.executable,
        "-m",
        "build",
        "--no-isolation",
        f"--{kind}",
        "--outdir",
        str(out),
        str(source),
    ]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr + run.stdout
    (built,) = out.iterdir()
    return built


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the checkout, so that a build leaves nothing behind in it; links stay links."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode != 0:
        pytest.skip("builds start from a git checkout")
    copy = tmp_path_factory.mktemp("checkout")
    for name in filter(None, listed.stdout.split("\0")):
        source, target = ROOT / name, copy / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_symlink():
            target.symlink_to(source.readlink())
        elif source.is_file():
            target.write_bytes(source.read_bytes())
    return copy


@pytest.fixture(scope="module")
def sdist(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("sdist", checkout, tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def wheels(checkout: Path, sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A wheel from the checkout and one from the sdist."""
    unpacked = tmp_path_factory.mktemp("unpacked")
    # Early patch releases of Python 3.11 know no filter, later versions warn without one.
    safely = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
    with tarfile.open(sdist) as archive:
        archive.extractall(unpacked, **safely)
    (folder,) = unpacked.iterdir()
    return {
        "checkout": build("wheel", checkout, tmp_path_factory.mktemp("wheel")),
        "sdist": build("wheel", folder, tmp_path_factory.mktemp("wheel-of-sdist")),
    }


def test_the_packages_listed_are_the_packages_there() -> None:
    listed = project()["tool"]["setuptools"]["packages"]
    there = {str(Path(path).parent).replace("/", ".") for path in modules() if path.endswith("__init__.py")}
    assert sorted(listed) == sorted(there)
    homes = {str(Path(path).parent).replace("/", ".") for path in modules()}
    assert homes == there, "every folder with modules has an __init__.py"


def test_cpu_and_gpu_exclude_each_other() -> None:
    conflicts = project()["tool"]["uv"]["conflicts"]
    assert [{"extra": "cpu"}, {"extra": "gpu"}] in conflicts


def test_what_is_imported_is_declared() -> None:
    by_hand = {"arctic_inference", "draftretriever", "infini_gram"}  # peers, see benchmarks/peers.md
    # At the versions that numba, transformers, uvicorn and fastapi ask for:
    with_another = {"llvmlite", "tokenizers", "h11", "starlette"}
    imported = {
        module.partition(".")[0]
        for room in ("src", *ROOMS)
        for path in (ROOT / room).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        for module in named_by(node)
    }
    foreign = imported - sys.stdlib_module_names - {"groundspeed"} - by_hand - with_another
    brought = packages_distributions()
    needed = {brought.get(module, [module])[0] for module in foreign}
    facts = project()["project"]
    declared = [*facts["dependencies"], *chain.from_iterable(facts["optional-dependencies"].values())]
    assert {canonicalize_name(name) for name in needed} <= {
        canonicalize_name(Requirement(d).name) for d in declared
    }


def named_by(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module or ""] if isinstance(node, ast.ImportFrom) else []


@pytest.mark.parametrize("origin", ["checkout", "sdist"])
def test_a_wheel_holds_each_file_once_under_one_name(wheels: dict[str, Path], origin: str) -> None:
    with zipfile.ZipFile(wheels[origin]) as wheel:
        names = wheel.namelist()
    assert Counter(names).most_common(1)[0][1] == 1
    assert {name for name in names if ".dist-info/" not in name} == modules()


def test_the_sdist_does_not_follow_the_links_into_duplicates(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        files = [member.name.partition("/")[2] for member in archive if member.isfile()]
    assert not [
        name for name in files if name.startswith(tuple(f"src/groundspeed/{room}/" for room in ROOMS))
    ]
    assert "verify/loading.py" in files
    assert "LICENSE" in files


def test_a_wheel_of_the_sdist_installs_and_runs(wheels: dict[str, Path], tmp_path: Path) -> None:
    target = tmp_path / "site"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*install, "--target", str(target), str(wheels["sdist"])], check=True, capture_output=True)
    assert not [room for room in ROOMS if (target / room).exists()]
    code = (
        "import groundspeed, groundspeed.integrations.cli as cli; print(groundspeed.__file__, cli.__file__)"
    )
    # PYTHONPATH comes before an editable install: the checkout must not answer instead of what was installed.
    run = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": str(target), "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.count(str(target)) == 2
