"""Medians, ratios inside rounds, verdicts on targets: figures are judged as the documentation says."""

import pytest

from loadtest.engine.paired import middle, paired_ratio, spread
from loadtest.engine.rows import Row
from loadtest.engine.targets import TARGETS, Target, judge


def cell(contender: str, cpu_ms: list[float], mode: str = "eager", **place: int) -> Row:
    where = {"batch": 8, "beam": 50, "prompt": 160} | place
    name = f"{mode} {where}"
    return {
        "section": "cells",
        "world": "main",
        "name": name,
        "mode": mode,
        "contender": contender,
        "cost_ms": cpu_ms,
        **where,
    }


def verdict(rows: list[Row], target: str, mode: str = "eager") -> tuple[float | None, str]:
    (found,) = [one for one in judge(rows, [mode], "main") if one.target.startswith(target)]
    return found.measured, found.verdict


def test_a_ratio_is_taken_inside_each_round_so_a_slow_round_cancels() -> None:
    assert paired_ratio([4.0, 40.0, 4.4], [1.0, 10.0, 1.0]) == 4.0


@pytest.mark.parametrize(("above", "below"), [([1.0], [1.0, 2.0]), ([], []), ([1.0], [0.0])])
def test_what_cannot_be_paired_is_refused(above: list[float], below: list[float]) -> None:
    with pytest.raises(ValueError):
        paired_ratio(above, below)


def test_middle_and_spread() -> None:
    assert middle([3.0, 1.0, 2.0]) == 2.0
    assert spread([2.0, 4.0, 3.0]) == 2.0
    with pytest.raises(ValueError):
        middle([])


def test_a_rival_is_judged_in_our_own_mode_and_cell() -> None:
    rows = [
        cell("ours", [100.0]),
        cell("one_token", [390.0]),
        cell("ours", [50.0], "compiled"),
        cell("one_token", [250.0], "compiled"),
        cell("one_token", [9000.0], batch=1),
    ]
    assert verdict(rows, "one-token loop") == (3.9, "short")
    assert verdict(rows, "one-token loop", "compiled") == (5.0, "pass")


def test_the_hardware_line_is_judged_by_its_worst_cell() -> None:
    rows = [cell("ours", [100.0]), cell("line", [95.0]), cell("ours", [100.0], beam=20), cell("line", [89.0], beam=20)]
    assert verdict(rows, "hardware line") == (0.89, "short")


def test_another_worlds_rows_judge_nothing() -> None:
    rows: list[Row] = [{**cell(name, [1.0]), "world": "other"} for name in ("ours", "line")]
    assert verdict(rows, "hardware line") == (None, "not measured")


def test_an_upper_bound_is_met_from_below() -> None:
    def share(value: float) -> list[Row]:
        return [{"section": "costs", "name": "c", "mode": "eager", "figure": "prefix_memory_share", "value": value}]

    assert verdict(share(0.02), "prefix memory") == (0.02, "pass")
    assert verdict(share(0.021), "prefix memory") == (0.021, "short")


def test_the_constraint_is_what_the_beam_costs_over_an_unconstrained_one_beside_the_model() -> None:
    rows: list[Row] = [
        {
            "section": "constraint",
            "name": "1000000",
            "items": 10**6,
            "beam_ms": [6.0, 6.0, 9.0],
            "unconstrained_ms": [5.0, 5.0, 5.0],
            "bytes_per_item": 20.0,
            "build_s": 1.0,
        },
        {"section": "costs", "name": "c", "mode": "eager", "figure": "decode_ms_per_batch", "value": 200.0},
    ]
    assert verdict(rows, "constraint's share") == (0.005, "pass")


def test_what_no_row_says_is_not_measured() -> None:
    assert {one.verdict for one in judge([], ["eager", "compiled"], "main")} == {"not measured"}


def test_targets_without_a_compiled_bound_are_judged_once() -> None:
    names = [one.target for one in judge([], ["eager", "compiled"], "main")]
    assert names.count("start until the first canary, s") == 1
    assert names.count("prefix memory's share") == 2
    assert len(set(names)) == len(TARGETS)


def test_a_bound_of_exactly_the_measure_passes() -> None:
    assert Target("t", lambda rows, mode: 4.0, 4.0, True).judge([], "eager").verdict == "pass"
