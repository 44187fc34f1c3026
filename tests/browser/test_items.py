"""Posting an item and watching it arrive, the tree of semantic IDs, the model card."""

from playwright.sync_api import expect

from service.model.checkpoint import Checkpoint
from tests.browser.clicks import Opening, answer_to, delete_item, post_item, rows, search


def test_a_posted_item_arrives_is_recommended_and_is_gone_when_deleted(opened: Opening) -> None:
    page = opened()
    card = post_item(page, "new-1", "A film like Title 7")
    expect(card.locator(".badge").first).to_have_text("created")
    expect(card.locator(".neighbours th").first).to_have_text("Title 7")
    expect(card.locator(".grounding")).to_contain_text("Confidence")
    expect(card.locator(".sid .code")).to_have_count(3)
    expect(card.get_by_role("row", name="Level 3")).to_contain_text("100 %")
    card.get_by_role("button", name="Try with a history of its neighbours").click()
    page.get_by_label("Results").fill("100")
    answer_to(page, lambda: page.get_by_label("Results").press("Enter"))
    ours = page.locator('.recommendation.ours[data-item="new-1"]')
    expect(ours.locator(".badge.new_item").first).to_have_text("posted here")
    expect(ours).to_contain_text("new item")
    page.get_by_role("link", name="Items").click()
    delete_item(card)
    expect(page.locator("#item-notice")).to_contain_text("Deleted new-1")
    page.get_by_role("link", name="Recommend").click()
    expect(page.locator('[data-item="new-1"]')).to_have_count(0)
    expect(rows(page).first).to_be_visible()


def test_a_preview_writes_nothing_and_a_bad_item_is_told_field_by_field(opened: Opening) -> None:
    page = opened("items")
    page.get_by_label("Item id", exact=True).fill("preview-1")
    page.get_by_label("Title", exact=True).fill("A film like Title 9")
    page.get_by_role("button", name="Preview without writing").click()
    expect(page.locator('article[data-item="preview-1"] .badge').first).to_have_text("would be created")
    search(page, "Look up an item", "A film like Title 9")
    expect(page.locator(".options:visible")).to_contain_text("No item has these words")
    page.get_by_label("Item id", exact=True).fill("")
    page.get_by_role("button", name="Post item").click()
    expect(page.locator("#item-notice [role=alert]")).to_contain_text("/item_id")


def test_the_tree_opens_level_by_level_down_to_items_and_marks_new_ones(opened: Opening) -> None:
    page = opened()
    card = post_item(page, "new-2", "A film like Title 11")
    codes = card.locator(".sid .code").all_inner_texts()
    card.locator(".sid").click()
    target = page.locator(".target").last
    expect(target.locator("> .node")).to_contain_text("1 new")
    leaf = target.locator(f'.node:has(.code:text-is("{codes[2]}"))')
    leaf.press("Enter")
    expect(target.locator(".leaf")).to_contain_text("A film like Title 11")
    expect(target.locator(".leaf .badge")).to_have_text("new item")
    leaf.press("Enter")
    expect(leaf).to_have_attribute("aria-expanded", "false")
    page.get_by_role("link", name="Items").click()
    delete_item(card)


def test_the_tree_counts_every_item(opened: Opening) -> None:
    page = opened("tree")
    expect(page.locator("#tree-hint")).to_contain_text("under 3 levels of 16 codes")
    counts = page.locator("#tree > .branch > li > .node > .number").all_inner_texts()
    served = page.request.get(page.url.replace("playground#tree", "v1/model")).json()
    assert sum(map(int, counts)) == served["catalog_items"] >= 60


def test_the_model_card_shows_what_is_served(opened: Opening, films: Checkpoint) -> None:
    page = opened("model")
    expect(page.locator("#model")).to_contain_text(films.manifest.model_version)
    expect(page.locator("#model dt", has_text="Codes per level").locator("+ dd")).to_have_text("16")
