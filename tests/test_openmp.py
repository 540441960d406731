from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from groundspeed.openmp import _runtime

pytestmark = [
    pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="counts threads in /proc"),
    pytest.mark.skipif(_runtime() is None, reason="PyTorch has no OpenMP runtime of GNU's kind here"),
]

COUNT = """
import os, torch
torch.set_num_threads(3)
matrix = torch.randn(600, 600)
def threads(): return len(os.listdir("/proc/self/task"))
def compute(): return (matrix @ matrix).exp().sum()
"""


def run(code: str) -> list[int]:
    environment = {**os.environ, "OMP_NUM_THREADS": "3", "PYTHONPATH": str(Path(__file__).parent)}
    done = subprocess.run(
        [sys.executable, "-c", COUNT + code], env=environment, capture_output=True, text=True, check=True
    )
    return [int(word) for word in done.stdout.split()]


def test_a_team_is_given_back_and_comes_again_as_large():
    before, with_team, released, size, again = run(
        """
from groundspeed.openmp import release_threads
print(threads()); compute(); print(threads())
release_threads(); print(threads(), torch.get_num_threads())
compute(); print(threads())
"""
    )
    assert with_team == again == before + 2
    assert released == before
    assert size == 3


def test_beside_a_running_engine_whoever_made_it_and_asks_it_holds_no_team():
    before, during = run(
        """
from helpers.engines import engine_for
from helpers.families import TREE_FAMILIES, tiny_model
from groundspeed.openmp import release_threads
from groundspeed.types import GenerationRequest
from groundspeed.verify.target import TransformersTarget
model = tiny_model(TREE_FAMILIES["llama"]())
release_threads()
before = threads()
compute()
engine = engine_for(TransformersTarget(model))
compute()
stream = engine.stream(GenerationRequest((1, 2, 3), max_tokens=64, ignore_eos=True))
next(stream), next(stream), next(stream)
print(before, threads())
stream.close()
engine.close()
"""
    )
    assert during == before + 3  # the engine's own thread with a team of three
