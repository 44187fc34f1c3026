"""Bodies of the recommendation routes; unknown fields are refused.

pydantic lives in the schemas and nowhere deeper.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, Discriminator, Field, FiniteFloat, SkipValidation, Tag

from service.api.fields import Body, Name, Text, by_type
from service.filters import FilterRule
from service.recommendation import HistoryEntry, RecommendQuery

MAX_BATCH = 256


class HistoryEventIn(Body):
    """One past event of an inline history."""

    item_id: Name
    timestamp: FiniteFloat | None = Field(None, description="Unix seconds")
    event: Annotated[str, Field(max_length=64)] | None = Field(
        None, description="its kind; kinds of weight 0 are left out"
    )


HistoryItem = Annotated[
    Annotated[Name, Tag("~id")] | Annotated[HistoryEventIn, Tag("~event")],
    Discriminator(by_type({str: "~id"}, "~event")),
]


Scalar = Annotated[
    Annotated[Text, Tag("~text")]
    | Annotated[bool, Tag("~flag")]
    | Annotated[Annotated[int, Field(ge=-(2**53), le=2**53)], Tag("~integer")]
    | Annotated[FiniteFloat, Tag("~number")],
    Discriminator(by_type({bool: "~flag", int: "~integer", float: "~number"}, "~text")),
]
Values = Annotated[list[Scalar], Field(min_length=1, max_length=100)]
Fields = Field(max_length=20)


class FilterIn(Body):
    """Which items may be returned, by fields that items of the catalogue have (`GET /model` lists them)."""

    include: Annotated[dict[Name, Values], Fields] = Field({}, description="each field has one of its values")
    exclude: Annotated[dict[Name, Values], Fields] = Field({}, description="no field has any of its values")
    min: Annotated[dict[Name, FiniteFloat], Fields] = Field({}, description="numbers of at least this")
    max: Annotated[dict[Name, FiniteFloat], Fields] = Field({}, description="numbers of at most this")

    def rule(self) -> FilterRule | None:
        """The catalogue's form; None if it allows everything."""
        if not (self.include or self.exclude or self.min or self.max):
            return None
        return FilterRule(self.include, self.exclude, self.min, self.max)


class RecommendRequest(Body):
    """POST /recommend."""

    user_id: Name | None = Field(None, description="whose stored history is read")
    history: Annotated[list[HistoryItem], Field(max_length=1000)] | None = Field(
        None,
        description="used instead of the stored history; oldest first, or in order of its timestamps if all have one",
    )
    num_results: int = Field(10, ge=1, le=100)
    exclude_seen: bool | None = Field(None, description="leave out items of the history; default: the checkpoint's")
    exclude_item_ids: Annotated[list[Name], Field(max_length=1000)] = []
    filter: FilterIn | None = Field(None, description="enforced inside the beam: the answer is full while it can be")
    explain: bool = Field(False, description="say per item which past items share its codes, and each code's score")
    timeout_ms: Annotated[int, Field(ge=1, le=600_000)] | None = Field(
        None, description="less than the server's own deadline"
    )
    context: Annotated[dict[Name, Annotated[str, Field(max_length=256)]], Field(max_length=20)] = Field(
        {}, description="recorded with the recommendation's id"
    )

    def query(self) -> RecommendQuery:
        """The use case's form."""
        return RecommendQuery(
            self.user_id,
            None if self.history is None else tuple(map(_entry, self.history)),
            self.num_results,
            self.exclude_seen,
            tuple(self.exclude_item_ids),
            self.filter.rule() if self.filter else None,
            self.explain,
            self.timeout_ms,
            self.context,
        )


class BatchRequest(Body):
    """POST /recommend:batch; each request is checked by itself, so that one bad one spoils no other."""

    requests: Annotated[list[SkipValidation[RecommendRequest]], Field(min_length=1, max_length=MAX_BATCH)]


class SharedHistoryOut(BaseModel):
    """A past item that begins with the same codes."""

    item_id: str
    title: str
    shared_levels: int = Field(description="how many codes both begin with")


class BlendSharesOut(BaseModel):
    """The probability that each part of the blend gives an item; their weights are in GET /model."""

    model: float = Field(description="by the model's beam; 0 where it did not find the item")
    company: float = Field(description="by what others took beside or after the history; 0 where it is no neighbour")
    text: float = Field(description="by how near its text is to the history's")
    companion: str | None = Field(description="the item of the history that speaks most for it in company")


class ExplanationOut(BaseModel):
    """Why an item."""

    history: list[SharedHistoryOut] = Field(description="the past items with the longest common prefix, newest first")
    level_scores: list[float] = Field(description="log-probability of each code; empty where no beam found the item")
    blend: BlendSharesOut | None = Field(None, description="the parts of its score, where the model is blended")


class RecommendedItemOut(BaseModel):
    """One place of an answer."""

    item_id: str
    score: float = Field(description="log-probability; of the model, or of the item's popularity in a fallback")
    rank: int
    source: Literal["model", "new_item", "fallback"]
    semantic_id: list[int]
    title: str
    explanation: ExplanationOut | None = Field(None, description="if it was asked for")


class RecommendResponse(BaseModel):
    """Answer of POST /recommend."""

    recommendation_id: str
    items: list[RecommendedItemOut]
    degraded: bool
    degraded_reasons: list[str]
    model_version: str
    catalog_version: int
    took_ms: float


class BatchResultOut(BaseModel):
    """One entry's outcome: a recommendation (status 200) or a problem."""

    status: int
    recommendation: RecommendResponse | None = None
    problem: dict[str, object] | None = None


class BatchResponse(BaseModel):
    """Answer of POST /recommend:batch, in the order of the request."""

    results: list[BatchResultOut]


def _entry(given: str | HistoryEventIn) -> HistoryEntry:
    if isinstance(given, str):
        return HistoryEntry(given)
    return HistoryEntry(given.item_id, given.timestamp, given.event)
