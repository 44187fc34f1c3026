"""Opens one lane: checkpoint, item log, grounder, engine, catalogue; ready and proven when it is handed over.

A start opens the lanes that the settings name, `POST /models` further ones. What all lanes share (metrics, health, the
queue of beam rows) is given. Like `app`, it names concrete classes; nothing else does.
"""

import asyncio
import os
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import structlog

from service.admitted_engine import AdmittedEngine
from service.background import run_in_background
from service.beam_rows import BeamRows
from service.blending import Blending
from service.carry_over import carry_over
from service.catalog import Catalog
from service.catalog_sync import CatalogSync
from service.circuit import Circuit
from service.code_opening import CodeOpening
from service.engine.base import Engine, EngineOptions
from service.errors import CheckpointError, EngineError, RequestError, StartupError
from service.grounder import Encoder, Grounder
from service.health import Health, await_end, keep_canary, try_canary, watch_engine
from service.ingest import Ingest
from service.lane import Lane, LaneOptions
from service.lanes import ServedLane
from service.metrics import Metrics
from service.model.checkpoint import Checkpoint, open_checkpoint
from service.model.checkpoint_files import QUANTIZER
from service.model.smoothing import SiblingMixer
from service.model.title_tokens import TitleTokens
from service.model_report import model_report, new_item_share
from service.new_items import NewItems
from service.opened_codes import OpenedCodes
from service.settings import Settings, masked_url
from service.siblings import SiblingSums
from service.stores.base import HistoryStore
from service.stores.feedback import FeedbackLog
from service.stores.item_log import ItemLog
from service.stores.redis_items import RedisItemLog
from service.tracing import Tracing

FIRST_CANARY_SECONDS = 60.0
STATISTICS_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Parts:
    """What tests may put in the place of the real thing; None means the real thing.

    ``further`` gives the parts of a checkpoint that is opened beside the first one.
    """

    engine: Engine | None = None
    encoder: Encoder | None = None
    item_log: ItemLog | None = None
    histories: HistoryStore | None = None
    feedback: FeedbackLog | None = None
    tracing: Tracing | None = None
    further: "Callable[[Checkpoint], Parts] | None" = None

    def of(self, checkpoint: Checkpoint, *, first: bool) -> "Parts":
        """The parts for one checkpoint."""
        return self if first or self.further is None else self.further(checkpoint)


@dataclass(frozen=True, slots=True)
class LaneAssembly:
    """Opens lanes that share metrics, health and beam rows."""

    settings: Settings
    parts: Parts
    metrics: Metrics
    health: Health
    beam_rows: BeamRows

    async def open(self, folder: Path, share: float, shadow: bool, *, beside: ServedLane | None = None) -> ServedLane:
        """A lane that answers; items posted to the lane ``beside`` it are carried over if their logs differ.

        Raises:
            StartupError: it cannot be served; nothing of it is left running.
        """
        async with AsyncExitStack() as stack:
            checkpoint = await asyncio.to_thread(open_checkpoint, folder)
            if beside is not None:  # the first one's were proven before anything was imported
                await asyncio.to_thread(checkpoint.prove_contents)
            version = checkpoint.manifest.model_version
            parts = self.parts.of(checkpoint, first=beside is None)
            log = await self._open_log(stack, checkpoint, parts)
            grounder = await asyncio.to_thread(_open_grounder, checkpoint, parts)
            stack.callback(grounder.close)
            # not beside the grounder: transformers' lazy modules cannot be imported by two threads at once
            starting = asyncio.create_task(self._start_engine(parts, checkpoint))
            stack.push_async_callback(_close_engine, starting)
            new_items = await asyncio.to_thread(_new_items, checkpoint)
            codes = self._opened_codes(checkpoint, grounder)
            engine = self._admitted(await starting)
            sync = await asyncio.to_thread(self._catalog_sync, checkpoint, log, engine, grounder, new_items, codes)
            stack.push_async_callback(sync.close)
            await self._get_ready(sync, engine, version)
            stack.callback(self.health.forget, version)
            run_in_background(stack, self.health, "catalog_sync", sync.run())
            watch = keep_canary(engine, self.health, self.settings.canary_seconds, version)
            run_in_background(stack, self.health, "canary", watch)
            run_in_background(stack, self.health, "engine_end", await_end(engine, self.health, version))
            if beside is None:  # the gauges tell of one engine: the first
                statistics = watch_engine(engine, self.metrics, STATISTICS_SECONDS)
                run_in_background(stack, self.health, "statistics", statistics)
            opening = self._code_opening(checkpoint, sync, grounder, log, codes)
            if opening is not None and self.settings.open_codes_minutes is not None:
                run_in_background(stack, self.health, "open_codes", opening.keep(self.settings.open_codes_minutes * 60))
            ingest = Ingest(sync, grounder, log, self.metrics, self.settings.items_timeout_ms)
            await self._carry_over(beside, checkpoint, ingest)
            titles = await asyncio.to_thread(checkpoint.title_tokens)
            blending = await asyncio.to_thread(_blending, checkpoint) if self.settings.blend else None
            lane = self._lane(checkpoint, sync, engine, new_items, titles, blending)
            return ServedLane(
                lane=lane,
                catalogs=sync,
                checkpoint=folder.resolve(),
                space=checkpoint.space,
                event_weights=checkpoint.manifest.serving.event_weights,
                log_key=log_key(checkpoint),
                ingest=ingest,
                codes=opening,
                report=model_report(self.settings, checkpoint, sync, lane),
                share=share,
                shadow=shadow,
                is_well=partial(self.health.is_well, version),
                close=stack.pop_all().aclose,
            )

    async def _start_engine(self, parts: Parts, checkpoint: Checkpoint) -> Engine:
        return parts.engine or await start_engine(self.settings, checkpoint)

    async def _open_log(self, stack: AsyncExitStack, checkpoint: Checkpoint, parts: Parts) -> ItemLog:
        log = parts.item_log or redis_log(self.settings, checkpoint)
        stack.push_async_callback(log.close)
        for warning in await log.check(allow_volatile=self.settings.allow_volatile):
            structlog.get_logger().warning("storage_may_lose_items", detail=warning)
        return log

    def _catalog_sync(
        self,
        checkpoint: Checkpoint,
        log: ItemLog,
        engine: Engine,
        grounder: Grounder,
        new_items: NewItems | None,
        codes: OpenedCodes | None,
    ) -> CatalogSync:
        tensors, temperature = checkpoint.catalog_tensors(), self._temperature(checkpoint)
        mixer = SiblingMixer(tensors.codes_NL, tensors.embedding_NE, checkpoint.space.codes, temperature)
        catalog = Catalog.from_checkpoint(checkpoint)
        siblings = SiblingSums(mixer)
        followers = [] if new_items is None else [new_items]
        return CatalogSync(
            catalog, checkpoint.space, log, engine, grounder, siblings, self.metrics, codes=codes, followers=followers
        )

    def _temperature(self, checkpoint: Checkpoint) -> float:
        return self.settings.smoothing_temperature or checkpoint.manifest.smoothing.temperature

    def _opened_codes(self, checkpoint: Checkpoint, grounder: Grounder) -> OpenedCodes | None:
        """None for a checkpoint without spare codes."""
        if not checkpoint.manifest.sid.spare_codes:
            return None
        return OpenedCodes(checkpoint, grounder.quantizer, self._temperature(checkpoint))

    def _code_opening(
        self, checkpoint: Checkpoint, sync: CatalogSync, grounder: Grounder, log: ItemLog, codes: OpenedCodes | None
    ) -> CodeOpening | None:
        if codes is None:
            return None
        embedding_NE = checkpoint.catalog_tensors().embedding_NE
        return CodeOpening(sync, grounder, log, codes, embedding_NE, self.settings.code_min_items)

    async def _get_ready(self, sync: CatalogSync, engine: Engine, model_version: str) -> None:
        try:
            await sync.replay()
        except RequestError as error:
            raise StartupError(f"the item log could not be replayed: {error.detail}") from error
        await try_canary(engine, self.health, FIRST_CANARY_SECONDS, model_version)
        if not self.health.is_well(model_version):
            self.health.forget(model_version)
            raise StartupError("the engine started but does not decode; its log has the reason")

    async def _carry_over(self, beside: ServedLane | None, checkpoint: Checkpoint, ingest: Ingest) -> None:
        if beside is None or beside.log_key == log_key(checkpoint):
            return
        try:
            carried = await carry_over(beside.catalogs.current, ingest)
        except RequestError as error:
            raise StartupError(f"posted items could not be carried over: {error.detail}") from error
        structlog.get_logger().info("items_carried_over", items=carried)

    def _lane(
        self,
        checkpoint: Checkpoint,
        sync: CatalogSync,
        engine: Engine,
        new_items: NewItems | None,
        titles: TitleTokens,
        blending: Blending | None,
    ) -> Lane:
        settings, serving = self.settings, checkpoint.manifest.serving
        options = LaneOptions(
            prompt=checkpoint.prompt,
            model_version=checkpoint.manifest.model_version,
            beam_width=settings.beam_width or serving.beam_width,
            exclude_seen=serving.exclude_seen,
            patience_ms=settings.request_timeout_ms,
            cold_new_share=settings.cold_new_share,
            new_item_share=new_item_share(settings, checkpoint),
            titles=titles if titles.max_tokens else None,
        )
        circuit = Circuit("engine", EngineError, self.metrics)
        return Lane(sync, engine, options, self.metrics, circuit, new_items, blending)

    def _admitted(self, engine: Engine) -> AdmittedEngine:
        return AdmittedEngine(engine, self.beam_rows, narrow_under_load=self.settings.narrow_beams)


async def _close_engine(starting: "asyncio.Task[Engine]") -> None:
    """Close an engine, or end its start."""
    starting.cancel()
    with suppress(asyncio.CancelledError, Exception):  # a start that failed has been told already
        await (await starting).close()


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


def redis_log(settings: Settings, checkpoint: Checkpoint) -> RedisItemLog:
    """The item log of a checkpoint's quantiser."""
    url = settings.redis_url.get_secret_value()
    return RedisItemLog(url, fingerprint=log_key(checkpoint), shown_url=masked_url(url))


def log_key(checkpoint: Checkpoint) -> str:
    """Names the item log: SIDs mean the same wherever the quantiser is the same."""
    return checkpoint.manifest.files[QUANTIZER].sha256[:12]


def _open_grounder(checkpoint: Checkpoint, parts: Parts) -> Grounder:
    return Grounder(checkpoint, parts.encoder or _text_encoder(checkpoint))


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


def _new_items(checkpoint: Checkpoint) -> NewItems | None:
    """The scorer of new items, for checkpoints that have a dial for it."""
    part = checkpoint.manifest.smoothing.new_items
    if part is None:
        return None
    item_ids = [item.item_id for item in checkpoint.items()]
    return NewItems(item_ids, checkpoint.catalog_tensors().embedding_NE, part.dial)


def _blending(checkpoint: Checkpoint) -> Blending | None:
    """What the model's places are blended with, for checkpoints that have it."""
    blend = checkpoint.blend()
    return None if blend is None else Blending([item.item_id for item in checkpoint.items()], blend)


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
