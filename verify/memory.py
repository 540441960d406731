"""How much memory KV caches may take."""

from __future__ import annotations

import os
from pathlib import Path

import torch

__all__ = ["spare_bytes"]

_SHARE = 0.5  # of what is free; the rest is for passes and for others


def spare_bytes(device: torch.device) -> int:
    """Half of the memory that is free where the model runs, now."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0] * _SHARE)
    try:
        fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        free = int(fields["MemAvailable"].split()[0]) << 10
    except (OSError, KeyError, ValueError):
        try:
            free = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
        except (AttributeError, OSError, ValueError):  # no such figure here
            free = 4 << 30
    return int(free * _SHARE)
