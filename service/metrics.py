"""The service's Prometheus metrics, in a registry of their own so that two services can live in one process.

Labels are few and fixed: no user, no item, no raw path. Who measures decides when. A timed stage is a span of the
request's trace, too, so that nobody measures twice.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, ProcessCollector, generate_latest

from service.tracing import NoTracing, Span, Tracing

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
SHARES = tuple(n / 10 for n in range(11))


class VersionedItems(Protocol):
    """A catalogue, as far as it is measured."""

    @property
    def version(self) -> int:
        """Its version."""
        ...

    def __len__(self) -> int: ...


class CurrentCatalog(Protocol):
    """Where the newest catalogue is found."""

    @property
    def current(self) -> VersionedItems:
        """The newest version."""
        ...


class Metrics:
    """One attribute per metric."""

    def __init__(self, tracing: Tracing | None = None) -> None:
        self.tracing = tracing or NoTracing()
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)  # memory and open files of this process
        self.requests = Counter("rec_requests", "answers", ["route", "outcome"], registry=registry)
        self.request_seconds = Histogram(
            "rec_request_seconds", "time to answer", ["route"], buckets=SECONDS, registry=registry
        )
        self.stage_seconds = Histogram(
            "rec_stage_seconds", "time in one stage", ["stage"], buckets=SECONDS, registry=registry
        )
        self.inflight = Gauge("rec_inflight", "requests at work", registry=registry)
        self.shed = Counter("rec_shed", "requests refused unstarted", ["reason"], registry=registry)
        self.beam_rows = Gauge("rec_beam_rows", "beam rows at the engine", ["state"], registry=registry)
        self.fallback = Counter("rec_fallback", "answers without the model", ["reason"], registry=registry)
        self.items = Counter("rec_items", "posted items", ["result"], registry=registry)
        self.visible_lag = Histogram(
            "rec_item_visible_lag_seconds", "from log entry to recommendable here", buckets=SECONDS, registry=registry
        )
        self.log_lost = Counter(
            "rec_item_log_lost", "times the item log was found emptied, replaced or set back", registry=registry
        )
        self.grounding_seconds = Histogram(
            "rec_item_grounding_seconds", "time to ground the items of one call", buckets=SECONDS, registry=registry
        )
        self.catalog_items = Gauge("rec_catalog_items", "items that can be recommended", registry=registry)
        self.catalog_version = Gauge("rec_catalog_version", "catalogue version", registry=registry)
        self.illegal_sid = Counter("rec_illegal_sid", "SIDs answered that no item has; stays 0", registry=registry)
        self.dependency_up = Gauge("rec_dependency_up", "1 while it answers", ["dependency"], registry=registry)
        self.circuit_open = Gauge(
            "rec_circuit_open", "1 while it is left alone after failures", ["dependency"], registry=registry
        )
        self.canary_seconds = Histogram(
            "rec_engine_canary_seconds", "time of a canary that came back", buckets=SECONDS, registry=registry
        )
        self.trie_bytes = Gauge("rec_trie_bytes", "memory of the engine's catalogue, bytes", registry=registry)
        self.engine_tokens = Gauge(
            "rec_engine_prompt_tokens",
            "prompt tokens since the engine's start, those from the prefix cache apart",
            ["source"],
            registry=registry,
        )
        self.engine_requests = Gauge("rec_engine_requests", "requests that the engine holds", registry=registry)
        self.engine_free_blocks = Gauge("rec_engine_free_blocks", "KV blocks that no request holds", registry=registry)
        self.truncated = Counter(
            "rec_history_truncated", "histories longer than what the model reads", registry=registry
        )
        self.served = Counter(
            "rec_served_items", "recommended items, by the model that answered", ["model_version"], registry=registry
        )
        self.feedback = Counter(
            "rec_feedback", "events that name a recommendation", ["model_version", "event"], registry=registry
        )
        self.events = Counter("rec_events", "events received", ["result"], registry=registry)
        self.feedback_lost = Counter(
            "rec_feedback_lost", "served recommendations that could not be recorded", registry=registry
        )
        self.shadow = Counter(
            "rec_shadow", "answers that a shadow ranked too", ["model_version", "outcome"], registry=registry
        )
        self.shadow_overlap = Histogram(
            "rec_shadow_overlap",
            "share of an answer's items that a shadow would have given too",
            ["model_version"],
            buckets=SHARES,
            registry=registry,
        )
        self.build_info = Info("rec_build", "what runs", registry=registry)

    def follow(self, catalogs: CurrentCatalog) -> None:
        """Report this catalogue whenever somebody looks."""
        self.catalog_items.set_function(lambda: len(catalogs.current))
        self.catalog_version.set_function(lambda: catalogs.current.version)

    @contextmanager
    def stage(self, name: str) -> Iterator[Span]:
        """Time a stage, failed ones included; what is known of it can be noted on its span."""
        start = perf_counter()
        try:
            with self.tracing.span(name) as span:
                yield span
        finally:
            self.stage_seconds.labels(name).observe(perf_counter() - start)

    def expose(self) -> bytes:
        """The text format."""
        return generate_latest(self.registry)
