"""Users stick to their model by share, silent engines lose their traffic, and a lane that goes finishes its work."""

import asyncio
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from service.errors import EngineError
from service.lane import Lane
from service.lanes import Lanes, ServedLane, drain
from service.recommendation import RecommendQuery


def served(version: str, share: float, *, shadow: bool = False, well: bool = True) -> ServedLane:
    async def close() -> None:
        pass

    lane = cast(Lane, SimpleNamespace(options=SimpleNamespace(model_version=version)))
    catalogs: Any = SimpleNamespace(current=f"catalogue of {version}")
    nothing: Any = None
    return ServedLane(lane, catalogs, Path(version), nothing, "log", nothing, dict, share, shadow, lambda: well, close)


def lanes(*each: ServedLane) -> Lanes:
    made = Lanes()
    for one in each:
        made.add(one)
    return made


def assignment(choice: Lanes, users: int = 4000) -> dict[str, str]:
    return {f"u{n}": choice.choose(RecommendQuery(user_id=f"u{n}")).model_version for n in range(users)}


def test_users_are_spread_by_share_and_stay_where_they_are() -> None:
    choice = lanes(served("a", 0.9), served("b", 0.1))
    placed = assignment(choice)
    assert 0.08 < Counter(placed.values())["b"] / 4000 < 0.12
    assert assignment(choice) == placed
    assert assignment(lanes(served("a", 9), served("b", 1))) == placed  # shares are relative; replicas agree


def test_a_growing_share_moves_users_one_way_only() -> None:
    before, after = (assignment(lanes(served("a", 1 - share), served("b", share))) for share in (0.1, 0.3))
    assert all(after[user] == "b" for user, model in before.items() if model == "b")


def test_requests_without_a_user_follow_the_shares() -> None:
    choice = lanes(served("a", 0.5), served("b", 0.5), served("c", 0))
    found = Counter(choice.choose(RecommendQuery()).model_version for _ in range(2000))
    assert set(found) == {"a", "b"} and abs(found["a"] - 1000) < 200


def test_a_silent_engine_loses_its_traffic_to_the_others() -> None:
    assert set(assignment(lanes(served("a", 0.5), served("b", 0.5, well=False)), 50).values()) == {"a"}
    # if nobody is well, everybody keeps their place: fallbacks answer, and nobody moves twice
    silent = assignment(lanes(served("a", 0.5, well=False), served("b", 0.5, well=False)), 50)
    assert set(silent.values()) == {"a", "b"}


def test_the_primary_has_the_largest_share() -> None:
    choice = lanes(served("a", 0.2), served("b", 0.5), served("c", 0.5))
    assert choice.primary.model_version == "b"
    assert cast(Any, choice.current) == "catalogue of b"
    with pytest.raises(EngineError):
        _ = Lanes().primary


def test_shadows_get_no_traffic_by_themselves() -> None:
    choice = lanes(served("a", 1), served("b", 0, shadow=True), served("c", 0, shadow=True, well=False))
    assert set(assignment(choice, 50).values()) == {"a"}
    assert [each.model_version for each in choice.shadows()] == ["b"]


async def test_a_lane_that_goes_finishes_what_it_has_begun() -> None:
    leaving, staying = served("a", 1), served("b", 1)
    choice = lanes(leaving)
    release = asyncio.Event()

    async def request() -> str:
        with choice.enter(RecommendQuery(user_id="u")) as lane:
            await release.wait()
            return lane.options.model_version

    at_work = asyncio.create_task(request())
    await asyncio.sleep(0)
    choice.add(staying)
    choice.remove(leaving)
    assert choice.choose(RecommendQuery(user_id="u")) is staying
    assert not await drain(leaving, 0.01)
    release.set()
    assert await drain(leaving, 5)
    assert await at_work == "a"


async def test_work_that_fails_holds_nobody_up() -> None:
    leaving = served("a", 1)
    with pytest.raises(RuntimeError), leaving.at_work():
        raise RuntimeError
    assert await drain(leaving, 1)
