from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from helpers.serving import serving, tiny_engine
from openai import OpenAI

from groundspeed.integrations.server.settings import Settings
from groundspeed.verify.engine import Engine


@pytest.fixture(autouse=True, scope="package")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="package")
def engine() -> Engine:
    return tiny_engine()


@pytest.fixture(scope="package")
def address(engine: Engine) -> Iterator[str]:
    """One server for all that does not need one of its own."""
    with serving(
        engine, Settings(body_bytes=1_000_000, documents=4, choices=4, stall_seconds=1.0)
    ) as address:
        yield address


@pytest.fixture(scope="package")
def client(address: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client:
        yield client
