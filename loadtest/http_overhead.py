"""What HTTP and all that stands before the engine cost: `POST /recommend` and the bare engine, asked in turns.

    python -m loadtest.http_overhead --checkpoint runs/quickstart/checkpoint --json FILE

One service with its real server, Redis and engine process; the engine object that its handlers call is also called
directly, so only what stands before it differs. Each round takes turns as HTTP, engine, engine, HTTP with histories
that neither side has seen (shuffled ones of the same users: no prompt is cached, and all are as long). The client is a
process of its own. A figure is the median of what the rounds say; CPU time of a process stands beside wall time.
"""

import asyncio
import cProfile
import dataclasses
import json
import random
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer
import uvicorn

from loadtest.live_catalog import free_port, own_redis
from loadtest.playback import cpu_seconds
from loadtest.served_replica import load_histories
from service.app import Parts, open_service
from service.engine.base import BeamAnswer, BeamRequest, Engine
from service.lane_assembly import start_engine
from service.logs import configure_logs
from service.model.checkpoint import Checkpoint, open_checkpoint
from service.model.semantic_ids import SidSpace
from service.server import bind, freeze_garbage_collector, server_config
from service.settings import load_settings

QUICKSTART = Path("runs/quickstart/checkpoint")
# patient, so that a busy machine makes answers late and not degraded
SETTINGS = {"kv_cache_gib": 0.5, "omp_threads": 1, "request_timeout_ms": 30_000, "history_timeout_ms": 5_000}
USERS = 64
TARGET_MS, TARGET_SHARE = 3.0, 0.10


class RecordedEngine:
    """Passes everything to an engine and keeps what was asked of it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.asked: list[BeamRequest] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def recommend(self, request_id: str, request: BeamRequest) -> BeamAnswer:
        """See `Engine.recommend`."""
        if len(self.asked) < USERS:
            self.asked.append(request)
        return await self._engine.recommend(request_id, request)


@dataclasses.dataclass(frozen=True, slots=True)
class Turn:
    """One turn: milliseconds per call, seconds of all, CPU milliseconds a call of service and engine."""

    milliseconds: list[float]
    seconds: float
    service_cpu_ms: float
    engine_cpu_ms: float


@dataclasses.dataclass(slots=True)
class Bench:
    """A running service, its engine, the client, and users whose histories nobody has asked about yet."""

    engine: RecordedEngine
    checkpoint: Checkpoint
    client: asyncio.subprocess.Process
    engine_pid: int
    fresh: list[str]
    dice: random.Random = dataclasses.field(default_factory=lambda: random.Random(0))

    async def http(self, calls: int, at_once: int) -> Turn:
        """Ask over HTTP."""
        users, self.fresh = self.fresh[:calls], self.fresh[calls:]
        return await self._timed(calls, self._ask(users, at_once))

    async def bare(self, calls: int, at_once: int) -> Turn:
        """Ask the engine."""
        requests = [self._shuffled(self.engine.asked[n % USERS]) for n in range(calls)]
        return await self._timed(calls, self._call(requests, at_once))

    async def warm(self, users: Sequence[str]) -> None:
        """Ask for each user once, and so learn what the service asks of its engine."""
        await self._ask(users, 1)

    async def _timed(self, calls: int, work: Any) -> Turn:
        service, engine = time.process_time(), cpu_seconds(self.engine_pid)
        answer = await work
        used = time.process_time() - service, cpu_seconds(self.engine_pid) - engine
        return Turn(answer["milliseconds"], answer["seconds"], *(1000 * each / calls for each in used))

    async def _ask(self, users: Sequence[str], at_once: int) -> dict[str, Any]:
        assert self.client.stdin and self.client.stdout
        self.client.stdin.write(json.dumps({"users": list(users), "at_once": at_once}).encode() + b"\n")
        answer: dict[str, Any] = json.loads(await self.client.stdout.readline())
        if answer["bad"]:
            raise RuntimeError(f"{answer['bad']} of {len(users)} answers were not full ones")
        return answer

    async def _call(self, requests: Sequence[BeamRequest], at_once: int) -> dict[str, Any]:
        waiting, milliseconds = iter(enumerate(requests)), []

        async def one() -> None:
            for number, request in waiting:
                start = time.perf_counter()
                await self.engine.recommend(f"bare-{number}", request)
                milliseconds.append(1000 * (time.perf_counter() - start))

        start = time.perf_counter()
        await asyncio.gather(*(one() for _ in range(at_once)))
        return {"milliseconds": milliseconds, "seconds": time.perf_counter() - start}

    def _shuffled(self, request: BeamRequest) -> BeamRequest:
        """The same items in another order: as long a prompt, and nothing of it cached but the prefix."""
        prefix = len(self.checkpoint.prompt.prefix_ids)
        items = items_of(request.prompt_ids[prefix:], self.checkpoint.space)
        self.dice.shuffle(items)
        prompt = [*request.prompt_ids[:prefix], *(token for item in items for token in item)]
        return dataclasses.replace(request, prompt_ids=prompt, deadline=None)


def items_of(tokens: Sequence[int], space: SidSpace) -> list[list[int]]:
    """A prompt behind its prefix, item by item: each begins with a code of the first level, a title may follow."""
    first = space.level_start(0)
    starts = [place for place, token in enumerate(tokens) if first <= token < first + space.codes]
    return [list(tokens[start:end]) for start, end in zip(starts, [*starts[1:], len(tokens)], strict=True)]


@asynccontextmanager
async def bench(checkpoint_folder: Path, calls: int) -> AsyncIterator[Bench]:
    """Start everything; ``calls`` is how many fresh users are needed."""
    async with AsyncExitStack() as stack:
        redis_url = await stack.enter_async_context(own_redis())
        checkpoint, port = open_checkpoint(checkpoint_folder), free_port()
        histories = checkpoint_folder.parent / "histories.jsonl"
        known, fresh = await _load(histories, redis_url, calls, checkpoint.prompt.max_items)
        given = {"checkpoint": checkpoint_folder, "redis_url": redis_url, "port": port}
        settings = load_settings(given | SETTINGS).settings
        configure_logs(settings.log_level)
        started = await start_engine(settings, checkpoint)
        stack.push_async_callback(started.close)
        engine = RecordedEngine(started)
        service = await stack.enter_async_context(open_service(settings, Parts(engine=engine)))
        server = uvicorn.Server(server_config(service, settings))
        serving = asyncio.create_task(server.serve(sockets=[bind(settings.host, port)]))
        stack.push_async_callback(_stop, server, serving)
        freeze_garbage_collector()
        client = await _client(stack, port)
        made = Bench(engine, checkpoint, client, int(getattr(started, "pid")), fresh)  # noqa: B009
        await made.warm(known)
        yield made


async def _load(file: Path, redis_url: str, calls: int, read: int) -> tuple[list[str], list[str]]:
    """Histories of `USERS` users, and shuffled copies of them for as many as are asked about later; their ids."""
    rows = [json.loads(line) for line in file.read_text("utf-8").splitlines()[:USERS]]
    dice, copies = random.Random(1), []
    for number in range(calls):
        row = rows[number % USERS]
        items = [item for item, _ in row["items"]]
        # only what the model reads changes places: the same items count, and the same are excluded
        seconds = [second for _, second in row["items"]]
        tail = items[-read:]
        dice.shuffle(tail)
        shuffled = [*items[:-read], *tail]
        copies.append({"user_id": f"fresh-{number}", "items": list(zip(shuffled, seconds, strict=True))})
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "histories.jsonl"
        made.write_text("\n".join(json.dumps(row) for row in [*rows, *copies]), "utf-8")
        users = await load_histories(redis_url, made)
    return users[: len(rows)], users[len(rows) :]


async def _client(stack: AsyncExitStack, port: int) -> asyncio.subprocess.Process:
    command = [sys.executable, "-m", "loadtest.overhead_client", str(port)]
    pipe = asyncio.subprocess.PIPE
    client = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, limit=1 << 24)
    stack.callback(client.kill)
    return client


async def _stop(server: uvicorn.Server, serving: "asyncio.Task[None]") -> None:
    server.should_exit = True
    await serving


async def measure(made: Bench, rounds: int, calls: int, at_once: int) -> dict[str, float]:
    """ABBA rounds at one concurrency; medians over the rounds."""
    rows = []
    for _ in range(rounds):
        first = await made.http(calls, at_once)
        second, third = await made.bare(calls, at_once), await made.bare(calls, at_once)
        rows.append(_compare((first, await made.http(calls, at_once)), (second, third)))
    return {name: round(median(row[name] for row in rows), 3) for name in rows[0]}


def _compare(http: tuple[Turn, Turn], bare: tuple[Turn, Turn]) -> dict[str, float]:
    """One round."""
    http_ms = median([each for turn in http for each in turn.milliseconds])
    bare_ms = median([each for turn in bare for each in turn.milliseconds])
    http_rate = sum(len(turn.milliseconds) for turn in http) / sum(turn.seconds for turn in http)
    bare_rate = sum(len(turn.milliseconds) for turn in bare) / sum(turn.seconds for turn in bare)
    return {
        "http_p50_ms": http_ms,
        "engine_p50_ms": bare_ms,
        "p50_difference_ms": http_ms - bare_ms,
        "http_calls_per_second": http_rate,
        "engine_calls_per_second": bare_rate,
        "capacity_loss_percent": 100 * (1 - http_rate / bare_rate),
        "service_cpu_ms_a_call": sum(turn.service_cpu_ms for turn in http) / 2,
        "service_cpu_ms_a_bare_call": sum(turn.service_cpu_ms for turn in bare) / 2,
        "engine_cpu_ms_a_call": sum(turn.engine_cpu_ms for turn in http) / 2,
        "engine_cpu_ms_a_bare_call": sum(turn.engine_cpu_ms for turn in bare) / 2,
    }


async def carry_out(checkpoint: Path, rounds: int, calls: int, at_once: int, profile: Path | None) -> dict[str, Any]:
    """Everything, one call at a time and then ``at_once``."""
    async with bench(checkpoint, 2 * rounds * calls * (1 + 3) + USERS) as made:
        with _profiled(profile):
            alone = await measure(made, rounds, calls, 1)
            together = await measure(made, rounds, 3 * calls, at_once)
    alone.pop("capacity_loss_percent")
    met = alone["p50_difference_ms"] <= TARGET_MS, together["capacity_loss_percent"] <= 100 * TARGET_SHARE
    targets = {"p50_difference_at_most_3_ms": met[0], "capacity_loss_at_most_10_percent": met[1]}
    return {"rounds": rounds, "at_once": at_once, "one_at_a_time": alone, "together": together, "targets": targets}


@contextmanager
def _profiled(file: Path | None) -> Iterator[None]:
    """Profile what this process does meanwhile, for `python -m pstats FILE`; the figures are then worth nothing."""
    if file is None:
        yield
        return
    with cProfile.Profile() as profile:
        yield
    profile.dump_stats(file)


def main(
    checkpoint: Annotated[Path, typer.Option(help="its run's histories.jsonl lies beside it")] = QUICKSTART,
    rounds: Annotated[int, typer.Option(min=1)] = 8,
    calls: Annotated[int, typer.Option(min=1, help="a turn, one at a time; three times as many together")] = 20,
    at_once: Annotated[int, typer.Option(min=2, help="calls at once in the second part")] = 16,
    profile: Annotated[Path | None, typer.Option(help="write a cProfile of the service's process here")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="write the last line here too")] = None,
) -> None:
    """Ask over HTTP and the engine itself in turns, and say what is between."""
    line = json.dumps(asyncio.run(carry_out(checkpoint, rounds, calls, at_once, profile)))
    if json_file:
        json_file.write_text(line + "\n")
    typer.echo(line)


if __name__ == "__main__":
    typer.run(main)
