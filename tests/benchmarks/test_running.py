"""The runner of ``make bench``: stopped, resumed, and with parts that fail."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import run
from helpers.fake_parts import fake
from suite import results as results_module
from suite.part import ROOT, Size
from suite.results import Results
from suite.running import run_parts

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def results(tmp_path: Path) -> Results:
    return Results(tmp_path / "results")


def measured(log: Path) -> list[str]:
    return log.read_text().split() if log.exists() else []


def test_what_fails_does_not_lose_the_others_and_shows_in_the_exit_status(log, results, tmp_path, capsys):
    parts = [fake(log, "first"), fake(log, "bad", "fail"), fake(log, "worse", "die"), fake(log, "last")]
    words = ["--quick", "--results", str(results.folder)]
    assert run.main(words, parts, tmp_path) == 1
    assert sorted(file.stem for file in results.folder.iterdir()) == ["first", "last"]
    printed = capsys.readouterr()
    assert "ValueError: nothing adds up" in printed.out
    assert "exit code 9" in printed.out
    assert "failed: bad, worse" in printed.err
    assert run.main(words, [parts[0], parts[3]], tmp_path) == 0
    assert measured(log) == ["first", "bad", "worse", "last"]


def test_a_result_tells_where_it_comes_from(log, results, tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text('{"id": 1}\n{"id": 2}\n')
    run_parts([fake(log, "one", inputs=(file,))], results, Size())
    result = results.read("one")
    assert result["data"] == {"seconds": [1.0, 2.0], "quick": False}
    told = result["provenance"]
    assert told["machine"]["cores"] >= 1
    assert told["machine"]["processor"]
    assert told["versions"]["torch"]
    assert told["command"] == "python benchmarks/run.py --parts one"
    [one] = told["inputs"]
    assert one["rows"] == 2
    assert (told["commit"] is None) == (not (ROOT / ".git").exists())


def test_a_part_is_measured_again_when_its_inputs_or_the_code_change(log, results, tmp_path, monkeypatch):
    file = tmp_path / "rows.jsonl"
    file.write_text('{"id": 1}\n')
    part = fake(log, "one", inputs=(file,))
    run_parts([part], results, Size())
    assert results.has(part, Size())
    assert not results.has(part, Size(quick=True))
    run_parts([part], results, Size(), again=True)
    assert measured(log) == ["one"] * 2
    monkeypatch.setattr(results_module, "_code", lambda: "other code")
    assert not results.has(part, Size())
    monkeypatch.undo()
    results_module._digest.cache_clear()
    file.write_text('{"id": 3}\n')
    assert not results.has(part, Size())


def test_what_cannot_be_measured_here_is_left_out_with_the_reason_and_tried_again(log, results, tmp_path):
    parts = [fake(log, "peer", "leave out"), fake(log, "data", inputs=(tmp_path / "traces.jsonl.gz",))]
    for _ in range(2):
        assert run_parts(parts, results, Size()) == []
    assert results.read("peer")["left_out"] == "no peer is installed"
    assert "traces.jsonl.gz is not there" in results.read("data")["left_out"]
    assert measured(log) == ["peer"] * 2


def test_a_file_is_written_whole_or_not_at_all(results):
    results.write("one", {"data": 1})
    with pytest.raises(TypeError):
        results.write("one", {"data": object()})
    assert results.read("one") == {"data": 1}


def test_a_part_that_takes_too_long_is_given_up_with_all_that_it_started(log, results):
    assert run_parts([fake(log, "slow", "hang"), fake(log, "next")], results, Size(), limit=6) == ["slow"]
    assert results.read("next") is not None
    assert ended(int(log.with_suffix(".pid").read_text()))


def test_a_run_that_is_stopped_leaves_nothing_behind_and_goes_on_where_it_was(log, results, tmp_path):
    program = f"""
import pathlib, signal, sys
import run
from helpers.fake_parts import fake
log = pathlib.Path({str(log)!r})
if __name__ == "__main__":
    signal.signal(signal.SIGTERM, run._stop)
    parts = [fake(log, "first"), fake(log, "second", sys.argv[1])]
    words = ["--quick", "--results", {str(results.folder)!r}]
    sys.exit(run.main(words, parts, pathlib.Path({str(tmp_path)!r})))
"""
    script = tmp_path / "script.py"
    script.write_text(program)
    path = os.pathsep.join([str(ROOT / "tests"), str(ROOT / "benchmarks")])
    command = [sys.executable, str(script)]
    environment = {**os.environ, "PYTHONPATH": path}
    with subprocess.Popen([*command, "hang"], env=environment, stderr=subprocess.DEVNULL) as process:
        pid = log.with_suffix(".pid")
        until = time.monotonic() + 60
        while not (pid.exists() and pid.read_text()) and time.monotonic() < until:
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) != 0
    assert ended(int(pid.read_text()))
    assert [file.name for file in results.folder.iterdir()] == ["first.json"]
    assert subprocess.run([*command, "work"], env=environment, check=False).returncode == 0
    assert measured(log) == ["first", "second", "second"]
    assert json.loads((results.folder / "second.json").read_text())["data"]["quick"]


def ended(pid: int) -> bool:
    """Whether a process is gone, or only waits to be counted."""
    for _ in range(100):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False
