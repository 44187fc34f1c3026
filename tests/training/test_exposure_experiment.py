"""The arms differ in what they are said to differ in: a herd of twins finds itself only where new items may speak."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from service.model.new_items import NewItemDial
from tests.training.test_calibrate import KNOWN, NEW, REPORT, WIDTH, world
from training.calibrate import CalibrationOptions
from training.experiments.exposure.arms import ARMS, SERVED
from training.experiments.exposure.measure import RememberedTexts, Trial
from training.new_item_scores import NewItemScorer

DIAL = NewItemDial(-1.0, 1.0, 0.0)


class Herd:
    """Embeds every injected text as nearly the same one: what foreign words do to short texts. Counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def encode(self, texts: Sequence[str], batch_size: int = 32) -> NDArray[np.float32]:
        self.calls += 1
        rows = np.eye(WIDTH)[0] + np.random.default_rng(0).normal(size=(len(texts), WIDTH)) * 0.05
        return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), np.float32)


def trial(herd: Herd) -> Trial:
    """Users who each met one new item at last."""
    items, cold, warm = world()
    met = [replace(e, history=(*e.history, KNOWN + n % NEW)) for n, e in enumerate(warm.examples)]
    groups = (cold, replace(warm, examples=met))
    return Trial(items, groups, groups, REPORT, CalibrationOptions(), RememberedTexts(herd))


@pytest.mark.parametrize("mode", ["twins", "only_new"])
def test_rule_10_a_herd_in_histories_gains_where_new_items_speak_and_nothing_as_served(mode: str) -> None:
    herd = Herd()
    measured = trial(herd)
    gained = {name: measured.row(ARMS[name], DIAL)["injected"][mode] for name in ("all", SERVED)}
    assert min(ratio for ratio, _, _ in gained["all"].values()) > 1.1
    assert max(ratio for ratio, _, _ in gained[SERVED].values()) <= 1.1
    assert herd.calls == 3


def test_the_served_arm_is_what_the_service_and_evaluation_do() -> None:
    measured = trial(Herd())
    group = measured.test[1]
    served, ours = (
        made(measured.items, DIAL.temperature, None).log_probs(group.examples, group.found, DIAL)
        for made in (ARMS[SERVED].scorer, NewItemScorer)
    )
    assert np.array_equal(served, ours)


@pytest.mark.parametrize("name", sorted(set(ARMS) - {SERVED}))
def test_every_other_arm_changes_scores(name: str) -> None:
    measured = trial(Herd())
    items, group = measured.items, measured.test[1]
    twins_ME = Herd().encode([""] * NEW)
    embedding_NE = items.embedding_NE.copy()
    embedding_NE[items.new_M] = twins_ME
    twinned = replace(items, embedding_NE=embedding_NE)
    only_new = [replace(example, history=example.history[-1:]) for example in group.examples]
    other, served = (
        ARMS[arm].scorer(twinned, DIAL.temperature).log_probs(examples, group.found, DIAL)
        for examples in ([*group.examples[:200], *only_new[200:]],)
        for arm in (name, SERVED)
    )
    assert not np.allclose(other, served, atol=1e-3)
