"""Results files: what was measured, and all that is needed to know what it was measured on."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from importlib import metadata
from pathlib import Path

from suite.part import BENCHMARKS, ROOT, Json, Part, Size

__all__ = ["Results", "key_of", "machine", "provenance"]

ROOMS = ("src", "datastores", "retrieval", "drafting", "verify", "integrations")
PAGES = BENCHMARKS / "suite" / "pages"
"""Only shows what was measured."""
PACKAGES = (
    "groundspeed", "torch", "transformers", "numba", "numpy", "tokenizers", "sentence-transformers",
    "arctic-inference", "draftretriever", "infini-gram", "pydivsufsort", "llama-cpp-python",
)  # fmt: skip


class Results:
    """A folder with one JSON file a part."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def read(self, name: str) -> Json | None:
        """The results of a part, None where there are none."""
        file = self.folder / f"{name}.json"
        found: Json | None = json.loads(file.read_text(encoding="utf-8")) if file.exists() else None
        return found

    def write(self, name: str, result: Json) -> None:
        """Write them whole or not at all."""
        self.folder.mkdir(parents=True, exist_ok=True)
        partial = self.folder / f".{name}.partial"
        with partial.open("w", encoding="utf-8") as file:
            file.write(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
            file.flush()
            os.fsync(file.fileno())
        partial.replace(self.folder / f"{name}.json")

    def has(self, part: Part, size: Size) -> bool:
        """Whether the part was measured with this code, on these inputs and this machine."""
        found = self.read(part.name)
        return found is not None and "data" in found and found["key"] == key_of(part, size)


def key_of(part: Part, size: Size) -> str:
    """Stands for all that decides what a part measures: a part with this key need not be measured again."""
    decides = [part.name, size.quick, _code(), machine(), versions(), [_digest(file) for file in part.inputs]]
    return hashlib.sha256(json.dumps(decides).encode()).hexdigest()[:16]


@cache
def machine() -> Json:
    """The processor, its cores, the memory and the system."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
    }


@cache
def versions() -> dict[str, str | None]:
    """Of what takes part; None for what is not installed."""
    found: dict[str, str | None] = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def provenance(part: Part, size: Size, *, date: str, seconds: float) -> Json:
    """Where results come from.

    Args:
        part: What was measured.
        size: How much of it.
        date: When it began, as ISO 8601.
        seconds: How long it took, loading included.
    """
    torch = sys.modules.get("torch")
    return {
        "commit": _git("rev-parse", "HEAD"),
        "dirty": bool(_git("status", "--porcelain", "--", *ROOMS, "benchmarks", ":!benchmarks/results")),
        "date": date,
        "seconds": round(seconds, 1),
        "command": f"python benchmarks/run.py --parts {part.name}" + (" --quick" if size.quick else ""),
        "machine": machine(),
        "threads": torch.get_num_threads() if torch else _default_threads(),
        "versions": versions(),
        "inputs": [
            {"file": _shown(file), "rows": _rows(file), "sha256": _digest(file)} for file in part.inputs
        ],
    }


def _default_threads() -> int:
    """What PyTorch takes in a process that a part started, if not in its own."""
    return int(os.environ.get("OMP_NUM_THREADS") or machine()["cores"])


def _shown(file: Path) -> str:
    """A path that says the same on every machine."""
    return (
        str(file.relative_to(ROOT)) if file.is_relative_to(ROOT) else f"shared/{file.parent.name}/{file.name}"
    )


def _rows(file: Path) -> int:
    whole = file.read_bytes()
    return sum(map(bool, (gzip.decompress(whole) if file.suffix == ".gz" else whole).splitlines()))


@cache
def _digest(file: Path) -> str | None:
    return hashlib.sha256(file.read_bytes()).hexdigest()[:16] if file.exists() else None


@cache
def _code() -> str:
    """Digest of everything that runs while something is measured."""
    whole = hashlib.sha256()
    for file in sorted(_sources()):
        whole.update(str(file.relative_to(ROOT)).encode() + file.read_bytes())
    return whole.hexdigest()


def _sources() -> Iterable[Path]:
    for room in ROOMS:
        yield from (file for file in (ROOT / room).rglob("*") if file.suffix in (".py", ".npy"))
    for file in BENCHMARKS.rglob("*.py"):
        if not file.is_relative_to(PAGES):
            yield file


def _git(*arguments: str) -> str | None:
    """What git prints, None outside a checkout."""
    try:
        run = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return run.stdout.strip()


def _processor() -> str:
    """Its name, from where Linux keeps it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    facts = dict(line.split(":", 1) for line in lines if ":" in line)
    name, family, model = (
        next((value.strip() for key, value in facts.items() if key.strip() == wanted), "")
        for wanted in ("model name", "cpu family", "model")
    )
    return f"{name} (family {family}, model {model})" if family else name or platform.machine()
