"""Sends planned calls when they are due, whatever became of those before, and watches the service meanwhile."""

import asyncio
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import httpx

from loadtest.served_replica import ServedReplica
from loadtest.traffic import Call

TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Sent:
    """A call and what came back: seconds from due to answered, the HTTP status (0: none), whether degraded.

    ``late`` is how many seconds after it was due this program began to send it; the latency includes them.
    """

    call: Call
    latency: float
    status: int
    degraded: bool = False
    late: float = 0.0

    @property
    def good(self) -> bool:
        """Answered in full."""
        return self.status == 200 and not self.degraded


@dataclass(frozen=True, slots=True)
class Sample:
    """The processes at one moment: resident bytes, CPU seconds so far and open files, by process."""

    at: float
    memory: dict[str, int]
    cpu: dict[str, float]
    files: dict[str, int]


@dataclass(slots=True)
class Recording:
    """Everything of one scenario."""

    sent: list[Sent] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)

    def then(self, later: "Recording", seconds: float) -> "Recording":
        """This one and a later one in a row, the later one's times moved on by ``seconds``."""
        moved = [replace(one, call=replace(one.call, due=one.call.due + seconds)) for one in later.sent]
        samples = [replace(sample, at=sample.at + seconds) for sample in later.samples]
        return Recording([*self.sent, *moved], [*self.samples, *samples])

    def cpu_between(self, start: float, end: float, process: str) -> float:
        """CPU seconds of the processes whose names begin so, between two moments."""
        inside = [sample for sample in self.samples if start <= sample.at <= end]
        if len(inside) < 2:
            return float("nan")
        first, last = (
            sum(value for name, value in sample.cpu.items() if name.startswith(process))
            for sample in (inside[0], inside[-1])
        )
        return last - first


async def play(replicas: Sequence[ServedReplica], calls: Sequence[Call], timeout: float = 30.0) -> Recording:
    """Send everything, to the replicas in turn."""
    recording = Recording()
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=100)
    async with httpx.AsyncClient(timeout=timeout, limits=limits) as client:
        start = time.perf_counter()
        watching = asyncio.create_task(_watch(replicas, recording, start))
        work = [
            asyncio.create_task(_send(client, replicas[number % len(replicas)].url, call, start, recording))
            for number, call in enumerate(calls)
        ]
        await asyncio.gather(*work)
        watching.cancel()
    recording.sent.sort(key=lambda sent: sent.call.due)
    return recording


async def _send(client: httpx.AsyncClient, url: str, call: Call, start: float, recording: Recording) -> None:
    await asyncio.sleep(max(0.0, start + call.due - time.perf_counter()))
    late = time.perf_counter() - start - call.due
    status, degraded = 0, False
    try:
        response = await client.post(f"{url}/{call.kind}", json=call.body)
        status = response.status_code
        degraded = status == 200 and call.kind == "recommend" and bool(response.json()["degraded"])
    except httpx.HTTPError:
        pass
    recording.sent.append(Sent(call, time.perf_counter() - start - call.due, status, degraded, late))


async def _watch(replicas: Sequence[ServedReplica], recording: Recording, start: float) -> None:
    pids = {f"{name}-{n}": pid for n, replica in enumerate(replicas) for name, pid in replica.processes().items()}
    while True:
        recording.samples.append(
            Sample(
                time.perf_counter() - start,
                {name: resident_bytes(pid) for name, pid in pids.items()},
                {name: cpu_seconds(pid) for name, pid in pids.items()},
                {name: len(list(Path(f"/proc/{pid}/fd").iterdir())) for name, pid in pids.items()},
            )
        )
        await asyncio.sleep(1.0)


def resident_bytes(pid: int) -> int:
    """Memory of a process."""
    rows = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(row.split()[1]) * 1024 for row in rows if row.startswith("VmRSS:"))


def cpu_seconds(pid: int) -> float:
    """CPU time of a process, user and system."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS
