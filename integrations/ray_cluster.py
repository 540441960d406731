"""The Ray cluster that stores are built on and published to."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from groundspeed.errors import GroundspeedError, InputError, MissingDependencyError, StoreError

__all__ = ["CHUNK_BYTES", "cluster"]

CHUNK_BYTES = 1 << 26
"""Of a segment that travel at once."""


@contextmanager
def cluster(what: str) -> Iterator[Any]:
    """Ray, in the cluster that this process has joined, else that of ``RAY_ADDRESS``, else this machine's.

    A cluster that is joined here is left at the end. What groundspeed raises on a node is raised here.

    Args:
        what: Is done on it, for messages.

    Raises:
        MissingDependencyError: Ray is not installed.
        InputError: There is no cluster.
        StoreError: The work on the cluster failed.
    """
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise MissingDependencyError(
            f"{what} on a cluster needs Ray, which is not installed: run `pip install 'groundspeed[ray]'` "
            "here and on every node"
        ) from error
    joined = ray.is_initialized()
    if not joined:
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        try:
            ray.init(address="auto", log_to_driver=False, logging_level="ERROR")
        except ConnectionError as error:
            raise InputError(
                f"there is no Ray cluster for {what}: set RAY_ADDRESS, or start one with `ray start --head`"
            ) from error
    try:
        yield ray
    except ray.exceptions.RayError as error:
        cause = getattr(error, "cause", None)
        if isinstance(cause, GroundspeedError):  # raised by ours, elsewhere
            raise cause from error
        said = str(error).strip().partition("\n")[0]
        raise StoreError(f"{what} failed on the cluster ({said}); the logs of Ray say more") from error
    finally:
        if not joined:
            ray.shutdown()
