"""Admission: a fixed number of requests at work, one more is refused at once.

A queue without a bound turns overload into latency for everybody; a refusal costs microseconds and says when to come
back. It counts requests; what a request does is not its business.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from service.errors import OverloadedError
from service.metrics import Metrics


class Admission:
    """Counts who is inside."""

    def __init__(self, limit: int, metrics: Metrics) -> None:
        self._limit = limit
        self._metrics = metrics
        self.inflight = 0

    @contextmanager
    def enter(self) -> Iterator[None]:
        """Hold one place.

        Raises:
            OverloadedError: all places are taken.
        """
        if self.inflight >= self._limit:
            self._metrics.shed.labels("inflight").inc()
            raise OverloadedError(f"{self._limit} requests are at work; try again later")
        self.inflight += 1
        self._metrics.inflight.set(self.inflight)
        try:
            yield
        finally:
            self.inflight -= 1
            self._metrics.inflight.set(self.inflight)
