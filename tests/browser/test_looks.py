"""Every view fits its window, can be read and has names for the keyboard; a picture of each is kept."""

from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser.clicks import Opening, answer_to, options, pick_user, post_item

WINDOWS = {"desk": (1280, 900), "phone": (360, 740)}

# Every text on the page with too little contrast to its ground, after WCAG 2: 4.5, or 3 where it is large.
PALE_TEXT = """() => {
  const parsed = (color) => color.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((c) => c / 255)
    .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = (node) => {
    for (; node; node = node.parentElement) {
      const color = parsed(getComputedStyle(node).backgroundColor);
      if (color.length === 3 || color[3] === 1) return color;
    }
    return [255, 255, 255];
  };
  const pale = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const node = walk.currentNode.parentElement;
    if (!walk.currentNode.data.trim() || !node.checkVisibility()) continue;
    if (node.closest(":disabled, option, .sr, .skip")) continue;
    const style = getComputedStyle(node);
    const [low, high] = [light(parsed(style.color)), light(ground(node))].sort((a, b) => a - b);
    const ratio = (high + 0.05) / (low + 0.05);
    const large = parseFloat(style.fontSize) >= 24;
    if (ratio < (large ? 3 : 4.5)) pale.push(`${ratio.toFixed(2)}: ${walk.currentNode.data.trim()}`);
  }
  return pale;
}"""

NAMELESS = """() => [...document.querySelectorAll("input, select, textarea, button, a[href], summary")]
  .filter((node) => node.checkVisibility())
  .filter((node) => !(node.getAttribute("aria-label") || node.labels?.length || node.textContent.trim()))
  .map((node) => node.outerHTML)"""

TOO_WIDE = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"


def look_at(page: Page, file: Path) -> None:
    """Check what is shown now, and keep a picture of it."""
    page.evaluate("() => document.getAnimations().forEach((animation) => animation.finish())")
    page.screenshot(path=file, full_page=True)
    assert file.stat().st_size > 5_000
    assert page.evaluate(TOO_WIDE) == 0, f"{file.stem} must be scrolled sideways"
    assert page.evaluate(PALE_TEXT) == []
    assert page.evaluate(NAMELESS) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("window", WINDOWS)
def test_every_view_can_be_read_in_every_window(opened: Opening, tmp_path: Path, window: str, scheme: str) -> None:
    width, height = WINDOWS[window]
    page = opened(viewport={"width": width, "height": height}, color_scheme=scheme)

    def keep(view: str) -> None:
        look_at(page, tmp_path / f"{window}-{scheme}-{view}.png")

    keep("cold")
    answer_to(page, lambda: pick_user(page, "1"))
    page.get_by_role("button", name="Why").first.click()
    page.locator("#filters summary").click()
    keep("recommend")
    card = post_item(page, f"looks-{window}-{scheme}", "A film like Title 21")
    keep("items")
    card.locator(".sid").click()
    expect(page.locator(".target").last).to_be_visible()
    page.locator(".target .node").last.click()
    keep("tree")
    page.get_by_role("link", name="Model").click()
    expect(page.locator("#model dt").first).to_be_visible()
    keep("model")
    page.get_by_role("button", name="API key").click()
    keep("key")


def test_the_page_is_walked_by_keyboard_from_its_first_link(opened: Opening) -> None:
    page = opened()
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Recommend")).to_be_focused()
    page.get_by_role("combobox", name="Add items").focus()
    expect(options(page).first).to_be_visible()
    page.keyboard.press("Escape")
    expect(options(page)).to_have_count(0)
    expect(page.get_by_role("combobox", name="Add items")).to_have_attribute("aria-expanded", "false")


def test_an_address_opens_its_view(opened: Opening) -> None:
    for view in ("items", "tree", "model", "recommend"):
        page = opened(view)
        expect(page.locator(f"#view-{view}")).to_be_visible()
        expect(page.locator(".view:visible")).to_have_count(1)
        expect(page.locator(".tabs [aria-current=page]")).to_have_attribute("href", f"#{view}")
