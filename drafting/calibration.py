"""The weights of the blend's predictor: shipped priors that go on learning."""

from __future__ import annotations

import io
import os
from functools import cache
from importlib.resources import as_file, files
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from groundspeed.drafting.features import WEIGHTS
from groundspeed.errors import DraftError

__all__ = ["Calibration", "load_priors"]

_LARGEST = 50.0  # weights that a score can be summed from; learnt ones stay under 5
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
                weights, seen = kept["weights"].astype(np.float32), kept["seen"].astype(np.float32)
        except Exception as error:  # damage makes numpy and zipfile raise nearly anything
            raise DraftError(
                f"cannot read a calibration from {path}: {error}; delete it to start anew"
            ) from error
        calibration = cls(learn=bool(len(seen)))
        if weights.shape != (WEIGHTS,) or seen.shape != calibration.seen.shape:
            raise DraftError(f"{path} holds the weights of another version; delete it to start anew")
        if not ((np.abs(weights) <= _LARGEST).all() and (seen > 0).all() and np.isfinite(seen).all()):
            raise DraftError(f"{path} holds weights that cannot be; delete it to start anew")
        calibration.weights[:] = weights
        calibration.seen[:] = seen
        return calibration

    def save(self, path: Path) -> None:
        """Keep what was learnt, beside the datastore it was learnt with; a file there is replaced whole.

        Raises:
            DraftError: The file cannot be written.
        """
        unfinished = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        try:
            with unfinished.open("wb") as file:
                np.savez(file, weights=self.weights, seen=self.seen)
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(path)
        except OSError as error:
            unfinished.unlink(missing_ok=True)
            raise DraftError(
                f"cannot write a calibration to {path}: {error.strerror}; give a file in a writable folder"
            ) from error
