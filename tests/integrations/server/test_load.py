"""The load of ``benchmarks/serving.py`` in short."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from helpers.serving import serving, tiny_engine

from groundspeed.integrations.server.settings import Settings

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "serving.py"


def benchmark() -> ModuleType:
    spec = importlib.util.spec_from_file_location("serving_benchmark", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


async def test_under_a_mixed_load_answers_are_those_of_a_quiet_server() -> None:
    engine = tiny_engine(cache_bytes=1 << 20)
    with serving(engine, Settings()) as address:
        report = await benchmark().load(address, "tiny", seconds=2.5, clients=8, tokens=40, pool=14)
    assert report.wrong == []
    assert report.stuck == 0
    assert report.outcomes["answered"] > 10
    assert min(report.outcomes["malformed"], report.outcomes["left"]) > 0
    assert engine.scheduler.active == 0
