"""Names the concrete classes and wires them; no other module does both.

Everything slow or doubtful happens before the application exists: checkpoint, Redis, engine, replay, first canary. So
a port that is open is a service that answers.
"""

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import structlog
from fastapi import FastAPI

from service.api.application import create_app
from service.api.routes import Endpoints
from service.background import run_in_background
from service.catalog import Catalog
from service.catalog_sync import CatalogSync
from service.engine.base import Engine, EngineOptions
from service.errors import CheckpointError, RequestError, StartupError
from service.grounder import Encoder, Grounder
from service.health import Health, keep_canary, try_canary
from service.histories import Histories
from service.ingest import Ingest
from service.metrics import Metrics
from service.model.checkpoint import QUANTIZER, Checkpoint, open_checkpoint
from service.model.smoothing import SiblingMixer
from service.recommend import Recommender, RecommendOptions
from service.settings import Settings, masked_url
from service.stores.base import HistoryStore, ItemLog
from service.stores.redis_history import RedisHistory
from service.stores.redis_items import RedisItemLog

FIRST_CANARY_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Parts:
    """What tests may put in the place of the real thing; None means the real thing."""

    engine: Engine | None = None
    encoder: Encoder | None = None
    item_log: ItemLog | None = None
    histories: HistoryStore | None = None


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
        checkpoint = open_checkpoint(settings.checkpoint)
        metrics = Metrics()
        metrics.build_info.info({"model_version": checkpoint.manifest.model_version, "engine": settings.engine})
        log = await _open_log(stack, settings, checkpoint, parts)
        grounder = _open_grounder(stack, settings, checkpoint, parts)
        engine = parts.engine or await start_engine(settings, checkpoint)
        stack.push_async_callback(engine.close)
        sync = _catalog_sync(settings, checkpoint, log, engine, grounder, metrics)
        health = await _get_ready(sync, engine, metrics)
        run_in_background(stack, health, "catalog_sync", sync.run())
        run_in_background(stack, health, "canary", keep_canary(engine, health, settings.canary_seconds))
        histories = _open_histories(stack, settings, metrics, parts)
        recommender = Recommender(sync, histories, engine, _recommend_options(settings, checkpoint), metrics)
        ingest = Ingest(sync, grounder, log, metrics, settings.items_timeout_ms)
        report = _model_report(settings, checkpoint, sync)
        endpoints = Endpoints(recommender, ingest, report, health, metrics)
        yield Service(create_app(endpoints, metrics, settings.max_inflight), health)


async def check_service(settings: Settings) -> list[str]:
    """Verify checkpoint and Redis without starting an engine; returns warnings.

    Raises:
        StartupError: one of them cannot be served.
    """
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


def redis_history(url: str, settings: Settings | None = None, *, timeout_seconds: float) -> RedisHistory:
    """Histories in Redis, with the settings' bounds or their defaults."""
    bounds = {
        name: getattr(settings, name) if settings else Settings.model_fields[name].default
        for name in ("history_max_items", "history_ttl_days")
    }
    return RedisHistory(
        url,
        timeout_seconds=timeout_seconds,
        max_items=bounds["history_max_items"],
        ttl_days=bounds["history_ttl_days"],
    )


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
    settings: Settings, checkpoint: Checkpoint, log: ItemLog, engine: Engine, grounder: Grounder, metrics: Metrics
) -> CatalogSync:
    tensors, manifest = checkpoint.catalog_tensors(), checkpoint.manifest
    temperature = settings.smoothing_temperature or manifest.smoothing.temperature
    mixer = SiblingMixer(tensors.codes_NL, tensors.embedding_NE, checkpoint.space.codes, temperature)
    catalog = Catalog.from_checkpoint(checkpoint)
    return CatalogSync(catalog, checkpoint.space, log, engine, grounder, mixer, metrics)


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


def _open_histories(stack: AsyncExitStack, settings: Settings, metrics: Metrics, parts: Parts) -> Histories:
    timeout_seconds = settings.history_timeout_ms / 1000
    url = settings.redis_url.get_secret_value()
    store = parts.histories or redis_history(url, settings, timeout_seconds=timeout_seconds)
    stack.push_async_callback(store.close)
    return Histories(store, metrics, limit=settings.history_max_items, timeout_seconds=timeout_seconds)


def _engine_options(settings: Settings, checkpoint: Checkpoint) -> EngineOptions:
    manifest = checkpoint.manifest
    return EngineOptions(
        dtype=settings.engine_dtype or manifest.lm.dtype,
        max_batch_users=settings.max_batch_users,
        kv_cache_gib=settings.kv_cache_gib,
        omp_threads=settings.omp_threads or len(os.sched_getaffinity(0)),
        smoothing_boost=settings.smoothing_boost or manifest.smoothing.boost,
    )


def _recommend_options(settings: Settings, checkpoint: Checkpoint) -> RecommendOptions:
    serving = checkpoint.manifest.serving
    return RecommendOptions(
        prompt=checkpoint.prompt,
        model_version=checkpoint.manifest.model_version,
        beam_width=settings.beam_width or serving.beam_width,
        exclude_seen=serving.exclude_seen,
        timeout_ms=settings.request_timeout_ms,
    )


def _model_report(settings: Settings, checkpoint: Checkpoint, sync: CatalogSync) -> Any:
    manifest, options = checkpoint.manifest, _recommend_options(settings, checkpoint)

    def report() -> Mapping[str, Any]:
        catalog = sync.current
        return {
            "model_version": manifest.model_version,
            "catalog_version": catalog.version,
            "catalog_items": len(catalog),
            "new_items": len(catalog.new_items()),
            "levels": manifest.sid.levels,
            "codes": manifest.sid.codes,
            "beam_width": options.beam_width,
            "exclude_seen": options.exclude_seen,
            "data": manifest.data.name,
            "metrics": manifest.metrics,
        }

    return report
