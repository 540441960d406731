"""A token datastore is copied to the nodes of a Ray cluster that share no disk with it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from groundspeed.datastores.copying import StoreCopy, seal_store
from groundspeed.datastores.writer import TokenDatastoreWriter
from groundspeed.integrations.ray_cluster import CHUNK_BYTES, cluster
from groundspeed.types import ProgressCallback

__all__ = ["publish_on_ray"]


def publish_on_ray(
    store: str | Path, target: str | Path, *, on_progress: ProgressCallback | None = None
) -> dict[str, int]:
    """Bring every node's copy of a store to the store's state, sending each node the segments it lacks.

    Whatever reads a copy sees the new state at its next request. Nodes move on one after another, and one
    that cannot stays as it was: drafts may then differ from node to node, answers never do. Nodes that join
    later are reached by the next call.

    Args:
        store: Folder here; written by nobody meanwhile.
        target: Folder on the nodes, absolute; not the store's own.
        on_progress: Is told the bytes sent, as the stage ``publish``.

    Returns:
        The bytes that were sent to each node, by its address.

    Raises:
        MissingDependencyError: Ray is not installed.
        InputError: There is no cluster.
        StoreError: The store is missing, damaged or being written, or a node could not keep a copy.
    """
    with (
        cluster("publishing") as ray,
        TokenDatastoreWriter.open(store, background=False) as writer,
    ):
        sealed = seal_store(writer)
        copies = {
            node["NodeManagerAddress"]: _copy_on(ray, node["NodeID"], Path(target))
            for node in ray.nodes()
            if node["Alive"]
        }
        wanted = list(sealed.files)
        begun = ray.get([copy.begin.remote(sealed.tokenizer, wanted) for copy in copies.values()])
        lacking = dict(zip(copies, begun, strict=True))
        sent = dict.fromkeys(copies, 0)
        sizes = {name: path.stat().st_size for name, path in sealed.files.items()}
        total = sum(sizes[name] for names in lacking.values() for name in names)
        for name, path in sealed.files.items():
            takers = [address for address, names in lacking.items() if name in names]
            for data in _pieces(path) if takers else ():
                piece = ray.put(data)  # once, however many nodes take it
                ray.get([copies[address].write.remote(name, piece) for address in takers])
                for address in takers:
                    sent[address] += len(data)
                if on_progress is not None:
                    on_progress("publish", sum(sent.values()), total)
        ray.get([copy.finish.remote(sealed.entries) for copy in copies.values()])
        return sent


def _copy_on(ray: Any, node: str, target: Path) -> Any:
    """A ``StoreCopy`` in a process of a node; it ends, and lets its folder go, when nobody here knows it."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    strategy = NodeAffinitySchedulingStrategy(node, soft=False)
    return ray.remote(num_cpus=0, scheduling_strategy=strategy)(StoreCopy).remote(target)


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as handle:
        while data := handle.read(CHUNK_BYTES):
            yield data
