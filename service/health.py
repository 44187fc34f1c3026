"""Whether this replica should get requests, and why not. Liveness is the event loop answering at all.

Redis being down does not unready: recommendations are answered without it. The engine is asked by a canary, never by
a probe, so a hung engine cannot hang the probes.
"""

import asyncio
import time
from collections.abc import Mapping

import structlog

from service.engine.base import Engine
from service.errors import EngineError
from service.metrics import Metrics

MISSES_ALLOWED = 3
MISSES_TO_EXIT = 4


class Health:
    """Collects what the parts report."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._caught_up = False
        self._draining = False
        self._stopped: set[str] = set()
        self._misses: dict[str, int] = {}  # by model; unready until the first canary has sung

    def reasons(self) -> list[str]:
        """Why not ready; empty when ready."""
        reasons = []
        if self._draining:
            reasons.append("draining")
        if not self._caught_up:
            reasons.append("catalog_replaying")
        if not any(self.is_well(model_version) for model_version in self._misses):
            reasons.append("engine_unavailable")
        return [*reasons, *sorted(self._stopped)]

    @property
    def engine_lost(self) -> bool:
        """Whether every engine is silent for so long that only a new process helps: vLLM cannot restart in place."""
        return bool(self._misses) and min(self._misses.values()) >= MISSES_TO_EXIT

    def is_well(self, model_version: str) -> bool:
        """Whether a model's engine answers."""
        return self._misses.get(model_version, MISSES_ALLOWED) < MISSES_ALLOWED

    def forget(self, model_version: str) -> None:
        """A model is served no more."""
        self._misses.pop(model_version, None)

    def caught_up(self) -> None:
        """The item log is replayed."""
        self._caught_up = True

    def drain(self) -> None:
        """No new requests, please."""
        self._draining = True

    def stopped(self, work: str) -> None:
        """Background work ended that never should; only a restart mends that."""
        self._stopped.add(f"{work}_stopped")

    def canary(self, model_version: str, *, alive: bool, seconds: float | None = None) -> None:
        """The outcome of one canary, and how long it took to come back."""
        self._misses[model_version] = 0 if alive else self._misses.get(model_version, MISSES_ALLOWED - 1) + 1
        self._metrics.dependency_up.labels("engine").set(int(not any(self._misses.values())))
        if seconds is not None:
            self._metrics.canary_seconds.observe(seconds)

    def engine_gone(self, model_version: str) -> None:
        """A model's engine can never answer again: unready at once, without waiting for canaries to be missed."""
        self._misses[model_version] = max(self._misses.get(model_version, 0), MISSES_ALLOWED)
        self._metrics.dependency_up.labels("engine").set(0)

    def report(self) -> Mapping[str, object]:
        """For people."""
        reasons = self.reasons()
        return {"status": "ready" if not reasons else "unready", "reasons": reasons, "canary_misses": self._misses}


async def try_canary(engine: Engine, health: Health, timeout_seconds: float, model_version: str) -> None:
    """One canary, within the time."""
    start = time.perf_counter()
    try:
        async with asyncio.timeout(timeout_seconds):
            await engine.canary()
    except (EngineError, TimeoutError) as error:
        structlog.get_logger().warning("canary_missed", fault=str(error) or "timeout")
        health.canary(model_version, alive=False)
    else:
        health.canary(model_version, alive=True, seconds=time.perf_counter() - start)


async def watch_engine(engine: Engine, metrics: Metrics, period_seconds: float) -> None:
    """Report what an engine holds, every period, for ever."""
    while True:
        try:
            found = await engine.statistics()
        except EngineError:
            pass  # the canary's business
        else:
            metrics.trie_bytes.set(found.trie_bytes)
            metrics.engine_requests.set(found.unfinished)
            metrics.engine_free_blocks.set(found.free_blocks)
            metrics.engine_tokens.labels("computed").set(found.prompt_tokens - found.cached_tokens)
            metrics.engine_tokens.labels("prefix_cache").set(found.cached_tokens)
        await asyncio.sleep(period_seconds)


async def await_end(engine: Engine, health: Health, model_version: str) -> None:
    """Say so when an engine is gone; the canary, which goes on missing, ends the process."""
    await engine.gone()
    structlog.get_logger().error("engine_gone", model_version=model_version)
    health.engine_gone(model_version)


async def keep_canary(engine: Engine, health: Health, period_seconds: float, model_version: str) -> None:
    """A canary every period, for ever, from start to start; one that takes nearly a period is missed."""
    took = 0.0
    while True:
        await asyncio.sleep(pause_after(took, period_seconds))
        start = time.perf_counter()
        await try_canary(engine, health, patience_of(period_seconds), model_version)
        took = time.perf_counter() - start


def patience_of(period_seconds: float) -> float:
    """How long a canary may take: short of a period, so that `MISSES_ALLOWED` of them fit into that many periods."""
    return 0.9 * period_seconds


def pause_after(took: float, period_seconds: float) -> float:
    """How long to wait after a canary that took so long."""
    return max(0.0, period_seconds - took)
