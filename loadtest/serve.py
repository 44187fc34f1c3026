"""Real replicas under a planned load: capacity, steady state, a spike, a soak.

    python -m loadtest.serve steady --checkpoint RUN/checkpoint --rate 10 --seconds 60
    python -m loadtest.serve step-up --checkpoint RUN/checkpoint --replicas 2 --json FILE --html PAGE
    python -m loadtest.serve spike --checkpoint RUN/checkpoint --rate 10
    python -m loadtest.serve soak --checkpoint RUN/checkpoint --rate 10 --seconds 600

Starts a Redis and ``groundrec serve`` with the engine that the settings name (vLLM), loads the run's histories, warms
up, sends the load, and prints one JSON object on its last line. Rates are recommendations, events and items together.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from loadtest.live_catalog import own_redis
from loadtest.load_figures import holds, phase_figures, recovery_seconds, slopes
from loadtest.load_page import load_page
from loadtest.playback import Recording, play
from loadtest.served_replica import ServedReplica, load_histories, served_replica, stage_means
from loadtest.traffic import Mix, Phase, plan

SETTINGS = "kv_cache_gib = 0.5\nomp_threads = 1\n"
WARM_UP = Phase("warm-up", 5.0, 10.0)
STEP = 1.25
REFINEMENTS = 2
SPIKE = 5.0
STAGES = ("history", "queue", "engine")

app = typer.Typer(help=__doc__, no_args_is_help=True, add_completion=False)
Checkpoint = Annotated[Path, typer.Option(help="a servable checkpoint; its run's histories.jsonl lies beside it")]
QUICKSTART = Path("runs/quickstart/checkpoint")
Replicas = Annotated[int, typer.Option(min=1, help="services, asked in turn")]
Rate = Annotated[float, typer.Option(min=0.1, help="calls a second")]
Seconds = Annotated[float, typer.Option(min=1, help="length of the load")]
Deadline = Annotated[float, typer.Option(help="seconds within which an answer is good")]
JsonFile = Annotated[Path | None, typer.Option("--json", help="write the last line here too")]
Html = Annotated[Path | None, typer.Option(help="write a page with pictures here")]
Config = Annotated[Path | None, typer.Option("--settings", help="TOML file of the service's settings")]


class Load:
    """Replicas that are up and users that have histories; phases are played one after another into one recording."""

    def __init__(self, replicas: Sequence[ServedReplica], users: Sequence[str], items: Sequence[str], mix: Mix) -> None:
        self._replicas, self._users, self._items, self._mix = replicas, users, items, mix
        self._played = 0

    async def play(self, phases: Sequence[Phase]) -> Recording:
        """Send the phases' calls; every call of it differs from those before."""
        self._played += 1
        calls = plan(phases, self._mix, self._users, self._items, seed=100 * self._played)
        fresh = [
            call if call.kind != "items" else _renamed(call, f"load-{self._played}-{number}")
            for number, call in enumerate(calls)
        ]
        return await play(self._replicas, fresh)

    async def stages(self) -> dict[str, float]:
        """Mean milliseconds of a request's stages on the first replica, over all that it has answered."""
        return await stage_means(self._replicas[0].url, STAGES)


def _renamed(call: Any, item_id: str) -> Any:
    return type(call)(call.due, call.phase, call.kind, {**call.body, "item_id": item_id, "title": f"Nights {item_id}"})


Scenario = Callable[[Load], Awaitable[tuple[dict[str, Any], Recording]]]


async def carry_out(checkpoint: Path, replicas: int, settings: str, mix: Mix, scenario: Scenario) -> tuple[Any, Any]:
    """Start everything, warm up, play."""
    async with AsyncExitStack() as stack:
        redis_url = await stack.enter_async_context(own_redis())
        histories = checkpoint.parent / "histories.jsonl"
        users = await load_histories(redis_url, histories)
        first = json.loads(histories.read_text("utf-8").partition("\n")[0])
        up = [await stack.enter_async_context(served_replica(checkpoint, redis_url, settings)) for _ in range(replicas)]
        load = Load(up, users, [item for item, _ in first["items"]], mix)
        await load.play([WARM_UP])
        figures, recording = await scenario(load)
        return {**figures, "replicas": replicas, "users": len(users), "stage_mean_ms": await load.stages()}, recording


@app.command()
def steady(
    checkpoint: Checkpoint = QUICKSTART,
    rate: Rate = 10.0,
    seconds: Seconds = 60.0,
    replicas: Replicas = 1,
    deadline: Deadline = 1.0,
    events: float = 0.08,
    items: float = 0.02,
    settings: Config = None,
    json_file: JsonFile = None,
    html: Html = None,
) -> None:
    """One rate."""

    async def scenario(load: Load) -> tuple[dict[str, Any], Recording]:
        phases = [Phase("steady", rate, seconds)]
        recording = await load.play(phases)
        return {"phases": phase_figures(recording, phases, deadline)}, recording

    _run("steady", checkpoint, replicas, Mix(events, items), scenario, settings, json_file, html)


@app.command("step-up")
def step_up(
    checkpoint: Checkpoint = QUICKSTART,
    rate: Rate = 8.0,
    seconds: Seconds = 15.0,
    replicas: Replicas = 1,
    deadline: Deadline = 1.0,
    settings: Config = None,
    json_file: JsonFile = None,
    html: Html = None,
) -> None:
    """Rates a quarter higher each until one is beyond the capacity, then two between; then 70 % of the best."""

    async def scenario(load: Load) -> tuple[dict[str, Any], Recording]:
        steps = Steps(load, seconds, deadline)
        good, bad = 0.0, 0.0
        while not bad:
            tried = good * STEP or rate
            good, bad = (tried, 0.0) if await steps.holds(tried) else (good, tried)
        if not good:
            raise typer.BadParameter(f"--rate {rate} is beyond the capacity already; begin lower")
        for _ in range(REFINEMENTS):
            middle = (good + bad) / 2
            good, bad = (middle, bad) if await steps.holds(middle) else (good, middle)
        await steps.play(Phase("70 % of capacity", 0.7 * good, 2 * seconds))
        found = {"capacity_calls_per_second": round(good, 2), "p99_ms_at_70_percent": steps.rows[-1]["p99_ms"]}
        return {"phases": steps.rows, **found}, steps.recording

    _run("step-up", checkpoint, replicas, Mix(), scenario, settings, json_file, html)


class Steps:
    """Phases played one at a time: their rows, and one recording of all."""

    def __init__(self, load: Load, seconds: float, deadline: float) -> None:
        self._load, self._seconds, self._deadline = load, seconds, deadline
        self._played = 0.0
        self.rows: list[dict[str, Any]] = []
        self.recording = Recording()

    async def holds(self, rate: float) -> bool:
        """Whether the replicas stand this many calls a second."""
        await self.play(Phase(f"{rate:.1f}/s", rate, self._seconds))
        return holds(self.rows[-1])

    async def play(self, phase: Phase) -> None:
        """One phase."""
        recording = await self._load.play([phase])
        self.rows += phase_figures(recording, [phase], self._deadline)
        self.recording = self.recording.then(recording, self._played)
        self._played += phase.seconds


@app.command()
def spike(
    checkpoint: Checkpoint = QUICKSTART,
    rate: Rate = 10.0,
    seconds: Seconds = 10.0,
    replicas: Replicas = 1,
    deadline: Deadline = 1.0,
    settings: Config = None,
    json_file: JsonFile = None,
    html: Html = None,
) -> None:
    """Five times the rate for some seconds, and how soon all is good again."""

    async def scenario(load: Load) -> tuple[dict[str, Any], Recording]:
        phases = [Phase("before", rate, 15.0), Phase("spike", SPIKE * rate, seconds), Phase("after", rate, 30.0)]
        recording = await load.play(phases)
        recovered = recovery_seconds(recording, 15.0 + seconds, deadline)
        return {"phases": phase_figures(recording, phases, deadline), "recovery_seconds": recovered}, recording

    _run("spike", checkpoint, replicas, Mix(), scenario, settings, json_file, html)


@app.command()
def soak(
    checkpoint: Checkpoint = QUICKSTART,
    rate: Rate = 10.0,
    seconds: Seconds = 600.0,
    replicas: Replicas = 1,
    deadline: Deadline = 1.0,
    settings: Config = None,
    json_file: JsonFile = None,
    html: Html = None,
) -> None:
    """A steady rate with about one new item a second; the slopes of memory and open files after the first third."""
    mix = Mix(events=0.08, items=min(0.5, 1 / rate))

    async def scenario(load: Load) -> tuple[dict[str, Any], Recording]:
        phases = [Phase("soak", rate, seconds)]
        recording = await load.play(phases)
        grown = slopes(recording, seconds / 3)
        return {"phases": phase_figures(recording, phases, deadline), **grown}, recording

    _run("soak", checkpoint, replicas, mix, scenario, settings, json_file, html)


def _run(
    name: str,
    checkpoint: Path,
    replicas: int,
    mix: Mix,
    scenario: Scenario,
    settings: Path | None,
    json_file: Path | None,
    html: Path | None,
) -> None:
    given = settings.read_text("utf-8") if settings else SETTINGS
    figures, recording = asyncio.run(carry_out(checkpoint, replicas, given, mix, scenario))
    if html:
        html.write_text(load_page(f"Load: {name}", figures, recording), "utf-8")
    line = json.dumps({"scenario": name, **figures})
    if json_file:
        json_file.write_text(line + "\n")
    typer.echo(line)


if __name__ == "__main__":
    app()
