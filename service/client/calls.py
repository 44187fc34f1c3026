"""Every call of the client as a value: what is sent, whether it may be repeated, and how its answer is read.

Both clients send the same calls, so what they ask for is written once, here.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Generic, TypeVar
from urllib.parse import quote

from service.client.results import (
    CodesOfModel,
    Erased,
    EventsReport,
    HistoryEvent,
    OpenedCode,
    PostedItem,
    Recommendation,
    ServedModel,
    history_event,
    plain,
    posted_item,
    recommendation,
)
from service.errors import ProblemError

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """A past event given inline; ``timestamp`` in Unix seconds."""

    item_id: str
    timestamp: float | None = None
    event: str | None = None


@dataclass(frozen=True, slots=True)
class Event:
    """What a user did. With an ``event_id`` it can be repeated without counting twice."""

    user_id: str
    item_id: str
    event: str
    timestamp: float | None = None
    event_id: str | None = None
    recommendation_id: str | None = None


@dataclass(frozen=True, slots=True)
class Item:
    """An item to post."""

    item_id: str
    title: str
    description: str = ""
    attributes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Call(Generic[Answer]):
    """One request; ``repeatable`` if it may reach the service twice without harm."""

    method: str
    path: str
    read: Callable[[Any], Answer]
    body: Any = None
    query: Mapping[str, str] = field(default_factory=dict)
    repeatable: bool = True


def recommend_body(
    *,
    user_id: str | None = None,
    history: Sequence[str | HistoryEntry] | None = None,
    num_results: int = 10,
    exclude_seen: bool | None = None,
    exclude_item_ids: Sequence[str] = (),
    filter: Mapping[str, Any] | None = None,
    explain: bool = False,
    timeout_ms: int | None = None,
    context: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """The body of POST /recommend, without what is not given."""
    entries = None if history is None else [each if isinstance(each, str) else _given(each) for each in history]
    body: dict[str, Any] = {"user_id": user_id, "history": entries, "num_results": num_results}
    body |= {"exclude_seen": exclude_seen, "exclude_item_ids": list(exclude_item_ids) or None, "filter": filter}
    body |= {"explain": explain or None, "timeout_ms": timeout_ms, "context": context}
    return {name: value for name, value in body.items() if value is not None}


def recommend(body: Mapping[str, Any]) -> Call[Recommendation]:
    """POST /recommend."""
    return Call("POST", "/v1/recommend", recommendation, body)


def recommend_batch(bodies: Sequence[Mapping[str, Any]]) -> Call[list[Recommendation | ProblemError]]:
    """POST /recommend:batch."""
    return Call(
        "POST", "/v1/recommend:batch", lambda row: [_entry(each) for each in row["results"]], {"requests": bodies}
    )


def post_items(items: Sequence[Item], *, dry_run: bool) -> Call[list[PostedItem]]:
    """POST /items; idempotent by id and content."""
    query = {"dry_run": "true"} if dry_run else {}
    return Call("POST", "/v1/items", lambda row: list(map(posted_item, row["items"])), list(map(asdict, items)), query)


def delete_item(item_id: str) -> Call[Mapping[str, Any]]:
    """DELETE /items/{id}."""
    return Call("DELETE", f"/v1/items/{quote(item_id, safe='')}", dict)


def post_events(events: Sequence[Event]) -> Call[EventsReport]:
    """POST /events; repeatable if every event has an id."""
    ids = all(event.event_id is not None for event in events)
    return Call("POST", "/v1/events", lambda row: plain(EventsReport, row), list(map(_given, events)), repeatable=ids)


def history(user_id: str, limit: int) -> Call[list[HistoryEvent]]:
    """GET /users/{id}/history."""
    path = f"/v1/users/{quote(user_id, safe='')}/history"
    return Call("GET", path, lambda row: list(map(history_event, row["events"])), query={"limit": str(limit)})


def erase_user(user_id: str) -> Call[Erased]:
    """DELETE /users/{id}."""
    return Call("DELETE", f"/v1/users/{quote(user_id, safe='')}", lambda row: plain(Erased, row))


def model() -> Call[Mapping[str, Any]]:
    """GET /model."""
    return Call("GET", "/v1/model", dict)


def models() -> Call[list[ServedModel]]:
    """GET /models."""
    return Call("GET", "/v1/models", lambda row: [plain(ServedModel, each) for each in row["models"]])


def open_model(checkpoint: str, *, share: float, shadow: bool, replace: bool) -> Call[ServedModel]:
    """POST /models."""
    body = {"checkpoint": checkpoint, "share": share, "shadow": shadow, "replace": replace}
    return Call("POST", "/v1/models", lambda row: plain(ServedModel, row), body, repeatable=False)


def change_model(model_version: str, *, share: float | None, shadow: bool | None) -> Call[ServedModel]:
    """PATCH /models/{model_version}."""
    body = {name: value for name, value in (("share", share), ("shadow", shadow)) if value is not None}
    path = f"/v1/models/{quote(model_version, safe='')}"
    return Call("PATCH", path, lambda row: plain(ServedModel, row), body)


def close_model(model_version: str) -> Call[ServedModel]:
    """DELETE /models/{model_version}."""
    path = f"/v1/models/{quote(model_version, safe='')}"
    return Call("DELETE", path, lambda row: plain(ServedModel, row), repeatable=False)


def open_codes(*, dry_run: bool) -> Call[list[CodesOfModel]]:
    """POST /catalog/codes."""
    return Call("POST", "/v1/catalog/codes", _codes, {"dry_run": dry_run}, repeatable=dry_run)


def _codes(row: Mapping[str, Any]) -> list[CodesOfModel]:
    return [_codes_of_model(each) for each in row["models"]]


def _codes_of_model(row: Mapping[str, Any]) -> CodesOfModel:
    codes = tuple(plain(OpenedCode, code, titles=tuple(code["titles"])) for code in row["codes"])
    return plain(CodesOfModel, row, codes=codes, free=tuple(row["free"]))


def problem(status: int, document: Mapping[str, Any]) -> tuple[str, str, str, tuple[str, ...]]:
    """Type, detail, request id and pointers of a problem document, or what stands in for one."""
    kind = str(document.get("type", "")).rpartition(":")[2] or f"http-{status}"
    pointers = tuple(str(error.get("pointer", "")) for error in document.get("errors", ()))
    details = [str(error.get("detail", "")) for error in document.get("errors", ())]
    told = str(document.get("detail", "")) + "".join(
        f"; {pointer}: {detail}" for pointer, detail in zip(pointers, details, strict=True)
    )
    return kind, told, str(document.get("request_id", "")), pointers


def _entry(row: Mapping[str, Any]) -> Recommendation | ProblemError:
    if row["status"] == 200:
        return recommendation(row["recommendation"])
    kind, detail, request_id, pointers = problem(row["status"], row["problem"])
    return ProblemError(row["status"], kind, detail, request_id=request_id, pointers=pointers)


def _given(value: Any) -> dict[str, Any]:
    return {name: each for name, each in asdict(value).items() if each is not None}
