"""Which alert rules of deploy/prometheus fire on what the drills' replicas said of themselves (drill 20).

Rules wait for minutes, drills last for seconds: each recording is played to promtool at one scrape a minute.
Ratios, gauges and quantiles stay what they were; a rate becomes a sixtieth of itself. An act of its own brings the
troubles that no other drill makes: overload, an engine that stutters, refused items, a replica cut off, none left.
"""

import asyncio
import os
import re
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from tests.faults import engine_loss, redis_outages
from tests.faults.background_load import BackgroundLoad
from tests.faults.background_posts import BackgroundPosts
from tests.faults.figure import Figure, count
from tests.faults.recording import Recording
from tests.faults.scene import Scene
from tests.faults.stage import ROOT, Stage
from tests.faults.two_replicas import SETTINGS

RULES = ROOT / "deploy/prometheus/alerts.yaml"
FIRING = 'count by (alertname) (ALERTS{alertstate="firing"})'
FIRED = re.compile(r'alertname="(\w+)"')
# What no drill can bring about, and why.
IMPOSSIBLE = {
    "GroundrecBug": "needs a bug; raised in tests/deploy/test_monitoring_scrape.py and alerts_test.yaml",
    "GroundrecIllegalSid": "needs a wrong engine; the drills show that it stays silent",
    "GroundrecMemoryGrowing": "needs hours of growth; its rule is unit-tested in alerts_test.yaml",
}
OTHERS = {
    "redis-killed": redis_outages.killed,
    "redis-flushed": redis_outages.flushed,
    "engine-frozen": engine_loss.frozen,
}
OUTAGE_SECONDS = 15.0
# Canaries come every 2 s: each meets the pause a little earlier than the last, so some in a row wait for over a second.
FROZEN_SECONDS, RUNNING_SECONDS = 1.4, 0.7
BURST = 200


async def fire(scene: Scene, length: float) -> list[Figure]:
    """Drill 20: each alert fires in some drill; those that none can raise have stayed silent."""
    for name, run in OTHERS.items():
        if name not in {recording.drill for recording in scene.recordings}:
            with scene.recorded_as(name):
                await run(scene, OUTAGE_SECONDS)
    await _trouble(scene, length)
    fired: dict[str, list[str]] = {name: [] for name in alert_names()}
    for recording in scene.recordings:
        for name in await asyncio.to_thread(firing, recording, scene.folder()):
            fired[name].append(recording.drill)
    possible = {name: drills for name, drills in fired.items() if name not in IMPOSSIBLE}
    return [
        *(_figure(name, drills) for name, drills in possible.items()),
        count(f"false alarms of {', '.join(IMPOSSIBLE)}", sum(len(fired[name]) for name in IMPOSSIBLE)),
    ]


def alert_names() -> list[str]:
    """All rules."""
    groups = yaml.safe_load(RULES.read_text("utf-8"))["groups"]
    return [rule["alert"] for group in groups for rule in group["rules"]]


def firing(recording: Recording, folder: Path) -> set[str]:
    """Alerts that fire at some moment of a recording that is played at a scrape a minute."""
    moments = range(1, len(recording.scrapes))
    story = {
        "name": recording.drill,
        "interval": "1m",
        "input_series": [{"series": name, "values": _values(values)} for name, values in recording.rows()],
        "promql_expr_test": [{"expr": FIRING, "eval_time": f"{minute}m", "exp_samples": []} for minute in moments],
    }
    file = folder / "story.yaml"
    told: dict[str, Any] = {"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [story]}
    file.write_text(yaml.safe_dump(told, width=10**9), "utf-8")
    tool = subprocess.run(["bash", str(ROOT / "deploy/promtool.sh")], capture_output=True, text=True, check=True)
    command = [tool.stdout.strip(), "test", "rules", str(file)]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    found = set(FIRED.findall(answer.stdout + answer.stderr))
    if answer.returncode and not found:
        raise RuntimeError(f"promtool: {(answer.stdout + answer.stderr)[-500:]}")
    return found


def _figure(name: str, drills: list[str]) -> Figure:
    where = f" ({', '.join(dict.fromkeys(drills))})" if drills else ""
    return Figure(f"recordings in which {name} fires{where}", len(drills), "at least", 1, hard=True)


def _values(values: list[float | None]) -> str:
    """As promtool wants them: a series that ends is stale at once, one that is not there yet is missing."""
    written, before = [], None
    for value in values:
        written.append(f"{value!r}" if value is not None else "stale" if before is not None else "_")
        before = value
    return " ".join(written)


async def _trouble(scene: Scene, length: float) -> None:
    async with scene.stage(**SETTINGS) as at:
        async with BackgroundLoad(at.urls, at.users, 6.0):
            await asyncio.sleep(3.0)
            await _overload(at)
            await asyncio.gather(_stutter(at, length), _refused_items(at, length))
            await _cut_off(at)
        for replica in at.replicas:
            await replica.stop()
        await asyncio.sleep(6.0)


async def _overload(at: Stage) -> None:
    body = {"history": ["item-1"], "num_results": 10}
    for _ in range(4):
        asks = [at.client.post(f"{at.urls[0]}/recommend", json=body) for _ in range(BURST)]
        await asyncio.gather(*asks, return_exceptions=True)
        await asyncio.sleep(1.0)


async def _refused_items(at: Stage, length: float) -> None:
    for number in range(int(length)):
        await at.post(at.replicas[0], f"nothing-{number}", "\u200b")
        await asyncio.sleep(1.0)


async def _stutter(at: Stage, length: float) -> None:
    """An engine that stands still most of the time, and answers in between."""
    engine, end = at.replicas[0].engine_pid, time.monotonic() + length
    async with BackgroundPosts(at.urls[:1], 2.0, name="stutter"):
        try:
            while time.monotonic() < end:
                os.kill(engine, signal.SIGSTOP)
                await asyncio.sleep(FROZEN_SECONDS)
                os.kill(engine, signal.SIGCONT)
                await asyncio.sleep(RUNNING_SECONDS)
        finally:
            with suppress(ProcessLookupError):
                os.kill(engine, signal.SIGCONT)


async def _cut_off(at: Stage) -> None:
    """One replica loses its Redis while the other gets items."""
    at.cut_off(at.replicas[1])
    for number in range(4):
        await at.post(at.replicas[0], f"unseen-{number}", f"Film number {number}")
        await asyncio.sleep(1.0)
    at.let_back(at.replicas[1])
    await at.same_hash()
