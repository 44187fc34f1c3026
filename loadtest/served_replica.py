"""A service process of a benchmark's own: started with a checkpoint and a Redis, watched, ended by SIGTERM."""

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from loadtest.live_catalog import free_port
from service.stores.base import HistoryEvent
from service.stores.redis_history import RedisHistory

START_SECONDS = 300


@dataclass(frozen=True, slots=True)
class ServedReplica:
    """Where a service answers, and its processes."""

    url: str
    pid: int

    def processes(self) -> dict[str, int]:
        """The service's process and its engine's, by name."""
        engine, *_ = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return {"service": self.pid, "engine": int(engine)}


@asynccontextmanager
async def served_replica(checkpoint: Path, redis_url: str, settings: str) -> AsyncIterator[ServedReplica]:
    """A service with these settings (TOML), once it is ready.

    Raises:
        RuntimeError: it did not start; the message ends with its last words.
    """
    with tempfile.TemporaryDirectory() as folder:
        port, config, words = free_port(), Path(folder) / "config.toml", Path(folder) / "stderr"
        config.write_text(settings, "utf-8")
        options = ["--checkpoint", str(checkpoint), "--redis-url", redis_url, "--port", str(port)]
        command = [sys.executable, "-m", "service", "serve", *options, "--config", str(config)]
        with words.open("w") as stderr:
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=stderr)
        try:
            await _ready(f"http://127.0.0.1:{port}", process, words)
            yield ServedReplica(f"http://127.0.0.1:{port}", process.pid)
        finally:
            process.terminate()
            await asyncio.to_thread(process.wait)


async def _ready(url: str, process: "subprocess.Popen[bytes]", words: Path) -> None:
    end = time.monotonic() + START_SECONDS
    async with httpx.AsyncClient(base_url=url) as client:
        while process.poll() is None and time.monotonic() < end:
            try:
                if (await client.get("/health/ready")).status_code == 200:
                    return
            except httpx.HTTPError:
                pass
            await asyncio.sleep(0.2)
    raise RuntimeError(f"{url} did not become ready: {words.read_text('utf-8')[-2000:]}")


async def load_histories(redis_url: str, file: Path) -> list[str]:
    """Users' histories into Redis; their ids."""
    rows = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    store = RedisHistory(redis_url, timeout_seconds=30.0, max_items=200, ttl_days=90)
    await store.load(_histories(rows))
    await store.close()
    return [row["user_id"] for row in rows]


async def _histories(rows: Sequence[dict[str, Any]]) -> AsyncIterator[tuple[str, list[HistoryEvent]]]:
    for row in rows:
        yield row["user_id"], [HistoryEvent(item, second) for item, second in row["items"]]


async def stage_means(url: str, stages: Sequence[str]) -> dict[str, float]:
    """Mean milliseconds of the stages of a request, from the service's own metrics."""
    async with httpx.AsyncClient(base_url=url) as client:
        text = (await client.get("/metrics")).text
    sums: dict[str, dict[str, float]] = {}
    for family in text_string_to_metric_families(text):
        if family.name == "rec_stage_seconds":
            for sample in family.samples:
                sums.setdefault(sample.labels["stage"], {})[sample.name.rpartition("_")[2]] = sample.value
    known = {stage: sums[stage] for stage in stages if sums.get(stage, {}).get("count")}
    return {stage: round(1000 * parts["sum"] / parts["count"], 2) for stage, parts in known.items()}
