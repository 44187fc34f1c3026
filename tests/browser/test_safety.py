"""Strangers' text stays text, keys stay in their tab, and nothing is asked of anybody else."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from service.api_keys import KeyEntry, digest
from service.app import Parts
from service.model.checkpoint import Checkpoint
from service.settings import Settings
from tests.browser.clicks import HOSTILE, Opening, answer_to, delete_item, options, pick_user, post_item, rows, search
from tests.live_service import live_service
from tests.service_doubles import FakeEncoder, FakeEngine

READER, OWNER = "groundrec_reader", "groundrec_owner"


def test_hostile_titles_are_only_ever_text(opened: Opening) -> None:
    page = opened()
    answer_to(page, lambda: pick_user(page, "1"))
    expect(page.locator("#history-list bdi").get_by_text(HOSTILE, exact=True)).to_be_visible()
    search(page, "Add items", "onerror")
    expect(options(page)).to_contain_text(HOSTILE)
    page.get_by_label("Exclude seen").uncheck()
    page.get_by_label("Results").fill("100")
    answer_to(page, lambda: page.get_by_label("Results").press("Enter"))
    expect(page.locator('[data-item="item-3"] .title')).to_have_text(HOSTILE)
    card = post_item(page, HOSTILE, f"{HOSTILE} like Title 12")
    expect(card.locator("h3")).to_contain_text(HOSTILE)
    delete_item(card)
    assert page.evaluate("window.hacked") is None
    assert page.locator("main img, main script").count() == 0


def test_text_could_not_become_markup_anyway(browser: Browser, service: str) -> None:
    page = browser.new_page()  # not watched: the refusal is a complaint on the console
    page.goto(f"{service}/playground")
    refused = page.evaluate("() => { try { document.body.innerHTML = '<b>'; return false } catch { return true } }")
    assert refused
    page.close()


@pytest.fixture
def locked(films: Checkpoint, settings: Settings) -> Iterator[str]:
    """A service that asks for keys; `READER` may recommend, `OWNER` may do everything."""
    keys = (
        KeyEntry(name="reader", scopes=("recommend",), sha256=(digest(READER),)),
        KeyEntry(name="owner", scopes=("admin",), sha256=(digest(OWNER),)),
    )
    wanted = settings.model_copy(update={"auth": "on", "api_keys": keys})
    with live_service(wanted, Parts(engine=FakeEngine(films), encoder=FakeEncoder(films))) as url:
        yield url


def use_key(page: Page, key: str) -> None:
    page.get_by_label("Key", exact=True).fill(key)
    page.get_by_role("button", name="Use key").click()


def test_a_missing_or_bad_key_is_told_and_a_good_one_works(opened: Opening, locked: str) -> None:
    page = opened(url=locked)
    trouble = page.locator("#recommend-notice [role=alert]")
    expect(trouble).to_contain_text("An API key is needed")
    trouble.get_by_role("button", name="Enter an API key").click()
    use_key(page, "groundrec_wrong")
    expect(trouble).to_contain_text("the key is not known")
    page.get_by_role("button", name="API key set").click()
    use_key(page, OWNER)
    expect(rows(page)).to_have_count(10)
    expect(trouble).to_have_count(0)
    expect(page.locator("#user-samples button").first).to_be_visible()


def test_a_key_without_the_scope_is_told_which_one_it_lacks(opened: Opening, locked: str) -> None:
    page = opened(url=locked)
    page.get_by_role("button", name="API key", exact=True).click()
    use_key(page, READER)
    expect(rows(page)).to_have_count(10)
    page.get_by_role("link", name="Items").click()
    page.get_by_label("Item id", exact=True).fill("new")
    page.get_by_label("Title", exact=True).fill("new")
    page.get_by_role("button", name="Post item").click()
    expect(page.locator("#item-notice [role=alert]")).to_contain_text("lacks the scope `items`")


def test_a_key_stays_in_its_tab_and_can_be_forgotten(opened: Opening, locked: str) -> None:
    page = opened(url=locked)
    page.get_by_role("button", name="API key", exact=True).click()
    use_key(page, OWNER)
    expect(rows(page)).to_have_count(10)
    assert page.evaluate("[document.cookie, localStorage.length, location.href.includes('groundrec_')]") == [
        "",
        0,
        False,
    ]
    assert OWNER not in page.content()
    page.get_by_role("button", name="API key set").click()
    page.get_by_role("button", name="Forget").click()
    expect(page.locator("#recommend-notice [role=alert]")).to_contain_text("An API key is needed")
