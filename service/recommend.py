"""The use case of POST /recommend: history, then the lane's ranking, then an answer that says what it is.

One deadline covers everything. Whatever fails, the answer says so: model with history, else popular items marked
``degraded``, else an error; never an empty answer without a reason. It knows no HTTP, no Redis and no model.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from service.errors import RequestError
from service.event_weights import EventWeights
from service.explanations import explain
from service.histories import Histories, StoredHistory
from service.lane import Ask, Lane, Place, Ranked
from service.metrics import Metrics
from service.recommendation import (
    Recommendation,
    RecommendedItem,
    RecommendQuery,
    Source,
    new_recommendation_id,
)

BATCH_AT_WORK = 32  # of one batch, so that a single call cannot take the engine for itself

Served = Callable[[RecommendQuery, Recommendation, str | None], None]
Followed = Callable[[Ask, Sequence[Place]], None]


class LaneChoice(Protocol):
    """Which model answers a query."""

    def enter(self, query: RecommendQuery) -> AbstractContextManager[Lane]:
        """The lane, held open while the block runs; the same one for the same user while the choice stands."""
        ...


class Recommender:
    """Answers `RecommendQuery`.

    ``served`` is told of each answer and why it is a fallback, ``followed`` what was asked of the model and found.
    """

    def __init__(
        self,
        lanes: LaneChoice,
        histories: Histories,
        weights: EventWeights,
        metrics: Metrics,
        served: Served,
        followed: Followed,
        *,
        timeout_ms: int,
    ) -> None:
        self._lanes, self._histories, self._weights = lanes, histories, weights
        self._metrics, self._served, self._followed, self._timeout_ms = metrics, served, followed, timeout_ms

    async def recommend(self, query: RecommendQuery) -> Recommendation:
        """The best items.

        Raises:
            InvalidRequestError: an entry of the inline history is of an unknown kind.
            RequestError: neither the model nor the popular items could answer.
        """
        answer = (await self.recommend_many([query]))[0]
        if isinstance(answer, RequestError):
            raise answer
        return answer

    async def recommend_many(self, queries: Sequence[RecommendQuery]) -> list[Recommendation | RequestError]:
        """An answer or an error for each query, in order; stored histories are read in one round trip."""
        start = time.monotonic()
        stored = await self._stored(queries)
        places = asyncio.Semaphore(BATCH_AT_WORK)

        async def one(query: RecommendQuery) -> Recommendation | RequestError:
            async with places:
                try:
                    return await self._answer(query, stored, start)
                except RequestError as error:
                    return error

        if len(queries) == 1:
            return [await one(queries[0])]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(query)) for query in queries]
        return [task.result() for task in tasks]

    async def _stored(self, queries: Sequence[RecommendQuery]) -> dict[str, StoredHistory]:
        users = dict.fromkeys(query.user_id for query in queries if query.history is None and query.user_id)
        wanted = [user_id for user_id in users if user_id]
        limits = [self._limit(query) for query in queries]
        try:
            async with asyncio.timeout(max(limits) / 1000):
                found = await self._histories.read(wanted)
        except TimeoutError:
            found = [StoredHistory((), fresh=False) for _ in wanted]
        return dict(zip(wanted, found, strict=True))

    def _limit(self, query: RecommendQuery) -> int:
        """The milliseconds a request is given: the server's limit, or the client's if that is less."""
        return min(query.timeout_ms or self._timeout_ms, self._timeout_ms)

    async def _answer(self, query: RecommendQuery, stored: dict[str, StoredHistory], start: float) -> Recommendation:
        with self._metrics.tracing.span("recommend") as span, self._lanes.enter(query) as lane:
            answer = await self._answer_by(lane, query, stored, start)
            span.set(model_version=answer.model_version, catalog_version=answer.catalog_version)
            span.set(results=len(answer.items), degraded=",".join(answer.degraded_reasons))
            return answer

    async def _answer_by(
        self, lane: Lane, query: RecommendQuery, stored: dict[str, StoredHistory], start: float
    ) -> Recommendation:
        item_ids, reasons = self._history(query, stored)
        recommendation_id, limit = new_recommendation_id(lane.options.model_version), self._limit(query)
        ask = Ask(query, item_ids, reasons, recommendation_id, start + limit / 1000, limit)
        ranked = await lane.rank(ask)
        if ranked.fallback:
            self._metrics.fallback.labels(ranked.fallback).inc()
        answer = Recommendation(
            recommendation_id,
            tuple(_item(rank, place, ranked, query.explain) for rank, place in enumerate(ranked.places, 1)),
            bool(ranked.reasons),
            ranked.reasons,
            lane.options.model_version,
            ranked.catalog.version,
            round(1000 * (time.monotonic() - start), 2),
        )
        self._served(query, answer, ranked.fallback)
        if not ranked.fallback:
            self._followed(ask, ranked.places)
        return answer

    def _history(
        self, query: RecommendQuery, stored: dict[str, StoredHistory]
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Item ids, oldest first, and why they may not be all."""
        if query.history is not None:
            return self._weights.inline_history(query.history), ()
        if query.user_id is None:
            return (), ()
        found = stored[query.user_id]
        return found.item_ids, () if found.fresh else ("history_unavailable",)


def _item(rank: int, place: Place, ranked: Ranked, explained: bool) -> RecommendedItem:
    item = place.item
    source: Source = "fallback" if ranked.fallback else "new_item" if item.is_new else "model"
    explanation = explain(item.sid, ranked.history, place.level_scores, place.blend) if explained else None
    return RecommendedItem(item.item.item_id, place.score, rank, source, item.sid, item.item.title, explanation)
