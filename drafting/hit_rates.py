"""How often the token that a model or a retrieved text offers is the one that follows."""

from __future__ import annotations

import threading

import numpy as np
from numpy.typing import NDArray

__all__ = ["ABSENT", "HitRates"]

ABSENT = -1.0
"""Stands for the probability of a token that was not offered."""

_EDGES = np.array([0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.97])
_BUCKETS = len(_EDGES) + 2  # the last is for ABSENT
_RANKS = 4
_DOUBT = 16.0  # offers that the first guess counts for
_MEMORY = 512.0  # offers that are remembered of a kind, so that rates follow the text


class HitRates:
    """Counts hits by what a model gives a token, what a retrieved text gives it, and its rank with the model.

    Shared by requests, in any thread. The first guess is the model's probability, or the mean of both where
    both speak; every step refines it. So what is offered gets the probability with which it is accepted,
    whatever the two say.
    """

    def __init__(self) -> None:
        shape = (_BUCKETS, _BUCKETS, _RANKS)
        self._hits, self._offers = np.zeros(shape), np.zeros(shape)
        self._lock = threading.Lock()

    def cells(
        self, model: NDArray[np.float64], retrieved: NDArray[np.float64], ranks: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Where the offers are counted, int64 [n].

        Args:
            model: float64 [n], the model's probabilities.
            retrieved: float64 [n], of the retrieved text.
            ranks: int64 [n], places in the model's order, from 0.
        """
        places = [_bucket(model), _bucket(retrieved), np.minimum(ranks, _RANKS - 1)]
        found: NDArray[np.int64] = np.ravel_multi_index(places, self._hits.shape)
        return found

    def rates(
        self, cells: NDArray[np.int64], model: NDArray[np.float64], retrieved: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """The probabilities of offers, float64 [n], in (0, 1)."""
        guess = np.where(
            model == ABSENT, retrieved / 2, np.where(retrieved == ABSENT, model, (model + retrieved) / 2)
        )
        with self._lock:
            hits, offers = self._hits.ravel()[cells], self._offers.ravel()[cells]
        return np.clip((hits + _DOUBT * guess) / (offers + _DOUBT), 1e-4, 1 - 1e-4)

    def learn(self, cells: NDArray[np.int64], hit: NDArray[np.bool_]) -> None:
        """Take in which of some offers, at most one, was the token that followed."""
        with self._lock:
            hits, offers = self._hits.reshape(-1), self._offers.reshape(-1)
            np.add.at(hits, cells, hit)
            np.add.at(offers, cells, 1)
            full = cells[offers[cells] > _MEMORY]
            hits[full] /= 2
            offers[full] /= 2


def _bucket(probability: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.where(probability == ABSENT, _BUCKETS - 1, np.searchsorted(_EDGES, probability))
