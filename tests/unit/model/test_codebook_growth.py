"""A kind that the codebooks do not know is found; items of known kinds and scattered outliers are left alone."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from service.model.codebook_growth import propose_codes, usual_shares
from service.model.quantizer import OpenedCode, ResidualQuantizer

LEVELS, CODES, WIDTH = 3, 6, 128  # in few dimensions scattered points do have clusters
Points = NDArray[np.float32]


class World:
    """Codebooks, and items around their codes: each level's vectors are a third as long as those above."""

    def __init__(self) -> None:
        self.random = np.random.default_rng(0)
        books = self.random.normal(size=(LEVELS, CODES, WIDTH)).astype(np.float32)
        books /= np.linalg.norm(books, axis=2, keepdims=True)
        books *= np.array([1.0, 0.35, 0.1], np.float32)[:, None, None]
        self.books, self.quantizer = books, ResidualQuantizer(torch.from_numpy(books))
        self.usual = usual_shares(self.quantizer, self.known(400))

    def known(self, count: int) -> Points:
        codes = self.random.integers(0, CODES, (LEVELS, count))
        return self.around(sum(self.books[level][codes[level]] for level in range(LEVELS)))

    def around(self, centre: Points, spread: float = 0.01) -> Points:
        found: Points = (centre + spread * self.random.normal(size=centre.shape)).astype(np.float32)
        return found

    def direction(self, length: float) -> Points:
        vector = self.random.normal(size=WIDTH)
        found: Points = (length * vector / np.linalg.norm(vector)).astype(np.float32)
        return found

    def unknown(self, count: int, *, level: int = 0) -> Points:
        """Items of one kind: a vector that no codebook has at ``level``, known codes elsewhere."""
        places = self.random.integers(0, CODES, (LEVELS, count))
        parts = [self.books[each][places[each]] for each in range(LEVELS)]
        parts[level] = np.repeat(self.direction((1.0, 0.6)[level])[None], count, axis=0)
        return self.around(np.sum(parts, axis=0))


@pytest.fixture
def world() -> World:
    return World()


def proposals(world: World, items: Points, min_items: int = 10, spare: tuple[int, ...] = (4, 4, 0)) -> list[object]:
    return list(propose_codes(world.quantizer, items, world.usual, spare, min_items))


@pytest.mark.parametrize("level", [0, 1])
def test_a_planted_kind_is_found_among_known_items_at_the_level_that_lacks_it(world: World, level: int) -> None:
    items = np.concatenate([world.known(200), world.unknown(30, level=level)])
    found = propose_codes(world.quantizer, items, world.usual, (4, 4, 0), 10)
    assert [each.level for each in found] == [level]
    assert set(found[0].members) <= set(range(200, 230)) and len(found[0].members) >= 27
    assert found[0].left_after < 0.7 * found[0].left_before


def test_the_opened_code_takes_the_kind_and_nothing_else(world: World) -> None:
    known, kind = world.known(200), world.unknown(30)
    found = propose_codes(world.quantizer, np.concatenate([known, kind]), world.usual, (4, 4, 0), 10)
    grown = world.quantizer.with_opened([OpenedCode(0, CODES + 2, found[0].centroid_D)])
    assert (grown.encode(torch.from_numpy(kind))[:, 0] == CODES + 2).all()
    assert torch.equal(grown.encode(torch.from_numpy(known)), world.quantizer.encode(torch.from_numpy(known)))
    again = propose_codes(grown, np.concatenate([known, kind]), world.usual, (3, 4, 0), 10)
    assert again == []


def test_two_kinds_get_two_codes_the_larger_first_and_no_more_than_are_spare(world: World) -> None:
    items = np.concatenate([world.unknown(20), world.unknown(40)])
    found = propose_codes(world.quantizer, items, world.usual, (4, 4, 0), 10)
    assert [each.level for each in found] == [0, 0]
    assert set(found[0].members) <= set(range(20, 60)) and set(found[1].members) <= set(range(20))
    assert len(propose_codes(world.quantizer, items, world.usual, (1, 0, 0), 10)) == 1


def test_items_of_known_kinds_open_nothing(world: World) -> None:
    assert proposals(world, world.known(500)) == []


def test_outliers_that_are_scattered_open_nothing_however_far_and_many(world: World) -> None:
    assert proposals(world, np.stack([world.direction(1.2) for _ in range(200)]), min_items=20) == []


def test_too_few_items_of_a_kind_open_nothing(world: World) -> None:
    assert proposals(world, world.unknown(9)) == [] and proposals(world, world.unknown(0)) == []


def test_no_spare_code_no_proposal(world: World) -> None:
    assert proposals(world, world.unknown(30), spare=(0, 0, 0)) == []


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        (OpenedCode(2, CODES, (0.0,) * WIDTH), "levels 0..1"),
        (OpenedCode(0, CODES - 1, (0.0,) * WIDTH), "at least 6"),
        (OpenedCode(0, CODES, (0.0,)), "128 numbers"),
    ],
    ids=["last level", "in the codebook", "width"],
)
def test_a_code_that_does_not_fit_is_refused(world: World, code: OpenedCode, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        world.quantizer.with_opened([code])
