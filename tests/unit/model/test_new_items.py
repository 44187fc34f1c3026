"""New items are scored by their texts and by what the beam found, and take no more places than they may."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from service.model.new_items import (
    NewItemDial,
    TrainedTexts,
    merge,
    model_shares,
    most_new_items,
    new_item_log_probs,
    text_log_probs,
)

PLAIN = NewItemDial(bias=0.0, text=1.0, model=0.0, temperature=0.1, decay=0.5)
scores = st.lists(st.floats(-50, 0), max_size=8).map(lambda found: sorted(found, reverse=True))


def unit(*rows: tuple[float, ...]) -> NDArray[np.float32]:
    found = np.array(rows, np.float32)
    return np.asarray(found / np.linalg.norm(found, axis=1, keepdims=True), np.float32)


def crowd(items: int = 300, width: int = 16, seed: int = 0) -> NDArray[np.float32]:
    return unit(*(tuple(row) for row in np.random.default_rng(seed).normal(size=(items, width))))


def test_p_text_is_the_softmax_among_the_trained_items() -> None:
    trained = unit((1, 0), (0, 1), (-1, 0))
    new = unit((1, 1))
    texts = TrainedTexts(trained, 0.1)
    logp = text_log_probs(texts.table(new), trained[:1], texts.log_density(trained[:1]), PLAIN)
    others = np.exp(0 / 0.1) + np.exp(-1 / 0.1)  # the item itself does not compete with the new one
    assert logp == pytest.approx([np.sqrt(0.5) / 0.1 - np.log(others)], abs=1e-4)


def test_the_newest_history_item_counts_most() -> None:
    trained = crowd()
    texts = TrainedTexts(trained, 0.1)
    table = texts.table(unit(tuple(trained[3] + 0.01), tuple(trained[7] + 0.01)))
    density = texts.log_density(trained[[3, 7]])
    first = text_log_probs(table, trained[[3, 7]], density, PLAIN)
    assert first[0] > first[1]
    again = text_log_probs(table, trained[[7, 3]], density[::-1], PLAIN)
    assert again[1] > again[0]


def test_history_beyond_the_dial_is_not_read() -> None:
    trained = crowd()
    texts = TrainedTexts(trained, 0.1)
    table, density = texts.table(crowd(5, seed=1)), texts.log_density(trained[:9])
    short = NewItemDial(0.0, 1.0, 0.0, history=2)
    whole = text_log_probs(table, trained[:9], density, short)
    assert np.array_equal(whole, text_log_probs(table, trained[:2], density[:2], short))


def test_what_the_beam_found_near_an_item_is_lent_to_it() -> None:
    trained = crowd()
    table = TrainedTexts(trained, 0.1).table(unit(tuple(trained[5] + 0.01), tuple(-trained[5])))
    share = np.zeros(len(trained), np.float32)
    share[5] = 0.5
    near, far = model_shares(table, share)
    assert near > 0.2 and far < 1e-3
    assert table.weight_MQ.sum(1) == pytest.approx(np.ones(2), abs=1e-5)


def test_scores_are_log_probabilities_whatever_the_dial() -> None:
    trained = crowd()
    texts = TrainedTexts(trained, 0.1)
    table, density = texts.table(crowd(50, seed=1)), texts.log_density(trained[:3])
    loud = NewItemDial(bias=40.0, text=1.0, model=1.0)
    logp = new_item_log_probs(table, trained[:3], density, np.zeros(len(trained), np.float32), loud)
    assert logp.dtype == np.float32 and np.isfinite(logp).all() and (logp <= 0).all()


def test_rule_10_a_text_that_resembles_everything_gains_nothing_by_it() -> None:
    """Items share a direction and differ around it; a stuffed text says only what all have in common."""
    random = np.random.default_rng(0)
    apart = random.normal(size=(400, 63)) / np.sqrt(63)
    trained = unit(*(tuple(row) for row in np.hstack([np.ones((400, 1)), apart])))
    texts = TrainedTexts(trained, 0.1)
    stuffed = unit((1.0, *[0.0] * 63))
    plain, penalised = texts.table(trained[:50]), texts.table(stuffed)
    assert penalised.penalty_M[0] > 0.5
    assert np.median(plain.penalty_M) == 0
    density = texts.log_density(trained)
    zeros = np.zeros(len(trained), np.float32)

    def exposure(table_row: NDArray[np.float32]) -> float:
        table = texts.table(table_row)
        per_user = [new_item_log_probs(table, trained[n : n + 1], density[n : n + 1], zeros, PLAIN) for n in range(400)]
        return float(np.exp(per_user).mean())

    best_natural = max(exposure(trained[n : n + 1]) for n in range(0, 400, 10))
    assert exposure(stuffed) <= 1.1 * best_natural


def test_a_catalogue_larger_than_the_sample_has_much_the_same_densities(monkeypatch: pytest.MonkeyPatch) -> None:
    trained = crowd(2000)
    whole = TrainedTexts(trained, 0.5).log_density(trained[:20])
    monkeypatch.setattr("service.model.new_items.MAX_REFERENCES", 1000)
    assert TrainedTexts(trained, 0.5).log_density(trained[:20]) == pytest.approx(whole, abs=0.15)


@given(scores, scores, st.integers(1, 10), st.integers(0, 10))
def test_a_merged_list_keeps_the_order_the_limit_and_the_cap(
    model: list[float], new: list[float], limit: int, most: int
) -> None:
    merged = merge([(f"m{n}", s) for n, s in enumerate(model)], [(f"n{n}", s) for n, s in enumerate(new)], limit, most)
    places, found = [place for place, _ in merged], [score for _, score in merged]
    assert found == sorted(found, reverse=True)
    assert len(places) == len(set(places)) == min(limit, len(model) + min(len(new), most))
    assert sum(place.startswith("n") for place in places) <= most
    kept_model = [place for place in places if place.startswith("m")]
    assert kept_model == [f"m{n}" for n in range(len(kept_model))]


@pytest.mark.parametrize(("share", "limit", "most"), [(0, 10, 0), (0.2, 10, 2), (0.2, 3, 1), (0.3, 10, 3), (1, 7, 7)])
def test_the_cap_is_a_share_of_the_list_but_one_place_at_least(share: float, limit: int, most: int) -> None:
    assert most_new_items(share, limit) == most


@pytest.mark.parametrize("wrong", [{"temperature": 0.0}, {"decay": 0.0}, {"decay": 1.5}, {"history": 0}])
def test_a_dial_that_makes_no_sense_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="needed"):
        NewItemDial(0.0, 1.0, 1.0, **wrong)  # type: ignore[arg-type]
