"""Recommendations asked all the while something is broken: when each was due, and what came back.

Arrivals are fixed beforehand, as in `loadtest.open_loop`; a latency counts from when its request was due. Times are
seconds of `time.monotonic`, so that a drill can set them beside what it did.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType

import httpx
import numpy as np

from loadtest.arrivals import poisson_arrivals

PATIENCE_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Answer:
    """One request: due and answered at, the HTTP status (0: none), whether degraded, and what it asked to wait.

    ``late`` is how many seconds after it was due this program began to send it; the latency includes them.
    """

    due: float
    at: float
    status: int
    degraded: bool = False
    retry_after: bool = False
    items: tuple[str, ...] = ()
    late: float = 0.0

    @property
    def latency(self) -> float:
        """Seconds from due to answered."""
        return self.at - self.due

    @property
    def full(self) -> bool:
        """Answered by the model with all it should know."""
        return self.status == 200 and not self.degraded


class BackgroundLoad:
    """An async context: ``rate`` requests a second from its start to its end, spread over ``urls`` in turn."""

    def __init__(
        self, urls: Sequence[str], users: Sequence[str], rate: float, longest: float = 900.0, num_results: int = 10
    ) -> None:
        self._urls, self._users, self._num_results = urls, users, num_results
        self._due = poisson_arrivals(rate, longest, seed=0)
        self._answers: list[Answer] = []
        self._work: list[asyncio.Task[None]] = []

    @property
    def answers(self) -> list[Answer]:
        """Those so far, by when they were due."""
        return sorted(self._answers, key=lambda answer: answer.due)

    def between(self, start: float, end: float) -> list[Answer]:
        """Answers to what was due in a span of time."""
        return [answer for answer in self.answers if start <= answer.due < end]

    async def until(self, condition: Callable[[Answer], bool], since: float, patience: float = 60.0) -> float:
        """Seconds from ``since`` to the first answer, due after it, that fulfils ``condition``.

        Raises:
            TimeoutError: none came.
        """
        while time.monotonic() < since + patience:
            found = [answer for answer in self.between(since, float("inf")) if condition(answer)]
            if found:
                return min(answer.at for answer in found) - since
            await asyncio.sleep(0.01)
        raise TimeoutError(f"no such answer within {patience:.0f} s")

    async def __aenter__(self) -> "BackgroundLoad":
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=50)
        self._client = httpx.AsyncClient(timeout=PATIENCE_SECONDS, limits=limits)
        self._sender = asyncio.create_task(self._send_all(time.monotonic()))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._sender.cancel()
        await asyncio.gather(*self._work)
        await self._client.aclose()

    async def _send_all(self, start: float) -> None:
        random = np.random.default_rng(0)
        for number, at in enumerate(self._due):
            await asyncio.sleep(max(0.0, start + at - time.monotonic()))
            user = self._users[int(random.integers(len(self._users)))]
            url = self._urls[number % len(self._urls)]
            self._work.append(asyncio.create_task(self._ask(url, user, start + at)))

    async def _ask(self, url: str, user: str, due: float) -> None:
        body, late = {"user_id": user, "num_results": self._num_results}, time.monotonic() - due
        try:
            response = await self._client.post(f"{url}/recommend", json=body)
        except httpx.HTTPError:
            self._answers.append(Answer(due, time.monotonic(), 0, late=late))
            return
        told = response.json() if response.status_code == 200 else {}
        self._answers.append(
            Answer(
                due,
                time.monotonic(),
                response.status_code,
                bool(told.get("degraded")),
                "retry-after" in response.headers,
                tuple(item["item_id"] for item in told.get("items", ())),
                late,
            )
        )


def failed(answers: Sequence[Answer]) -> int:
    """How many were not answered with 200."""
    return sum(answer.status != 200 for answer in answers)


def quantile_ms(answers: Sequence[Answer], share: float) -> float:
    """A quantile of their latencies, ms."""
    return float(np.quantile([answer.latency for answer in answers], share)) * 1000 if answers else float("nan")
