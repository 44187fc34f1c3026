"""The typed Python client: `RecClient` and its asynchronous twin, over httpx.

    with RecClient("http://127.0.0.1:8000", api_key=key) as client:
        answer = client.recommend(user_id="42", num_results=5)
        client.post_events([Event("42", answer.items[0].item_id, "click", event_id="e-1")])

One deadline covers a call with its repeats; only what cannot happen twice is repeated; problem documents become typed
exceptions (`service.errors`). It imports nothing heavy: neither torch nor the service.
"""

from service.client.asynchronous import AsyncRecClient
from service.client.calls import Event, HistoryEntry, Item
from service.client.results import (
    CodesOfModel,
    Erased,
    EventsReport,
    Explanation,
    HistoryEvent,
    OpenedCode,
    PostedItem,
    Recommendation,
    RecommendedItem,
    ServedModel,
    SharedHistory,
)
from service.client.synchronous import RecClient

__all__ = [
    "AsyncRecClient",
    "CodesOfModel",
    "Erased",
    "Event",
    "EventsReport",
    "Explanation",
    "HistoryEntry",
    "HistoryEvent",
    "Item",
    "OpenedCode",
    "PostedItem",
    "RecClient",
    "Recommendation",
    "RecommendedItem",
    "ServedModel",
    "SharedHistory",
]
