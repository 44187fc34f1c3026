"""Names the concrete classes and wires them; no other module does both.

Everything slow or doubtful happens before the application exists: checkpoint, Redis, engine, replay, first canary. So
a port that is open is a service that answers.
"""

import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import structlog
from fastapi import FastAPI

from service.access import open_keys
from service.admitted_engine import AdmittedEngine
from service.api.application import create_app
from service.api.routes import Endpoints
from service.background import run_in_background
from service.beam_rows import BeamLimits, BeamRows
from service.catalog import Catalog
from service.catalog_sync import CatalogSync
from service.catalog_tree import CatalogTree
from service.circuit import Circuit
from service.engine.base import Engine, EngineOptions
from service.errors import CheckpointError, EngineError, RequestError, StartupError, StorageError
from service.event_weights import DEFAULT_WEIGHTS, EventWeights
from service.events import Events
from service.feedback import Feedback
from service.grounder import Encoder, Grounder
from service.health import Health, keep_canary, try_canary
from service.histories import Histories
from service.ingest import Ingest
from service.lane import Lane, LaneOptions
from service.metrics import Metrics
from service.model.checkpoint import QUANTIZER, Checkpoint, open_checkpoint
from service.model.smoothing import SiblingMixer
from service.model_report import model_report, new_item_share
from service.new_items import NewItems
from service.recommend import Recommender
from service.redis_stores import redis_feedback, redis_history
from service.settings import Settings, masked_url
from service.siblings import SiblingSums
from service.stores.base import HistoryStore
from service.stores.feedback import FeedbackLog
from service.stores.item_log import ItemLog
from service.stores.redis_items import RedisItemLog

FIRST_CANARY_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Parts:
    """What tests may put in the place of the real thing; None means the real thing."""

    engine: Engine | None = None
    encoder: Encoder | None = None
    item_log: ItemLog | None = None
    histories: HistoryStore | None = None
    feedback: FeedbackLog | None = None


@dataclass(frozen=True, slots=True)
class Service:
    """A started service: its application, and the health that a server must tell when it drains."""

    app: FastAPI
    health: Health


@asynccontextmanager
async def open_service(settings: Settings, parts: Parts = Parts()) -> AsyncIterator[Service]:
    """Start everything, and stop it again in the reverse order.

    Raises:
        StartupError: something cannot be served; nothing is left running.
    """
    async with AsyncExitStack() as stack:
        keys = open_keys(settings)
        checkpoint = open_checkpoint(settings.checkpoint)
        metrics = Metrics()
        metrics.build_info.info({"model_version": checkpoint.manifest.model_version, "engine": settings.engine})
        log = await _open_log(stack, settings, checkpoint, parts)
        grounder = _open_grounder(stack, settings, checkpoint, parts)
        engine = _admitted(settings, parts.engine or await start_engine(settings, checkpoint), metrics)
        stack.push_async_callback(engine.close)
        new_items = _new_items(checkpoint)
        sync = _catalog_sync(settings, checkpoint, log, engine, grounder, metrics, new_items)
        stack.push_async_callback(sync.close)
        health = await _get_ready(sync, engine, metrics)
        run_in_background(stack, health, "catalog_sync", sync.run())
        run_in_background(stack, health, "canary", keep_canary(engine, health, settings.canary_seconds))
        users = _open_users(stack, settings, metrics, health, parts, checkpoint)
        lane = _lane(settings, checkpoint, sync, engine, metrics, new_items)
        recommender = Recommender(
            lambda query: lane,
            users.histories,
            users.weights,
            metrics,
            users.feedback.served,
            timeout_ms=settings.request_timeout_ms,
        )
        ingest = Ingest(sync, grounder, log, metrics, settings.items_timeout_ms)
        events = Events(users.histories, users.feedback, users.weights, sync, metrics)
        report = model_report(settings, checkpoint, sync, lane, users.weights)
        tree = CatalogTree(sync, checkpoint.space)
        endpoints = Endpoints(recommender, ingest, events, users.histories, sync, tree, report, health, metrics)
        yield Service(create_app(endpoints, metrics, settings.max_inflight, keys), health)


async def check_service(settings: Settings) -> list[str]:
    """Verify checkpoint and Redis without starting an engine; returns warnings.

    Raises:
        StartupError: one of them cannot be served.
    """
    open_keys(settings)
    checkpoint = open_checkpoint(settings.checkpoint)
    checkpoint.quantizer(), checkpoint.prefix_memory(), checkpoint.items(), checkpoint.catalog_tensors()
    log = _redis_log(settings, checkpoint)
    try:
        return await log.check(allow_volatile=settings.allow_volatile)
    finally:
        await log.close()


async def start_engine(settings: Settings, checkpoint: Checkpoint) -> Engine:
    """The engine that the settings name, imported only now: vLLM alone takes seconds to import."""
    options = _engine_options(settings, checkpoint)
    if settings.engine == "torch":
        from service.engine.torch_engine import start_torch_engine

        return await start_torch_engine(checkpoint, options)
    from service.engine.vllm_engine import start_vllm_engine

    try:
        return await start_vllm_engine(checkpoint, options)
    except StartupError:
        raise
    except Exception as error:
        structlog.get_logger().debug("engine_start_failed", exc_info=error)
        raise StartupError(f"--engine vllm: did not start: {type(error).__name__}: {error}".splitlines()[0]) from error


async def _open_log(stack: AsyncExitStack, settings: Settings, checkpoint: Checkpoint, parts: Parts) -> ItemLog:
    log = parts.item_log or _redis_log(settings, checkpoint)
    stack.push_async_callback(log.close)
    for warning in await log.check(allow_volatile=settings.allow_volatile):
        structlog.get_logger().warning("storage_may_lose_items", detail=warning)
    return log


def _redis_log(settings: Settings, checkpoint: Checkpoint) -> RedisItemLog:
    url = settings.redis_url.get_secret_value()
    fingerprint = checkpoint.manifest.files[QUANTIZER].sha256[:12]
    return RedisItemLog(url, fingerprint=fingerprint, shown_url=masked_url(url))


def _open_grounder(stack: AsyncExitStack, settings: Settings, checkpoint: Checkpoint, parts: Parts) -> Grounder:
    grounder = Grounder(checkpoint, parts.encoder or _text_encoder(checkpoint))
    stack.callback(grounder.close)
    return grounder


def _text_encoder(checkpoint: Checkpoint) -> Encoder:
    from service.model.text_encoder import TextEncoder

    folder = checkpoint.text_encoder_folder
    try:
        encoder = TextEncoder(folder, checkpoint.manifest.embedding.max_tokens)
        width = encoder.encode(["a"]).shape[1]
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CheckpointError(f"{folder}: the text encoder cannot be loaded: {reason}") from error
    if width != checkpoint.manifest.embedding.width:
        wanted = checkpoint.manifest.embedding.width
        raise CheckpointError(f"{folder}: embeddings are {width} wide, the manifest says {wanted}")
    return encoder


def _catalog_sync(
    settings: Settings,
    checkpoint: Checkpoint,
    log: ItemLog,
    engine: Engine,
    grounder: Grounder,
    metrics: Metrics,
    new_items: NewItems | None,
) -> CatalogSync:
    tensors, manifest = checkpoint.catalog_tensors(), checkpoint.manifest
    temperature = settings.smoothing_temperature or manifest.smoothing.temperature
    mixer = SiblingMixer(tensors.codes_NL, tensors.embedding_NE, checkpoint.space.codes, temperature)
    catalog = Catalog.from_checkpoint(checkpoint)
    siblings = SiblingSums(mixer)
    followers = [] if new_items is None else [new_items]
    return CatalogSync(catalog, checkpoint.space, log, engine, grounder, siblings, metrics, followers=followers)


def _new_items(checkpoint: Checkpoint) -> NewItems | None:
    """The scorer of new items, for checkpoints that have a dial for it."""
    part = checkpoint.manifest.smoothing.new_items
    if part is None:
        return None
    item_ids = [item.item_id for item in checkpoint.items()]
    return NewItems(item_ids, checkpoint.catalog_tensors().embedding_NE, part.dial)


async def _get_ready(sync: CatalogSync, engine: Engine, metrics: Metrics) -> Health:
    health = Health(metrics)
    try:
        await sync.replay()
    except RequestError as error:
        raise StartupError(f"the item log could not be replayed: {error.detail}") from error
    health.caught_up()
    await try_canary(engine, health, FIRST_CANARY_SECONDS)
    if health.reasons():
        raise StartupError("the engine started but does not decode; its log has the reason")
    return health


@dataclass(frozen=True, slots=True)
class _Users:
    """What is known of users."""

    histories: Histories
    feedback: Feedback
    weights: EventWeights


def _open_users(
    stack: AsyncExitStack, settings: Settings, metrics: Metrics, health: Health, parts: Parts, checkpoint: Checkpoint
) -> _Users:
    """Histories and feedback, each behind a circuit breaker of its own: either may fail without the other."""
    store = parts.histories or redis_history(settings)
    stack.push_async_callback(store.close)
    patience = settings.history_timeout_ms / 1000
    circuit = Circuit("redis", StorageError, metrics)
    histories = Histories(store, metrics, circuit, limit=settings.history_max_items, timeout_seconds=patience)
    log = parts.feedback or redis_feedback(settings)
    stack.push_async_callback(log.close)
    feedback = Feedback(log, metrics, Circuit("feedback", StorageError, metrics), [checkpoint.manifest.model_version])
    stack.push_async_callback(feedback.flush)
    run_in_background(stack, health, "feedback", feedback.run())
    weights = settings.event_weights or checkpoint.manifest.serving.event_weights or DEFAULT_WEIGHTS
    return _Users(histories, feedback, EventWeights(weights))


def _lane(
    settings: Settings,
    checkpoint: Checkpoint,
    sync: CatalogSync,
    engine: Engine,
    metrics: Metrics,
    new_items: NewItems | None,
) -> Lane:
    serving = checkpoint.manifest.serving
    options = LaneOptions(
        prompt=checkpoint.prompt,
        model_version=checkpoint.manifest.model_version,
        beam_width=settings.beam_width or serving.beam_width,
        exclude_seen=serving.exclude_seen,
        patience_ms=settings.request_timeout_ms,
        cold_new_share=settings.cold_new_share,
        new_item_share=new_item_share(settings, checkpoint),
    )
    return Lane(sync, engine, options, metrics, Circuit("engine", EngineError, metrics), new_items)


def _engine_options(settings: Settings, checkpoint: Checkpoint) -> EngineOptions:
    manifest = checkpoint.manifest
    return EngineOptions(
        dtype=settings.engine_dtype or manifest.lm.dtype,
        max_batch_users=settings.max_batch_users,
        kv_cache_gib=settings.kv_cache_gib,
        omp_threads=settings.omp_threads or len(os.sched_getaffinity(0)),
        smoothing_boost=settings.smoothing_boost or manifest.smoothing.boost,
        compile=settings.compile,
        compile_cache=str(settings.compile_cache.expanduser().absolute()),
        tensor_parallel=settings.tensor_parallel,
    )


def _admitted(settings: Settings, engine: Engine, metrics: Metrics) -> AdmittedEngine:
    limits = BeamLimits(settings.max_beam_rows, settings.max_beam_tokens, settings.max_waiting_rows)
    return AdmittedEngine(engine, BeamRows(limits, metrics), narrow_under_load=settings.narrow_beams)
