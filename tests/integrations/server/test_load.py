"""The load of ``benchmarks/serving.py`` in short."""

from __future__ import annotations

from helpers.serving import serving, tiny_engine
from serving_load import load

from groundspeed.integrations.server.settings import Settings


async def test_under_a_mixed_load_answers_are_those_of_a_quiet_server() -> None:
    engine = tiny_engine(cache_bytes=1 << 20)
    with serving(engine, Settings()) as address:
        report = await load(address, "tiny", seconds=2.5, clients=8, tokens=40, pool=14)
    assert report.wrong == []
    assert report.stuck == 0
    assert report.outcomes["answered"] > 10
    assert min(report.outcomes["malformed"], report.outcomes["left"]) > 0
    assert engine.scheduler.active == 0
