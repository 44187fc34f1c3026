"""The tree of SIDs as people see it: every item is under its codes, once, whatever the page size."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.catalog import CatalogItem
from service.catalog_tree import MEMBERS, CatalogTree, TreeLevel
from service.model.checkpoint import ItemRecord
from service.model.semantic_ids import Sid, SidSpace

SPACE = SidSpace(levels=3, codes=4, first_token_id=100)


@dataclass
class Shelf:
    """As much of a catalogue as the tree reads; most popular first."""

    items: list[CatalogItem]
    version: int = 0
    space: SidSpace = SPACE
    read: int = field(default=0)

    @property
    def current(self) -> "Shelf":
        return self

    def popular(self) -> Iterator[tuple[CatalogItem, float]]:
        self.read += 1
        return ((item, 0.0) for item in self.items)


def shelf(*sids: Sid, new: int = 0) -> Shelf:
    """Items of falling popularity, the last ``new`` of them newer than the model."""
    count = len(sids)
    return Shelf(
        [
            CatalogItem(ItemRecord(f"i{n}", f"Title {n}", "", {}), sid, count - n, is_new=n >= count - new)
            for n, sid in enumerate(sids)
        ]
    )


def tree(items: Shelf) -> CatalogTree:
    return CatalogTree(items)  # type: ignore[arg-type]


def level(items: Shelf, *prefix: int, limit: int = 100, after: int | None = None) -> TreeLevel:
    return asyncio.run(tree(items).level(prefix, limit=limit, after=after))


def test_a_level_counts_items_and_new_ones_and_names_the_most_popular() -> None:
    found = level(shelf((1, 0, 0), (1, 2, 0), (3, 0, 0), (1, 2, 1), (1, 2, 2), new=1))
    assert [(child.code, child.items, child.new_items) for child in found.children] == [(1, 4, 1), (3, 1, 0)]
    assert found.children[0].titles == ("Title 0", "Title 1", "Title 3")
    assert (found.items, found.levels, found.codes, found.next) == (5, 3, 4, None)


def test_the_last_level_lists_its_items_in_order_and_only_so_many() -> None:
    found = level(shelf(*[(0, 0, 1)] * (MEMBERS + 2)), 0, 0)
    (child,) = found.children
    assert child.items == MEMBERS + 2
    assert [member.item_id for member in child.members] == [f"i{n}" for n in range(MEMBERS)]


def test_levels_above_list_no_items() -> None:
    assert all(child.members == () for child in level(shelf((0, 1, 2)), 0).children)


@pytest.mark.parametrize("prefix", [(2,), (0, 3), (0, 0, 0), (0, 0, 0, 0), (9_999,)])
def test_nothing_lies_under_a_prefix_that_no_item_has_or_that_is_whole(prefix: tuple[int, ...]) -> None:
    assert level(shelf((0, 0, 0), (1, 1, 1)), *prefix).children == ()


def test_an_order_is_kept_for_its_version_and_made_anew_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.catalog_tree.REST", 0)
    items = shelf((0, 0, 0))
    asked = tree(items)

    async def ask() -> int:
        return (await asked.level((), limit=1)).items

    async def story() -> list[int]:
        counts = [await ask(), await ask()]
        items.items += shelf((1, 0, 0)).items
        items.version = 1
        return [*counts, await ask()]

    assert asyncio.run(story()) == [1, 1, 2]
    assert items.read == 2


def test_after_a_long_sort_the_next_one_waits_and_the_answer_names_the_older_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("service.catalog_tree.REST", 1e9)
    items = shelf((0, 0, 0))
    asked = tree(items)

    async def story() -> list[int]:
        first = await asked.level((), limit=1)
        items.version = 1
        return [first.catalog_version, (await asked.level((), limit=1)).catalog_version]

    assert asyncio.run(story()) == [0, 0]


sids = st.lists(st.tuples(*[st.integers(0, 3)] * 3), max_size=30)


@given(sids, st.integers(1, 3))
@settings(deadline=None, max_examples=60)
def test_walking_the_tree_by_pages_finds_every_item_once(all_sids: list[Sid], limit: int) -> None:
    asked = tree(shelf(*all_sids))

    async def walk(prefix: Sid) -> list[str]:
        found: list[str] = []
        after = None
        while True:
            page = await asked.level(prefix, limit=limit, after=after)
            for child in page.children:
                found += [member.item_id for member in child.members] or await walk((*prefix, child.code))
            if page.next is None:
                return found
            after = page.next

    assert sorted(asyncio.run(walk(()))) == sorted(f"i{n}" for n in range(len(all_sids)))
