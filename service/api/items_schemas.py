"""Bodies of the items routes; unknown fields are refused.

pydantic lives in the schemas and nowhere deeper.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Discriminator, Field, FiniteFloat, Tag

from service.api.fields import Body, Name, Text, by_type
from service.catalog import Catalog, CatalogItem
from service.grounder import Grounded
from service.ingest import IngestedItem
from service.model.checkpoint import ItemRecord

MAX_BATCH = 100
SHOWN_MATES = 10
UNUSUAL = "the text is unlike anything the model was trained with; its recommendations will be guesses"

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
    confidence: float = Field(description="cosine to the nearest item the model was trained with")
    distances: list[float] = Field(description="share of the text that the codes so far leave unexplained, by level")
    warning: str | None = Field(None, description="set when the text is unlike anything the model knows")


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


class StoredItem(BaseModel):
    """An item as the catalogue has it."""

    item_id: str
    title: str
    description: str
    attributes: dict[str, Any]
    semantic_id: list[int]
    is_new: bool = Field(description="newer than the model")
    popularity: int = Field(description="interactions in the training data")
    shares_with: list[str] = Field(description="other items of this semantic ID, best first, at most ten")
    version: int = Field(description="catalogue version that last changed it; 0: as the checkpoint has it")
    catalog_version: int | None = None


class ItemsPage(BaseModel):
    """Answer of GET /items; no ``next_cursor`` means the end."""

    items: list[StoredItem]
    next_cursor: str | None
    catalog_version: int


class DeletedResponse(BaseModel):
    """Answer of DELETE /items/{item_id}."""

    item_id: str
    result: Literal["deleted"]


def item_answer(item: IngestedItem) -> dict[str, Any]:
    """One `ItemOut`; what does not apply is left out."""
    answer: dict[str, Any] = {"item_id": item.item_id, "result": item.result, "semantic_id": item.semantic_id}
    if item.collides_with is not None:
        answer["collides_with"] = item.collides_with
    if item.grounding is not None:
        answer["grounding"] = _grounding(item.grounding)
    if item.reason is not None:
        answer["reason"] = item.reason
    return answer


def stored_item(catalog: Catalog, item: CatalogItem) -> dict[str, Any]:
    """One `StoredItem`."""
    record = item.item
    others = [other for other in catalog.bucket(item.sid)[: SHOWN_MATES + 1] if other != record.item_id]
    return {
        "item_id": record.item_id,
        "title": record.title,
        "description": record.description,
        "attributes": dict(record.attributes),
        "semantic_id": item.sid,
        "is_new": item.is_new,
        "popularity": item.popularity,
        "shares_with": others[:SHOWN_MATES],
        "version": item.version,
    }


def _grounding(grounded: Grounded) -> dict[str, Any]:
    shown: dict[str, Any] = {"neighbours": grounded.neighbours, "confidence": grounded.confidence}
    shown["distances"] = grounded.distances
    return shown | {"warning": UNUSUAL} if grounded.unusual else shown
