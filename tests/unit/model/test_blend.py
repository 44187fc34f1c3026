"""The blend against its equation written out item by item, and what it promises at its edges."""

import math

import numpy as np
import pytest

from service.model.blend import FLOOR, NONE, Blend, BlendWeights, Neighbours, log_densities

ITEMS, NEAR = 30, 6
WEIGHTS = BlendWeights(0.6, 0.3, 0.4, reach=0.5, temperature=0.1, decay=0.7, history=3)


def world(seed: int = 0) -> tuple[Neighbours, np.ndarray]:
    random = np.random.default_rng(seed)
    embedding = random.normal(size=(ITEMS, 5)).astype(np.float32)
    embedding /= np.linalg.norm(embedding, axis=1, keepdims=True)
    near = np.array(
        [random.choice(np.delete(np.arange(ITEMS), i), NEAR, replace=False) for i in range(ITEMS)], np.int32
    )
    near[4, 2:] = NONE
    cosine = np.where(near == NONE, 0, random.uniform(0.1, 1, near.shape)).astype(np.float32)
    return Neighbours(near, cosine, log_densities(embedding, WEIGHTS.temperature)), embedding


def by_hand(
    neighbours: Neighbours, embedding: np.ndarray, history: list[int], beam: dict[int, float]
) -> dict[int, float]:
    """The equation, one candidate at a time; ``history`` newest first."""
    recent = history[: WEIGHTS.history]
    weights = [WEIGHTS.decay**k for k in range(len(recent))]
    listed = [
        {int(j): float(c) for j, c in zip(*row, strict=True) if j != NONE}
        for row in zip(neighbours.neighbour_NQ[recent], neighbours.strength_NQ[recent], strict=True)
    ]
    everything = sum(w * sum(row.values()) for w, row in zip(weights, listed, strict=True))
    candidates = set(beam) | {j for row in listed for j in row if j not in history}
    scores = {}
    for i in candidates:
        company = sum(w * row.get(i, 0.0) for w, row in zip(weights, listed, strict=True)) / everything
        text = 0.0
        for w, h in zip(weights, recent, strict=True):
            others = [
                math.exp(float(embedding[h] @ embedding[j]) / WEIGHTS.temperature) for j in range(ITEMS) if j != h
            ]
            own = 0.0 if i == h else math.exp(float(embedding[h] @ embedding[i]) / WEIGHTS.temperature)
            text += w / sum(weights) * own / sum(others)
        parts = (math.exp(beam[i]) if i in beam else 0.0, company, text)
        of = (WEIGHTS.model, WEIGHTS.company, WEIGHTS.text)
        scores[i] = sum(w * math.log(p + FLOOR) for w, p in zip(of, parts, strict=True))
    total = math.log(sum(math.exp(score) for score in scores.values()))
    return {i: score - total + math.log(WEIGHTS.reach) for i, score in scores.items()}


@pytest.mark.parametrize("history", [[3], [4, 9], [1, 2, 4, 7, 8, 9], [4]])
@pytest.mark.parametrize("seed", range(3))
def test_it_is_the_equation(history: list[int], seed: int) -> None:
    neighbours, embedding = world(seed)
    beam = {11: -1.5, 3: -2.0, 20: -4.0, 2: -9.0}
    found, log_prob = np.array(list(beam)), np.array(list(beam.values()))
    rows, scores = Blend(neighbours, embedding, WEIGHTS).ranked(np.array(history), found, log_prob)
    wanted = by_hand(neighbours, embedding, history, beam)
    assert dict(zip(rows.tolist(), scores.tolist(), strict=True)) == pytest.approx(wanted, abs=1e-4)
    assert scores.tolist() == sorted(scores.tolist(), reverse=True)
    assert math.fsum(math.exp(score) for score in scores) == pytest.approx(WEIGHTS.reach)


@pytest.mark.parametrize("seed", range(3))
def test_shares_are_the_parts_of_the_score(seed: int) -> None:
    neighbours, embedding = world(seed)
    blend = Blend(neighbours, embedding, WEIGHTS)
    asked = np.array([1, 2, 4, 7]), np.array([11, 20]), np.array([-1.5, -4.0])
    rows, scores = blend.ranked(*asked)
    share_P3, companion = blend.shares(*asked, rows)
    weighed = np.log(share_P3 + FLOOR) @ [WEIGHTS.model, WEIGHTS.company, WEIGHTS.text]
    assert scores - weighed == pytest.approx(scores[0] - weighed[0])
    assert share_P3[:, 1].sum() <= 1 + 1e-9 and (share_P3[rows == 11, 0]) == pytest.approx(math.exp(-1.5))
    for row, (_, company, _), told in zip(rows, share_P3, companion, strict=True):
        said = {
            int(item): WEIGHTS.decay**k
            * float(neighbours.strength_NQ[item][neighbours.neighbour_NQ[item] == row].sum())
            for k, item in enumerate([1, 2, 4])
        }
        assert told == (max(said, key=lambda item: said[item]) if company > 1e-9 else NONE)


def test_shares_without_a_history_are_the_model_s() -> None:
    neighbours, embedding = world()
    asked = np.array([], np.int64), np.array([8, 2]), np.array([-0.5, -1.0])
    share_P3, companion = Blend(neighbours, embedding, WEIGHTS).shares(*asked, np.array([2, 8]))
    assert share_P3 == pytest.approx(np.array([[math.exp(-1.0), 0, 0], [math.exp(-0.5), 0, 0]]))
    assert companion.tolist() == [NONE, NONE]


def test_a_history_item_comes_back_only_if_the_beam_found_it() -> None:
    neighbours, embedding = world()
    blend = Blend(neighbours, embedding, WEIGHTS)
    history = np.array([5, *neighbours.neighbour_NQ[5].tolist()])
    other = min(set(range(ITEMS)) - set(history.tolist()))
    without, _ = blend.ranked(history, np.array([other]), np.array([-1.0]))
    assert not set(without.tolist()) & set(history.tolist())
    repeated, _ = blend.ranked(history, np.array([other, history[1]]), np.array([-1.0, -2.0]))
    assert set(repeated.tolist()) & set(history.tolist()) == {int(history[1])}


def test_without_a_known_item_the_model_s_order_stays() -> None:
    neighbours, embedding = world()
    found, log_prob = np.array([8, 2, 5]), np.array([-0.5, -1.0, -2.0])
    rows, _ = Blend(neighbours, embedding, WEIGHTS).ranked(np.array([], np.int64), found, log_prob)
    assert rows.tolist() == [8, 2, 5]


def test_of_equal_scores_the_model_s_favourite_goes_first() -> None:
    neighbours, embedding = world()
    company_alone = BlendWeights(0.0, 0.4, 0.0)
    found, log_prob = np.array([8, 2, 5]), np.array([-0.5, -2.0, -1.0])
    rows, scores = Blend(neighbours, embedding, company_alone).ranked(np.array([], np.int64), found, log_prob)
    assert rows.tolist() == [8, 5, 2] and len(set(scores.tolist())) == 1


def test_texts_that_are_all_the_same_have_a_density_that_can_be_stored() -> None:
    same = np.tile(np.eye(4, dtype=np.float32)[0], (5, 1))
    density = log_densities(same, 0.1)
    assert np.isfinite(density).all()
    neighbours = Neighbours(np.full((5, 1), NONE, np.int32), np.zeros((5, 1), np.float32), density)
    found, log_prob = np.array([1, 2]), np.array([-1.0, -2.0])
    _, scores = Blend(neighbours, same, WEIGHTS).ranked(np.array([0]), found, log_prob)
    assert np.isfinite(scores).all()


def test_nothing_found_and_nobody_near_is_an_empty_answer() -> None:
    neighbours, embedding = world()
    empty = np.array([], np.int64)
    rows, scores = Blend(neighbours, embedding, WEIGHTS).ranked(empty, empty, np.array([]))
    assert (len(rows), len(scores)) == (0, 0)


def test_neighbours_survive_being_stored() -> None:
    neighbours, _ = world()
    again = Neighbours.from_tensors(neighbours.tensors())
    for name in ("neighbour_NQ", "strength_NQ", "log_density_N"):
        assert np.array_equal(getattr(again, name), getattr(neighbours, name))


@pytest.mark.parametrize("change", [{"temperature": 0.0}, {"decay": 1.5}, {"history": 0}, {"reach": 0.0}])
def test_senseless_weights_are_refused(change: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="temperature > 0"):
        BlendWeights(1, 1, 1, **change)  # type: ignore[arg-type]
