"""The baselines on toy data, where the right answer is plain to see."""

import numpy as np

from training.baselines import CoOccurrence, Popularity, TextNeighbours, rank
from training.data import Example

TRAIN = {"a": (0, 1, 2), "b": (0, 1), "c": (3, 4), "d": (3, 4, 0)}


def test_popularity_ranks_by_count_and_breaks_ties_by_number() -> None:
    scorer = Popularity(np.array([3, 2, 1, 2, 2]))
    assert rank(scorer, [Example("x", (4,), 0)], length=5, exclude_seen=False) == [[0, 1, 3, 4, 2]]
    assert rank(scorer, [Example("x", (0, 4), 0)], length=2, exclude_seen=True) == [[1, 3]]


def test_co_occurrence_is_the_cosine_of_user_sets() -> None:
    scores = CoOccurrence(TRAIN, 6).scores((3,))
    assert np.isclose(scores[4], 1.0)
    assert np.isclose(scores[0], 1 / np.sqrt(2 * 3))
    assert scores[3] == scores[1] == scores[5] == 0.0


def test_co_occurrence_weighs_recent_items_more() -> None:
    scorer = CoOccurrence(TRAIN, 6)
    assert scorer.scores((1, 3))[4] > scorer.scores((3, 1))[4]
    assert scorer.scores((3, 1))[2] > scorer.scores((1, 3))[2]


def test_text_neighbours_of_the_last_item() -> None:
    embedding = np.array([[1, 0], [0.9, 0.1], [0, 1]], np.float32)
    assert rank(TextNeighbours(embedding), [Example("x", (2, 0), 1)], length=2, exclude_seen=True) == [[1]]
    assert rank(TextNeighbours(embedding), [Example("x", (0,), 1)], length=1, exclude_seen=False) == [[0]]
