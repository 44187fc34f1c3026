"""The quick drills as tests, all on one service: what is about correctness holds as it stands, times with slack.

A test machine is shared, so a time may be `SLACK` times its limit before a test fails; what is over the limit itself is
printed. The commands allow none.
"""

import asyncio
from pathlib import Path

import pytest

from tests.faults.drill import Drill, Result, carry_out
from tests.faults.drills import QUICK
from tests.faults.scene import Scene

SLACK = 10.0
pytestmark = pytest.mark.timeout(1200)  # all of them run before the first is judged


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Result]:
    return asyncio.run(_carry_out(tmp_path_factory.mktemp("drills")))


async def _carry_out(folder: Path) -> dict[int, Result]:
    async with Scene(folder) as scene:
        return {drill.number: await carry_out(drill, scene, drill.quick) for drill in QUICK}


@pytest.mark.parametrize("drill", QUICK, ids=lambda drill: drill.name)
def test_what_breaks_is_answered_for(drill: Drill, results: dict[int, Result]) -> None:
    result = results[drill.number]
    print(*(figure.line for figure in result.figures), sep="\n")
    assert not result.failure
    assert [figure.line for figure in result.figures if not figure.holds(SLACK)] == []
