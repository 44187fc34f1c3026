"""Answers of the service as plain values. Fields that a newer service adds are ignored."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from service.errors import ProblemError

Plain = TypeVar("Plain", bound=Any)


@dataclass(frozen=True, slots=True)
class SharedHistory:
    """A past item that begins with the same codes as a recommended one."""

    item_id: str
    title: str
    shared_levels: int


@dataclass(frozen=True, slots=True)
class BlendShares:
    """The probability that each part of the blend gives an item; ``companion`` speaks most for it in ``company``."""

    model: float
    company: float
    text: float
    companion: str | None = None


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why an item."""

    history: tuple[SharedHistory, ...]
    level_scores: tuple[float, ...]
    blend: BlendShares | None = None


@dataclass(frozen=True, slots=True)
class RecommendedItem:
    """One place of an answer; ``source`` is ``model``, ``new_item`` or ``fallback``."""

    item_id: str
    score: float
    rank: int
    source: str
    semantic_id: tuple[int, ...] = ()
    title: str = ""
    explanation: Explanation | None = None


@dataclass(frozen=True, slots=True)
class Recommendation:
    """An answer of POST /recommend."""

    recommendation_id: str
    items: tuple[RecommendedItem, ...]
    degraded: bool
    degraded_reasons: tuple[str, ...]
    model_version: str
    catalog_version: int
    took_ms: float


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model of a replica; ``state`` is ``opening``, ``open``, ``closing`` or ``failed``, for the reason ``fault``."""

    checkpoint: str
    state: str
    model_version: str | None = None
    share: float = 0.0
    shadow: bool = False
    well: bool = False
    inflight: int = 0
    catalog_version: int | None = None
    fault: str | None = None


@dataclass(frozen=True, slots=True)
class OpenedCode:
    """A spare code that was, or would be, opened for ``items`` posted items; shares that stay unexplained; titles."""

    level: int
    code: int
    items: int
    left_before: float
    left_after: float
    titles: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CodesOfModel:
    """What opening codes found and did for one model's catalogue; ``free`` spare codes are left, per level."""

    model_version: str
    dry_run: bool
    codes: tuple[OpenedCode, ...]
    moved: int
    free: tuple[int, ...]
    catalog_version: int


@dataclass(frozen=True, slots=True)
class PostedItem:
    """What became of one posted item; ``result`` is ``created``, ``updated``, ``unchanged`` or ``rejected``."""

    item_id: str
    result: str
    semantic_id: tuple[int, ...] | None = None
    collides_with: str | None = None
    grounding: Mapping[str, Any] | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class EventsReport:
    """What became of posted events."""

    recorded: int
    duplicates: int
    feedback_only: int
    unknown_items: int


@dataclass(frozen=True, slots=True)
class HistoryEvent:
    """One event of a stored history; ``title`` is None for an item that the catalogue has not."""

    item_id: str
    timestamp: float
    event_id: str | None = None
    title: str | None = None
    semantic_id: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Erased:
    """What was deleted of a user."""

    user_id: str
    history: bool
    feedback_entries: int


def recommendation(row: Mapping[str, Any]) -> Recommendation:
    """Read one answer of POST /recommend."""
    items = tuple(_recommended(item) for item in row.get("items", ()))
    return plain(Recommendation, row, items=items, degraded_reasons=tuple(row.get("degraded_reasons", ())))


def posted_item(row: Mapping[str, Any]) -> PostedItem:
    """Read one result of POST /items."""
    sid = row.get("semantic_id")
    return plain(PostedItem, row, semantic_id=None if sid is None else tuple(sid))


def history_event(row: Mapping[str, Any]) -> HistoryEvent:
    """Read one event of a stored history."""
    sid = row.get("semantic_id")
    return plain(HistoryEvent, row, semantic_id=None if sid is None else tuple(sid))


def plain(kind: type[Plain], row: Mapping[str, Any], **read: Any) -> Plain:
    """A value of ``kind`` from the row's fields of the same names, those in ``read`` as given.

    Raises:
        ProblemError: the answer lacks a field, so it is not this service's.
    """
    try:
        made: Plain = kind(**{field.name: row[field.name] for field in fields(kind) if field.name in row} | read)
    except TypeError as error:
        raise ProblemError(200, "foreign-answer", f"not an answer of this service: {error}") from None
    return made


def _recommended(row: Mapping[str, Any]) -> RecommendedItem:
    reason, explanation = row.get("explanation"), None
    if reason is not None:
        relatives = tuple(plain(SharedHistory, item) for item in reason["history"])
        blend = reason.get("blend")
        shares = None if blend is None else plain(BlendShares, blend)
        explanation = Explanation(relatives, tuple(reason["level_scores"]), shares)
    sid = tuple(row.get("semantic_id") or ())
    return plain(RecommendedItem, row, semantic_id=sid, explanation=explanation)
