"""The engine gets no more beams than it can decode, and who waits is served fairly, whatever the widths."""

import asyncio
import time
from collections.abc import Sequence

import pytest

from service.admitted_engine import AdmittedEngine
from service.beam_rows import BeamLimits, BeamRows
from service.engine.base import BeamAnswer, BeamRequest, CatalogDelta, EngineStatistics, TokenRow
from service.errors import DeadlineError, OverloadedError
from service.metrics import Metrics


class Desk:
    """Callers who take a place when they get one and keep it until they are sent away."""

    def __init__(self, rows: int = 1000, tokens: int = 10**6, waiting_rows: int = 10**6) -> None:
        self.metrics = Metrics()
        self.beam_rows = BeamRows(BeamLimits(rows, tokens, waiting_rows), self.metrics)
        self.inside: list[str] = []
        self.order: list[str] = []
        self._leave: dict[str, asyncio.Event] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def arrive(self, name: str, rows: int, tokens: int = 1, deadline: float | None = None) -> None:
        self._leave[name] = asyncio.Event()
        self.tasks[name] = asyncio.create_task(self._visit(name, rows, tokens, deadline))
        await self.settle()

    async def leave(self, name: str) -> None:
        self._leave[name].set()
        await self.settle()

    async def settle(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)

    async def serve_all(self) -> None:
        """Send the one who has been inside longest away, until nobody is left."""
        while self.inside:
            await self.leave(self.inside[0])

    async def _visit(self, name: str, rows: int, tokens: int, deadline: float | None) -> None:
        async with self.beam_rows.place(rows, tokens, deadline):
            self.inside.append(name)
            self.order.append(name)
            assert self.beam_rows.rows <= 1000
            await self._leave[name].wait()
            self.inside.remove(name)

    def shed(self, reason: str) -> float:
        return float(self.metrics.shed.labels(reason)._value.get())


async def test_places_are_given_while_rows_and_tokens_last_and_then_in_turn() -> None:
    desk = Desk(rows=100, tokens=1000)
    await desk.arrive("a", 60, 100)
    await desk.arrive("b", 40, 100)
    await desk.arrive("c", 10, 100)
    assert desk.inside == ["a", "b"] and desk.beam_rows.waiting_rows == 10
    await desk.leave("b")
    assert desk.inside == ["a", "c"]
    await desk.arrive("long", 10, 900)
    assert desk.inside == ["a", "c"]
    await desk.leave("a")
    assert desk.inside == ["c", "long"]
    await desk.serve_all()
    assert (desk.beam_rows.rows, desk.beam_rows.tokens, desk.beam_rows.waiting_rows) == (0, 0, 0)


async def test_a_request_beyond_the_limit_is_served_alone() -> None:
    desk = Desk(rows=100)
    await desk.arrive("small", 10)
    await desk.arrive("huge", 512)
    assert desk.inside == ["small"]
    await desk.leave("small")
    assert desk.inside == ["huge"]
    await desk.arrive("next", 10)
    assert desk.inside == ["huge"]
    await desk.serve_all()


async def test_a_stream_of_wide_requests_does_not_starve_narrow_ones() -> None:
    desk = Desk(rows=512)
    for number in range(20):
        await desk.arrive(f"wide-{number}", 512)
    for number in range(30):
        await desk.arrive(f"narrow-{number}", 10)
    await desk.serve_all()
    first_three_wide = desk.order.index("wide-2")
    assert sum(name.startswith("narrow") for name in desk.order[:first_three_wide]) == 30


async def test_a_stream_of_narrow_requests_does_not_starve_a_wide_one() -> None:
    desk = Desk(rows=512)
    for number in range(60):
        await desk.arrive(f"narrow-{number}", 10)
    await desk.arrive("wide", 512)
    for number in range(60, 300):
        await desk.arrive(f"narrow-{number}", 10)
    await desk.serve_all()
    assert len(desk.order) == 301
    assert desk.order.index("wide") <= 60 + 52  # as many narrow rows go before it as it asks for itself


async def test_when_too_many_wait_the_class_that_floods_is_refused() -> None:
    desk = Desk(rows=512, waiting_rows=1100)
    await desk.arrive("working", 512)
    for number in range(2):
        await desk.arrive(f"wide-{number}", 512)
    await desk.arrive("narrow-0", 10)
    assert desk.shed("beam_rows") == 0
    await desk.arrive("wide-2", 512)
    with pytest.raises(OverloadedError) as refused:
        await desk.tasks["wide-2"]
    assert refused.value.retry_after_seconds
    for number in range(1, 8):
        await desk.arrive(f"narrow-{number}", 10)
    with pytest.raises(OverloadedError):
        await desk.tasks["wide-1"]
    assert desk.shed("beam_rows") == 2
    await desk.serve_all()
    assert {"wide-0", *(f"narrow-{number}" for number in range(8))} < set(desk.order)


async def test_a_deadline_ends_the_wait_and_nobody_behind_it_is_held_up() -> None:
    desk = Desk(rows=100)
    await desk.arrive("working", 60)
    await desk.arrive("late", 100, deadline=time.monotonic() + 0.02)
    await desk.arrive("behind", 30)
    assert desk.inside == ["working"]
    with pytest.raises(DeadlineError):
        await desk.tasks["late"]
    await desk.settle()
    assert desk.inside == ["working", "behind"] and desk.shed("deadline") == 1
    await desk.serve_all()


async def test_who_goes_away_frees_a_place_or_its_wait() -> None:
    desk = Desk(rows=100)
    await desk.arrive("working", 100)
    await desk.arrive("waiting", 50)
    desk.tasks["waiting"].cancel()
    await desk.settle()
    assert desk.beam_rows.waiting_rows == 0
    desk.tasks["working"].cancel()
    await desk.settle()
    assert desk.beam_rows.rows == 0
    await asyncio.gather(*desk.tasks.values(), return_exceptions=True)


class SlowEngine:
    """Answers when told to, and remembers how wide it was asked."""

    def __init__(self) -> None:
        self.widths: list[int] = []
        self.open = asyncio.Event()
        self.canaries = 0

    async def recommend(self, request_id: str, request: BeamRequest) -> BeamAnswer:
        self.widths.append(request.beam_width)
        await self.open.wait()
        return BeamAnswer(((0, 0),), (-1.0,), ((-0.5, -0.5),))

    async def update_catalog(self, delta: CatalogDelta) -> None: ...

    async def write_tokens(self, rows: Sequence[TokenRow]) -> None: ...

    async def statistics(self) -> EngineStatistics:
        return EngineStatistics(0, 0, len(self.widths), 0, 0, 0)

    async def canary(self) -> None:
        self.canaries += 1

    async def gone(self) -> None:
        await asyncio.Event().wait()

    async def close(self) -> None: ...


@pytest.mark.parametrize(("narrow", "widths"), [(False, [100, 100, 100, 100]), (True, [100, 100, 50, 80])])
async def test_beams_narrow_under_load_only_where_that_is_wished_and_never_below_the_results(
    narrow: bool, widths: list[int]
) -> None:
    inner = SlowEngine()
    engine = AdmittedEngine(inner, BeamRows(BeamLimits(100, 10**6, 10**6), Metrics()), narrow_under_load=narrow)
    wanted = [10, 10, 10, 80]
    tasks = []
    for number, num_results in enumerate(wanted):
        request = BeamRequest([1], 100, 0, num_results=num_results)
        tasks.append(asyncio.create_task(engine.recommend(str(number), request)))
        await asyncio.sleep(0)
    await engine.canary()
    assert inner.canaries == 1 and inner.widths == [100]
    inner.open.set()
    answers = await asyncio.gather(*tasks)
    assert sorted(inner.widths) == sorted(widths)
    assert [answer.beam_width for answer in answers] == [None if width == 100 else width for width in widths]
