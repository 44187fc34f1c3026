"""What users without a model get: popular items, the newest among them, for work that new items do not add to."""

import pytest

from service.catalog import Catalog, CatalogItem
from service.fallback import popular_and_new
from service.model.checkpoint import Checkpoint, ItemRecord
from service.stores.item_log import LogEntry


def with_new(checkpoint: Checkpoint, number: int, deleted: int = 0) -> Catalog:
    """So many new items, of which the last ``deleted`` went again."""
    puts = [
        LogEntry(n, n - 1, f"{n}-0", "put", f"new-{n}", ItemRecord(f"new-{n}", "t", "", {}), "h", (15, 15, 15), n)
        for n in range(1, number + 1)
    ]
    gone = range(number - deleted + 1, number + 1)
    deletes = [
        LogEntry(number + n, number + n - 1, f"{number + n}-0", "delete", f"new-{item}")
        for n, item in enumerate(gone, 1)
    ]
    posted = Catalog.from_checkpoint(checkpoint).advance(puts).catalog
    return posted.advance(deletes).catalog if deletes else posted


def shown(catalog: Catalog, count: int = 10, share: float = 0.2) -> list[str]:
    return [item.item.item_id for item, _ in popular_and_new(catalog, lambda item: True, count, share)]


def test_every_fifth_place_is_the_newest_item_left(checkpoint: Checkpoint) -> None:
    ids = shown(with_new(checkpoint, 3), count=20)
    assert [ids[place] for place in (4, 9, 14)] == ["new-3", "new-2", "new-1"]
    assert sum(item_id.startswith("new") for item_id in ids) == 3


def test_deleted_items_and_a_share_of_nothing_show_no_new_ones(checkpoint: Checkpoint) -> None:
    catalog = with_new(checkpoint, 5000, deleted=4999)
    assert [item_id for item_id in shown(catalog) if item_id.startswith("new")] == ["new-1"]
    assert not any(item_id.startswith("new") for item_id in shown(catalog, share=0))


def test_a_cold_answer_looks_at_as_many_items_whether_ten_are_new_or_thousands(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at, get = [0], Catalog.get

    def counting(self: Catalog, item_id: str) -> CatalogItem | None:
        looked_at[0] += 1
        return get(self, item_id)

    monkeypatch.setattr(Catalog, "get", counting)
    few, many = with_new(checkpoint, 10), with_new(checkpoint, 9000)
    work = []
    for catalog in (few, many):
        looked_at[0] = 0
        shown(catalog)
        work.append(looked_at[0])
    assert work[0] == work[1] <= 20
