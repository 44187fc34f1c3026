"""The engine as the service starts it, with its second process: how long until it answers, and until an insert shows.

A start is counted by the parent from the birth of the child to its first canary. An insert is visible when a request of
the new version returns the new SID; the filter of that request lets nothing else through, so that it must.
"""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from loadtest.engine.contender import Host, HostSpec
from loadtest.engine.engine_options import engine_options
from service.engine.base import BeamRequest, CatalogDelta, Engine, LegalSlots
from service.engine.vllm_engine import start_vllm_engine
from service.model.checkpoint import open_checkpoint
from service.model.semantic_ids import Sid


def open_host(spec: HostSpec) -> Host:
    """Start the engine and wait for its first canary."""
    checkpoint = open_checkpoint(Path(spec.checkpoint), verify=False)
    runner = asyncio.Runner()
    engine = runner.run(_start(checkpoint, spec))
    served = Served(runner, engine, checkpoint.prompt.prefix_ids, checkpoint.manifest.data.num_items)
    return Host({}, {"insert": served.insert, "bulk": served.bulk}, served.close)


class Served:
    """A running engine and the loop it runs on; ``slots`` is how many slots the catalogue has given away."""

    def __init__(self, runner: asyncio.Runner, engine: Engine, prompt: Sequence[int], slots: int) -> None:
        self._runner = runner
        self._engine = engine
        self._prompt = prompt
        self._slots = slots
        self._version = 0

    def insert(self, sids: Sequence[Sequence[int]]) -> dict[str, Any]:
        """Insert SIDs one after another; milliseconds of each until requests may name its version.

        Raises:
            ValueError: a request of the new version does not return the new SID.
        """
        waits = [self._runner.run(self._insert(tuple(sid))) for sid in sids]
        return {"visible_ms": waits}

    def bulk(self, sids: Sequence[Sequence[int]]) -> dict[str, Any]:
        """Insert many SIDs as one delta; how many a second."""
        began = time.perf_counter()
        self._runner.run(self._update([tuple(sid) for sid in sids]))
        seconds = time.perf_counter() - began
        return {"inserts": len(sids), "seconds": seconds, "per_second": len(sids) / seconds}

    def close(self) -> None:
        """Stop the engine."""
        self._runner.run(self._engine.close())
        self._runner.close()

    async def _update(self, sids: Sequence[Sid]) -> None:
        await self._engine.update_catalog(CatalogDelta(self._version + 1, self._version, added=sids))
        self._version += 1
        self._slots += len(sids)

    async def _insert(self, sid: Sid) -> float:
        began = time.perf_counter()
        await self._update([sid])
        wait = (time.perf_counter() - began) * 1e3
        mask_N = np.zeros(self._slots, bool)
        mask_N[-1] = True
        legal = LegalSlots(f"{self._version}:new", np.packbits(mask_N, bitorder="little").tobytes(), 1)
        request = BeamRequest(self._prompt, 4, self._version, legal=legal)
        answer = await self._engine.recommend(f"insert-{self._version}", request)
        if tuple(answer.sids) != (sid,):
            raise ValueError(f"version {self._version} returns {answer.sids[:2]}, not the inserted {sid}")
        return wait


async def _start(checkpoint: Any, spec: HostSpec) -> Engine:
    engine = await start_vllm_engine(checkpoint, engine_options(spec))
    await engine.canary()
    return engine
