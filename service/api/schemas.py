"""What requests and answers look like on the wire; unknown fields are refused.

pydantic lives in the schemas and nowhere deeper. The items routes have theirs in `items_schemas`.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Discriminator, Field, FiniteFloat, Tag

from service.api.fields import Body, Name, by_type
from service.recommend import RecommendQuery


class HistoryEvent(Body):
    """One past event; only the item matters today."""

    item_id: Name
    timestamp: FiniteFloat | None = None
    event: Annotated[str, Field(max_length=64)] | None = None


HistoryEntry = Annotated[
    Annotated[Name, Tag("~id")] | Annotated[HistoryEvent, Tag("~event")], Discriminator(by_type({str: "~id"}, "~event"))
]


class RecommendRequest(Body):
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
