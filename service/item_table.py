"""All states that items had, one row each, shared by all catalogue versions: rows are added and retired, never changed.

Version V sees the rows that were there when it was made and are not retired at V, so versions share the arrays and
a new one costs only what changed. The rows of the checkpoint come first, then changed ones by the version that made
them. It knows columns and life times; buckets and ids are the catalogue's.

Shapes: R rows, S slots.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from service.filters import Columns, FilterRule, Mask
from service.model.checkpoint import ItemRecord
from service.model.legal_slots import LegalSlots

ALIVE = np.iinfo(np.int64).max
BLOCK = 4096
CACHED_RULES = 64
CACHED_MASKS = 64

Key = TypeVar("Key")
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class LegalRows:
    """What a rule allows in one version: bool [R] over rows, and the same as slots."""

    rows: Mask
    slots: LegalSlots


class ItemTable:
    """Grows by `add`; every reader passes how many rows its version has."""

    def __init__(self, capacity: int = 64) -> None:
        self._born = np.zeros(capacity, np.int64)
        self._died = np.full(capacity, ALIVE, np.int64)
        self._slot = np.zeros(capacity, np.int64)
        self._records: list[ItemRecord] = []
        self.columns = Columns()
        self._masks: OrderedDict[str, Mask] = OrderedDict()
        self._legal: OrderedDict[tuple[int, str], LegalRows] = OrderedDict()

    def __len__(self) -> int:
        return len(self._records)

    def add(self, record: ItemRecord, slot: int, born: int) -> int:
        """A new row, alive from version ``born`` on; its number."""
        row = len(self._records)
        if row == len(self._born):
            self._grow()
        self._born[row], self._died[row], self._slot[row] = born, ALIVE, slot
        self._records.append(record)
        self.columns.add(row, record.attributes)
        return row

    def retire(self, row: int, version: int) -> None:
        """The row is not seen from ``version`` on."""
        self._died[row] = version

    def fork(self, rows: int, version: int) -> "ItemTable":
        """A copy as ``version``, which has ``rows`` rows, sees it: for a second successor of one version."""
        copy = ItemTable(max(64, rows))
        for row in range(rows):
            copy.add(self._records[row], int(self._slot[row]), int(self._born[row]))
        dead = self._died[:rows] <= version
        copy._died[:rows][dead] = self._died[:rows][dead]
        return copy

    def compacted(self, base: int, rows: int, version: int) -> tuple["ItemTable", dict[int, int]]:
        """A copy without the rows from ``base`` on that ``version`` no longer sees, and each kept row's new number."""
        kept = [*range(base), *self.alive(base, rows, version)]
        copy = ItemTable(max(64, 2 * len(kept)))
        for row in kept:
            copy.add(self._records[row], int(self._slot[row]), int(self._born[row]))
        dead = self._died[:base] <= version
        copy._died[:base][dead] = self._died[:base][dead]
        return copy, {row: place for place, row in enumerate(kept)}

    def legal(self, rule: FilterRule, rows: int, version: int, slots: int) -> LegalRows:
        """Which rows and slots the rule allows; kept for the last few versions and rules.

        Raises:
            InvalidRequestError: the rule names what no item declares.
        """
        place = version, rule.key
        found = self._legal.get(place)
        if found is None:
            self.columns.check(rule)
            mask_R = self._mask(rule, rows)[:rows] & (self._died[:rows] > version)
            legal_S = np.zeros(slots, bool)
            legal_S[self._slot[:rows][mask_R]] = True
            found = LegalRows(mask_R, LegalSlots.of(f"{version}:{rule.key}", legal_S))
        _remember(self._legal, place, found, CACHED_MASKS)
        return found

    def alive(self, first: int, rows: int, version: int) -> Iterator[int]:
        """The rows from ``first`` on that ``version`` sees, in order; lazily, in blocks."""
        for begin in range(first, rows, BLOCK):
            end = min(begin + BLOCK, rows)
            yield from (begin + np.flatnonzero(self._died[begin:end] > version)).tolist()

    def alive_backwards(self, first: int, rows: int, version: int) -> Iterator[int]:
        """The same, the last row first."""
        for end in range(rows, first, -BLOCK):
            begin = max(first, end - BLOCK)
            yield from (begin + np.flatnonzero(self._died[begin:end] > version))[::-1].tolist()

    def alive_rows(self, rows: int, version: int) -> NDArray[np.int64]:
        """All rows that ``version`` sees."""
        return np.flatnonzero(self._died[:rows] > version)

    def record(self, row: int) -> ItemRecord:
        """What the row says."""
        return self._records[row]

    def born(self, row: int) -> int:
        """The version that made the row, 0 for the checkpoint's."""
        return int(self._born[row])

    def first_after(self, version: int, base: int, rows: int) -> int:
        """The first of the rows ``base..rows-1`` that was made after ``version``."""
        return base + int(np.searchsorted(self._born[base:rows], version, side="right"))

    def _mask(self, rule: FilterRule, rows: int) -> Mask:
        """Of at least ``rows`` rows; rows never change, so an older mask is only extended."""
        held = self._masks.get(rule.key)
        known = 0 if held is None else len(held)
        if held is None or known < rows:
            tail = self.columns.mask(rule, known, rows)
            held = tail if held is None else np.concatenate([held, tail])
        _remember(self._masks, rule.key, held, CACHED_RULES)
        return held

    def _grow(self) -> None:
        size = 2 * len(self._born)
        for name, fill in (("_born", 0), ("_died", ALIVE), ("_slot", 0)):
            grown = np.full(size, fill, np.int64)
            grown[: len(self._records)] = getattr(self, name)
            setattr(self, name, grown)


def rows_of(records: Sequence[ItemRecord], slots: Sequence[int]) -> ItemTable:
    """The table of a checkpoint's items."""
    table = ItemTable(max(64, 2 * len(records)))
    for record, slot in zip(records, slots, strict=True):
        table.add(record, slot, 0)
    return table


def _remember(cache: "OrderedDict[Key, Value]", key: Key, value: Value, limit: int) -> None:
    cache[key] = value
    cache.move_to_end(key)
    while len(cache) > limit:
        cache.popitem(last=False)
