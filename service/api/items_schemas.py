"""Bodies of the items routes; unknown fields are refused.

pydantic lives in the schemas and nowhere deeper.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Discriminator, Field, FiniteFloat, Tag

from service.api.fields import Body, Name, Text, by_type
from service.ingest import IngestedItem
from service.model.checkpoint import ItemRecord

MAX_BATCH = 100

AttributeText = Annotated[str, Field(max_length=4000)]
Attribute = Annotated[
    Annotated[AttributeText, Tag("~text")]
    | Annotated[bool, Tag("~flag")]
    | Annotated[Annotated[int, Field(ge=-(2**53), le=2**53)], Tag("~integer")]
    | Annotated[FiniteFloat, Tag("~number")]
    | Annotated[Annotated[list[AttributeText], Field(max_length=100)], Tag("~list")],
    Discriminator(by_type({bool: "~flag", int: "~integer", float: "~number", list: "~list"}, "~text")),
]


class ItemIn(Body):
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
    Discriminator(by_type({list: "~many"}, "~one")),
]


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
