"""Items posted all the while something is broken: one call an item, at times fixed beforehand, none repeated."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType

import httpx

PATIENCE_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Post:
    """One item: when its call was due and answered (`time.monotonic`), and the HTTP status, 0 without an answer."""

    item_id: str
    due: float
    at: float
    status: int


class BackgroundPosts:
    """An async context: an item every ``1 / rate`` seconds, to ``urls`` in turn; the list may change meanwhile."""

    def __init__(self, urls: Sequence[str], rate: float, most: int = 10_000, name: str = "posted") -> None:
        self._urls, self._rate, self._most, self._name = urls, rate, most, name
        self.posts: list[Post] = []
        self._work: list[asyncio.Task[None]] = []

    @property
    def acknowledged(self) -> list[str]:
        """Items whose call was answered with 200."""
        return [post.item_id for post in self.posts if post.status == 200]

    async def all_sent(self) -> None:
        """Return once ``most`` items are answered."""
        await self._sender
        await asyncio.gather(*self._work)

    async def __aenter__(self) -> "BackgroundPosts":
        self._client = httpx.AsyncClient(timeout=PATIENCE_SECONDS)
        self._sender = asyncio.create_task(self._send_all(time.monotonic()))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._sender.cancel()
        await asyncio.gather(*self._work)
        await self._client.aclose()

    async def _send_all(self, start: float) -> None:
        for number in range(self._most):
            due = start + number / self._rate
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            url = self._urls[number % len(self._urls)]
            self._work.append(asyncio.create_task(self._post(url, f"{self._name}-{number}", number, due)))

    async def _post(self, url: str, item_id: str, number: int, due: float) -> None:
        body = {"item_id": item_id, "title": f"Film number {number}"}
        try:
            status = (await self._client.post(f"{url}/items", json=body)).status_code
        except httpx.HTTPError:
            status = 0
        self.posts.append(Post(item_id, due, time.monotonic(), status))
