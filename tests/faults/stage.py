"""What drills are played on: a Redis, replicas as processes of their own with the real engine, users with histories.

The checkpoint is small and random, which changes nothing about what breaks; `GROUNDREC_DRILL_CHECKPOINT` names a
trained one instead, with its `histories.jsonl` beside it.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import redis
from prometheus_client.parser import text_string_to_metric_families

from tests.redis_server import RedisServer, free_port
from tests.tiny_checkpoint import Shape, build
from tests.tiny_text_encoder import with_text_encoder

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 300
PASSWORD = "drill"
DURABLE = ("--appendonly", "yes", "--appendfsync", "always", "--save", "")
USERS = 50
ITEMS = 600
SHAPE = Shape(levels=3, codes=16, items=ITEMS, hidden=128, layers=4, max_items=12, spare_codes=0)
# small enough for two cores, and no long drain: drills that need one ask for it
DEFAULTS = {"kv_cache_gib": 0.25, "omp_threads": 1, "drain_seconds": 0.5}


@dataclass(slots=True)
class Replica:
    """A service process; `start` may be called again once it ended."""

    folder: Path
    checkpoint: Path
    redis_url: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    port: int = field(default_factory=free_port)
    process: "subprocess.Popen[bytes] | None" = None

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        """What it has said, over all its starts."""
        return (self.folder / "log").read_text("utf-8", errors="replace")

    def launch(self) -> None:
        """Start the process without waiting."""
        self.folder.mkdir(parents=True, exist_ok=True)
        config = self.folder / "config.toml"
        rows = [f"{name} = {json.dumps(value)}" for name, value in (DEFAULTS | dict(self.settings)).items()]
        config.write_text("\n".join(rows))
        places = ["--checkpoint", str(self.checkpoint), "--redis-url", self.redis_url, "--port", str(self.port)]
        command = [sys.executable, "-m", "service", "serve", *places, "--config", str(config)]
        kept = {name: value for name, value in os.environ.items() if not name.startswith("GROUNDREC_")}
        environment = kept | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log)

    async def start(self) -> "Replica":
        """Start the process and wait until it is ready.

        Raises:
            RuntimeError: it did not become ready; the message ends with its last words.
        """
        self.launch()
        deadline = time.monotonic() + START_SECONDS
        async with httpx.AsyncClient() as client:
            while self.running.poll() is None and time.monotonic() < deadline:
                if await self.readiness(client) == 200:
                    return self
                await asyncio.sleep(0.1)
        raise RuntimeError(f"a replica did not become ready: {self.log[-1500:]}")

    async def readiness(self, client: httpx.AsyncClient) -> int:
        """The status of /health/ready, 0 without an answer."""
        try:
            return (await client.get(f"{self.url}/health/ready", timeout=5.0)).status_code
        except httpx.HTTPError:
            return 0

    @property
    def running(self) -> "subprocess.Popen[bytes]":
        """The process that was started last."""
        assert self.process is not None, "not started yet"
        return self.process

    @property
    def engine_pid(self) -> int:
        """The engine's process."""
        pid = self.running.pid
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            if b"vllm_process" in Path(f"/proc/{child}/cmdline").read_bytes():
                return int(child)
        raise RuntimeError("the replica has no engine process")

    async def ended(self, patience: float) -> float | None:
        """Seconds until the process has ended, None if it has not within ``patience``."""
        start = time.monotonic()
        while time.monotonic() < start + patience:
            if self.running.poll() is not None:
                return time.monotonic() - start
            await asyncio.sleep(0.01)
        return None

    async def stop(self) -> int:
        """SIGTERM, and its exit code."""
        if self.running.poll() is None:
            self.running.terminate()
        return await asyncio.to_thread(self.running.wait, 60)

    def kill(self) -> None:
        """SIGKILL; its engine ends by itself, as its socket is closed."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()

    async def metrics(self, client: httpx.AsyncClient) -> dict[str, float]:
        """Sums over labels of every sample, by name."""
        sums: dict[str, float] = {}
        for family in text_string_to_metric_families((await client.get(f"{self.url}/metrics")).text):
            for sample in family.samples:
                sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
        return sums


@dataclass(slots=True)
class Stage:
    """Everything a drill may break."""

    folder: Path
    checkpoint: Path
    histories: Path
    redis: RedisServer
    redis_url: str
    replicas: list[Replica]
    users: list[str]
    client: httpx.AsyncClient

    @property
    def urls(self) -> list[str]:
        """Of all replicas."""
        return [replica.url for replica in self.replicas]

    async def post(self, replica: Replica, item_id: str, title: str, **fields: Any) -> httpx.Response:
        """POST one item to one replica."""
        body = {"item_id": item_id, "title": title, **fields}
        return await self.client.post(f"{replica.url}/items", json=body)

    async def hashes(self) -> list[str]:
        """The catalogue's hash on every replica."""
        return [(await self.client.get(f"{url}/model")).json()["catalog_hash"] for url in self.urls]

    async def same_hash(self, patience: float = 60.0) -> bool:
        """Whether all replicas come to hold the same catalogue."""
        end = time.monotonic() + patience
        while len(set(await self.hashes())) > 1:
            if time.monotonic() > end:
                return False
            await asyncio.sleep(0.05)
        return True

    async def load_histories(self) -> None:
        """Give every user the history of the beginning."""
        file = self.histories
        command = [sys.executable, "-m", "service", "histories", "load", "--file", str(file), "--redis-url"]
        silent = subprocess.DEVNULL
        process = await asyncio.create_subprocess_exec(*command, self.redis_url, cwd=ROOT, stdout=silent)
        if await process.wait():
            raise RuntimeError(f"histories were not loaded: exit code {process.returncode}")

    def cut_off(self, replica: Replica) -> None:
        """Let the stage's Redis refuse one replica."""
        self._user(replica, "off")

    def let_back(self, replica: Replica) -> None:
        """And take it back."""
        self._user(replica, "on")

    def _user(self, replica: Replica, state: str) -> None:
        with redis.Redis(port=self.redis.port) as client:
            client.execute_command("ACL", "SETUSER", replica.folder.name, state)
            client.execute_command("CLIENT", "KILL", "USER", replica.folder.name)

    async def whole(self) -> bool:
        """Whether every replica is ready."""
        return all([await replica.readiness(self.client) == 200 for replica in self.replicas])


@asynccontextmanager
async def stage(
    folder: Path, *, replicas: int = 1, redis_url: str | None = None, **settings: Any
) -> AsyncIterator[Stage]:
    """Set it up, replicas ready, one after another; ``redis_url`` names a Redis that the drill brings itself."""
    async with AsyncExitStack() as stack:
        (folder / "redis").mkdir(parents=True)
        server = RedisServer(folder / "redis", *DURABLE, *_redis_users(replicas)).start()
        stack.callback(server.kill)
        checkpoint, histories = await asyncio.to_thread(_checkpoint, folder)
        users = [json.loads(line)["user_id"] for line in histories.read_text("utf-8").splitlines()][:USERS]
        urls = [redis_url or f"redis://replica-{n}:{PASSWORD}@127.0.0.1:{server.port}/0" for n in range(replicas)]
        made = [Replica(folder / f"replica-{n}", checkpoint, url, settings) for n, url in enumerate(urls)]
        client = await stack.enter_async_context(httpx.AsyncClient(timeout=30.0))
        at = Stage(folder, checkpoint, histories, server, redis_url or server.url, made, users, client)
        await at.load_histories()
        for replica in made:
            stack.callback(replica.kill)
            await replica.start()
        yield at


def _redis_users(replicas: int) -> list[str]:
    """Options that give each replica a user of its own, which outlives a restart of Redis."""
    rights = ["on", f">{PASSWORD}", "~*", "&*", "+@all"]
    return [word for number in range(replicas) for word in ("--user", f"replica-{number}", *rights)]


def _checkpoint(folder: Path) -> tuple[Path, Path]:
    given = os.environ.get("GROUNDREC_DRILL_CHECKPOINT")
    if given:
        return Path(given), Path(given).parent / "histories.jsonl"
    made = with_text_encoder(build(folder / "checkpoint", SHAPE), folder)
    histories = folder / "histories.jsonl"
    rows = [
        {"user_id": f"user-{n}", "items": [[f"item-{(7 * n + k) % ITEMS}", k] for k in range(1, 9)]}
        for n in range(USERS)
    ]
    histories.write_text("\n".join(map(json.dumps, rows)) + "\n")
    return made.folder, histories
