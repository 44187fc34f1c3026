"""Calibration raises new items as far as known ones can afford, and merges as the service does."""

import numpy as np
import pytest

from service.model.new_items import NewItemDial
from training.calibrate import OFFSETS, CalibrationOptions, Group, blended, calibrate, new_places
from training.cold_items import ColdItems
from training.cold_report import ColdReport
from training.data import CatalogItem, Example
from training.errors import DataError
from training.recommender import Recommended

KNOWN, NEW, WIDTH = 120, 20, 16
REPORT = ColdReport(k=10, samples=100, seed=0)


def world(users: int = 400, seed: int = 0) -> tuple[ColdItems, Group, Group]:
    """Users of one topic; who comes to a new item comes to one of the topic, so that its text tells."""
    random = np.random.default_rng(seed)
    topic_N = random.integers(0, 8, KNOWN + NEW)
    embedding = np.eye(8)[topic_N] @ random.normal(size=(8, WIDTH)) + 0.5 * random.normal(size=(KNOWN + NEW, WIDTH))
    embedding /= np.linalg.norm(embedding, axis=1, keepdims=True)
    row_N = np.concatenate([np.arange(KNOWN), np.full(NEW, -1)])
    records = tuple(CatalogItem(f"n{n}", f"title {n}") for n in range(NEW))
    items = ColdItems(
        row_N,
        np.zeros((KNOWN + NEW, 2), np.int64),
        embedding.astype(np.float32),
        row_N * 0,
        (),
        (),
        records,
        np.empty((KNOWN + NEW, 0), np.int64),
    )
    groups = []
    for first, last, count in ((KNOWN, KNOWN + NEW, users // 10), (0, KNOWN, users)):
        examples, lists = [], []
        for user in range(count):
            target = int(random.integers(first, last))
            mates = np.flatnonzero(topic_N[:KNOWN] == topic_N[target])
            history = tuple(int(item) for item in random.choice(mates, 3) if item != target)
            examples.append(Example(f"u{user}", history or (int(mates[0]),), target))
            found = [int(item) for item in random.permutation(KNOWN) if item != target][:30]
            lists.append([*found[: user % 10], target, *found[user % 10 :]][:30] if target < KNOWN else found)
        scores = [list(-3.0 - 0.1 * np.arange(30)) for _ in lists]
        groups.append(Group(examples, Recommended(lists, scores, 0)))
    return items, groups[0], groups[1]


def test_text_that_tells_gets_its_weight_and_known_items_keep_theirs() -> None:
    items, cold, warm = world()
    options = CalibrationOptions(warm_loss=0.1, max_share=1.0)
    dial, told = calibrate(items, cold, warm, REPORT, options)
    assert dial.text > 0.3
    row = next(row for row in told["curve"] if row["offset"] == told["offset"])
    assert row["warm_change"] >= -0.05
    assert row["cold_over_users"] > 0.3
    assert dial.bias == pytest.approx(told["fitted_bias"] + told["offset"])


def test_a_larger_allowance_never_gives_new_items_less() -> None:
    items, cold, warm = world()
    offsets = [
        calibrate(items, cold, warm, REPORT, CalibrationOptions(warm_loss=loss))[1]["offset"] for loss in (0, 0.02, 0.5)
    ]
    assert offsets == sorted(offsets)
    assert offsets[0] < offsets[-1] == max(OFFSETS)


def test_too_few_users_are_refused() -> None:
    items, cold, warm = world(users=100)
    with pytest.raises(DataError, match=r"only 10 users .* raise data\.hold_out"):
        calibrate(items, cold, warm, REPORT, CalibrationOptions())


def test_a_short_list_is_filled_with_new_items_beyond_their_share() -> None:
    found = Recommended([[1, 2], list(range(1, 11))], [[-1.0, -2.0], [-1.0] * 10], 0)
    places = [[(50 + n, -0.5) for n in range(10)]] * 2
    short, full = blended(found, places, CalibrationOptions(k=10, max_share=0.2))
    assert len(short) == 10 and sum(item >= 50 for item in short) == 8
    assert sum(item >= 50 for item in full) == 2


def test_an_item_of_the_history_is_not_offered_again() -> None:
    items, cold, _ = world()
    first = cold.examples[0]
    group = Group([Example("u", (*first.history, KNOWN + 3), KNOWN)], Recommended([[1]], [[-1.0]], 0))
    places = new_places(items, group, NewItemDial(0.0, 1.0, 0.0), 30)
    assert len(places[0]) == NEW - 1 and KNOWN + 3 not in dict(places[0])
