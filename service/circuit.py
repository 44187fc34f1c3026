"""A circuit breaker: a dependency that failed several times in a row is left alone for a moment.

Waiting for what does not answer costs every request its whole patience; refusing at once costs nothing. After the
rest, exactly one call tries; its success closes the circuit. A cancelled call (a client that hung up) counts as
neither. Our own because of these: the libraries that fit asyncio let every caller through at once when half open,
take a cancellation for a failure or a success, and read the wall clock. It knows nothing of what it guards.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import structlog

from service.errors import RequestError
from service.metrics import Metrics


class Circuit:
    """One dependency's breaker; opens after ``failures`` in a row, for ``rest_seconds``."""

    def __init__(
        self,
        dependency: str,
        error: type[RequestError],
        metrics: Metrics,
        *,
        failures: int = 5,
        rest_seconds: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._dependency, self._error = dependency, error
        self._limit, self._rest_seconds, self._clock = failures, rest_seconds, clock
        self._up, self._open = metrics.dependency_up.labels(dependency), metrics.circuit_open.labels(dependency)
        self._failures = 0
        self._retry_at: float | None = None
        self._up.set(1)  # a start goes through only with what it depends on; a gauge left alone would say 0
        self._open.set(0)

    @property
    def is_open(self) -> bool:
        """Whether calls are refused, all but one every ``rest_seconds``."""
        return self._retry_at is not None

    @contextmanager
    def call(self, *failures: type[BaseException], answers: tuple[type[BaseException], ...] = ()) -> Iterator[None]:
        """Guard one call; exceptions of the types ``failures`` are the dependency's, any other says nothing of it.

        Exceptions of the types ``answers`` are refusals by a dependency that works, whatever they derive from.

        Raises:
            RequestError: of the type given, at once, while the circuit is open.
        """
        trial = self._admit()
        try:
            yield
        except answers:
            self._succeeded()
            raise
        except failures:
            self._failed()
            raise
        except BaseException:
            if trial:
                self._retry_at = self._clock()
            raise
        else:
            self._succeeded()

    def _admit(self) -> bool:
        if self._retry_at is None:
            return False
        if self._clock() < self._retry_at:
            raise self._error(f"{self._dependency} failed {self._limit} times in a row and is left alone for a moment")
        self._retry_at = self._clock() + self._rest_seconds  # others are refused until this trial is over
        return True

    def _failed(self) -> None:
        self._failures += 1
        self._up.set(0)
        if self._failures < self._limit:
            return
        if self._retry_at is None:
            structlog.get_logger().warning("circuit_opened", dependency=self._dependency)
        self._retry_at = self._clock() + self._rest_seconds
        self._open.set(1)

    def _succeeded(self) -> None:
        if self._retry_at is not None:
            structlog.get_logger().info("circuit_closed", dependency=self._dependency)
        self._failures, self._retry_at = 0, None
        self._up.set(1)
        self._open.set(0)
