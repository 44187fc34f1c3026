"""Bodies of the event and user routes; unknown fields are refused.

pydantic lives in the schemas and nowhere deeper.
"""

from typing import Annotated

from pydantic import BaseModel, Discriminator, Field, FiniteFloat, Tag

from service.api.fields import Body, Name, by_type
from service.events import PostedEvent

MAX_EVENTS = 1000


class EventIn(Body):
    """One event of POST /events."""

    user_id: Name
    item_id: Name
    event: Annotated[str, Field(min_length=1, max_length=64)] = Field(
        description="its kind, one of `GET /model`'s `event_weights`"
    )
    timestamp: Annotated[FiniteFloat, Field(ge=0)] | None = Field(None, description="Unix seconds; default: now")
    event_id: Annotated[Name, Field(max_length=128)] | None = Field(
        None, description="makes the event idempotent, and lets an item occur more than once"
    )
    recommendation_id: Annotated[Name, Field(max_length=128)] | None = Field(
        None, description="the answer that led to it"
    )

    def posted(self) -> PostedEvent:
        """The use case's form."""
        return PostedEvent(
            self.user_id, self.item_id, self.event, self.timestamp, self.event_id, self.recommendation_id
        )


EventsBody = Annotated[
    Annotated[EventIn, Tag("~one")]
    | Annotated[Annotated[list[EventIn], Field(min_length=1, max_length=MAX_EVENTS)], Tag("~many")],
    Discriminator(by_type({list: "~many"}, "~one")),
]


class EventsResponse(BaseModel):
    """Answer of POST /events."""

    recorded: int = Field(description="events that were taken")
    duplicates: int = Field(description="events whose event_id was known")
    feedback_only: int = Field(description="of the recorded: their kind has weight 0, so they enter no history")
    unknown_items: int = Field(description="of the recorded: this replica's catalogue has no such item (yet)")


class HistoryEventOut(BaseModel):
    """One event of a stored history."""

    item_id: str
    timestamp: float
    event_id: str | None = None
    title: str | None = Field(None, description="absent for an item that is not in the catalogue")
    semantic_id: list[int] | None = None


class HistoryResponse(BaseModel):
    """Answer of GET /users/{user_id}/history, oldest first."""

    user_id: str
    events: list[HistoryEventOut]


class ErasedResponse(BaseModel):
    """Answer of DELETE /users/{user_id}."""

    user_id: str
    history: bool = Field(description="whether there was a history")
    feedback_entries: int = Field(description="how many feedback entries there were")
