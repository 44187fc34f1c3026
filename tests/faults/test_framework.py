"""The drills' own parts: a verdict that can fail, a table that keeps other rows, alerts judged by what was recorded."""

from pathlib import Path

import pytest

from tests.faults.alerts import IMPOSSIBLE, alert_names, firing
from tests.faults.drill import Drill, Result
from tests.faults.drills import DRILLS, chosen
from tests.faults.figure import Figure, count, seconds
from tests.faults.recording import Recording
from tests.faults.scene import Scene
from tests.faults.table import END, START, write_table

TARGET = 'instance="replica-0",namespace="drills"'
ENGINE, BUILD = f'rec_dependency_up{{dependency="engine",{TARGET}}}', f"rec_build_info{{{TARGET}}}"


def result(number: int, *figures: Figure, failure: str = "") -> Result:
    async def run(scene: Scene, length: float) -> list[Figure]:
        return []

    return Result(Drill(number, f"drill-{number}", "something", run), figures, 1.0, failure)


def test_slack_widens_times_and_never_what_must_be_exact() -> None:
    assert not seconds("unready after", 3.0, 2.0).holds()
    assert seconds("unready after", 3.0, 2.0).holds(slack=2.0)
    assert not count("lost", 1).holds(slack=100.0)
    assert not Figure("answered", 0.9, "at least", 1.0, hard=True).holds(slack=100.0)


def test_a_drill_without_figures_or_with_a_breakdown_is_short() -> None:
    assert result(1, count("lost", 0)).ok
    assert not result(1).ok
    assert not result(1, count("lost", 1)).ok
    assert not result(1, failure="TimeoutError: no answer").ok


def test_a_table_keeps_the_rows_of_drills_that_were_not_carried_out(tmp_path: Path) -> None:
    file = tmp_path / "README.md"
    file.write_text(f"before\n{START}\n{END}\nafter\n")
    write_table(file, [result(2, count("lost", 0)), result(10, count("lost", 0))])
    write_table(file, [result(2, count("lost", 3))])
    text = file.read_text()
    assert text.startswith("before\n") and text.endswith("after\n")
    assert [line.split(" | ")[:2] for line in text.splitlines() if "`drill-" in line] == [
        ["| 2", "`drill-2`"],
        ["| 10", "`drill-10`"],
    ]
    assert "lost 3 (exactly 0) **short**" in text


def test_a_breakdown_of_many_lines_is_one_row(tmp_path: Path) -> None:
    file = tmp_path / "README.md"
    file.write_text(f"{START}\n{END}\n")
    write_table(file, [result(2, failure="RuntimeError: it said\n| much |\nbefore")])
    assert "RuntimeError: it said / much / before" in file.read_text()


def test_drills_are_found_by_name_and_number_and_never_twice() -> None:
    assert [drill.number for drill in chosen(["2", "redis-frozen", "1"])] == [2, 1]
    assert len({drill.number for drill in DRILLS}) == len({drill.name for drill in DRILLS}) == len(DRILLS)
    with pytest.raises(ValueError, match="no drill is called 'redis'"):
        chosen(["redis"])


def test_alerts_fire_on_what_was_recorded_and_on_nothing_else(tmp_path: Path) -> None:
    well = [{ENGINE: 1.0, BUILD: 1.0}] * 3
    assert firing(Recording("well", well), tmp_path) == set()
    assert firing(Recording("ill", [*well, *[{ENGINE: 0.0, BUILD: 1.0}] * 3]), tmp_path) == {"GroundrecEngineDown"}
    assert firing(Recording("gone", [*well, *[dict[str, float]()] * 5]), tmp_path) == {"GroundrecAbsent"}


def test_an_alert_that_no_drill_can_raise_is_one_that_there_is() -> None:
    assert set(IMPOSSIBLE) < set(alert_names())
