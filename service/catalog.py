"""The catalogue: items, the SIDs they have, and which item of a shared SID comes first. One immutable snapshot.

A request keeps the snapshot it was admitted under, so nothing it names can vanish. Versions share everything they have
in common (persistent maps, one table of rows), so the next one costs what changed, not what there is. It knows no trie
(the engine does) and no text encoder.

Ranking inside a bucket (items that share a SID): the checkpoint's items first, by popularity in the training data and
then catalogue order; then posted ones, by the version from which on they have had the SID, older first.

Slots: the integers that `service.model.legal_slots` speaks of; a SID keeps its slot when it loses its last item.
"""

import math
from bisect import insort
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from itertools import chain

from immutables import Map

from service.catalog_item import HASH_BITS, CatalogItem, ItemChange, content_hash, digest
from service.filters import DeclaredField, FilterRule, Mask
from service.item_table import ItemTable, rows_of
from service.model.checkpoint import Checkpoint
from service.model.checkpoint_files import CATALOG_ITEMS, CATALOG_TENSORS
from service.model.item_text import clean_text
from service.model.legal_slots import LegalSlots
from service.model.semantic_ids import Sid
from service.stores.item_log import LogEntry, is_code_name

SCANNED_ROWS = 200_000
WASTED_ROWS = 10_000

__all__ = ["Catalog", "CatalogItem", "CatalogPage", "CatalogStep", "LegalItems", "content_hash"]


@dataclass(frozen=True, slots=True)
class _Base:
    """The checkpoint's part, shared by all versions."""

    items: Mapping[str, CatalogItem]
    buckets: Mapping[Sid, tuple[str, ...]]
    slots: Mapping[Sid, int]
    codes: Mapping[Sid, frozenset[int]]
    popular: tuple[str, ...]
    log_total: float


@dataclass(frozen=True, slots=True)
class CatalogStep:
    """The next version, the SIDs that came (in the order of their slots) and went, and what became of each item.

    ``codes`` are the entries that open and close spare codes.
    """

    catalog: "Catalog"
    added: tuple[Sid, ...]
    removed: tuple[Sid, ...]
    changes: tuple[ItemChange, ...]
    codes: tuple[LogEntry, ...] = ()


@dataclass(frozen=True, slots=True)
class CatalogPage:
    """Some items in a stable order, and the cursor of the rest (None: there is none)."""

    items: tuple[CatalogItem, ...]
    cursor: int | None


@dataclass(frozen=True, slots=True)
class Catalog:
    """One version; `from_checkpoint` makes version 0, `advance` the next one."""

    version: int
    new_count: int
    _base: _Base
    _items: Map[str, CatalogItem | LogEntry]
    _buckets: Map[Sid, tuple[str, ...]]
    _slots: Map[Sid, int]
    _table: ItemTable
    _rows: int
    _size: int
    _hash: int

    @classmethod
    def from_checkpoint(cls, checkpoint: Checkpoint) -> "Catalog":
        """Version 0: the items the model was trained with."""
        tensors, records = checkpoint.catalog_tensors(), checkpoint.items()
        sids: list[Sid] = [tuple(codes) for codes in tensors.codes_NL.tolist()]
        counts = tensors.popularity_N.tolist()
        slots = {sid: slot for slot, sid in enumerate(sorted(set(sids)))}
        by_popularity = sorted(range(len(records)), key=lambda row: -counts[row])
        rank = {row: place for place, row in enumerate(by_popularity)}
        items = {
            record.item_id: CatalogItem(record, sids[row], counts[row], order=(0, rank[row]), row=row)
            for row, record in enumerate(records)
        }
        popular = tuple(records[row].item_id for row in by_popularity)
        buckets: dict[Sid, tuple[str, ...]] = {}
        for item_id in popular:
            buckets[items[item_id].sid] = (*buckets.get(items[item_id].sid, ()), item_id)
        base = _Base(items, buckets, slots, _codes_under(buckets), popular, math.log(max(sum(counts) + len(counts), 1)))
        table = rows_of(records, [slots[sid] for sid in sids])
        files = checkpoint.manifest.files
        start = digest(files[CATALOG_ITEMS].sha256, files[CATALOG_TENSORS].sha256)
        return cls(0, 0, base, Map(), Map(), Map(), table, len(records), len(records), start)

    def __len__(self) -> int:
        return self._size

    @property
    def catalog_hash(self) -> str:
        """A digest of which items there are, their SIDs and contents; equal for equal catalogues, however made."""
        return f"{self._hash:032x}"

    @property
    def is_wasteful(self) -> bool:
        """Whether most rows are of states that items no longer have, so that `compacted` is worth its work."""
        dead = self._rows - self._size  # every item has one row that is not
        return dead > max(WASTED_ROWS, self._size + len(self._base.items))

    @property
    def num_slots(self) -> int:
        """How many slots have been given out."""
        return len(self._base.slots) + len(self._slots)

    def get(self, item_id: str) -> CatalogItem | None:
        """The item, None if there is none."""
        held = self._items.get(item_id)
        if held is None:
            return self._base.items.get(item_id)
        return held if isinstance(held, CatalogItem) else None

    def bucket(self, sid: Sid) -> tuple[str, ...]:
        """The items that have ``sid``, in ranking order; empty if the SID does not exist."""
        found = self._buckets.get(sid)
        return self._base.buckets.get(sid, ()) if found is None else found

    def slot(self, sid: Sid) -> int | None:
        """The SID's slot, also when it has no item any more; None if it never had one."""
        found = self._base.slots.get(sid)
        return self._slots.get(sid) if found is None else found

    def checkpoint_item(self, item_id: str) -> CatalogItem | None:
        """The item as the checkpoint holds it, whatever was posted or deleted since."""
        return self._base.items.get(item_id)

    def last_sid(self, item_id: str) -> Sid | None:
        """The SID of an item, also of a deleted one; None if it was never here."""
        held = self._base.items.get(item_id) or self._items.get(item_id)
        return held.sid if held else None

    def word_on(self, item_id: str) -> LogEntry | None:
        """The log's newest word on an item or a spare code, None if it never spoke of it."""
        held = self._items.get(item_id)
        return held.entry if isinstance(held, CatalogItem) else held

    def is_trained(self, sid: Sid) -> bool:
        """Whether an item of the checkpoint has ``sid`` now; such an item comes first in its bucket."""
        bucket = self.bucket(sid)
        return bool(bucket) and bucket[0] in self._base.items

    def trained_codes(self, prefix: Sid) -> Set[int]:
        """The last codes under ``prefix`` (all codes but the last) for which `is_trained` holds."""
        codes = self._base.codes.get(prefix, frozenset())
        return {code for code in codes if self.is_trained((*prefix, code))}

    def new_items(self) -> Iterator[CatalogItem]:
        """Items newer than the model, in the order of their last change."""
        rows = self._table.alive(len(self._base.items), self._rows, self.version)
        return (item for item in self._items_of(rows) if item.is_new)

    def newest(self) -> Iterator[CatalogItem]:
        """The same, the last change first; lazily, so the first few cost a few."""
        rows = self._table.alive_backwards(len(self._base.items), self._rows, self.version)
        return (item for item in self._items_of(rows) if item.is_new)

    def popular(self) -> Iterator[tuple[CatalogItem, float]]:
        """All items, most popular first and new ones last, with the log of their smoothed share of interactions."""
        trained = (item for item_id in self._base.popular if (item := self.get(item_id)))
        for item in chain(trained, self.new_items()):
            yield item, math.log(item.popularity + 1) - self._base.log_total

    def fields(self) -> list[DeclaredField]:
        """What filters may name."""
        return self._table.columns.declared()

    def legal(self, rule: FilterRule | None = None, excluded: Set[str] = frozenset()) -> "LegalItems":
        """What a request may return: the rule's items without the excluded ones.

        Raises:
            InvalidRequestError: the rule names a field that no item declares.
        """
        if rule is None:
            return LegalItems(self, excluded)
        legal = self._table.legal(rule, self._rows, self.version, self.num_slots)
        return LegalItems(self, excluded, legal.rows, legal.slots)

    def page(self, cursor: int | None, limit: int, query: str = "") -> CatalogPage:
        """Up to ``limit`` items from a cursor on, those whose title holds ``query``, of the next `SCANNED_ROWS` rows.

        The checkpoint's items come first, then changed and posted ones by the version that changed them. So what is
        added meanwhile comes later, and an item that changes meanwhile may come twice but is not missed.
        """
        wanted = clean_text(query).casefold()
        found: list[CatalogItem] = []
        first = self._first_row(cursor)
        last = min(first + SCANNED_ROWS, self._rows)
        for row in self._table.alive(first, last, self.version):
            if len(found) == limit:
                return CatalogPage(tuple(found), self._cursor_of(found[-1].row))
            record = self._table.record(row)
            item = self.get(record.item_id) if wanted in record.title.casefold() else None
            if item:
                found.append(item)
        return CatalogPage(tuple(found), None if last == self._rows else self._cursor_of(last - 1))

    def log_state(self) -> dict[str, LogEntry]:
        """The log's newest word on each item it speaks of, oldest first."""
        held = (value.entry if isinstance(value, CatalogItem) else value for value in self._items.values())
        entries = sorted((entry for entry in held if entry), key=lambda entry: entry.version)
        return {entry.item_id: entry for entry in entries}

    def differences(self, state: Mapping[str, LogEntry], version: int) -> list[LogEntry]:
        """The entries that make this catalogue what ``state`` says at ``version``."""
        own = self.log_state()
        gone = (LogEntry(version, version, "0-0", "reset", item_id) for item_id in own if item_id not in state)
        changed = [entry for item_id, entry in state.items() if not _says_same(own.get(item_id), entry)]
        return [*changed, *gone]

    def compacted(self) -> "Catalog":
        """The same version over a table without dead rows; this one stays as it is. Meant for another thread."""
        table, place = self._table.compacted(len(self._base.items), self._rows, self.version)
        with self._items.mutate() as items:
            for item_id, held in self._items.items():
                if isinstance(held, CatalogItem):
                    items[item_id] = replace(held, row=place[held.row])
            kept = items.finish()
        return replace(self, _items=kept, _table=table, _rows=len(table))

    def advance(self, entries: Sequence[LogEntry], version: int | None = None) -> CatalogStep:
        """The next version (that of the last entry by default), with the entries applied in order."""
        target = entries[-1].version if version is None else version
        table = self._table if len(self._table) == self._rows else self._table.fork(self._rows, self.version)
        final = {entry.item_id: entry for entry in entries if entry.op != "mark"}
        final = {entry.item_id: entry for entry in sorted(final.values(), key=lambda entry: entry.version)}
        after = {item_id: self._after(entry) for item_id, entry in final.items()}
        buckets = self._next_buckets(after)
        added = tuple(sid for sid, bucket in buckets.items() if bucket and not self.bucket(sid))
        removed = tuple(sid for sid, bucket in buckets.items() if not bucket and self.bucket(sid))
        slots = self._next_slots(added)
        codes = tuple(entry for item_id, entry in final.items() if is_code_name(item_id))
        changes, items = [], self._items.mutate()
        for item_id, entry in final.items():
            before, item = self.get(item_id), after[item_id]
            if before:
                table.retire(before.row, target)
            if item:
                slot = self._base.slots.get(item.sid, slots.get(item.sid, -1))
                item = replace(item, row=table.add(item.item, slot, entry.version))
            changes.append(ItemChange(item_id, before, item))
            if entry.op != "reset":
                items[item_id] = item or entry
            elif item:
                items[item_id] = item  # with its new row; it has no entry any more
            else:
                items.pop(item_id, None)
        following = self._next(target, items.finish(), buckets, slots, table, changes, [code.item_id for code in codes])
        return CatalogStep(following, added, removed, tuple(changes), codes)

    def _next(
        self,
        version: int,
        items: Map[str, CatalogItem | LogEntry],
        buckets: Mapping[Sid, Sequence[str]],
        slots: Map[Sid, int],
        table: ItemTable,
        changes: Sequence[ItemChange],
        codes: Sequence[str],
    ) -> "Catalog":
        with self._buckets.mutate() as held:
            for sid, bucket in buckets.items():
                held[sid] = tuple(bucket)
            all_buckets = held.finish()
        size = self._size + sum(bool(change.after) - bool(change.before) for change in changes)
        new = self.new_count + sum(_is_new(change.after) - _is_new(change.before) for change in changes)
        moved = sum(
            self._weight(change.item_id, change.after) - self._weight(change.item_id, change.before)
            for change in changes
        )
        moved += sum(_code_weight(items.get(name)) - _code_weight(self._items.get(name)) for name in codes)
        total = (self._hash + moved) % 2**HASH_BITS
        return Catalog(version, new, self._base, items, all_buckets, slots, table, len(table), size, total)

    def _after(self, entry: LogEntry) -> CatalogItem | None:
        base = self._base.items.get(entry.item_id)
        if entry.op == "reset":
            return base
        if entry.op != "put" or entry.item is None:
            return None
        if base is None:
            return CatalogItem(entry.item, entry.sid, is_new=True, order=(1, entry.since), entry=entry)
        return CatalogItem(entry.item, base.sid, base.popularity, order=base.order, entry=entry)

    def _next_buckets(self, after: Mapping[str, CatalogItem | None]) -> dict[Sid, list[str]]:
        """The buckets of all SIDs that an item leaves or enters."""
        buckets: dict[Sid, list[str]] = {}

        def order(item_id: str) -> tuple[tuple[int, int], str]:
            """By id at last: a log that begins anew counts from 1 again, so two may have come at the same version."""
            item = after.get(item_id) or self.get(item_id)
            return item.order if item else (0, 0), item_id

        pairs = [(item_id, self.get(item_id), item) for item_id, item in after.items()]
        moved = [(item_id, old, new) for item_id, old, new in pairs if _place(old) != _place(new)]
        for item_id, old, _ in moved:
            if old:
                buckets.setdefault(old.sid, list(self.bucket(old.sid))).remove(item_id)
        for item_id, _, new in moved:
            if new:
                insort(buckets.setdefault(new.sid, list(self.bucket(new.sid))), item_id, key=order)
        return buckets

    def _next_slots(self, added: Sequence[Sid]) -> Map[Sid, int]:
        fresh = [sid for sid in added if self.slot(sid) is None]
        return self._slots.update({sid: slot for slot, sid in enumerate(fresh, self.num_slots)})

    def _weight(self, item_id: str, item: CatalogItem | None) -> int:
        """What an item, or its absence, adds to the catalogue's digest; nothing while it is as the checkpoint says."""
        base = self._base.items.get(item_id)
        if item is None:
            return digest("gone", item_id) if base else 0
        if base and (item.entry is None or item.hash == base.hash):
            return 0
        return digest(item_id, ",".join(map(str, item.sid)), item.hash)

    def _items_of(self, rows: Iterable[int]) -> Iterator[CatalogItem]:
        return (item for row in rows if (item := self.get(self._table.record(row).item_id)))

    def _first_row(self, cursor: int | None) -> int:
        base = len(self._base.items)
        if cursor is None:
            return 0
        return max(0, base + cursor) if cursor < 0 else self._table.first_after(cursor, base, self._rows)

    def _cursor_of(self, row: int) -> int:
        """Where the rows behind ``row`` begin, alike on every replica though their rows of posted items differ."""
        base = len(self._base.items)
        return row + 1 - base if row < base else self._table.born(row)


class LegalItems:
    """What one request may return, of one version."""

    def __init__(
        self, catalog: Catalog, excluded: Set[str], rows: Mask | None = None, slots: LegalSlots | None = None
    ) -> None:
        self.slots = slots
        self._catalog = catalog
        self._excluded = excluded
        self._rows = rows

    def allows(self, item: CatalogItem) -> bool:
        """Whether the item may be returned."""
        return item.item.item_id not in self._excluded and self._obeys(item)

    def of(self, sid: Sid) -> list[CatalogItem]:
        """The items of a SID that may be returned, in bucket order."""
        items = (self._catalog.get(item_id) for item_id in self._catalog.bucket(sid))
        return [item for item in items if item and self.allows(item)]

    def excluded_sids(self) -> list[Sid]:
        """The SIDs that the rule allows and of which no item remains when the excluded ones are taken away."""
        items = (self._catalog.get(item_id) for item_id in self._excluded)
        sids = {item.sid for item in items if item and self._obeys(item)}
        return sorted(sid for sid in sids if not self._remains(sid))

    def _remains(self, sid: Sid) -> bool:
        """Whether `of` would find anything; asked for each item of a history, so it looks only at what is not taken."""
        left = (self._catalog.get(item_id) for item_id in self._catalog.bucket(sid) if item_id not in self._excluded)
        return any(item is not None and self._obeys(item) for item in left)

    def _obeys(self, item: CatalogItem) -> bool:
        return self._rows is None or bool(self._rows[item.row])


def _codes_under(sids: Iterable[Sid]) -> dict[Sid, frozenset[int]]:
    """The last codes that occur under each prefix."""
    codes: dict[Sid, set[int]] = {}
    for sid in sids:
        codes.setdefault(sid[:-1], set()).add(sid[-1])
    return {prefix: frozenset(found) for prefix, found in codes.items()}


def _says_same(own: LogEntry | None, entry: LogEntry) -> bool:
    if own is None:
        return False
    return (own.version, own.op, own.content_hash, own.sid) == (
        entry.version,
        entry.op,
        entry.content_hash,
        entry.sid,
    )


def _code_weight(held: CatalogItem | LogEntry | None) -> int:
    """What an open code adds to the catalogue's digest."""
    is_open = isinstance(held, LogEntry) and held.op == "code"
    return digest("code", held.item_id, held.content_hash) if is_open and isinstance(held, LogEntry) else 0


def _place(item: CatalogItem | None) -> tuple[Sid, tuple[int, int]] | None:
    return (item.sid, item.order) if item else None


def _is_new(item: CatalogItem | None) -> bool:
    return item is not None and item.is_new
