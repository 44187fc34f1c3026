"""What a person does on the playground, as functions: each returns when the page has drawn the outcome."""

import json
import re
from collections.abc import Callable
from typing import Any, Protocol

from playwright.sync_api import Locator, Page, expect

HOSTILE = '<img src=x onerror="window.hacked = true"><script>window.hacked = true</script>'
BIDI = "\u202egnirts desrever"


class Opening(Protocol):
    """Opens a view of the playground."""

    def __call__(self, view: str = "recommend", *, url: str = ..., **options: Any) -> Page: ...


def rows(page: Page) -> Locator:
    return page.locator("#recommendations > li")


def history(page: Page) -> list[str]:
    """Titles of the history shown, newest first."""
    return [text.strip() for text in page.locator("#history-list .title").all_inner_texts()]


def pick_user(page: Page, user: str) -> None:
    page.locator("#user-samples").get_by_role("button", name=user, exact=True).click()
    expect(page.locator("#history-state")).to_contain_text(f"Stored history of {user}")


def answer_to(page: Page, act: Callable[[], None]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The next recommendation's request and answer, once it is drawn."""
    with page.expect_response(re.compile("/v1/recommend$")) as caught:
        act()
    found = caught.value.json()
    assert caught.value.status == 200, found
    expect(page.locator("#recommendations")).to_have_attribute("data-answer", found["recommendation_id"])
    return json.loads(caught.value.request.post_data or "{}"), found


def options(page: Page) -> Locator:
    """What a search box offers."""
    return page.locator(".options").get_by_role("option")


def search(page: Page, label: str, text: str) -> None:
    """Type into a search box and wait for the answer to all of it."""
    with page.expect_response(lambda response: f"q={text.replace(' ', '+')}&" in response.url):
        page.get_by_role("combobox", name=label).fill(text)


def post_item(page: Page, item_id: str, title: str) -> Locator:
    """The card that tells what became of it."""
    page.get_by_role("link", name="Items").click()
    page.get_by_label("Item id", exact=True).fill(item_id)
    page.get_by_label("Title", exact=True).fill(title)
    page.get_by_role("button", name="Post item").click()
    card = page.locator("article").filter(has=page.locator(".id").get_by_text(item_id, exact=True))
    expect(card).to_be_visible()
    return card


def delete_item(card: Locator) -> None:
    card.get_by_role("button", name="Delete").click()
    card.get_by_role("button", name="Delete for good").click()
    expect(card).to_have_count(0)
