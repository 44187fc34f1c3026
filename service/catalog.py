"""The catalogue: items, the SIDs they have, and which item of a shared SID comes first. One immutable snapshot.

A request keeps the snapshot it was admitted under, so nothing it names can vanish. A new version shares the
checkpoint's part and copies only the overlay of posted items. It knows no trie (the engine does) and no text encoder.

Ranking inside a bucket (items that share a SID): popularity in the training data, then catalogue order, then age in
the log, older first.
"""

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from service.model.checkpoint import Checkpoint, ItemRecord
from service.model.item_text import AttributeValue, clean_text
from service.model.semantic_ids import Sid
from service.stores.base import LogEntry


@dataclass(frozen=True, slots=True)
class CatalogItem:
    """An item and its SID; ``is_new`` means newer than the model."""

    item: ItemRecord
    sid: Sid
    popularity: int = 0
    is_new: bool = False
    content_hash: str | None = None

    @property
    def hash(self) -> str:
        """The digest of its content; computed here for items of the checkpoint."""
        return self.content_hash or content_hash(self.item)


@dataclass(frozen=True, slots=True)
class _Base:
    """The checkpoint's part, shared by all versions."""

    items: Mapping[str, CatalogItem]
    buckets: Mapping[Sid, tuple[str, ...]]
    popular: tuple[str, ...]
    log_total: float


@dataclass(frozen=True, slots=True)
class Catalog:
    """One version; `from_checkpoint` makes version 0, `with_items` the next one."""

    version: int
    _base: _Base
    _items: Mapping[str, CatalogItem]
    _buckets: Mapping[Sid, tuple[str, ...]]

    @classmethod
    def from_checkpoint(cls, checkpoint: Checkpoint) -> "Catalog":
        """Version 0: the items the model was trained with."""
        tensors = checkpoint.catalog_tensors()
        rows = zip(checkpoint.items(), tensors.codes_NL.tolist(), tensors.popularity_N.tolist(), strict=True)
        items = {item.item_id: CatalogItem(item, tuple(codes), count) for item, codes, count in rows}
        popular = tuple(sorted(items, key=lambda item_id: -items[item_id].popularity))
        buckets: dict[Sid, tuple[str, ...]] = {}
        for item_id in popular:
            buckets[items[item_id].sid] = (*buckets.get(items[item_id].sid, ()), item_id)
        total = sum(item.popularity + 1 for item in items.values())
        return cls(0, _Base(items, buckets, popular, math.log(max(total, 1))), {}, {})

    def with_items(self, entries: Sequence[LogEntry]) -> "Catalog":
        """The next version, with the log's entries applied in order."""
        items, buckets = dict(self._items), dict(self._buckets)
        for entry in entries:
            item_id = entry.item.item_id
            changed = self._changed(entry)
            before = items.get(item_id) or self._base.items.get(item_id)
            items[item_id] = changed
            if before is not None and before.sid == changed.sid:
                continue
            if before is not None:
                buckets[before.sid] = tuple(i for i in self._bucket(buckets, before.sid) if i != item_id)
            buckets[changed.sid] = (*self._bucket(buckets, changed.sid), item_id)
        return Catalog(self.version + 1, self._base, items, buckets)

    def __len__(self) -> int:
        return len(self._base.items) + sum(item.is_new for item in self._items.values())

    def get(self, item_id: str) -> CatalogItem | None:
        """The item, None if there is none."""
        return self._items.get(item_id) or self._base.items.get(item_id)

    def bucket(self, sid: Sid) -> tuple[str, ...]:
        """The items that have ``sid``, in ranking order; empty if the SID does not exist."""
        return self._bucket(self._buckets, sid)

    def checkpoint_item(self, item_id: str) -> CatalogItem | None:
        """The item as the checkpoint holds it, whatever was posted since."""
        return self._base.items.get(item_id)

    def new_items(self) -> list[CatalogItem]:
        """Items newer than the model, in the order they came."""
        return [item for item in self._items.values() if item.is_new]

    def popular(self) -> Iterator[tuple[CatalogItem, float]]:
        """All items, most popular first and new ones last, with the log of their smoothed share of interactions."""
        fresh = (item_id for item_id, item in self._items.items() if item.is_new)
        for item_id in chain(self._base.popular, fresh):
            item = self._items.get(item_id) or self._base.items[item_id]
            yield item, math.log(item.popularity + 1) - self._base.log_total

    def _changed(self, entry: LogEntry) -> CatalogItem:
        base = self._base.items.get(entry.item.item_id)
        if base is None:
            return CatalogItem(entry.item, entry.sid, is_new=True, content_hash=entry.content_hash)
        return CatalogItem(entry.item, base.sid, base.popularity, content_hash=entry.content_hash)

    def _bucket(self, buckets: Mapping[Sid, tuple[str, ...]], sid: Sid) -> tuple[str, ...]:
        found = buckets.get(sid)
        return self._base.buckets.get(sid, ()) if found is None else found


def content_hash(item: ItemRecord) -> str:
    """A digest of what the item says: equal for texts that clean to the same, whatever the order of attributes."""
    attributes = {key: _plain(value) for key, value in sorted(item.attributes.items())}
    said = [clean_text(item.title), clean_text(item.description), attributes]
    return hashlib.sha256(json.dumps(said, ensure_ascii=True).encode()).hexdigest()[:32]


def _plain(value: AttributeValue) -> AttributeValue:
    """1995 and 1995.0 say the same."""
    return int(value) if isinstance(value, float) and value.is_integer() else value
