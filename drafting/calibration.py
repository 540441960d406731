"""The weights of the blend's predictor: shipped priors that go on learning."""

from __future__ import annotations

import io
import os
import tempfile
import zipfile
from functools import cache
from importlib.resources import as_file, files
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from groundspeed.drafting.features import WEIGHTS
from groundspeed.errors import DraftError

__all__ = ["Calibration", "load_priors"]

_CAUTION = 20.0
"""Sum of squared gradients that the priors count as: the more, the slower they are left."""


@cache
def load_priors() -> NDArray[np.float32]:
    """The shipped weights, float32 [WEIGHTS], fitted by ``benchmarks/fit_priors.py``."""
    with as_file(files("groundspeed.drafting") / "priors.npy") as path:
        priors: NDArray[np.float32] = np.load(path)
        return priors


class Calibration:
    """Weights that learn from every committed token.

    May be shared by requests in several threads: they write without a lock, and an update that another one
    overwrites is lost, which costs nothing that the next would not bring (Hogwild, Niu et al. 2011).

    Attributes:
        weights: float32 [WEIGHTS].
        seen: float32 [WEIGHTS], sums of squared gradients, which slow each weight down.
    """

    def __init__(self, weights: NDArray[np.floating] | None = None, *, learn: bool = True) -> None:
        """Start from given weights.

        Args:
            weights: [WEIGHTS], the shipped priors by default.
            learn: False keeps them as they are.

        Raises:
            DraftError: Weights of another shape.
        """
        self.weights = np.array(load_priors() if weights is None else weights, np.float32)
        if self.weights.shape != (WEIGHTS,):
            raise DraftError(
                f"the weights have shape {self.weights.shape}, this version takes ({WEIGHTS},); "
                "fit them again with benchmarks/fit_priors.py"
            )
        self.seen = np.full(WEIGHTS if learn else 0, _CAUTION, np.float32)

    @classmethod
    def load(cls, path: Path) -> Calibration:
        """Go on from what ``save`` kept.

        Raises:
            DraftError: The file cannot be read, or is of another version.
        """
        try:
            with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as kept:
                weights, seen = kept["weights"], kept["seen"]
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise DraftError(
                f"cannot read a calibration from {path}: {error}; delete it to start anew"
            ) from error
        calibration = cls(weights)
        if seen.shape != (WEIGHTS,) or not (np.isfinite(weights).all() and (seen > 0).all()):
            raise DraftError(f"{path} holds no calibration of this version; delete it to start anew")
        calibration.seen[:] = seen
        return calibration

    def save(self, path: Path) -> None:
        """Keep what was learnt, beside the datastore it was learnt with; a file there is replaced whole."""
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".tmp", delete=False) as file:
            np.savez(file, weights=self.weights, seen=self.seen)
            file.flush()
            os.fsync(file.fileno())
        Path(file.name).replace(path)
