"""New nodes, and only they, borrow from trained siblings by text similarity."""

import math

import numpy as np
import pytest

from service.model.smoothing import SiblingMixer

TRAINED = np.array([[0, 0, 1], [0, 0, 2], [0, 1, 0], [3, 0, 0]])
EMBEDDINGS = np.array([[1, 0], [0, 1], [1, 1], [-1, 0]], np.float32)


def mixer(temperature: float = 0.1) -> SiblingMixer:
    return SiblingMixer(TRAINED, EMBEDDINGS, codes=5, temperature=temperature)


def test_a_new_leaf_is_weighed_against_the_items_beside_it() -> None:
    mixes = mixer().mixes([((0, 0, 4), np.array([1, 0], np.float32))])
    assert set(mixes) == {(0, 0, 4)}
    mix = mixes[(0, 0, 4)]
    assert mix.codes == (1, 2)
    assert [math.exp(w) for w in mix.log_weights] == pytest.approx([1 / (1 + math.exp(-10)), 1 / (1 + math.exp(10))])


def test_a_new_inner_node_is_weighed_by_what_lies_below_its_siblings() -> None:
    mixes = mixer().mixes([((0, 4, 2), np.array([1, 1], np.float32))])
    assert set(mixes) == {(0, 4)}
    assert mixes[(0, 4)].codes == (0, 1)
    assert mixes[(0, 4)].log_weights == pytest.approx([-math.log(2)] * 2)


def test_a_first_code_nobody_has_borrows_from_the_first_level() -> None:
    mixes = mixer().mixes([((2, 0, 0), np.array([-1, 0], np.float32))])
    assert set(mixes) == {(2,)}
    assert mixes[(2,)].codes == (0, 3)
    assert mixes[(2,)].log_weights[1] == pytest.approx(0, abs=1e-4)


def test_a_trained_sid_borrows_nothing() -> None:
    assert mixer().mixes([((0, 0, 1), np.array([1, 0], np.float32))]) == {}


def test_the_temperature_must_be_positive() -> None:
    with pytest.raises(ValueError, match="positive"):
        mixer(0)
