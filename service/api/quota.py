"""A client's quota: a token bucket a replica, in the process.

Our own because it is smaller than the adapters of the libraries, whose stores in memory keep a list of all requests or
start a thread: two floats a client, and the exact time until the next request may come. A call for many (a batch) pays
for its first before it is read and for the others when they are known, going into debt if need be.
"""

import math
import time
from collections.abc import Callable

from starlette.types import Scope

from service.api_keys import Client
from service.errors import QuotaError

BUCKET = "quota"


class Bucket:
    """Refills at ``rate`` tokens a second up to ``burst``."""

    def __init__(self, rate: float, burst: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.rate, self.burst = rate, burst
        self._clock = clock
        self._tokens, self._at = burst, clock()

    def enter(self) -> None:
        """Take one token.

        Raises:
            QuotaError: there is none; says in how many seconds there will be.
        """
        self._refill()
        if self._tokens < 1:
            seconds = max(1, math.ceil((1 - self._tokens) / self.rate))
            raise QuotaError(f"your key may make {self.rate:g} requests a second; try again in {seconds} s", seconds)
        self._tokens -= 1

    def charge(self, tokens: int) -> None:
        """Take more, into debt if need be."""
        self._refill()
        self._tokens -= tokens

    def _refill(self) -> None:
        now = self._clock()
        self._tokens = min(self.burst, self._tokens + (now - self._at) * self.rate)
        self._at = now


class Quotas:
    """The bucket of each client that has a quota."""

    def __init__(self) -> None:
        self._buckets: dict[str, Bucket] = {}

    def bucket(self, client: Client) -> Bucket | None:
        """The client's bucket; a changed quota begins with a full one."""
        if client.requests_per_second is None:
            return None
        rate, burst = client.requests_per_second, float(client.burst or max(1, math.ceil(client.requests_per_second)))
        found = self._buckets.get(client.name)
        if found is None or (found.rate, found.burst) != (rate, burst):
            found = self._buckets[client.name] = Bucket(rate, burst)
        return found


def charge(scope: Scope, more: int) -> None:
    """Charge a request for the further requests it stands for."""
    bucket = scope.get("state", {}).get(BUCKET)
    if bucket is not None and more > 0:
        bucket.charge(more)
