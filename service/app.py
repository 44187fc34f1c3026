"""The whole service, wired: lanes, users, use cases, routes. With `lane_assembly` the only module that names classes.

Everything slow or doubtful happens before the application exists: checkpoints, Redis, engines, replay, first canaries.
So a port that is open is a service that answers.
"""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fastapi import FastAPI

from service.access import open_keys
from service.api.application import create_app
from service.api.routes import Endpoints
from service.background import run_in_background
from service.beam_rows import BeamLimits, BeamRows
from service.catalog_tree import CatalogTree
from service.circuit import Circuit
from service.errors import StartupError, StorageError
from service.event_weights import DEFAULT_WEIGHTS, EventWeights
from service.events import Events
from service.feedback import Feedback
from service.health import Health
from service.histories import Histories
from service.ingest_all import IngestAll
from service.lane_assembly import LaneAssembly, Parts, redis_log
from service.lanes import Lanes, ServedLane
from service.metrics import Metrics
from service.model.checkpoint import open_checkpoint
from service.models import Models
from service.recommend import Recommender
from service.redis_stores import redis_feedback, redis_history
from service.settings import Settings
from service.shadow import Shadows
from service.trace_opening import check_tracing, open_tracing

__all__ = ["Parts", "Service", "check_service", "open_service"]


@dataclass(frozen=True, slots=True)
class Service:
    """A started service: its application, the health that a server must tell when it drains, and its metrics."""

    app: FastAPI
    health: Health
    metrics: Metrics


@asynccontextmanager
async def open_service(settings: Settings, parts: Parts | None = None) -> AsyncIterator[Service]:
    """Start everything, and stop it again in the reverse order.

    Raises:
        StartupError: something cannot be served; nothing is left running.
    """
    parts = parts or Parts()
    async with AsyncExitStack() as stack:
        tracing = parts.tracing or await stack.enter_async_context(open_tracing(settings))
        keys, metrics, lanes = open_keys(settings), Metrics(tracing), Lanes()
        health = Health(metrics)
        limits = BeamLimits(settings.max_beam_rows, settings.max_beam_tokens, settings.max_waiting_rows)
        assembly = LaneAssembly(settings, parts, metrics, health, BeamRows(limits, metrics))
        models = await _open_models(stack, settings, assembly, lanes)
        metrics.follow(lanes)
        users = _open_users(stack, settings, metrics, health, parts, lanes.primary)
        shadows = Shadows(lanes, metrics)
        stack.push_async_callback(shadows.close)
        health.caught_up()
        recommender = Recommender(
            lanes,
            users.histories,
            users.weights,
            metrics,
            users.feedback.served,
            shadows.follow,
            timeout_ms=settings.request_timeout_ms,
        )
        endpoints = Endpoints(
            recommender=recommender,
            ingest=IngestAll(lanes.ingests),
            events=Events(users.histories, users.feedback, users.weights, lanes, metrics),
            histories=users.histories,
            catalogs=lanes,
            tree=CatalogTree(lanes),
            model=partial(_report, lanes, users.weights),
            models=models,
            openings=lanes.openings,
            health=health,
            metrics=metrics,
        )
        yield Service(create_app(endpoints, metrics, settings.max_inflight, keys), health, metrics)


async def check_service(settings: Settings) -> list[str]:
    """Verify checkpoints and Redis without starting an engine; returns warnings.

    Raises:
        StartupError: one of them cannot be served.
    """
    open_keys(settings)
    check_tracing(settings)
    warnings: list[str] = []
    for folder in settings.checkpoints:
        checkpoint = open_checkpoint(folder)
        checkpoint.prove_contents()
        log = redis_log(settings, checkpoint)
        try:
            warnings += await log.check(allow_volatile=settings.allow_volatile)
        finally:
            await log.close()
    return list(dict.fromkeys(warnings))


async def _open_models(stack: AsyncExitStack, settings: Settings, assembly: LaneAssembly, lanes: Lanes) -> Models:
    """Open the lanes that the settings name, one after another: two engines that start at once take longer."""

    async def open_beside(folder: Path, share: float, shadow: bool) -> ServedLane:
        return await assembly.open(folder, share, shadow, beside=lanes.primary)

    root = settings.models_root or settings.checkpoint.resolve().parent
    longest = max(settings.request_timeout_ms, settings.items_timeout_ms) / 1000
    models = Models(lanes, open_beside, root, longest + 1)
    stack.push_async_callback(models.end)
    lanes.add(await assembly.open(settings.checkpoint, settings.share, shadow=False))
    for entry in settings.further_models:
        served = await open_beside(entry.checkpoint, entry.share, entry.shadow)
        if lanes.find(served.model_version):
            await served.close()
            raise StartupError(f"further_models: {entry.checkpoint} holds a model that is served already")
        lanes.add(served)
    return models


def _report(lanes: Lanes, weights: EventWeights) -> dict[str, object]:
    """GET /model: the primary's state, and what belongs to no model."""
    return {**lanes.primary.report(), "event_weights": dict(weights.table)}


@dataclass(frozen=True, slots=True)
class _Users:
    """What is known of users."""

    histories: Histories
    feedback: Feedback
    weights: EventWeights


def _open_users(
    stack: AsyncExitStack, settings: Settings, metrics: Metrics, health: Health, parts: Parts, primary: ServedLane
) -> _Users:
    """Histories and feedback, each behind a circuit breaker of its own: either may fail without the other."""
    store = parts.histories or redis_history(settings)
    stack.push_async_callback(store.close)
    patience = settings.history_timeout_ms / 1000
    circuit = Circuit("redis", StorageError, metrics)
    histories = Histories(store, metrics, circuit, limit=settings.history_max_items, timeout_seconds=patience)
    log = parts.feedback or redis_feedback(settings)
    stack.push_async_callback(log.close)
    feedback = Feedback(log, metrics, Circuit("feedback", StorageError, metrics), [primary.model_version])
    stack.push_async_callback(feedback.flush)
    run_in_background(stack, health, "feedback", feedback.run())
    weights = settings.event_weights or primary.event_weights or DEFAULT_WEIGHTS
    return _Users(histories, feedback, EventWeights(weights))
