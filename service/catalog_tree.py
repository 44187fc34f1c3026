"""The catalogue looked at as a tree of codes: how many items lie under a prefix, and what they are called.

For people, not for decoding (`model/trie.py` is that): it reads one snapshot of the catalogue and answers one level at
a time. The order of SIDs is sorted off the event loop, only when somebody asks, and only so often that it stays a small
share of one core: a catalogue of millions may be shown some seconds old, under the version it is of.
"""

import asyncio
import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from service.catalog import Catalog, CatalogItem
from service.model.semantic_ids import Sid, SidSpace

SAMPLES = 3
MEMBERS = 50
REST = 10  # times as long as a sort took, until the next one


@dataclass(frozen=True, slots=True)
class Member:
    """An item under a whole SID."""

    item_id: str
    title: str
    is_new: bool


@dataclass(frozen=True, slots=True)
class Child:
    """One code below a prefix; ``members`` are listed at the last level only, at most `MEMBERS` of them."""

    code: int
    items: int
    new_items: int
    titles: tuple[str, ...]
    members: tuple[Member, ...]


@dataclass(frozen=True, slots=True)
class TreeLevel:
    """What lies one code below ``prefix``, by ascending code; ``next`` is the code to go on after, None at the end."""

    catalog_version: int
    levels: int
    codes: int
    prefix: Sid
    items: int
    children: tuple[Child, ...]
    next: int | None


class PrimaryLane(Protocol):
    """The newest catalogue, and the code space its SIDs are from."""

    @property
    def current(self) -> Catalog:
        """The newest version."""
        ...

    @property
    def space(self) -> SidSpace:
        """Levels and codes."""
        ...


@dataclass(frozen=True, slots=True)
class _Sorted:
    """All items of one version in the order of their SIDs."""

    catalog: Catalog
    version: int
    sids: Sequence[Sid]
    items: Sequence[CatalogItem]

    def is_of(self, catalog: Catalog) -> bool:
        """Whether it is this catalogue's: versions of two models' catalogues may be equal."""
        return self.catalog is catalog and self.version == catalog.version


class CatalogTree:
    """Answers `level`; keeps the order of the version it sorted last."""

    def __init__(self, primary: PrimaryLane) -> None:
        self._primary = primary
        self._sorting = asyncio.Lock()
        self._sorted: _Sorted | None = None
        self._rests_until = 0.0

    async def level(self, prefix: Sequence[int], *, limit: int, after: int | None = None) -> TreeLevel:
        """Up to ``limit`` codes greater than ``after`` that continue ``prefix``; none where nothing lies under it."""
        async with self._sorting:
            order = await self._order()
        return _level(order, self._primary.space, tuple(prefix), limit, after)

    async def _order(self) -> _Sorted:
        catalog, order, start = self._primary.current, self._sorted, time.monotonic()
        if order is not None and (order.is_of(catalog) or start < self._rests_until):
            return order
        order = self._sorted = await asyncio.to_thread(_sort, catalog)
        end = time.monotonic()
        self._rests_until = end + REST * (end - start)
        return order


def _sort(catalog: Catalog) -> _Sorted:
    items = sorted(
        (item for item, _ in catalog.popular()), key=lambda item: item.sid
    )  # stable: popular ones stay first
    return _Sorted(catalog, catalog.version, [item.sid for item in items], items)


def _level(order: _Sorted, space: SidSpace, prefix: Sid, limit: int, after: int | None) -> TreeLevel:
    start, end = _range(order, prefix)
    first = start if after is None else _range(order, (*prefix, after))[1]
    codes = _codes(order, len(prefix), first, end) if len(prefix) < space.levels else iter(())
    found = list(islice(codes, limit + 1))
    children = tuple(_child(order, space, (*prefix, code)) for code in found[:limit])
    more = found[limit - 1] if len(found) > limit else None
    return TreeLevel(order.version, space.levels, space.codes, prefix, end - start, children, more)


def _range(order: _Sorted, prefix: Sid) -> tuple[int, int]:
    """Where the items under ``prefix`` begin and end."""
    start = bisect_left(order.sids, prefix)
    return start, bisect_left(order.sids, (*prefix[:-1], prefix[-1] + 1)) if prefix else len(order.sids)


def _codes(order: _Sorted, depth: int, start: int, end: int) -> Iterator[int]:
    """The different codes at ``depth``, found by leaps."""
    while start < end:
        sid = order.sids[start]
        yield sid[depth]
        start = bisect_left(order.sids, (*sid[:depth], sid[depth] + 1), start, end)


def _child(order: _Sorted, space: SidSpace, prefix: Sid) -> Child:
    start, end = _range(order, prefix)
    items = order.items[start:end]
    is_leaf = len(prefix) == space.levels
    best = sorted(items, key=lambda item: -item.popularity)[:SAMPLES]
    members = tuple(Member(one.item.item_id, one.item.title, one.is_new) for one in items[:MEMBERS] if is_leaf)
    return Child(
        prefix[-1], len(items), sum(item.is_new for item in items), tuple(one.item.title for one in best), members
    )
