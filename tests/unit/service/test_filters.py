"""Filters obey brute force, refuse what no item declares, and see what each catalogue version saw."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.catalog import Catalog
from service.errors import InvalidRequestError
from service.filters import Columns, FilterRule
from service.model.checkpoint import Checkpoint, ItemRecord
from service.vectors import pack, unpack
from tests.unit.service.test_catalog import FREE, after, entry, without

NOTHING: dict[str, Any] = {}
SCALAR = st.one_of(st.sampled_from(["a", "b", "1"]), st.booleans(), st.integers(0, 3), st.sampled_from([0.5, 1.0]))
VALUE = st.one_of(SCALAR, st.lists(st.sampled_from(["a", "b", "c"]), max_size=3))
ROWS = st.lists(st.dictionaries(st.sampled_from(["x", "y"]), VALUE, max_size=2), min_size=1, max_size=30)


def rule(**clauses: Any) -> FilterRule:
    names = ("include", "exclude", "minimum", "maximum")
    return FilterRule(*(clauses.get(name, {}) for name in names))


@settings(max_examples=150, deadline=None)
@given(rows=ROWS, values=st.lists(SCALAR, min_size=1, max_size=3), low=st.integers(0, 3), cut=st.integers(0, 30))
def test_masks_are_what_looking_at_every_item_gives(
    rows: list[dict[str, Any]], values: list[Any], low: int, cut: int
) -> None:
    columns = Columns()
    rows = [{"x": 0}, {"y": 0}, *rows]
    for place, row in enumerate(rows):
        columns.add(place, row)
    wanted = rule(include={"x": values}, exclude={"y": values}, maximum={"x": 3}, minimum={"y": low})
    columns.check(wanted)
    expected = [
        has(row.get("x"), values)
        and not has(row.get("y"), values)
        and number(row.get("x")) <= 3
        and number(row.get("y")) >= low
        for row in rows
    ]
    cut = min(cut, len(rows))
    parts = [columns.mask(wanted, 0, cut), columns.mask(wanted, cut, len(rows))]
    assert np.concatenate(parts).tolist() == expected


def has(held: Any, values: list[Any]) -> bool:
    parts = held if isinstance(held, list) else [] if held is None else [held]
    return any(alike(part, value) for part in parts for value in values)


def alike(one: Any, other: Any) -> bool:
    return (
        isinstance(one, bool) == isinstance(other, bool)
        and isinstance(one, str) == isinstance(other, str)
        and (one == other)
    )


def number(held: Any) -> float:
    return float(held) if isinstance(held, (int, float)) and not isinstance(held, bool) else float("nan")


def film(item_id: str, **attributes: Any) -> Any:
    made = entry(item_id, FREE, item_id)
    return replace(made, item=ItemRecord(item_id, item_id, "", attributes))


@pytest.fixture(scope="module")
def first(checkpoint: Checkpoint) -> Catalog:
    return Catalog.from_checkpoint(checkpoint)


def allowed(catalog: Catalog, wanted: FilterRule) -> list[str]:
    legal = catalog.legal(wanted)
    return [item.item.item_id for item, _ in catalog.popular() if legal.allows(item)]


def test_each_version_filters_what_it_has(first: Catalog) -> None:
    drama = rule(include={"genre": ["Drama"]})
    one = after(first, film("a", genre="Drama"), film("b", genre="Comedy"))
    two = after(one, film("b", genre="Drama"), without("a"))
    assert [allowed(one, drama), allowed(two, drama), allowed(one, drama)] == [["a"], ["b"], ["a"]]


def test_a_sid_is_legal_when_any_of_its_items_is_and_gives_only_those(first: Catalog) -> None:
    catalog = after(first, film("a", kind="x"), film("b", kind="y"), film("c", kind="y"))
    legal = catalog.legal(rule(include={"kind": ["y"]}))
    assert legal.slots is not None and legal.slots.count == 1
    slot = catalog.slot(FREE)
    assert slot is not None and np.flatnonzero(legal.slots.mask(catalog.num_slots)).tolist() == [slot]
    assert [item.item.item_id for item in legal.of(FREE)] == ["b", "c"]


def test_exclusions_name_the_sids_of_which_the_rule_leaves_nothing(first: Catalog) -> None:
    catalog = after(first, film("a", kind="x"), film("b", kind="y"))
    y = rule(include={"kind": ["y"]})
    assert catalog.legal(None, {"a"}).excluded_sids() == []
    assert catalog.legal(None, {"a", "b"}).excluded_sids() == [FREE]
    assert catalog.legal(y, {"b", "item-3"}).excluded_sids() == [FREE], "item-3 is out by the rule itself"


def test_the_key_of_a_rule_is_one_per_version_and_meaning(first: Catalog) -> None:
    def key(catalog: Catalog, *values: Any) -> str:
        slots = catalog.legal(rule(include={"year": values})).slots
        assert slots is not None
        return slots.key

    later = after(first, film("a", year=1))
    assert key(first, 1990, 1991) == key(first, 1991, 1990) != key(later, 1990, 1991)
    assert len({key(first, value) for value in (1, "1", True)}) == 3


@pytest.mark.parametrize(
    ("wanted", "pointer", "told"),
    [
        (rule(include={"yaer": [1]}), "/filter/include/yaer", "did you mean 'year'"),
        (rule(exclude={"zzz": [1]}), "/filter/exclude/zzz", "there are .*year"),
        (rule(minimum={"colour": 1}), "/filter/min/colour", "no item has a field"),
    ],
)
def test_an_unknown_field_is_refused_with_the_nearest_one(
    first: Catalog, wanted: FilterRule, pointer: str, told: str
) -> None:
    with pytest.raises(InvalidRequestError, match=told) as caught:
        first.legal(wanted)
    assert caught.value.pointer == pointer


def test_packed_embeddings_come_back_with_a_cosine_above_9999() -> None:
    for width in (8, 384, 1024):
        vector = np.random.default_rng(width).normal(size=width).astype(np.float32)
        vector /= np.linalg.norm(vector)
        assert len(pack(vector)) == width + 4
        assert float(unpack(pack(vector)) @ vector) > 0.9999
        assert np.linalg.norm(unpack(pack(vector))) == pytest.approx(1.0, abs=1e-5)
