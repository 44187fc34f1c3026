from service.catalog import Catalog, content_hash
from service.model.checkpoint import Checkpoint, ItemRecord
from service.model.semantic_ids import Sid
from service.stores.base import LogEntry

FREE: Sid = (15, 15, 15)


def entry(item_id: str, sid: Sid, title: str = "t") -> LogEntry:
    item = ItemRecord(item_id, title, "", {})
    return LogEntry("1-0", item, content_hash(item), sid)


def test_every_item_is_found_by_its_sid_and_every_sid_by_its_item_grid_11(checkpoint: Checkpoint) -> None:
    catalog = Catalog.from_checkpoint(checkpoint)
    for item in checkpoint.items():
        found = catalog.get(item.item_id)
        assert found is not None and catalog.bucket(found.sid) == (item.item_id,)
    assert len(catalog) == 60 and catalog.bucket(FREE) == () and catalog.get("nobody") is None


def test_a_snapshot_does_not_change_when_the_next_one_is_made(checkpoint: Checkpoint) -> None:
    first = Catalog.from_checkpoint(checkpoint)
    second = first.with_items([entry("new", FREE)])
    third = second.with_items([entry("new", (14, 14, 14)), entry("other", FREE)])
    assert [catalog.version for catalog in (first, second, third)] == [0, 1, 2]
    assert [catalog.bucket(FREE) for catalog in (first, second, third)] == [(), ("new",), ("other",)]
    assert [len(catalog) for catalog in (first, second, third)] == [60, 61, 62]


def test_in_a_bucket_new_items_follow_trained_ones_in_the_order_of_the_log(checkpoint: Checkpoint) -> None:
    catalog = Catalog.from_checkpoint(checkpoint)
    trained = catalog.get("item-5")
    assert trained is not None
    catalog = catalog.with_items([entry("z", trained.sid), entry("a", trained.sid), entry("z", trained.sid, "again")])
    assert catalog.bucket(trained.sid) == ("item-5", "z", "a")


def test_an_item_of_the_checkpoint_keeps_sid_popularity_and_age_whatever_the_log_says(checkpoint: Checkpoint) -> None:
    catalog = Catalog.from_checkpoint(checkpoint)
    before = catalog.get("item-5")
    after = catalog.with_items([entry("item-5", FREE, "renamed")]).get("item-5")
    assert before is not None and after is not None
    assert (after.sid, after.popularity, after.is_new) == (before.sid, before.popularity, False)
    assert after.item.title == "renamed" and after.hash != before.hash


def test_popular_items_come_most_popular_first_and_new_ones_last(checkpoint: Checkpoint) -> None:
    catalog = Catalog.from_checkpoint(checkpoint).with_items([entry("new", FREE)])
    places = list(catalog.popular())
    assert [item.item.item_id for item, _ in places] == [*(f"item-{n}" for n in range(60)), "new"]
    scores = [score for _, score in places]
    assert scores == sorted(scores, reverse=True) and scores[0] < 0


def test_the_content_hash_is_of_what_is_said_not_of_how() -> None:
    said = content_hash(ItemRecord("a", "A film", "", {"x": 1, "y": "z"}))
    assert said == content_hash(ItemRecord("b", "A\u00a0 film\u200b", " ", {"y": "z", "x": 1}))
    assert said != content_hash(ItemRecord("a", "A film", "", {"x": 2, "y": "z"}))
    assert said != content_hash(ItemRecord("a", "A", "film", {"x": 1, "y": "z"}))
