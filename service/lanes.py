"""Which model answers whom: lanes beside each other by traffic share, shadows, and exchange without a dropped request.

A user's id is hashed to a point between 0 and 1, over which the shares are laid in a fixed order: a user stays with one
model while the shares stand, on every replica alike. A lane whose engine is silent gets no traffic while another one is
well. A lane that is taken out answers what it has begun. It opens no checkpoints (`models` does) and ranks nothing.
"""

import asyncio
import hashlib
import random
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from service.catalog import Catalog
from service.code_opening import CodeOpening
from service.errors import EngineError
from service.ingest import Ingest
from service.lane import Lane
from service.model.semantic_ids import SidSpace
from service.recommendation import RecommendQuery


class FollowedCatalog(Protocol):
    """A lane's catalogue: the newest version, and the log that it follows."""

    @property
    def current(self) -> Catalog:
        """The newest version that requests may name."""
        ...


@dataclass(slots=True, eq=False)
class ServedLane:
    """A lane in service.

    ``share`` is its part of the traffic beside the others' shares, 0 for none; a ``shadow`` ranks what others answer.
    ``log_key`` names the item log it follows: lanes with the same quantiser share one. ``report`` is what GET /model
    says of it, ``event_weights`` what its recipe chose. ``codes`` opens spare codes, if its checkpoint has any.
    ``close`` frees everything.
    """

    lane: Lane
    catalogs: FollowedCatalog
    checkpoint: Path
    space: SidSpace
    log_key: str
    ingest: Ingest
    report: Callable[[], Mapping[str, Any]]
    share: float
    shadow: bool
    is_well: Callable[[], bool]
    close: Callable[[], Awaitable[None]]
    event_weights: Mapping[str, float] | None = None
    codes: CodeOpening | None = None
    inflight: int = 0
    idle: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def model_version(self) -> str:
        """The version of its model."""
        return self.lane.options.model_version

    @contextmanager
    def at_work(self) -> Iterator[Lane]:
        """Hold the lane open while the block runs."""
        self.inflight += 1
        self.idle.clear()
        try:
            yield self.lane
        finally:
            self.inflight -= 1
            if not self.inflight:
                self.idle.set()


class Lanes:
    """All lanes of a replica. Changes are plain assignments between two steps of the event loop, hence atomic."""

    def __init__(self) -> None:
        self._served: tuple[ServedLane, ...] = ()

    def __iter__(self) -> Iterator[ServedLane]:
        return iter(self._served)

    def __len__(self) -> int:
        return len(self._served)

    def find(self, model_version: str) -> ServedLane | None:
        """The lane of a model."""
        return next((served for served in self._served if served.model_version == model_version), None)

    def add(self, served: ServedLane) -> None:
        """Give a lane its part of the traffic."""
        self._served = (*self._served, served)

    def remove(self, served: ServedLane) -> None:
        """Give a lane no new requests; the caller waits for `drain` and closes it."""
        self._served = tuple(other for other in self._served if other is not served)

    @property
    def primary(self) -> ServedLane:
        """The lane with the largest share, the older one of equals: whose catalogue the items routes show.

        Raises:
            EngineError: there is no lane, because the service is starting or ending.
        """
        if not self._served:
            raise EngineError("no model is served yet")
        return max(self._served, key=lambda served: served.share)

    @property
    def current(self) -> Catalog:
        """The primary lane's catalogue."""
        return self.primary.catalogs.current

    @property
    def space(self) -> SidSpace:
        """The primary lane's code space."""
        return self.primary.space

    def ingests(self) -> list[Ingest]:
        """One ingest per item log, the primary's first."""
        ordered = sorted(self._served, key=lambda served: served is not self.primary)
        return list({served.log_key: served.ingest for served in reversed(ordered)}.values())[::-1]

    def openings(self) -> dict[str, CodeOpening]:
        """What opens codes, one per item log, by a model version that has spare ones; the primary's first."""
        ordered = sorted(self._served, key=lambda served: served is not self.primary)
        firsts = {served.log_key: served for served in reversed(ordered) if served.codes is not None}
        chosen = [served for served in ordered if firsts.get(served.log_key) is served]
        return {served.model_version: served.codes for served in chosen if served.codes is not None}

    def choose(self, query: RecommendQuery) -> ServedLane:
        """The lane of a query's user; of a request without a user, a random one by share.

        Raises:
            EngineError: there is no lane.
        """
        open_to_traffic = [served for served in self._served if served.share > 0]
        candidates = [served for served in open_to_traffic if served.is_well()] or open_to_traffic
        if not candidates:
            return self.primary
        place = _point(query.user_id) * sum(served.share for served in candidates)
        for served in candidates:
            place -= served.share
            if place < 0:
                return served
        return candidates[-1]

    @contextmanager
    def enter(self, query: RecommendQuery) -> Iterator[Lane]:
        """The lane that answers, held open while the block runs."""
        with self.choose(query).at_work() as lane:
            yield lane

    def shadows(self) -> list[ServedLane]:
        """Lanes that rank beside those that answer."""
        return [served for served in self._served if served.shadow and served.is_well()]


async def drain(served: ServedLane, timeout_seconds: float) -> bool:
    """Wait until a lane has answered all it has begun; False if it has not in time."""
    try:
        async with asyncio.timeout(timeout_seconds):
            while served.inflight:
                await served.idle.wait()
    except TimeoutError:
        return False
    return True


def _point(user_id: str | None) -> float:
    """A user's fixed place in 0..1, or anybody's."""
    if user_id is None:
        return random.random()
    return int.from_bytes(hashlib.blake2b(user_id.encode(), digest_size=8).digest()) / 2**64
