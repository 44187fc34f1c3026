"""The use case of POST /recommend: history -> prompt -> beam over existing SIDs -> items, or popular ones instead.

One deadline covers everything. Whatever fails, the answer says so: model with history, else popular items marked
``degraded``, else an error; never an empty answer without a reason. It knows no HTTP and no Redis.

Exclusion happens inside the beam: a SID is excluded when all its items are. What remains of a shared SID is at least
one item, so a beam as wide as the number of results always suffices.
"""

import asyncio
import time
import uuid
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from typing import Literal, Protocol

import structlog

from service.catalog import Catalog, CatalogItem
from service.engine.base import BeamAnswer, BeamRequest, Engine
from service.errors import DeadlineError, EngineError, RequestError, UnknownVersionError
from service.histories import Histories
from service.metrics import Metrics
from service.model.prompt import PromptTemplate
from service.model.semantic_ids import Sid

MAX_BEAM_WIDTH = 512

Source = Literal["model", "new_item", "fallback"]


@dataclass(frozen=True, slots=True)
class RecommendQuery:
    """What is asked; ``history`` given inline is used instead of the stored one."""

    user_id: str | None = None
    history: tuple[str, ...] | None = None
    num_results: int = 10
    exclude_seen: bool | None = None
    exclude_item_ids: tuple[str, ...] = ()
    timeout_ms: int | None = None


@dataclass(frozen=True, slots=True)
class RecommendedItem:
    """One place of an answer."""

    item_id: str
    score: float
    rank: int
    source: Source
    semantic_id: Sid
    title: str


@dataclass(frozen=True, slots=True)
class Recommendation:
    """An answer; all its items exist in ``catalog_version``."""

    recommendation_id: str
    items: tuple[RecommendedItem, ...]
    degraded: bool
    degraded_reasons: tuple[str, ...]
    model_version: str
    catalog_version: int
    took_ms: float


@dataclass(frozen=True, slots=True)
class RecommendOptions:
    """What settings and checkpoint fix for all requests."""

    prompt: PromptTemplate
    model_version: str
    beam_width: int
    exclude_seen: bool
    timeout_ms: int


class CurrentCatalog(Protocol):
    """Where the newest catalogue is found."""

    @property
    def current(self) -> Catalog:
        """The newest version that requests may name."""
        ...


@dataclass(frozen=True, slots=True)
class _Context:
    """A request after its history is known."""

    query: RecommendQuery
    item_ids: tuple[str, ...]
    reasons: tuple[str, ...]
    excluded: frozenset[str]


@dataclass(frozen=True, slots=True)
class _Ranked:
    """Items best first with their scores, and which catalogue they are from."""

    catalog: Catalog
    items: Sequence[tuple[CatalogItem, float]]
    reasons: tuple[str, ...]
    fallback: str | None = None


class Recommender:
    """Answers `RecommendQuery`."""

    def __init__(
        self,
        catalogs: CurrentCatalog,
        histories: Histories,
        engine: Engine,
        options: RecommendOptions,
        metrics: Metrics,
    ) -> None:
        self._catalogs = catalogs
        self._histories = histories
        self._engine = engine
        self._options = options
        self._metrics = metrics

    async def recommend(self, query: RecommendQuery) -> Recommendation:
        """The best items.

        Raises:
            EngineError: neither the model nor the popular items could answer; likewise `DeadlineError`.
        """
        start, recommendation_id = time.perf_counter(), uuid.uuid4().hex
        limit = min(query.timeout_ms or self._options.timeout_ms, self._options.timeout_ms)
        deadline = asyncio.get_running_loop().time() + limit / 1000
        context = await self._context(query, deadline)
        ranked = await self._rank(context, recommendation_id, deadline)
        if ranked.fallback:
            self._metrics.fallback.labels(ranked.fallback).inc()
        return Recommendation(
            recommendation_id,
            tuple(_place(rank, item, score, ranked) for rank, (item, score) in enumerate(ranked.items, 1)),
            bool(ranked.reasons),
            ranked.reasons,
            self._options.model_version,
            ranked.catalog.version,
            round(1000 * (time.perf_counter() - start), 2),
        )

    async def _context(self, query: RecommendQuery, deadline: float) -> _Context:
        item_ids = query.history
        reasons: tuple[str, ...] = ()
        if item_ids is None and query.user_id is not None:
            item_ids, reasons = await self._stored_history(query.user_id, deadline)
        item_ids = item_ids or ()
        exclude_seen = self._options.exclude_seen if query.exclude_seen is None else query.exclude_seen
        excluded = frozenset(query.exclude_item_ids) | frozenset(item_ids if exclude_seen else ())
        return _Context(query, item_ids, reasons, excluded)

    async def _stored_history(self, user_id: str, deadline: float) -> tuple[tuple[str, ...], tuple[str, ...]]:
        with self._metrics.stage("history"):
            try:
                async with asyncio.timeout_at(deadline):
                    stored = await self._histories.read(user_id)
            except TimeoutError:
                return (), ("history_unavailable",)
        return stored.item_ids, () if stored.fresh else ("history_unavailable",)

    async def _rank(self, context: _Context, request_id: str, deadline: float) -> _Ranked:
        catalog = self._catalogs.current
        known = [item.sid for item_id in context.item_ids if (item := catalog.get(item_id))]
        if not known:
            unknown = ("unknown_history_items",) if context.item_ids else ()
            reasons = context.reasons + unknown
            return self._popular(catalog, context, reasons, reasons[-1] if reasons else "cold_user")
        try:
            catalog, answer = await self._ask(context, known, request_id, deadline)
        except RequestError as error:
            structlog.get_logger().warning("recommend_fell_back", problem=error.problem, fault=error.detail)
            reason = error.problem.replace("-", "_")
            ranked = self._popular(catalog, context, (*context.reasons, reason), reason)
            if not ranked.items and not len(catalog):
                raise
            return ranked
        return _Ranked(catalog, self._expand(catalog, answer, context), context.reasons)

    async def _ask(
        self, context: _Context, history: Sequence[Sid], request_id: str, deadline: float
    ) -> tuple[Catalog, BeamAnswer]:
        """The engine's answer and the catalogue it belongs to; one more try when the engine forgot the version."""
        for attempt in range(2):
            catalog = self._catalogs.current
            request = self._beam_request(catalog, context, history)
            try:
                with self._metrics.stage("engine"):
                    async with asyncio.timeout_at(deadline):
                        return catalog, await self._engine.recommend(f"{request_id}-{attempt}", request)
            except UnknownVersionError:
                continue
            except TimeoutError:
                raise DeadlineError("the engine did not answer before the deadline") from None
        raise EngineError("the engine holds none of the catalogue versions that were asked for")

    def _beam_request(self, catalog: Catalog, context: _Context, history: Sequence[Sid]) -> BeamRequest:
        width = min(max(self._options.beam_width, context.query.num_results), MAX_BEAM_WIDTH)
        excluded = _dead_sids(catalog, context.excluded)
        return BeamRequest(self._options.prompt.build(history), width, catalog.version, excluded)

    def _expand(self, catalog: Catalog, answer: BeamAnswer, context: _Context) -> list[tuple[CatalogItem, float]]:
        """SIDs to the items that have them; a shared SID gives its items in bucket order at one score."""
        items: list[tuple[CatalogItem, float]] = []
        for sid, score in zip(answer.sids, answer.scores, strict=True):
            bucket = catalog.bucket(sid)
            if not bucket:
                self._metrics.illegal_sid.inc()
            found = (catalog.get(item_id) for item_id in bucket if item_id not in context.excluded)
            items += [(item, score) for item in found if item]
        return items[: context.query.num_results]

    def _popular(self, catalog: Catalog, context: _Context, reasons: tuple[str, ...], why: str) -> _Ranked:
        legal = (place for place in catalog.popular() if place[0].item.item_id not in context.excluded)
        items = [place for place, _ in zip(legal, range(context.query.num_results), strict=False)]
        return _Ranked(catalog, items, reasons, why)


def _dead_sids(catalog: Catalog, excluded: Set[str]) -> list[Sid]:
    """The SIDs all of whose items are excluded."""
    sids = {item.sid for item_id in excluded if (item := catalog.get(item_id))}
    return sorted(sid for sid in sids if _all_in(catalog.bucket(sid), excluded))


def _all_in(item_ids: Iterable[str], excluded: Set[str]) -> bool:
    return all(item_id in excluded for item_id in item_ids)


def _place(rank: int, item: CatalogItem, score: float, ranked: _Ranked) -> RecommendedItem:
    source: Source = "fallback" if ranked.fallback else "new_item" if item.is_new else "model"
    return RecommendedItem(item.item.item_id, score, rank, source, item.sid, item.item.title)
