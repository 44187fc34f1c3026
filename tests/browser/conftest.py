"""The real service over a small catalogue, and a browser whose pages must end without any trouble."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import redis
from playwright.sync_api import Browser, Page, expect

from service.app import Parts
from service.model.blend import NONE, BlendWeights, Neighbours, log_densities
from service.model.checkpoint import Checkpoint, ItemRecord
from service.settings import Settings
from tests.blended_checkpoint import blended_with
from tests.browser.clicks import BIDI, HOSTILE, Opening
from tests.chromium import chromium
from tests.live_service import live_service
from tests.redis_server import RedisServer
from tests.service_doubles import FakeEncoder, exact_checkpoint, write_items
from tests.tiny_checkpoint import Shape

GENRES = ("Drama", "Comedy", "Horror")
WAIT_MS = 15_000


@pytest.fixture(scope="package")
def films(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """60 items; the third has a hostile title, the fourth one that turns the direction of writing."""
    made = exact_checkpoint(tmp_path_factory.mktemp("films") / "tiny", Shape(levels=3, codes=16, items=60))
    titles = {3: HOSTILE, 4: BIDI}
    items = [
        ItemRecord(f"item-{n}", titles.get(n, f"Title {n}"), "", {"genres": [GENRES[n % 3]], "year": 1990 + n})
        for n in range(60)
    ]
    return _befriended(write_items(made, items, made.catalog_tensors()))


def _befriended(plain: Checkpoint) -> Checkpoint:
    """Whoever took an item took the one thirty places on."""
    near_NQ = np.array([[n + 30] if n < 30 else [NONE] for n in range(60)], np.int32)
    strength_NQ = np.where(near_NQ == NONE, 0, 0.9).astype(np.float32)
    weights = BlendWeights(0.5, 0.3, 0.1, reach=0.9)
    density_N = log_densities(plain.catalog_tensors().embedding_NE, weights.temperature)
    return blended_with(plain.folder, Neighbours(near_NQ, strength_NQ, density_N), weights)


@pytest.fixture(scope="package")
def own_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """User u has watched item-u .. item-(u+4), in this order."""
    server = RedisServer(tmp_path_factory.mktemp("redis")).start()
    with redis.Redis(port=server.port) as client:
        for user in range(5):
            client.zadd(f"groundrec:history:{user}", {f"item-{user + n}": 1_700_000_000 + n for n in range(5)})
    yield server
    server.kill()


@pytest.fixture(scope="package")
def settings(films: Checkpoint, own_redis: RedisServer) -> Settings:
    """Patient: the machine may be busy, and a late answer would be a fallback."""
    wanted: dict[str, Any] = {"checkpoint": films.folder, "redis_url": own_redis.url, "engine": "torch"}
    return Settings(**wanted, request_timeout_ms=20_000, history_timeout_ms=5_000)


@pytest.fixture(scope="package")
def service(films: Checkpoint, settings: Settings) -> Iterator[str]:
    with live_service(settings, Parts(encoder=FakeEncoder(films))) as url:
        yield url


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture
def opened(browser: Browser, service: str) -> Iterator[Opening]:
    """Opens the page; at the end nothing may have gone wrong in it and nothing been asked of anybody else."""
    troubles: list[str] = []
    expect.set_options(timeout=WAIT_MS)

    def open_page(view: str = "recommend", *, url: str = service, **options: Any) -> Page:
        page = browser.new_page(**options)
        page.set_default_timeout(WAIT_MS)
        watch(page, url, troubles)
        page.goto(f"{url}/playground#{view}")
        expect(page.locator("#recommend-notice .notice, #recommendations > li").first).to_be_attached()
        return page

    yield open_page
    for context in browser.contexts:
        context.close()
    assert troubles == []


def watch(page: Page, url: str, troubles: list[str]) -> None:
    """Note errors of the page, dialogs, complaints on the console and requests to elsewhere."""

    def foreign(asked: str) -> None:
        if not asked.startswith(f"{url}/"):
            troubles.append(f"asked for {asked}")

    def complaint(kind: str, text: str) -> None:
        if kind == "error" and "Failed to load resource" not in text:  # an error status, which tests provoke
            troubles.append(text)

    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.on("dialog", lambda dialog: troubles.append(dialog.message))
    page.on("request", lambda request: foreign(request.url))
    page.on("console", lambda line: complaint(line.type, line.text))
