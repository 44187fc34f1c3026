"""What POST /events and the users routes promise: histories, feedback, erasure."""

import asyncio
from typing import Any

import pytest

from service.app import Parts
from service.errors import StorageError, StorageFullError
from service.model.checkpoint import Checkpoint
from service.stores.base import HistoryEvent
from service.stores.memory import MemoryHistory
from service.stores.memory_feedback import MemoryFeedback
from service.stores.memory_items import MemoryItemLog
from tests.service_doubles import Running, ids, running


async def history(service: Running, user_id: str = "42") -> list[str]:
    answer = await service.client.get(f"/users/{user_id}/history")
    return [event["item_id"] for event in answer.json()["events"]]


def event(item_id: str, **fields: Any) -> dict[str, Any]:
    return {"user_id": "42", "item_id": item_id, "event": "click", **fields}


async def test_one_event_or_many_enter_the_history_in_time_order(service: Running) -> None:
    one = await service.post("/events", event("item-9", timestamp=20))
    many = await service.post("/v1/events", [event("item-8", timestamp=10), event("item-7", timestamp=30)])
    assert one == {"recorded": 1, "duplicates": 0, "feedback_only": 0, "unknown_items": 0}
    assert many["recorded"] == 2
    assert await history(service) == ["item-8", "item-9", "item-7"]


async def test_what_was_posted_is_what_the_next_recommendation_reads(service: Running) -> None:
    await service.post("/events", [event(f"item-{n}", timestamp=n) for n in (3, 4, 5)])
    stored = await service.recommend(user_id="42", num_results=60)
    inline = await service.recommend(history=["item-3", "item-4", "item-5"], num_results=60)
    assert stored["items"] == inline["items"] and stored["degraded"] is False


async def test_an_event_id_counts_once_whenever_it_comes_again(service: Running) -> None:
    posted = [event("item-1", timestamp=1, event_id="a"), event("item-1", timestamp=2, event_id="b")]
    assert (await service.post("/events", posted))["recorded"] == 2
    again = await service.post("/events", posted)
    assert (again["recorded"], again["duplicates"]) == (0, 2)
    assert await history(service) == ["item-1", "item-1"]
    told = (await service.client.get("/metrics")).text
    assert 'rec_events_total{result="recorded"} 2.0' in told and 'rec_events_total{result="duplicate"} 2.0' in told


async def test_a_kind_of_weight_0_is_feedback_and_no_history(checkpoint: Checkpoint) -> None:
    feedback = MemoryFeedback()
    parts = Parts(item_log=MemoryItemLog(), histories=MemoryHistory(), feedback=feedback)
    async with running(checkpoint, parts, allow_volatile=True) as service:
        answer = await service.post("/events", [event("item-1", event="impression"), event("item-2", event="view")])
        assert (answer["recorded"], answer["feedback_only"]) == (2, 1)
        assert await history(service) == ["item-2"]
    kept = [(entry.item_id, entry.event, entry.weight) async for entry in feedback.events()]
    assert kept == [("item-1", "impression", 0.0), ("item-2", "view", 1.0)]


async def test_the_settings_say_which_kinds_there_are(checkpoint: Checkpoint) -> None:
    async with running(checkpoint, event_weights={"read": 2.0, "hide": 0.0}) as service:
        assert (await service.client.get("/model")).json()["event_weights"] == {"read": 2.0, "hide": 0.0}
        await service.post("/events", event("item-1", event="read"))
        refused = await service.client.post("/events", json=[event("item-1", event="read"), event("a", event="raed")])
        assert refused.status_code == 422
        (error,) = refused.json()["errors"]
        assert error["pointer"] == "/1/event" and "did you mean read?" in error["detail"]
        assert await history(service) == ["item-1"]


async def test_an_inline_history_leaves_out_kinds_of_weight_0_and_follows_its_times(service: Running) -> None:
    entries = [
        {"item_id": "item-5", "timestamp": 9, "event": "click"},
        {"item_id": "item-4", "timestamp": 8, "event": "dislike"},
        {"item_id": "item-3", "timestamp": 7},
    ]
    answer = await service.recommend(history=entries, num_results=60)
    assert answer["items"] == (await service.recommend(history=["item-3", "item-5"], num_results=60))["items"]
    refused = await service.client.post("/recommend", json={"history": [{"item_id": "a", "event": "klick"}]})
    assert refused.status_code == 422 and refused.json()["errors"][0]["pointer"] == "/history/0/event"


async def test_milliseconds_are_refused_with_the_reason(service: Running) -> None:
    refused = await service.client.post("/events", json=event("item-1", timestamp=1_764_000_000_000))
    assert refused.status_code == 422
    (error,) = refused.json()["errors"]
    assert error["pointer"] == "/timestamp" and "not milliseconds" in error["detail"]


async def test_items_the_catalogue_has_not_yet_are_taken_and_counted(service: Running) -> None:
    answer = await service.post("/events", event("later"))
    assert answer["unknown_items"] == 1
    await service.item(item_id="later", title="like Title 3")
    assert (await service.recommend(user_id="42"))["degraded"] is False


async def test_events_that_name_a_recommendation_are_credited_to_its_model(service: Running) -> None:
    answer = await service.recommend(history=["item-1"], num_results=3)
    model, clicked = answer["model_version"], ids(answer)[0]
    await service.post("/events", event(clicked, recommendation_id=answer["recommendation_id"]))
    await service.post("/events", event(clicked, recommendation_id="nonsense"))
    told = (await service.client.get("/metrics")).text
    assert f'rec_served_items_total{{model_version="{model}"}} 3.0' in told
    assert f'rec_feedback_total{{event="click",model_version="{model}"}} 1.0' in told
    assert 'rec_feedback_total{event="click",model_version="other"} 1.0' in told


async def test_ids_of_other_models_cannot_fill_the_metrics(service: Running) -> None:
    made_up = [event("item-1", recommendation_id=f"model{n}-{'0' * 32}") for n in range(50)]
    await service.post("/events", made_up)
    told = (await service.client.get("/metrics")).text
    assert told.count("rec_feedback_total{") <= 10


async def test_what_was_shown_is_recorded_with_its_context(checkpoint: Checkpoint) -> None:
    feedback = MemoryFeedback()
    parts = Parts(item_log=MemoryItemLog(), histories=MemoryHistory(), feedback=feedback)
    async with running(checkpoint, parts, allow_volatile=True) as service:
        answer = await service.recommend(user_id="42", context={"page": "home"}, num_results=4)
    (shown,) = [entry async for entry in feedback.served()]
    assert (shown.recommendation_id, list(shown.item_ids)) == (answer["recommendation_id"], ids(answer))
    assert (shown.user_id, shown.context, shown.fallback) == ("42", {"page": "home"}, "cold_user")


async def test_a_history_is_shown_with_titles_and_ids_with_slashes_work(service: Running) -> None:
    await service.post("/events", {**event("item-1", timestamp=5, event_id="e"), "user_id": "a/b/history"})
    await service.post("/events", {**event("gone", timestamp=6), "user_id": "a/b/history"})
    shown = (await service.client.get("/v1/users/a%2Fb%2Fhistory/history")).json()
    assert shown["user_id"] == "a/b/history"
    known, gone = shown["events"]
    assert (known["item_id"], known["timestamp"], known["event_id"], known["title"]) == ("item-1", 5, "e", "Title 1")
    assert len(known["semantic_id"]) == 3
    assert gone == {"item_id": "gone", "timestamp": 6}


async def test_an_erased_user_is_forgotten_everywhere(checkpoint: Checkpoint) -> None:
    histories, feedback = Breakable(), MemoryFeedback()
    parts = Parts(item_log=MemoryItemLog(), histories=histories, feedback=feedback)
    async with running(checkpoint, parts, allow_volatile=True) as service:
        await service.post("/events", [event("item-1"), {**event("item-2"), "user_id": "43"}])
        for user_id in ("42", "43"):
            await service.recommend(user_id=user_id)
        erased = await service.client.delete("/users/42")
        assert erased.json()["history"] is True and erased.json()["feedback_entries"] >= 1
        assert await history(service) == [] and await history(service, "43") == ["item-2"]
        again = await service.client.delete("/users/42")
        assert again.json() == {"user_id": "42", "history": False, "feedback_entries": 0}
        histories.failure = StorageError("down")
        assert (await service.recommend(user_id="42"))["items"][0]["source"] == "fallback", "no memory of it here"
        assert [entry.user_id async for entry in feedback.events()] == ["43"]


class Breakable(MemoryHistory):
    """Fails on demand."""

    failure: StorageError | None = None

    async def append(self, events: Any) -> list[bool]:
        if self.failure:
            raise self.failure
        return await super().append(events)

    async def recent(self, user_ids: Any, limit: int) -> list[list[str]]:
        if isinstance(self.failure, StorageError) and not isinstance(self.failure, StorageFullError):
            raise self.failure
        return await super().recent(user_ids, limit)


async def test_a_full_redis_is_said_and_recommendations_go_on(checkpoint: Checkpoint) -> None:
    histories = Breakable()
    await histories.append([("42", HistoryEvent("item-1", 1.0))])
    async with running(
        checkpoint, Parts(item_log=MemoryItemLog(), histories=histories), allow_volatile=True
    ) as service:
        histories.failure = StorageFullError("full")
        for _ in range(10):
            refused = await service.client.post("/events", json=event("item-2"))
            assert refused.status_code == 503 and int(refused.headers["retry-after"]) >= 1
            assert refused.json()["type"] == "urn:groundrec:problem:storage-full"
        assert (await service.recommend(user_id="42"))["degraded"] is False


async def test_a_redis_that_keeps_failing_is_left_alone_and_found_again(checkpoint: Checkpoint) -> None:
    histories = Breakable()
    async with running(
        checkpoint, Parts(item_log=MemoryItemLog(), histories=histories), allow_volatile=True
    ) as service:
        histories.failure = StorageError("down")
        for _ in range(6):
            assert (await service.recommend(user_id="42"))["degraded_reasons"] == ["history_unavailable"]
        told = (await service.client.get("/metrics")).text
        assert 'rec_circuit_open{dependency="redis"} 1.0' in told
        assert 'rec_dependency_up{dependency="redis"} 0.0' in told
        refused = await service.client.post("/events", json=event("item-2"))
        assert refused.status_code == 503 and "left alone" in refused.json()["detail"]
        histories.failure = None
        async with asyncio.timeout(10):
            while (await service.recommend(user_id="42"))["degraded"]:
                await asyncio.sleep(0.05)
        told = (await service.client.get("/metrics")).text
        assert 'rec_circuit_open{dependency="redis"} 0.0' in told


class Slow(MemoryFeedback):
    """Never takes what was served."""

    async def add_served(self, entries: Any) -> None:
        raise StorageError("down")

    async def add_events(self, entries: Any) -> None:
        raise StorageError("down")


async def test_an_answer_does_not_need_its_record_and_an_event_does(checkpoint: Checkpoint) -> None:
    parts = Parts(item_log=MemoryItemLog(), histories=MemoryHistory(), feedback=Slow())
    async with running(checkpoint, parts, allow_volatile=True) as service:
        assert (await service.recommend(history=["item-1"]))["degraded"] is False
        async with asyncio.timeout(5):
            while "rec_feedback_lost_total 1.0" not in (await service.client.get("/metrics")).text:
                await asyncio.sleep(0.01)
        assert (await service.client.post("/events", json=event("item-1"))).status_code == 503
        assert await history(service) == []


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"user_id": "42", "item_id": "a"}, "/event"),
        ({**event("a"), "timestamp": -1}, "/timestamp"),
        ([event("a"), {**event("b"), "event_id": ""}], "/1/event_id"),
        ([event("a")] * 1001, ""),
        ([], ""),
        ({**event("a"), "itemid": "b"}, "/itemid"),
    ],
)
async def test_a_bad_event_is_refused_by_its_place(service: Running, body: Any, pointer: str) -> None:
    answer = await service.client.post("/events", json=body)
    assert answer.status_code == 422
    assert pointer in [error["pointer"] for error in answer.json()["errors"]]
