"""One item of the catalogue: its content, its SID, its place in a bucket; and the digests that say when two are equal.

It knows neither the other items nor where it is kept.
"""

import hashlib
import json
from dataclasses import dataclass

from service.model.checkpoint import ItemRecord
from service.model.item_text import AttributeValue, clean_text
from service.model.semantic_ids import Sid
from service.stores.item_log import LogEntry

HASH_BITS = 128


@dataclass(frozen=True, slots=True)
class CatalogItem:
    """An item and its SID; ``is_new`` means newer than the model.

    ``order`` ranks it inside its bucket, ``row`` is its place in the table, ``entry`` the log's newest word on it.
    """

    item: ItemRecord
    sid: Sid
    popularity: int = 0
    is_new: bool = False
    order: tuple[int, int] = (0, 0)
    row: int = -1
    entry: LogEntry | None = None

    @property
    def hash(self) -> str:
        """The digest of its content; computed here for items of the checkpoint."""
        return self.entry.content_hash if self.entry else content_hash(self.item)

    @property
    def version(self) -> int:
        """The catalogue version that last changed it, 0 for the checkpoint's."""
        return self.entry.version if self.entry else 0


@dataclass(frozen=True, slots=True)
class ItemChange:
    """An item before and after a step; None: there was or is none."""

    item_id: str
    before: CatalogItem | None
    after: CatalogItem | None


def content_hash(item: ItemRecord) -> str:
    """A digest of what the item says: equal for texts that clean to the same, whatever the order of attributes."""
    attributes = {key: _plain(value) for key, value in sorted(item.attributes.items())}
    said = [clean_text(item.title), clean_text(item.description), attributes]
    return hashlib.sha256(json.dumps(said, ensure_ascii=True).encode()).hexdigest()[:32]


def digest(*parts: str) -> int:
    """An integer of `HASH_BITS` bits that stands for the parts."""
    return int.from_bytes(hashlib.sha256("\x00".join(parts).encode()).digest()[: HASH_BITS // 8], "big")


def _plain(value: AttributeValue) -> AttributeValue:
    """1995 and 1995.0 say the same."""
    return int(value) if isinstance(value, float) and value.is_integer() else value
