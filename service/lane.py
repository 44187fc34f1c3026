"""One served model: its engine, its catalogue, and what its checkpoint fixes. A replica may have several side by side.

A lane ranks items for a history that is already known. Filters and exclusions are enforced inside the beam: a SID is
out when none of its items may be returned. What remains of a shared SID is at least one item, so a beam as wide as the
number of results always suffices; it is never narrower than the checkpoint's. It knows no users and no storage.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Protocol

import structlog

from service.blending import Blending
from service.catalog import Catalog, CatalogItem, LegalItems
from service.circuit import Circuit
from service.engine.base import BeamAnswer, BeamRequest, Engine
from service.errors import (
    DeadlineError,
    EngineError,
    InvalidRequestError,
    OverloadedError,
    RequestError,
    UnknownVersionError,
)
from service.fallback import popular_and_new
from service.metrics import Metrics
from service.model.new_items import merge, most_new_items
from service.model.prompt import PromptTemplate
from service.model.title_tokens import TitleTokens
from service.new_items import NewItems
from service.recommendation import BlendShares, RecommendQuery

MAX_BEAM_WIDTH = 512


@dataclass(frozen=True, slots=True)
class LaneOptions:
    """What settings and checkpoint fix for all requests of a lane.

    ``patience_ms`` is the server's own deadline: a miss of it counts against the engine, a miss of a shorter one that a
    client chose does not.
    """

    prompt: PromptTemplate
    model_version: str
    beam_width: int
    exclude_seen: bool
    patience_ms: int
    cold_new_share: float
    new_item_share: float = 1.0
    titles: TitleTokens | None = None


class CurrentCatalog(Protocol):
    """Where the newest catalogue is found."""

    @property
    def current(self) -> Catalog:
        """The newest version that requests may name."""
        ...


@dataclass(frozen=True, slots=True)
class Ask:
    """A query whose history is known: ``item_ids`` oldest first, and why they may be incomplete.

    ``deadline`` is `time.monotonic` seconds, ``limit_ms`` the time the request was given in all.
    """

    query: RecommendQuery
    item_ids: tuple[str, ...]
    reasons: tuple[str, ...]
    request_id: str
    deadline: float
    limit_ms: int


@dataclass(frozen=True, slots=True)
class Place:
    """An item, its score, the log-probability of each level (empty if no beam found it), and a blend's parts."""

    item: CatalogItem
    score: float
    level_scores: tuple[float, ...] = ()
    blend: BlendShares | None = None


@dataclass(frozen=True, slots=True)
class Ranked:
    """Places best first, the catalogue they are from, the known items of the history, and why no model was asked."""

    catalog: Catalog
    places: Sequence[Place]
    history: Sequence[CatalogItem]
    reasons: tuple[str, ...]
    fallback: str | None = None


class Lane:
    """Ranks items with one model, or without it when it is in trouble."""

    def __init__(
        self,
        catalogs: CurrentCatalog,
        engine: Engine,
        options: LaneOptions,
        metrics: Metrics,
        circuit: Circuit,
        new_items: NewItems | None = None,
        blending: Blending | None = None,
    ) -> None:
        self.options = options
        self._new_items, self._blending = new_items, blending
        self._catalogs, self._engine = catalogs, engine
        self._metrics, self._circuit = metrics, circuit

    async def rank(self, ask: Ask) -> Ranked:
        """The best items: the model's, else popular ones.

        Raises:
            InvalidRequestError: the filter names a field that no item declares.
            OverloadedError: the engine's queue is full.
            RequestError: neither model nor popular items could answer.
        """
        catalog = self._catalogs.current
        history = [item for item_id in ask.item_ids if (item := catalog.get(item_id))]
        if not history:
            unknown = ("unknown_history_items",) if ask.item_ids else ()
            reasons = ask.reasons + unknown
            return self._popular(catalog, ask, reasons, reasons[-1] if reasons else "cold_user")
        if len(history) > self.options.prompt.max_items:
            self._metrics.truncated.inc()
        try:
            return await self._ask(ask, history)
        except (InvalidRequestError, OverloadedError):
            raise  # a full queue says so: a client that may come back gets a better answer then
        except RequestError as error:
            structlog.get_logger().warning("recommend_fell_back", problem=error.problem, fault=error.detail)
            reason = error.problem.replace("-", "_")
            if not len(catalog):
                raise
            return self._popular(catalog, ask, (*ask.reasons, reason), reason)

    async def _ask(self, ask: Ask, history: Sequence[CatalogItem]) -> Ranked:
        """The model's ranking; one more try when the engine forgot the version."""
        prompt = self._prompt(history)
        for attempt in range(2):
            catalog = self._catalogs.current
            legal = catalog.legal(ask.query.filter, self._excluded(ask))
            request = self._beam_request(prompt, catalog.version, legal, ask)
            try:
                answer = await self._call(f"{ask.request_id}-{attempt}", request, ask)
            except UnknownVersionError:
                continue
            places = self._with_new_items(catalog, legal, history, self._expand(legal, answer), ask)
            return Ranked(catalog, places, history, ask.reasons)
        raise EngineError("the engine holds none of the catalogue versions that were asked for")

    def _prompt(self, history: Sequence[CatalogItem]) -> list[int]:
        titles, recent = self.options.titles, history[-self.options.prompt.max_items :]
        shown = [titles.of(item.item.title) for item in recent] if titles else ()
        return self.options.prompt.build([item.sid for item in recent], shown)

    async def _call(self, request_id: str, request: BeamRequest, ask: Ask) -> BeamAnswer:
        patient = ask.limit_ms >= self.options.patience_ms
        faults = (EngineError, DeadlineError) if patient else (EngineError,)
        with self._metrics.stage("engine") as span, self._circuit.call(*faults):
            span.set(model_version=self.options.model_version, catalog_version=request.catalog_version)
            span.set(beam_width=request.beam_width, prompt_tokens=len(request.prompt_ids))
            try:
                async with asyncio.timeout(ask.deadline - time.monotonic()):
                    answer = await self._engine.recommend(request_id, request)
            except TimeoutError:
                raise DeadlineError("the engine did not answer before the deadline") from None
            span.set(sids=len(answer.sids), beam_width=answer.beam_width or request.beam_width)
            if answer.cost is not None:
                span.set(**answer.cost.attributes())
            return answer

    def _beam_request(self, prompt: Sequence[int], version: int, legal: LegalItems, ask: Ask) -> BeamRequest:
        count = ask.query.num_results
        return BeamRequest(
            prompt,
            min(max(self.options.beam_width, count), MAX_BEAM_WIDTH),
            version,
            legal.excluded_sids(),
            legal.slots,
            # new items and neighbours are judged by all that the beam found
            num_results=None if self._new_items or self._blending else count,
            deadline=ask.deadline,
        )

    def _expand(self, legal: LegalItems, answer: BeamAnswer) -> list[Place]:
        """SIDs to the items that have them; a shared SID gives its items in bucket order at one score."""
        places: list[Place] = []
        for sid, score, levels in zip(answer.sids, answer.scores, answer.level_scores, strict=True):
            found = legal.of(sid)
            if not found:
                self._metrics.illegal_sid.inc()
            places += [Place(item, score, levels) for item in found]
        return places

    def _with_new_items(
        self, catalog: Catalog, legal: LegalItems, history: Sequence[CatalogItem], places: Sequence[Place], ask: Ask
    ) -> list[Place]:
        """One list by score, new items in no more of its places than they may take or the model cannot fill."""
        count = ask.query.num_results
        model = [(place, place.score) for place in places if not place.item.is_new]
        listed = self._blended(catalog, legal, history, model, ask.query)
        most = max(most_new_items(self.options.new_item_share, count), count - len(listed))
        if self._new_items is None:
            new = [(place, place.score) for place in places if place.item.is_new]
        else:
            found = self._new_items.scored(
                [item.item.item_id for item in history], ((place.item.item.item_id, score) for place, score in model)
            )
            items = ((catalog.get(item_id), score) for item_id, score in found)
            allowed = ((Place(item, s), s) for item, s in items if item and item.is_new and legal.allows(item))
            new = list(islice(allowed, most))
        return [place for place, _ in merge(listed, new, count, most)]

    def _blended(
        self,
        catalog: Catalog,
        legal: LegalItems,
        history: Sequence[CatalogItem],
        model: list[tuple[Place, float]],
        query: RecommendQuery,
    ) -> list[tuple[Place, float]]:
        """The best of what the beam found and the history's neighbours, by blended score."""
        if self._blending is None:
            return model
        taken = [item.item.item_id for item in history]
        of_beam = {place.item.item.item_id: place for place, _ in model}
        found = [(item_id, place.score) for item_id, place in of_beam.items()]
        levels = {item_id: place.level_scores for item_id, place in of_beam.items()}
        items = ((catalog.get(item_id), score) for item_id, score in self._blending.scored(taken, found))
        allowed = (
            Place(item, score, levels.get(item.item.item_id, ()))
            for item, score in items
            if item and not item.is_new and legal.allows(item)
        )
        places = list(islice(allowed, query.num_results))
        if query.explain:
            shares = self._blending.shares(taken, found, [place.item.item.item_id for place in places])
            places = [replace(place, blend=share) for place, share in zip(places, shares, strict=True)]
        return [(place, place.score) for place in places]

    def _popular(self, catalog: Catalog, ask: Ask, reasons: tuple[str, ...], why: str) -> Ranked:
        legal = catalog.legal(ask.query.filter, self._excluded(ask))
        found = popular_and_new(catalog, legal.allows, ask.query.num_results, self.options.cold_new_share)
        return Ranked(catalog, [Place(item, score) for item, score in found], (), reasons, why)

    def _excluded(self, ask: Ask) -> frozenset[str]:
        query = ask.query
        exclude_seen = self.options.exclude_seen if query.exclude_seen is None else query.exclude_seen
        return frozenset(query.exclude_item_ids) | frozenset(ask.item_ids if exclude_seen else ())
