"""What an answer with new items is worth, counted by hand on a handful of users."""

import numpy as np
import pytest

from training.cold_report import ColdReport
from training.data import Example

REPORT = ColdReport(k=2, samples=100, seed=0)
IS_NEW = np.array([False, False, False, True, True])


def examples(*targets: int) -> list[Example]:
    return [Example(f"u{n}", (0,), target) for n, target in enumerate(targets)]


def test_an_item_with_many_users_counts_once_over_items() -> None:
    lists = [[3, 0], [3, 1], [0, 3], [1, 2]]
    row = REPORT.cold(lists, examples(3, 3, 3, 4))
    assert (row["users"], row["items"]) == (4, 2)
    assert row["hit_rate@2_over_users"][0] == 0.75
    assert row["hit_rate@2_over_items"][0] == 0.5


def test_a_hit_beyond_the_first_places_is_none() -> None:
    assert REPORT.cold([[0, 1, 3]], examples(3))["hit_rate@2_over_users"] == [0.0, 0.0, 0.0]


def test_what_known_items_lose_is_relative_to_the_lists_without_new_ones() -> None:
    without = [[0, 1], [0, 1], [1, 2], [2, 0]]
    with_new = [[0, 3], [0, 3], [1, 2], [2, 0]]
    row = REPORT.warm(with_new, without, examples(1, 0, 1, 2))
    assert row["hit_rate@2_without_new_items"][0] == 1.0
    assert row["relative_change"][0] == pytest.approx(-0.25)
    low, high = row["relative_change"][1:]
    assert -1 <= low <= -0.25 <= high <= 0


def test_exposure_counts_places_items_and_the_greediest() -> None:
    row = REPORT.exposure([[3, 0, 4], [3, 1], [0, 1]], IS_NEW)
    assert row == {"share_of_slots": 2 / 6, "new_items_shown": 0.5, "most_shown_item": 1.0}


def test_nobody_came_to_a_new_item() -> None:
    row = REPORT.cold([], [])
    assert (row["users"], row["items"], row["hit_rate@2_over_items"]) == (0, 0, [0.0, 0.0, 0.0])
