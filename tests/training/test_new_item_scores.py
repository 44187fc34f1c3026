"""The service and evaluation give a new item the same score, whatever the history holds."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from service.model.new_items import NewItemDial
from service.new_items import NewItems
from tests.training.test_calibrate import KNOWN, NEW, world
from training.calibrate import Group
from training.cold_items import ColdItems
from training.injection import InjectionDrill
from training.new_item_scores import NewItemScorer

DIAL = NewItemDial(bias=-0.5, text=0.9, model=0.2, temperature=0.1, decay=0.7, history=3)
FIRST_NEW = KNOWN
MIXED = [(0, 5), (0, FIRST_NEW, 5), (FIRST_NEW, 9), (9, FIRST_NEW, FIRST_NEW + 1), (FIRST_NEW, FIRST_NEW + 1)]


def served(items: ColdItems) -> NewItems:
    """The service's own search over the same items."""
    found = NewItems([str(n) for n in range(KNOWN)], items.embedding_NE[:KNOWN], DIAL)
    found.change({str(n): items.embedding_NE[n] for n in items.new_M})
    return found


@pytest.mark.parametrize("history", MIXED)
def test_service_and_evaluation_score_alike(history: tuple[int, ...]) -> None:
    items, _, warm = world()
    example, found = replace(warm.examples[0], history=history), warm.found
    one = replace(found, items=found.items[:1], scores=found.scores[:1])
    (ours_M,) = NewItemScorer(items, DIAL.temperature).log_probs([example], one, DIAL)
    pairs = zip(map(str, one.items[0]), one.scores[0], strict=True)
    theirs = dict(served(items).scored([str(item) for item in history], pairs))
    assert len(theirs) == NEW
    for place, item in enumerate(items.new_M.tolist()):
        if item not in history:
            assert ours_M[place] == pytest.approx(theirs[str(item)], abs=1e-4)


@pytest.mark.parametrize("history", MIXED[1:4])
def test_rule_10_new_items_do_not_find_each_other_beside_a_trained_one(history: tuple[int, ...]) -> None:
    items, _, warm = world()
    trained = tuple(item for item in history if item < KNOWN)
    with_new, without = (
        NewItemScorer(items, DIAL.temperature).features(
            [replace(warm.examples[0], history=part)], replace(warm.found, items=[[]], scores=[[]]), DIAL
        )[0]
        for part in (history, trained)
    )
    assert np.array_equal(with_new, without)


class Herd:
    """Embeds every injected text as nearly the same one, far from everything: what foreign words do to short texts."""

    def encode(self, texts: list[str], batch_size: int = 32) -> NDArray[np.float32]:
        width = world()[0].embedding_NE.shape[1]
        noise = np.random.default_rng(0).normal(size=(len(texts), width)) * 0.02
        rows = np.eye(width)[0] + noise
        return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), np.float32)


def test_rule_10_a_herd_of_injected_titles_in_histories_is_shown_no_more_than_with_clean_ones() -> None:
    items, _, warm = world()
    met = [replace(e, history=(*e.history, FIRST_NEW + n % NEW)) for n, e in enumerate(warm.examples)]
    group = Group(met, warm.found)
    dial = NewItemDial(1.0, 1.0, 0.0)
    drills = [InjectionDrill(items, group, dial, 10, mode).ratios(Herd()) for mode in ("twins", "clean")]  # type: ignore[arg-type]
    assert drills[0] == drills[1]
