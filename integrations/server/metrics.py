"""What Prometheus is told."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.utils import INF

from groundspeed.types import Event, GenerationResult, StepEvent

if TYPE_CHECKING:
    from groundspeed.verify.engine import Engine

__all__ = ["Metrics", "Watch"]

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, INF)
_TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0, INF)


class Metrics:
    """The figures of one application, in a registry of its own."""

    def __init__(self, engine: Engine, waiting: Callable[[], int], in_hand: Callable[[], int]) -> None:
        """Begin at nothing.

        Args:
            engine: Whose load is shown.
            waiting: How many requests wait for their turn.
            in_hand: How many requests there are altogether.
        """
        self.registry = CollectorRegistry()

        def counter(name: str, what: str, *labels: str) -> Counter:
            return Counter(f"groundspeed_{name}", what, labels, registry=self.registry)

        def histogram(name: str, what: str, *labels: str, buckets: tuple[float, ...] = _SECONDS) -> Histogram:
            return Histogram(f"groundspeed_{name}", what, labels, registry=self.registry, buckets=buckets)

        def gauge(name: str, what: str, value: Callable[[], float]) -> None:
            Gauge(f"groundspeed_{name}", what, registry=self.registry).set_function(value)

        self.requests = counter(
            "requests", "Requests by route and status; 499 is a client that left.", "route", "status"
        )
        self.request_seconds = histogram(
            "request_seconds", "From a request's first byte to its answer's last.", "route"
        )
        self.first_token = histogram(
            "time_to_first_token_seconds", "From a request's arrival to its first token."
        )
        self.token_seconds = histogram(
            "inter_token_seconds", "Seconds of a step by the tokens it gave.", buckets=_TOKEN_SECONDS
        )
        self.prompt_tokens = counter("prompt_tokens", "Tokens of prompts.")
        self.cached_tokens = counter("cached_prompt_tokens", "Those of them that had been read before.")
        self.completion_tokens = counter("completion_tokens", "Tokens of answers.")
        self.steps = counter("steps", "Verification steps.")
        self.drafted = counter("drafted_tokens", "Draft nodes verified.")
        self.accepted = counter("accepted_tokens", "Draft nodes accepted, by their source.", "source")
        self.finished = counter("answers", "Answers by the reason for their end.", "reason")
        gauge("requests_in_hand", "Requests that are being answered or wait.", in_hand)
        gauge("queue_length", "Requests that wait for their turn.", waiting)
        load = engine.scheduler
        gauge("batch_size", "Texts that share the forward passes now.", lambda: load.active)
        gauge("kv_cache_bytes", "Memory of KV caches, kept prefixes included.", lambda: load.used_bytes)
        gauge("kv_cache_limit_bytes", "Memory that KV caches may take.", lambda: load.most_bytes)

    def page(self) -> bytes:
        """All of it, in Prometheus' text format."""
        return generate_latest(self.registry)


class Watch:
    """Measures one answer as it comes."""

    def __init__(self, metrics: Metrics, begun: float) -> None:
        """Start.

        Args:
            metrics: That are told.
            begun: When the request came, by ``time.perf_counter``.
        """
        self._metrics = metrics
        self._last = begun
        self._first = True

    def see(self, event: Event) -> None:
        """Take in an event of the engine."""
        if isinstance(event, StepEvent) and event.token_ids:
            now = time.perf_counter()
            took, self._last = now - self._last, now
            if self._first:
                self._first = False
                self._metrics.first_token.observe(took)
                return
            for _ in event.token_ids:
                self._metrics.token_seconds.observe(took / len(event.token_ids))
        elif isinstance(event, GenerationResult):
            stats = event.stats
            self._metrics.prompt_tokens.inc(stats.prompt_tokens)
            self._metrics.cached_tokens.inc(stats.cached_tokens)
            self._metrics.completion_tokens.inc(stats.completion_tokens)
            self._metrics.steps.inc(stats.steps)
            self._metrics.drafted.inc(stats.drafted)
            for source, count in stats.accepted_by_source.items():
                self._metrics.accepted.labels(source).inc(count)
            self._metrics.finished.labels(event.finish_reason).inc()
