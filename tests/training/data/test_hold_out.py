"""Held-out items leave no trace in what training reads."""

import numpy as np
import pytest

from training.data import CatalogItem, DataError, Dataset
from training.data.hold_out import HoldOutBy, held_out_items, items_of_kinds, without_items


def dataset() -> Dataset:
    items = tuple(CatalogItem(f"i{n}", f"title {n}") for n in range(10))
    sequences = {"u": (0, 3, 5, 3), "v": (9, 3), "w": (3,)}
    timestamps = {user: tuple(float(n) for n in range(len(events))) for user, events in sequences.items()}
    return Dataset("toy", items, sequences, timestamps, "")


def test_the_rest_keeps_its_order_and_its_events_under_new_numbers() -> None:
    kept = without_items(dataset(), np.array([3, 4]))
    named = {user: [kept.items[item].item_id for item in sequence] for user, sequence in kept.sequences.items()}
    assert named == {"u": ["i0", "i5"], "v": ["i9"]}
    assert kept.timestamps == {"u": (0.0, 2.0), "v": (0.0,)}
    assert [item.item_id for item in kept.items] == ["i0", "i1", "i2", "i5", "i6", "i7", "i8", "i9"]


@pytest.mark.parametrize("by", ["random", "newest"])
def test_a_share_is_held_out_and_a_seed_draws_the_same_again(by: HoldOutBy) -> None:
    drawn = held_out_items(dataset(), 0.3, by, 4)
    assert len(set(drawn.tolist())) == 3
    assert np.array_equal(drawn, held_out_items(dataset(), 0.3, by, 4))


def test_the_newest_are_those_that_nobody_has_met_or_met_last() -> None:
    assert held_out_items(dataset(), 0.7, "newest", 0).tolist() == [1, 2, 4, 5, 6, 7, 8]


def test_holding_out_everything_is_refused() -> None:
    with pytest.raises(DataError, match="leaves no events"):
        without_items(dataset(), np.arange(10))


def of_genres(*genres: str | tuple[str, ...]) -> Dataset:
    items = tuple(CatalogItem(f"i{n}", "title", "", {"genres": genre}) for n, genre in enumerate(genres))
    return Dataset("toy", items, {"u": tuple(range(len(items)))}, {"u": tuple(map(float, range(len(items))))}, "")


def test_a_kind_is_every_item_with_the_attribute_alone_or_among_others() -> None:
    films = of_genres(("Horror", "War"), ("War",), "Horror", "Horror films", ("Drama", "Horror"))
    assert items_of_kinds(films, ["genres=Horror"]).tolist() == [0, 2, 4]
    assert items_of_kinds(films, ["genres=War", "genres=Drama"]).tolist() == [0, 1, 4]
    assert items_of_kinds(films, []).tolist() == []


def test_a_number_is_named_as_it_is_written() -> None:
    items = tuple(CatalogItem(f"i{n}", "title", "", {"year": year}) for n, year in enumerate([1994.0, 1994.5, 1995.0]))
    years = Dataset("toy", items, {"u": (0, 1, 2)}, {"u": (0.0, 1.0, 2.0)}, "")
    assert items_of_kinds(years, ["year=1994"]).tolist() == [0]
    assert items_of_kinds(years, ["year=1994.5"]).tolist() == [1]


@pytest.mark.parametrize("kind", ["Horror", "genres=", "=Horror", "genres=Western", "tags=Horror"])
def test_a_kind_that_names_nothing_is_refused(kind: str) -> None:
    with pytest.raises(DataError, match=r"data\.hold_out_kinds: .*" + kind):
        items_of_kinds(of_genres(("Horror",)), [kind])
