"""All texts that new items had, one row each, shared by all moments: rows are only appended, readers know how many.

What a step of the catalogue brings costs what it brings, however many new items there are: arrays grow by doubling, and
what a reader holds of an older array stays as it was. Which rows still stand is the reader's to know.

Shapes: M rows in use.
"""

from collections.abc import Sequence

import numpy as np

from service.model.new_items import NewItemTable

CAPACITY = 64


class NewItemRows:
    """Begins with the rows of ``item_ids``."""

    def __init__(self, item_ids: Sequence[str], table: NewItemTable) -> None:
        self.item_ids: list[str] = list(item_ids)
        self._stored = table

    def __len__(self) -> int:
        return len(self.item_ids)

    def append(self, item_ids: Sequence[str], table: NewItemTable) -> None:
        """More rows, behind those there are."""
        first, count = len(self.item_ids), len(self.item_ids) + len(item_ids)
        if count > len(self._stored):
            self._stored = _grown(self._stored, first, max(CAPACITY, 2 * count))
        for name in NewItemTable.__slots__:
            getattr(self._stored, name)[first:count] = getattr(table, name)
        self.item_ids.extend(item_ids)

    def table(self, count: int) -> NewItemTable:
        """The first ``count`` rows, as views."""
        return NewItemTable(*(getattr(self._stored, name)[:count] for name in NewItemTable.__slots__))


def _grown(table: NewItemTable, used: int, capacity: int) -> NewItemTable:
    columns = []
    for name in NewItemTable.__slots__:
        old = getattr(table, name)
        new = np.zeros((capacity, *old.shape[1:]), old.dtype)
        new[:used] = old[:used]
        columns.append(new)
    return NewItemTable(*columns)
