"""Recommendations while the catalogue changes under them, and a soak (drills 18 and 19)."""

import asyncio
import time
from collections import Counter
from pathlib import Path

import httpx
import numpy as np

from loadtest.playback import resident_bytes
from tests.faults.background_load import BackgroundLoad, failed
from tests.faults.figure import Figure, count
from tests.faults.scene import Scene
from tests.faults.stage import Replica, Stage

ASKERS = 8
ROUND = 20
SOAK_RATE = 5.0
SAMPLES_A_SECOND = 1.0


async def swapped(scene: Scene, length: float) -> list[Figure]:
    """Drill 18: items come and go; no answer holds one that was gone when it was asked, or a SID that is none."""
    async with scene.stage() as at:
        end, counts = time.monotonic() + length, Counter[str]()
        removed: dict[str, float] = {}
        async with asyncio.TaskGroup() as together:
            for number in range(ASKERS):
                together.create_task(_ask(at, number, end, counts, removed))
            together.create_task(_swap(at, end, counts, removed))
        illegal = (await at.replicas[0].metrics(at.client))["rec_illegal_sid_total"]
    # the drill deletes what the histories hold, so answers without a known item of the history are what it asks for
    known = {"asked", "failed", "gone", "swaps", "items", "unknown_history_items"}
    reasons = {name: number for name, number in counts.items() if name not in known}
    told = "".join(f", {name} {number}" for name, number in reasons.items())
    share = sum(reasons.values()) / max(counts["asked"], 1)
    return [
        Figure("requests", counts["asked"], "at least", 100, hard=True),
        Figure("recommended items", counts["items"], "at least", 1000, hard=True),
        Figure("catalogue changes meanwhile", counts["swaps"], "at least", 20, hard=True),
        count("failed recommendations", counts["failed"]),
        Figure(f"degraded, lost histories apart{told}", share, "at most", 0.01, " of the requests"),
        count("answers with an item deleted before they were asked", counts["gone"]),
        count("rec_illegal_sid_total", illegal),
    ]


async def _ask(at: Stage, number: int, end: float, counts: Counter[str], removed: dict[str, float]) -> None:
    async with httpx.AsyncClient(timeout=30.0) as client:
        while time.monotonic() < end:
            start = time.monotonic()
            body = {"user_id": at.users[number], "num_results": 10}
            answer = await client.post(f"{at.urls[0]}/recommend", json=body)
            counts["asked"] += 1
            counts["failed"] += answer.status_code != 200
            told = answer.json()
            items = [item["item_id"] for item in told.get("items", ())]
            counts["items"] += len(items)
            counts.update(told.get("degraded_reasons", ()))
            counts["gone"] += any(removed.get(item, start) < start for item in items)


async def _swap(at: Stage, end: float, counts: Counter[str], removed: dict[str, float]) -> None:
    """Post some items, delete some, old ones too; an id is never used twice."""
    number = 0
    while time.monotonic() < end:
        new = [f"swap-{number}-{n}" for n in range(ROUND)]
        rows = [{"item_id": item, "title": f"Film {item}"} for item in new]
        (await at.client.post(f"{at.urls[0]}/items", json=rows)).raise_for_status()
        for item in (*new[: ROUND // 2], f"item-{number % 500}"):
            (await at.client.delete(f"{at.urls[0]}/items/{item}")).raise_for_status()
            removed[item] = time.monotonic()
        counts["swaps"] += 2 + ROUND // 2
        number += 1


async def soaked(scene: Scene, length: float) -> list[Figure]:
    """Drill 19: steady load and an item a second; memory and descriptors level out. The first third warms up."""
    async with scene.stage() as at, BackgroundLoad(at.urls, at.users, SOAK_RATE, longest=length + 60) as load:
        samples: list[tuple[float, int, int]] = []
        start = time.monotonic()
        while (elapsed := time.monotonic() - start) < length:
            (await at.post(at.replicas[0], f"soak-{len(samples)}", f"Film number {len(samples)}")).raise_for_status()
            samples.append((elapsed, *_held(at.replicas[0])))
            await asyncio.sleep(max(0.0, len(samples) / SAMPLES_A_SECOND - (time.monotonic() - start)))
    seconds_S, memory_S, files_S = np.array(samples[len(samples) // 3 :]).T
    slope = float(np.polyfit(seconds_S, memory_S, 1)[0]) * 3600 / float(memory_S.mean())
    return [
        count("failed recommendations", failed(load.answers)),
        Figure("memory's slope", 100 * slope, "at most", 1.0, " %/h"),
        Figure("open files at the end over the middle", float(files_S[-1] / np.median(files_S)), "at most", 1.1),
    ]


def _held(replica: Replica) -> tuple[int, int]:
    """Resident bytes of service and engine, and open files of both."""
    pids = (replica.running.pid, replica.engine_pid)
    return sum(map(resident_bytes, pids)), sum(len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in pids)
