"""The worker for ``--worker-cls``: the platform's own, which shows its model runner to the proposer."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from groundspeed.integrations.vllm.plugin import bind

__all__ = ["Worker"]


def _platforms_own() -> Any:
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        kind = "cpu_worker", "CPUWorker"
    elif current_platform.is_xpu():
        kind = "xpu_worker", "XPUWorker"
    else:
        kind = "gpu_worker", "Worker"
    return getattr(import_module(f"vllm.v1.worker.{kind[0]}"), kind[1])


_Own: Any = _platforms_own()


class Worker(_Own):  # type: ignore[misc]
    """vLLM's worker."""

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """Load the model, and introduce the model runner to its proposer."""
        super().load_model(*args, **kwargs)
        bind(self.model_runner)
