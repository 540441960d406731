"""What was learnt is kept, whole or not at all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from groundspeed.drafting.calibration import Calibration, load_priors
from groundspeed.drafting.features import WEIGHTS
from groundspeed.errors import DraftError


def test_a_calibration_starts_from_the_shipped_priors_and_leaves_them_alone() -> None:
    calibration = Calibration()
    assert np.array_equal(calibration.weights, load_priors())
    calibration.weights += 1
    assert np.array_equal(Calibration().weights, load_priors())


def test_what_was_learnt_is_there_after_saving(tmp_path: Path) -> None:
    calibration = Calibration()
    calibration.weights[3] = 7.0
    calibration.seen[3] = 99.0
    calibration.save(tmp_path / "calibration.npz")
    calibration.save(tmp_path / "calibration.npz")
    loaded = Calibration.load(tmp_path / "calibration.npz")
    assert np.array_equal(loaded.weights, calibration.weights)
    assert np.array_equal(loaded.seen, calibration.seen)
    assert [path.name for path in tmp_path.iterdir()] == ["calibration.npz"]


@pytest.mark.parametrize("damage", ["truncated", "empty", "text", "short", "nan", "huge", "array", "words"])
def test_a_damaged_calibration_is_refused_with_its_path(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "calibration.npz"
    Calibration().save(path)
    if damage == "truncated":
        path.write_bytes(path.read_bytes()[:1000])
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "text":
        path.write_text("weights")
    elif damage == "short":
        np.savez(path, weights=np.zeros(3), seen=np.ones(3))
    elif damage == "array":
        with path.open("wb") as file:
            np.save(file, np.zeros(WEIGHTS))
    elif damage == "words":
        np.savez(path, weights=np.array(["a"] * WEIGHTS), seen=np.ones(WEIGHTS))
    else:
        weight = {"nan": np.nan, "huge": 1e300}[damage]
        np.savez(path, weights=np.full(WEIGHTS, weight), seen=np.ones(WEIGHTS))
    with pytest.raises(DraftError, match="delete it to start anew"), np.errstate(over="ignore"):
        Calibration.load(path)


def test_a_calibration_that_does_not_learn_is_kept_as_such(tmp_path: Path) -> None:
    Calibration(learn=False).save(tmp_path / "kept.npz")
    assert not len(Calibration.load(tmp_path / "kept.npz").seen)


def test_where_nothing_can_be_written_is_said_and_nothing_is_left(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(DraftError, match="folder"):
        Calibration().save(tmp_path / "folder")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_a_calibration_that_is_not_there_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(DraftError, match="nowhere"):
        Calibration.load(tmp_path / "nowhere.npz")
