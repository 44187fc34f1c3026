"""A fair, bounded queue before the engine that counts what costs there: beam rows and prompt tokens.

Requests of one power of two of beam width are a class. Classes take turns by the rows they were given (start-time fair
queueing), so a stream of wide requests cannot starve narrow ones, nor the other way round; within a class the first
comes first. Nobody overtakes a request that does not fit yet, or wide ones would wait for ever. When the queue is full,
the class that waits with most rows gives up its newest request: who floods is who is refused.

It knows widths, tokens and deadlines; what is done with a place is not its business.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from service.errors import DeadlineError, OverloadedError
from service.metrics import Metrics


@dataclass(frozen=True, slots=True)
class BeamLimits:
    """Beam rows and prompt tokens that the engine works on at once, and beam rows that may wait.

    Raises:
        ValueError: a limit is below 1.
    """

    rows: int
    tokens: int
    waiting_rows: int

    def __post_init__(self) -> None:
        if min(self.rows, self.tokens, self.waiting_rows) < 1:
            raise ValueError(f"limits must be at least 1: {self}")


@dataclass(eq=False, slots=True)
class _Waiting:
    """A request that has no place yet; ``turn`` orders requests of all classes."""

    rows: int
    tokens: int
    turn: float
    ready: asyncio.Future[None]


class BeamRows:
    """Gives places; `place` is all that callers need."""

    def __init__(self, limits: BeamLimits, metrics: Metrics) -> None:
        self._limits = limits
        self._metrics = metrics
        self._queues: dict[int, deque[_Waiting]] = {}
        self._given: dict[int, float] = {}  # per class, the turn at which its next request may start
        self._now = 0.0
        self.rows = self.tokens = self.waiting_rows = 0

    @asynccontextmanager
    async def place(self, rows: int, tokens: int, deadline: float | None = None) -> AsyncIterator[None]:
        """Hold a place for ``rows`` beam rows and ``tokens`` prompt tokens, once there is one.

        A request that is larger than a limit gets a place when nothing else is at work.

        Raises:
            OverloadedError: too many rows wait already.
            DeadlineError: there was no place before ``deadline`` (`time.monotonic` seconds).
        """
        with self._metrics.stage("queue") as span:
            span.set(waiting_rows=self.waiting_rows, working_rows=self.rows)
            await self._wait(rows, tokens, deadline)
        try:
            yield
        finally:
            self._take(-rows, -tokens)
            self._admit()

    async def _wait(self, rows: int, tokens: int, deadline: float | None) -> None:
        if not self.waiting_rows and self._fits(rows, tokens):
            self._start(rows, self._turn(rows))
            self._take(rows, tokens)
            return
        waiting = _Waiting(rows, tokens, self._turn(rows), asyncio.get_running_loop().create_future())
        self._queues.setdefault(_class(rows), deque()).append(waiting)
        self._given[_class(rows)] = waiting.turn + rows
        self._wait_more(rows)
        self._shed()
        try:
            async with asyncio.timeout_at(deadline):  # the loop's clock is `time.monotonic`
                await waiting.ready
        except TimeoutError:
            self._leave(waiting)
            self._metrics.shed.labels("deadline").inc()
            raise DeadlineError("no place at the engine before the deadline") from None
        except asyncio.CancelledError:
            self._leave(waiting)
            raise

    def _turn(self, rows: int) -> float:
        return max(self._now, self._given.get(_class(rows), 0.0))

    def _start(self, rows: int, turn: float) -> None:
        self._now = turn
        self._given[_class(rows)] = max(self._given.get(_class(rows), 0.0), turn + rows)

    def _fits(self, rows: int, tokens: int) -> bool:
        if not self.rows:
            return True
        return self.rows + rows <= self._limits.rows and self.tokens + tokens <= self._limits.tokens

    def _admit(self) -> None:
        """Give places in order of turns, until the next request does not fit."""
        for waiting in self._in_turn():
            if not self._fits(waiting.rows, waiting.tokens):
                return
            self._remove(waiting)
            self._start(waiting.rows, waiting.turn)
            self._take(waiting.rows, waiting.tokens)
            waiting.ready.set_result(None)

    def _in_turn(self) -> Iterator[_Waiting]:
        while heads := [queue[0] for queue in self._queues.values() if queue]:
            yield min(heads, key=lambda waiting: (waiting.turn, waiting.rows))

    def _shed(self) -> None:
        """Refuse the newest requests of the class that waits with most rows, until the rest may wait."""
        while self.waiting_rows > self._limits.waiting_rows:
            largest = max(self._queues.values(), key=lambda queue: sum(waiting.rows for waiting in queue))
            refused = largest[-1]
            self._remove(refused)
            self._given[_class(refused.rows)] = refused.turn
            self._metrics.shed.labels("beam_rows").inc()
            refused.ready.set_exception(OverloadedError("the engine has more beams waiting than it can decode in time"))

    def _leave(self, waiting: _Waiting) -> None:
        """Give up waiting, or the place that came at the very same moment."""
        if waiting in self._queues[_class(waiting.rows)]:
            self._remove(waiting)
        elif waiting.ready.done() and not waiting.ready.cancelled() and not waiting.ready.exception():
            self._take(-waiting.rows, -waiting.tokens)
        self._admit()

    def _remove(self, waiting: _Waiting) -> None:
        self._queues[_class(waiting.rows)].remove(waiting)
        self._wait_more(-waiting.rows)

    def _wait_more(self, rows: int) -> None:
        self.waiting_rows += rows
        self._metrics.beam_rows.labels("waiting").set(self.waiting_rows)

    def _take(self, rows: int, tokens: int) -> None:
        self.rows += rows
        self.tokens += tokens
        self._metrics.beam_rows.labels("working").set(self.rows)


def _class(rows: int) -> int:
    return rows.bit_length()
