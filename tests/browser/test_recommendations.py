"""Choosing a user or making a history, and what is recommended for it."""

import json
import re
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.browser.clicks import BIDI, HOSTILE, Opening, answer_to, history, options, pick_user, rows, search


def test_without_a_history_popular_items_are_shown_as_such(opened: Opening) -> None:
    page = opened()
    expect(page.locator("#recommend-notice")).to_contain_text("popular items")
    expect(rows(page)).to_have_count(10)
    assert set(page.locator("#recommendations .badge").all_inner_texts()) == {"popular"}


def test_a_picked_user_gets_recommendations_with_titles_scores_sources_and_versions(opened: Opening) -> None:
    page = opened()
    asked, found = answer_to(page, lambda: pick_user(page, "1"))
    assert asked["user_id"] == "1" and "history" not in asked
    assert history(page) == ["Title 5", BIDI, HOSTILE, "Title 2", "Title 1"]
    shown = [row.split("\n") for row in rows(page).all_inner_texts()]
    assert len(shown) == 10
    for row, item in zip(shown, found["items"], strict=True):
        assert item["title"] in row and f"{item['score']:.2f}" in " ".join(row)
    expect(rows(page).first.locator(".badge.model")).to_have_text("model")
    expect(page.locator("#recommend-meta")).to_contain_text(
        f"model {found['model_version']} · catalogue {found['catalog_version']}"
    )


def test_a_typed_user_is_loaded_and_an_unknown_one_has_an_empty_history(opened: Opening) -> None:
    page = opened()
    page.get_by_label("User", exact=True).fill("nobody")
    asked, _ = answer_to(page, lambda: page.get_by_role("button", name="Load").click())
    assert asked["user_id"] == "nobody"
    expect(page.locator("#history-state")).to_have_text("Stored history of nobody: 0 items, newest first.")


def test_a_history_is_built_by_search_and_keyboard_and_can_be_reordered(opened: Opening) -> None:
    page = opened()
    box = page.get_by_role("combobox", name="Add items")
    for title in ("Title 20", "Title 31"):
        search(page, "Add items", title)
        expect(options(page)).to_have_count(1)
        box.press("ArrowDown")
        expect(page.locator(".options").get_by_role("option", selected=True)).to_contain_text(title)
        box.press("Enter")
    assert history(page) == ["Title 31", "Title 20"]
    asked, _ = answer_to(page, lambda: page.get_by_role("button", name="Make Title 20 newer").click())
    assert asked["history"] == ["item-31", "item-20"] and "user_id" not in asked
    assert page.evaluate("document.activeElement.closest('#history-list') !== null"), "the keyboard lost its place"
    asked, _ = answer_to(page, lambda: page.get_by_role("button", name="Remove Title 31").click())
    assert asked["history"] == ["item-20"]
    expect(page.locator("#history-state")).to_have_text("A history made here: 1 item.")


def test_editing_a_stored_history_makes_a_draft_and_the_stored_one_comes_back(opened: Opening) -> None:
    page = opened()
    answer_to(page, lambda: pick_user(page, "0"))
    asked, _ = answer_to(page, lambda: page.get_by_role("button", name="Remove Title 0").click())
    assert asked["history"] == ["item-1", "item-2", "item-3", "item-4"]
    asked, _ = answer_to(page, lambda: page.get_by_role("button", name="Back to the stored one").click())
    assert asked["user_id"] == "0" and "history" not in asked


def test_the_number_of_results_and_seen_items_are_the_persons_choice(opened: Opening) -> None:
    page = opened()
    answer_to(page, lambda: pick_user(page, "0"))
    page.get_by_label("Exclude seen").uncheck()
    page.get_by_label("Results").fill("100")
    asked, found = answer_to(page, lambda: page.get_by_label("Results").press("Enter"))
    assert (asked["num_results"], asked["exclude_seen"]) == (100, False)
    assert len(found["items"]) >= 60
    expect(rows(page)).to_have_count(len(found["items"]))
    expect(page.locator('[data-item="item-1"]')).to_have_count(1)


def test_what_the_service_refuses_is_told_in_its_own_words(opened: Opening) -> None:
    page = opened()
    page.get_by_label("Results").fill("0")
    page.get_by_label("Results").press("Enter")
    trouble = page.locator("#recommend-notice [role=alert]")
    expect(trouble).to_contain_text("/num_results")
    expect(trouble).to_contain_text("greater than or equal to 1")
    expect(rows(page)).to_have_count(0)


def test_a_service_that_does_not_answer_is_told_and_recovers(opened: Opening) -> None:
    page = opened()
    page.context.set_offline(True)
    page.get_by_role("button", name="Ask again").click()
    expect(page.locator("#recommend-notice [role=alert]")).to_contain_text("The service did not answer")
    page.context.set_offline(False)
    page.get_by_role("button", name="Ask again").click()
    expect(rows(page)).to_have_count(10)
    expect(page.locator("#recommend-notice [role=alert]")).to_have_count(0)


def test_a_recommendation_is_explained_by_levels_and_by_the_history(opened: Opening) -> None:
    page = opened()
    _, found = answer_to(page, lambda: pick_user(page, "1"))
    reasons = [(item, item["explanation"]) for item in found["items"]]
    item = next(item for item, reason in reasons if reason["history"] and reason["level_scores"])
    row = page.locator(f'[data-item="{item["item_id"]}"]')
    row.get_by_role("button", name="Why").click()
    levels = row.locator("table.levels tbody tr")
    expect(levels).to_have_count(3)
    logs = [float(line.split()[-1]) for line in levels.all_inner_texts()]
    assert logs == pytest.approx(item["explanation"]["level_scores"], abs=0.006)
    assert levels.locator(".code").all_inner_texts() == [str(code) for code in item["semantic_id"]]
    relative = item["explanation"]["history"][0]
    expect(row.locator(".relatives li").first).to_have_text(
        f"{relative['title']} shares {relative['shared_levels']} of 3 codes"
    )
    row.get_by_role("button", name="Why").click()
    expect(levels).to_have_count(0)


def test_the_parts_of_a_blend_are_shown_with_the_past_item_that_speaks_most(opened: Opening) -> None:
    page = opened()
    _, found = answer_to(page, lambda: pick_user(page, "1"))
    item = next(item for item in found["items"] if item["explanation"]["blend"]["companion"])
    row = page.locator(f'[data-item="{item["item_id"]}"]')
    row.get_by_role("button", name="Why").click()
    parts = row.locator("table.parts tbody tr")
    expect(parts).to_have_count(3)
    company = item["explanation"]["blend"]["company"]
    expect(parts.nth(1)).to_contain_text(f"{100 * company:.1f} %")
    friend = int(item["item_id"].removeprefix("item-")) - 30
    assert item["explanation"]["blend"]["companion"] == f"item-{friend}"
    expect(parts.nth(1)).to_contain_text("most of all beside")


def test_a_filter_allows_only_what_it_names(opened: Opening) -> None:
    page = opened()
    answer_to(page, lambda: pick_user(page, "2"))
    page.locator("#filters summary").click()
    chip = page.locator("#filter-fields").get_by_role("button", name="Comedy")
    asked, found = answer_to(page, lambda: chip.click())
    assert asked["filter"] == {"include": {"genres": ["Comedy"]}}
    assert len(found["items"]) == 10 and all(_number(item) % 3 == 1 for item in found["items"])
    expect(page.locator("#filter-summary")).to_have_text("genres: Comedy")
    asked, found = answer_to(page, lambda: chip.click())
    assert asked["filter"] == {"exclude": {"genres": ["Comedy"]}}
    assert all(_number(item) % 3 != 1 for item in found["items"])
    page.get_by_label("year from").fill("2040")
    asked, found = answer_to(page, lambda: page.get_by_label("year from").press("Tab"))
    assert asked["filter"] == {"exclude": {"genres": ["Comedy"]}, "min": {"year": 2040}}
    assert found["items"] and all(_number(item) >= 50 for item in found["items"])
    asked, _ = answer_to(page, lambda: page.get_by_role("button", name="Clear filter").click())
    assert "filter" not in asked


def _number(item: dict[str, Any]) -> int:
    return int(item["item_id"].removeprefix("item-"))


def test_a_filter_that_leaves_nothing_says_so(opened: Opening) -> None:
    page = opened()
    page.locator("#filters summary").click()
    page.get_by_label("year from").fill("3000")
    page.get_by_label("year from").press("Tab")
    expect(page.locator("#recommend-notice")).to_contain_text("the filter and the exclusions leave none")


def test_an_event_enters_the_stored_history(opened: Opening) -> None:
    page = opened()
    _, found = answer_to(page, lambda: pick_user(page, "3"))
    item = found["items"][0]
    page.get_by_label("Event").select_option("click")
    with page.expect_response(re.compile("/v1/events$")) as sent:
        rows(page).first.get_by_role("button", name="Send a click").press("Enter")
    body = json.loads(sent.value.request.post_data or "{}")
    assert body["recommendation_id"] == found["recommendation_id"]
    expect(page.locator("#history-list .title").first).to_have_text(item["title"])
    expect(page.locator("#history-state")).to_contain_text("6 items")
    expect(page.locator(f'#recommendations [data-item="{item["item_id"]}"]')).to_have_count(0)
    expect(rows(page).first.get_by_role("button", name="Send a click")).to_be_focused()
