"""What requests and answers look like on the wire; unknown fields are refused.

pydantic lives here and nowhere deeper. Tags of alternatives begin with ``~`` so that error pointers can leave them out.
"""

from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, FiniteFloat, Tag

from service.ingest import IngestedItem
from service.model.checkpoint import ItemRecord
from service.recommend import RecommendQuery

MAX_BATCH = 100

# Control characters are refused: they separate fields in storage keys and forge lines in logs.
Name = Annotated[str, Field(min_length=1, max_length=256, pattern=r"^[^\x00-\x1f\x7f]+$")]
Text = Annotated[str, Field(max_length=20_000)]


class _In(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


def _tag(kinds: dict[type, str], otherwise: str) -> Callable[[Any], str]:
    """A discriminator by the exact type of the JSON value."""
    return lambda value: kinds.get(type(value), otherwise)


class HistoryEvent(_In):
    """One past event; only the item matters today."""

    item_id: Name
    timestamp: FiniteFloat | None = None
    event: Annotated[str, Field(max_length=64)] | None = None


HistoryEntry = Annotated[
    Annotated[Name, Tag("~id")] | Annotated[HistoryEvent, Tag("~event")], Discriminator(_tag({str: "~id"}, "~event"))
]


class RecommendRequest(_In):
    """POST /recommend."""

    user_id: Name | None = None
    history: Annotated[list[HistoryEntry], Field(max_length=1000)] | None = Field(
        None, description="oldest first; used instead of the stored history"
    )
    num_results: int = Field(10, ge=1, le=100)
    exclude_seen: bool | None = Field(None, description="leave out items of the history; default: the checkpoint's")
    exclude_item_ids: Annotated[list[Name], Field(max_length=1000)] = []
    timeout_ms: Annotated[int, Field(ge=1, le=600_000)] | None = None
    context: Annotated[dict[Name, Annotated[str, Field(max_length=256)]], Field(max_length=20)] = Field(
        {}, description="logged with the recommendation's id"
    )

    def query(self) -> RecommendQuery:
        """The use case's form."""
        history = None
        if self.history is not None:
            history = tuple(entry if isinstance(entry, str) else entry.item_id for entry in self.history)
        return RecommendQuery(
            self.user_id, history, self.num_results, self.exclude_seen, tuple(self.exclude_item_ids), self.timeout_ms
        )


AttributeText = Annotated[str, Field(max_length=4000)]
Attribute = Annotated[
    Annotated[AttributeText, Tag("~text")]
    | Annotated[bool, Tag("~flag")]
    | Annotated[Annotated[int, Field(ge=-(2**53), le=2**53)], Tag("~integer")]
    | Annotated[FiniteFloat, Tag("~number")]
    | Annotated[Annotated[list[AttributeText], Field(max_length=100)], Tag("~list")],
    Discriminator(_tag({bool: "~flag", int: "~integer", float: "~number", list: "~list"}, "~text")),
]


class ItemIn(_In):
    """One item of POST /items."""

    item_id: Name
    title: Text
    description: Text = ""
    attributes: Annotated[dict[Name, Attribute], Field(max_length=100)] = {}

    def record(self) -> ItemRecord:
        """The catalogue's form."""
        return ItemRecord(self.item_id, self.title, self.description, self.attributes)


ItemsBody = Annotated[
    Annotated[ItemIn, Tag("~one")]
    | Annotated[Annotated[list[ItemIn], Field(min_length=1, max_length=MAX_BATCH)], Tag("~many")],
    Discriminator(_tag({list: "~many"}, "~one")),
]


class RecommendedItemOut(BaseModel):
    """One place of an answer."""

    item_id: str
    score: float = Field(description="log-probability; of the model, or of the item's popularity in a fallback")
    rank: int
    source: Literal["model", "new_item", "fallback"]
    semantic_id: list[int]
    title: str


class RecommendResponse(BaseModel):
    """Answer of POST /recommend."""

    recommendation_id: str
    items: list[RecommendedItemOut]
    degraded: bool
    degraded_reasons: list[str]
    model_version: str
    catalog_version: int
    took_ms: float


class NeighbourOut(BaseModel):
    """A trained item near a posted one."""

    item_id: str
    title: str
    similarity: float


class GroundingOut(BaseModel):
    """What a posted item resembles."""

    neighbours: list[NeighbourOut]
    confidence: float


class ItemOut(BaseModel):
    """What became of one posted item."""

    item_id: str
    result: Literal["created", "updated", "unchanged", "rejected"]
    semantic_id: list[int] | None = None
    collides_with: str | None = None
    grounding: GroundingOut | None = None
    reason: str | None = None


class ItemsResponse(BaseModel):
    """Answer of POST /items, in the order of the request."""

    items: list[ItemOut]


class ModelResponse(BaseModel):
    """Answer of GET /model."""

    model_version: str
    catalog_version: int
    catalog_items: int
    new_items: int
    levels: int
    codes: int
    beam_width: int
    exclude_seen: bool
    data: str
    metrics: dict[str, Any]


def item_answer(item: IngestedItem) -> dict[str, Any]:
    """One `ItemOut`; what does not apply is left out."""
    answer: dict[str, Any] = {"item_id": item.item_id, "result": item.result, "semantic_id": item.semantic_id}
    if item.collides_with is not None:
        answer["collides_with"] = item.collides_with
    if item.grounding is not None:
        answer["grounding"] = {"neighbours": item.grounding.neighbours, "confidence": item.grounding.confidence}
    if item.reason is not None:
        answer["reason"] = item.reason
    return answer
