"""New items are found for a user by text as soon as the catalogue has them, and no longer."""

import numpy as np
import pytest
from numpy.typing import NDArray

from service.catalog import Catalog, CatalogStep
from service.catalog_item import CatalogItem, ItemChange
from service.model.checkpoint import Checkpoint, ItemRecord
from service.model.new_items import NewItemDial
from service.new_items import NewItems
from service.stores.item_log import LogEntry
from service.vectors import pack

TRAINED = np.eye(8, dtype=np.float32)[:6]
DIAL = NewItemDial(bias=0.0, text=1.0, model=0.3, decay=0.5)


def near(row: int, other: int = 7) -> NDArray[np.float32]:
    mixed = np.eye(8, dtype=np.float32)[row] + 0.3 * np.eye(8, dtype=np.float32)[other]
    return np.asarray(mixed / np.linalg.norm(mixed), np.float32)


def new_items() -> NewItems:
    return NewItems([f"t{n}" for n in range(6)], TRAINED, DIAL)


def best(items: NewItems, *history: str, found: dict[str, float] | None = None) -> list[str]:
    return [item_id for item_id, _ in items.scored(history, (found or {}).items())]


def test_the_new_item_most_like_the_last_ones_comes_first() -> None:
    items = new_items()
    items.change({"a": near(0), "b": near(3)})
    assert best(items, "t5", "t3") == ["b", "a"]
    assert best(items, "t3", "t0") == ["a", "b"]


def test_scores_are_log_probabilities_best_first() -> None:
    items = new_items()
    items.change({f"n{n}": near(n) for n in range(6)})
    scores = [score for _, score in items.scored(["t1", "t4"], [("t2", -0.5)])]
    assert len(scores) == 6 and scores == sorted(scores, reverse=True) and max(scores) <= 0


def test_what_the_model_found_raises_new_items_beside_it() -> None:
    items = new_items()
    items.change({"a": near(0), "b": near(3)})
    assert best(items, "t5", found={"t0": -0.1}) == ["a", "b"]
    assert best(items, "t5", found={"t3": -0.1}) == ["b", "a"]


def test_a_new_item_can_be_history_too_and_unknown_ones_are_passed_over() -> None:
    items = new_items()
    items.change({"a": near(0), "b": near(0, other=6), "c": near(3)})
    assert best(items, "gone", "a", "never-seen")[:2] == ["a", "b"]


@pytest.mark.parametrize("history", [(), ("unknown",)])
def test_without_a_known_history_there_is_nothing_to_go_by(history: tuple[str, ...]) -> None:
    items = new_items()
    items.change({"a": near(0)})
    assert best(items, *history) == []


def test_no_new_items_no_answer() -> None:
    assert best(new_items(), "t1") == []


def test_an_item_that_went_or_changed_its_text_is_scored_as_it_is_now() -> None:
    items = new_items()
    items.change({"a": near(0), "b": near(3)})
    items.change({"a": near(3)}, gone=["b"])
    assert len(items) == 1
    assert best(items, "t3") == ["a"]
    items.change({"b": near(0)})
    assert best(items, "t3") == ["a", "b"]
    items.change({}, gone=["a", "b", "never-there"])
    assert len(items) == 0


def test_a_search_under_way_keeps_the_items_it_began_with() -> None:
    items = new_items()
    items.change({"a": near(0), "b": near(3)})
    search = items.scored(["t0"], [])
    first = next(search)[0]
    items.change({}, gone=["a", "b"])
    assert [first, *(item_id for item_id, _ in search)] == ["a", "b"]


def test_densities_are_kept_for_trained_items_only_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.new_items.CACHED_DENSITIES", 2)
    items = new_items()
    items.change({"a": near(0)})
    expected = best(items, "t1", "t2", "t3", "a")
    assert list(items._density) == [2, 1]
    items.change({"a": near(5)})
    assert best(items, "t1", "t2", "t3", "a") == expected == ["a"]


def item(item_id: str, row: int, *, is_new: bool = True) -> CatalogItem:
    """An item of the log that reads like a trained one."""
    record = ItemRecord(item_id, item_id, "", {})
    entry = LogEntry(1, 0, "1-0", "put", item_id, record, "hash", (0, 0, 0), vector=pack(near(row)))
    return CatalogItem(record, (0, 0, 0), is_new=is_new, entry=entry)


async def test_a_step_of_the_catalogue_is_followed(checkpoint: Checkpoint) -> None:
    items, catalog = new_items(), Catalog.from_checkpoint(checkpoint)

    async def step(*changes: ItemChange) -> None:
        await items.follow(CatalogStep(catalog, (), (), changes))

    await step(ItemChange("a", None, item("a", 0)), ItemChange("b", None, item("b", 3)))
    assert best(items, "t3") == ["b", "a"]
    await step(ItemChange("b", item("b", 3), item("b", 5)), ItemChange("t1", item("t1", 1, is_new=False), None))
    assert best(items, "t5") == ["b", "a"]
    await step(ItemChange("b", item("b", 5), None), ItemChange("t2", None, item("t2", 2, is_new=False)))
    assert best(items, "t5") == ["a"]


async def test_a_vector_from_the_log_scores_as_the_embedding_did(checkpoint: Checkpoint) -> None:
    exact, followed = new_items(), new_items()
    exact.change({"a": near(0)})
    await followed.follow(
        CatalogStep(Catalog.from_checkpoint(checkpoint), (), (), (ItemChange("a", None, item("a", 0)),))
    )
    (_, wanted), (_, found) = (next(items.scored(["t0", "t3"], [("t1", -1.0)])) for items in (exact, followed))
    assert found == pytest.approx(wanted, abs=0.05)


def crowd(random: np.random.Generator, count: int) -> dict[str, NDArray[np.float32]]:
    vectors = random.normal(size=(count, 8)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return {f"n{random.integers(3 * count)}": vector for vector in vectors}


@pytest.mark.parametrize("seed", range(5))
def test_after_any_changes_it_is_as_if_built_from_what_there_is(seed: int) -> None:
    random = np.random.default_rng(seed)
    followed, there = new_items(), dict[str, NDArray[np.float32]]()
    for _ in range(30):
        came = crowd(random, int(random.integers(0, 40)))
        went = [item_id for item_id in there if random.random() < 0.3]
        followed.change(came, went)
        there = {item_id: vector for item_id, vector in there.items() if item_id not in went} | came
    built = new_items()
    built.change(there)
    asked: dict[str, float] = {"t1": -0.5, "t3": -2.0}
    ours, wanted = (dict(items.scored(["t0", "t4"], asked.items())) for items in (followed, built))
    assert len(followed) == len(there) and ours == pytest.approx(wanted, abs=1e-5)
    assert list(ours.values()) == sorted(ours.values(), reverse=True)


def test_a_thousand_new_items_are_read_best_first_to_the_end() -> None:
    items, random = new_items(), np.random.default_rng(3)
    items.change({f"n{n}": near(n % 6, 6 + n % 2) + np.float32(0.01 * random.random()) for n in range(2000)})
    found = list(items.scored(["t0", "t4"], []))
    assert len({item_id for item_id, _ in found}) == len(found) == 2000
    assert [score for _, score in found] == sorted((score for _, score in found), reverse=True)


def test_what_went_does_not_pile_up() -> None:
    items, random = new_items(), np.random.default_rng(4)
    for _ in range(200):
        items.change(crowd(random, 20), gone=[f"n{n}" for n in range(60)])
    assert len(items._known.stands_M) <= 4 * 20 + 20
    assert len(items._known.rows) == len(items._known.stands_M)


def test_a_reader_keeps_its_moment_while_rows_are_added_and_arrays_grow() -> None:
    items, random = new_items(), np.random.default_rng(5)
    items.change(crowd(random, 30))
    before = dict(items.scored(["t0"], []))
    search = items.scored(["t0"], [])
    first = next(search)
    items.change(crowd(random, 500), gone=list(before))
    assert dict([first, *search]) == before


def test_rows_of_a_change_that_failed_halfway_stand_nowhere() -> None:
    items = new_items()
    items.change({"a": near(0)})
    items._known.rows.append(["half"], items._texts.table(near(1)[None]))
    items.change({"b": near(3)})
    assert best(items, "t3") == ["b", "a"] and len(items) == 2


def test_a_new_item_of_the_history_counts_only_where_no_trained_one_is() -> None:
    """Injected texts are alike in what no trained text has: they must not find each other."""
    items = new_items()
    items.change({"a": near(0), "b": near(0, other=6), "c": near(3)})
    assert [*items.scored(["t3", "a"], [])] == [*items.scored(["t3"], [])]
    assert best(items, "a")[:2] == ["a", "b"]
