"""The OpenAPI document says what the server does: schemathesis tries it out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import schemathesis
from helpers.serving import tiny_engine
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from groundspeed.integrations.server.app import create_app
from groundspeed.integrations.server.keys import Caller, Keys
from groundspeed.integrations.server.settings import Settings

KEY = "key-0123456789abcdef"


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> Any:
    given = Settings(
        store=tmp_path_factory.mktemp("store") / "s",
        keys=Keys({KEY: Caller("tester", frozenset({"corpus"}))}),
        answer_tokens=8,
        request_seconds=2,
    )
    return schemathesis.openapi.from_asgi("/openapi.json", create_app(tiny_engine(), given))


def test_every_route_does_what_its_document_says(document: Any) -> None:
    checks = [
        not_a_server_error,
        status_code_conformance,
        content_type_conformance,
        response_schema_conformance,
    ]
    statuses: set[int] = set()
    for found in document.get_all_operations():
        operation = found.ok()

        @settings(
            max_examples=8,
            deadline=None,
            derandomize=True,
            database=None,
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy())
        def examine(case: Any) -> None:
            if isinstance(case.body, dict) and "model" in case.body:
                case.body["model"] = "tiny"  # or nothing would be behind the 404
            reply = case.call(headers={"authorization": f"Bearer {KEY}"})
            case.validate_response(reply, checks=checks)
            statuses.add(reply.status_code)

        examine()
    assert {200, 400, 403, 404} <= statuses


def test_the_document_names_every_route_and_asks_for_keys(document: Any) -> None:
    paths = document.raw_schema["paths"]
    assert {"/v1/chat/completions", "/v1/completions", "/v1/models", "/health", "/ready", "/metrics"} <= set(
        paths
    )
    for path, operations in paths.items():
        for operation in operations.values():
            assert ("security" in operation) == path.startswith("/v1/"), path
            assert "422" not in operation["responses"], "errors of bodies are 400, as in OpenAI's API"


def test_the_page_of_documentation_that_loads_from_elsewhere_is_not_there(address: str) -> None:
    import httpx

    assert {httpx.get(address + path).status_code for path in ("/docs", "/redoc")} == {404}
    assert Path(httpx.get(f"{address}/openapi.json").json()["info"]["title"]).name == "groundspeed"
