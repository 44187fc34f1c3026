from dataclasses import replace
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.catalog import Catalog, content_hash
from service.filters import FilterRule
from service.model.checkpoint import Checkpoint, ItemRecord
from service.model.semantic_ids import Sid
from service.stores.item_log import LogEntry, Op, latest

FREE: Sid = (15, 15, 15)
VERSIONS = count(1)


def entry(item_id: str, sid: Sid, title: str = "t", *, version: int | None = None, since: int = 0) -> LogEntry:
    item = ItemRecord(item_id, title, "", {})
    number = next(VERSIONS) if version is None else version
    return LogEntry(number, number - 1, f"{number}-0", "put", item_id, item, content_hash(item), sid, since or number)


def without(item_id: str, op: Op = "delete") -> LogEntry:
    number = next(VERSIONS)
    return LogEntry(number, number - 1, f"{number}-0", op, item_id)


def after(catalog: Catalog, *entries: LogEntry) -> Catalog:
    return catalog.advance(entries).catalog


@pytest.fixture(scope="module")
def first(checkpoint: Checkpoint) -> Catalog:
    return Catalog.from_checkpoint(checkpoint)


def test_every_item_is_found_by_its_sid_and_every_sid_by_its_item_grid_11(
    checkpoint: Checkpoint, first: Catalog
) -> None:
    for item in checkpoint.items():
        found = first.get(item.item_id)
        assert found is not None and first.bucket(found.sid) == (item.item_id,)
    assert len(first) == 60 and first.bucket(FREE) == () and first.get("nobody") is None


def test_a_snapshot_does_not_change_when_the_next_one_is_made(first: Catalog) -> None:
    second = after(first, entry("new", FREE))
    third = after(second, entry("new", (14, 14, 14)), entry("other", FREE))
    assert [catalog.bucket(FREE) for catalog in (first, second, third)] == [(), ("new",), ("other",)]
    assert [len(catalog) for catalog in (first, second, third)] == [60, 61, 62]
    assert first.version < second.version < third.version
    assert [catalog.new_count for catalog in (first, second, third)] == [0, 1, 2]


def test_one_version_may_have_two_successors(first: Catalog) -> None:
    second = after(first, entry("new", FREE))
    left, right = after(second, entry("left", FREE)), after(second, without("new"), entry("right", FREE))
    assert left.bucket(FREE) == ("new", "left") and right.bucket(FREE) == ("right",)
    assert [item.item.item_id for item in left.new_items()] == ["new", "left"]
    assert [item.item.item_id for item in right.new_items()] == ["right"]
    assert [item.item.item_id for item in left.newest()] == ["left", "new"]


def test_a_version_is_that_of_its_last_entry(first: Catalog) -> None:
    assert after(first, entry("a", FREE, version=7), entry("b", FREE, version=12)).version == 12
    assert first.advance((), 20).catalog.version == 20


def test_in_a_bucket_new_items_follow_trained_ones_by_the_time_they_came_to_it(first: Catalog) -> None:
    trained = first.get("item-5")
    assert trained is not None
    old = entry("z", trained.sid)
    catalog = after(first, old, entry("a", trained.sid))
    catalog = after(catalog, entry("z", trained.sid, "again", since=old.since))
    assert catalog.bucket(trained.sid) == ("item-5", "z", "a")


def test_an_item_of_the_checkpoint_keeps_sid_popularity_and_age_whatever_the_log_says(first: Catalog) -> None:
    before, now = first.get("item-5"), after(first, entry("item-5", FREE, "renamed")).get("item-5")
    assert before is not None and now is not None
    assert (now.sid, now.popularity, now.is_new) == (before.sid, before.popularity, False)
    assert now.item.title == "renamed" and now.hash != before.hash


def test_a_deleted_item_is_nowhere_and_returns_to_its_place(first: Catalog) -> None:
    sid = first.last_sid("item-5")
    assert sid is not None
    gone = after(first, without("item-5"))
    assert gone.get("item-5") is None and gone.bucket(sid) == () and len(gone) == 59
    assert gone.last_sid("item-5") == sid and gone.slot(sid) == first.slot(sid)
    assert "item-5" not in [item.item.item_id for item, _ in gone.popular()]
    back = after(gone, entry("item-5", FREE, "back"))
    assert back.bucket(sid) == ("item-5",) and len(back) == 60


def test_a_reset_item_is_what_the_checkpoint_says(first: Catalog) -> None:
    changed = after(first, entry("item-5", FREE, "renamed"), without("item-6"), entry("new", FREE))
    reset = after(changed, *(without(item_id, "reset") for item_id in ("item-5", "item-6", "new")))
    assert [reset.get(item_id) is None for item_id in ("item-5", "item-6", "new")] == [False, False, True]
    assert reset.catalog_hash == first.catalog_hash and reset.log_state() == {}


def test_a_step_names_the_sids_that_came_and_went_in_the_order_of_their_slots(first: Catalog) -> None:
    one, two = (15, 15, 14), (15, 15, 13)
    step = first.advance([entry("b", FREE), entry("a", one), entry("c", two), without("c")])
    assert (step.added, step.removed) == ((FREE, one), ())
    assert [step.catalog.slot(sid) for sid in (FREE, one, two)] == [60, 61, None]
    step = step.catalog.advance([without("b"), entry("d", two)])
    assert (step.added, step.removed) == ((two,), (FREE,))
    assert [step.catalog.slot(sid) for sid in (FREE, one, two)] == [60, 61, 62]


def test_trained_sids_have_their_slots_in_ascending_order(checkpoint: Checkpoint, first: Catalog) -> None:
    sids = sorted(tuple(codes) for codes in checkpoint.catalog_tensors().codes_NL.tolist())
    assert [first.slot(sid) for sid in sids] == list(range(60)) and first.num_slots == 60


def test_popular_items_come_most_popular_first_and_new_ones_last(first: Catalog) -> None:
    places = list(after(first, entry("new", FREE)).popular())
    assert [item.item.item_id for item, _ in places] == [*(f"item-{n}" for n in range(60)), "new"]
    scores = [score for _, score in places]
    assert scores == sorted(scores, reverse=True) and scores[0] < 0


def test_the_catalogue_hash_says_what_is_there_not_how_it_came(first: Catalog) -> None:
    a, b = entry("a", FREE), entry("b", FREE, "b")
    together = after(first, a, b)
    assert together.catalog_hash == after(after(first, b), a).catalog_hash
    assert after(together, without("a")).catalog_hash == after(first, b).catalog_hash
    assert after(first, replace(a, sid=(15, 15, 1))).catalog_hash != after(first, a).catalog_hash
    assert after(first, entry("a", FREE, "other")).catalog_hash != after(first, a).catalog_hash
    assert len({first.catalog_hash, together.catalog_hash, after(first, without("item-5")).catalog_hash}) == 3


def test_pages_come_in_a_stable_order_and_new_items_at_their_end(first: Catalog) -> None:
    catalog = after(first, *(entry(f"new-{n}", FREE, f"Film {n}") for n in range(10)))
    page = catalog.page(None, 65)
    catalog = after(catalog, entry("later", FREE), without("new-7"))
    rest = catalog.page(page.cursor, 65)
    shown = [item.item.item_id for part in (page, rest) for item in part.items]
    kept = [f"new-{n}" for n in range(10) if n != 7]
    assert shown == [*(f"item-{n}" for n in range(60)), *kept, "later"]
    assert rest.cursor is None


def test_a_page_of_titles_that_hold_a_text_whatever_its_case(first: Catalog) -> None:
    catalog = after(first, entry("new", FREE, "The title 59 again"))
    page = catalog.page(None, 1, "TITLE  59 ")
    assert [item.item.item_id for item in page.items] == ["item-59"]
    assert [item.item.item_id for item in catalog.page(page.cursor, 5, "title 59").items] == ["new"]
    assert catalog.page(None, 5, "nothing of the kind").items == ()


def test_the_content_hash_is_of_what_is_said_not_of_how() -> None:
    said = content_hash(ItemRecord("a", "A film", "", {"x": 1, "y": "z"}))
    assert said == content_hash(ItemRecord("b", "A\u00a0 film\u200b", " ", {"y": "z", "x": 1}))
    assert said != content_hash(ItemRecord("a", "A film", "", {"x": 2, "y": "z"}))
    assert said != content_hash(ItemRecord("a", "A", "film", {"x": 1, "y": "z"}))


IDS = st.sampled_from(["item-1", "item-2", "item-30", "a", "b", "c", "d"])
SIDS = st.sampled_from([FREE, (15, 15, 14), (15, 15, 13)])
WORDS = st.tuples(st.sampled_from(["put", "put", "put", "delete", "reset"]), IDS, SIDS, st.sampled_from("xyz"))


@settings(max_examples=60, deadline=None)
@given(words=st.lists(WORDS, min_size=1, max_size=40), cuts=st.lists(st.integers(1, 39), max_size=4))
def test_a_catalogue_depends_on_the_log_alone_not_on_how_it_was_read(
    first: Catalog, words: list[tuple[Op, str, Sid, str]], cuts: list[int]
) -> None:
    """One by one, in pages, or from a state and the rest: the same items, buckets and hash."""
    entries = [
        entry(item_id, sid, title, version=number)
        if op == "put"
        else LogEntry(number, number - 1, f"{number}-0", op, item_id, sid=sid)
        for number, (op, item_id, sid, title) in enumerate(words, 1)
    ]
    single = first
    for each in entries:
        single = after(single, each)
    bounds = sorted({0, len(entries), *(cut for cut in cuts if cut < len(entries))})
    paged, live = first, {sid for item, _ in first.popular() for sid in [item.sid]}
    for start, end in zip(bounds, bounds[1:], strict=False):
        step = paged.advance(entries[start:end])
        assert not live & set(step.added) and set(step.removed) <= live
        paged, live = step.catalog, (live | set(step.added)) - set(step.removed)
    middle = latest(entries[: bounds[1]])
    jumped = after(first, *first.differences(middle, bounds[1])) if first.differences(middle, bounds[1]) else first
    jumped = after(jumped, *entries[bounds[1] :]) if entries[bounds[1] :] else jumped
    for other in (paged, jumped):
        assert contents(other) == contents(single)
        assert (other.catalog_hash, len(other), other.new_count) == (
            single.catalog_hash,
            len(single),
            single.new_count,
        )
    assert live == {item.sid for item, _ in paged.popular()}


def contents(catalog: Catalog) -> dict[str, tuple[str, Sid, tuple[str, ...]]]:
    return {item.item.item_id: (item.item.title, item.sid, catalog.bucket(item.sid)) for item, _ in catalog.popular()}


def test_rows_of_what_items_once_said_go_and_nothing_else_changes(
    first: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.catalog.WASTED_ROWS", 5)
    full = after(first, *(entry(f"n-{n % 4}", (15, 15, n % 3), f"t{n}") for n in range(300)))
    for number in range(150):
        full = after(full, entry(f"n-{number % 4}", (15, 15, number % 3), f"u{number}"))
    full = after(full, without("n-0"), without("item-5"), entry("item-7", first.last_sid("item-7") or (), "changed"))
    assert full.is_wasteful and not first.is_wasteful
    small = full.compacted()
    assert not small.is_wasteful and small._rows <= len(first) + len(full) < full._rows
    assert (small.version, small.catalog_hash, len(small)) == (full.version, full.catalog_hash, len(full))
    later = entry("z", FREE)
    for one, other in ((full, small), (after(full, later), after(small, later))):
        assert everything(one) == everything(other)
    assert [item.item.item_id for item in full.newest()][0] == "n-1", "the large one still serves whoever holds it"


def everything(catalog: Catalog) -> object:
    """What a reader can see, row numbers apart."""
    pages, cursor = [], None
    while True:
        page = catalog.page(cursor, 7)
        pages.append([item.item for item in page.items])
        if (cursor := page.cursor) is None:
            break
    legal = catalog.legal(FilterRule({}, {}, {"year": 1993}, {}))
    allowed = [item.item.item_id for item, _ in catalog.popular() if legal.allows(item)]
    buckets = {item.sid: catalog.bucket(item.sid) for item, _ in catalog.popular()}
    newest = [item.item for item in catalog.newest()]
    return pages, allowed, legal.slots, buckets, newest, catalog.log_state(), catalog.num_slots
