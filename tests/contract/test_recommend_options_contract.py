"""What POST /recommend promises beyond the plain case: batches, filters, explanations, mixes, long histories."""

from pathlib import Path
from typing import Any

import pytest

from service.errors import EngineError
from service.model.checkpoint import Checkpoint
from tests.service_doubles import Running, ids, running
from tests.tiny_checkpoint import Shape, build

HISTORY = ["item-3", "item-4", "item-5"]


async def test_a_batch_answers_each_entry_as_if_it_had_come_alone(service: Running) -> None:
    requests: list[Any] = [
        {"history": HISTORY},
        {"num_results": 0},
        {"user_id": "nobody", "num_results": 3},
        {"histroy": []},
        7,
        {"history": [{"item_id": "a", "event": "klick"}]},
    ]
    answer = await service.post("/recommend:batch", {"requests": requests})
    results = answer["results"]
    assert [result["status"] for result in results] == [200, 422, 200, 422, 422, 422]
    assert results[0]["recommendation"]["items"] == (await service.recommend(history=HISTORY))["items"]
    assert results[1]["problem"]["errors"][0]["pointer"] == "/num_results"
    assert len(results[2]["recommendation"]["items"]) == 3
    assert "did you mean history?" in results[3]["problem"]["errors"][0]["detail"]
    assert results[5]["problem"]["errors"][0]["pointer"] == "/history/0/event"
    assert len({result["recommendation"]["recommendation_id"] for result in results if result["status"] == 200}) == 2


async def test_256_requests_are_one_batch_and_257_are_none(service: Running) -> None:
    whole = await service.post("/v1/recommend:batch", {"requests": [{"history": HISTORY}] * 256})
    assert len(whole["results"]) == 256 and {result["status"] for result in whole["results"]} == {200}
    for count in (0, 257):
        refused = await service.client.post("/recommend:batch", json={"requests": [{}] * count})
        assert refused.status_code == 422 and refused.json()["errors"][0]["pointer"] == "/requests"


async def test_a_dead_engine_degrades_the_entries_of_a_batch(service: Running) -> None:
    service.engine.failure = EngineError("dead")
    answer = await service.post("/recommend:batch", {"requests": [{"history": HISTORY}, {}]})
    first, second = [result["recommendation"] for result in answer["results"]]
    assert first["degraded_reasons"] == ["engine_unavailable"] and second["degraded"] is False


async def test_an_explanation_names_the_nearest_of_the_history_and_each_levels_score(
    service: Running, checkpoint: Checkpoint
) -> None:
    sids = {f"item-{n}": tuple(codes) for n, codes in enumerate(checkpoint.catalog_tensors().codes_NL.tolist())}
    answer = await service.recommend(history=list(sids)[:20], num_results=40, explain=True)
    shared_some = 0
    for item in answer["items"]:
        explanation = item["explanation"]
        assert sum(explanation["level_scores"]) == pytest.approx(item["score"])
        shares = {name: shared(sids[name], tuple(item["semantic_id"])) for name in list(sids)[:20]}
        longest = max(shares.values())
        expected = [name for name in reversed(shares) if shares[name] == longest > 0][:5]
        assert [relative["item_id"] for relative in explanation["history"]] == expected
        assert {relative["shared_levels"] for relative in explanation["history"]} <= {longest}
        shared_some += bool(expected)
    assert shared_some


def shared(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    return next((place for place, (a, b) in enumerate(zip(one, other, strict=True)) if a != b), len(one))


async def test_without_being_asked_nothing_is_explained(service: Running) -> None:
    answer = await service.recommend(history=HISTORY)
    assert not any("explanation" in item for item in answer["items"])
    cold = await service.recommend(explain=True)
    assert cold["items"][0]["explanation"] == {"history": [], "level_scores": []}


async def films(service: Running, count: int = 30) -> None:
    for number in range(count):
        attributes = {
            "released": 1990 + number,
            "genres": ["Drama", "Crime"] if number % 2 else ["Comedy"],
            "seen": True,
        }
        await service.item(item_id=f"film-{number}", title=f"a film {number}", attributes=attributes)


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ({"include": {"genres": ["Crime"]}}, {n for n in range(30) if n % 2}),
        ({"include": {"genres": ["Crime", "Comedy"]}, "min": {"released": 2010}}, set(range(20, 30))),
        ({"include": {"seen": [True]}, "exclude": {"genres": ["Comedy"]}}, {n for n in range(30) if n % 2}),
        ({"min": {"released": 1995}, "max": {"released": 1996.5}}, {5, 6}),
        ({"include": {"released": [1990, 1999]}}, {0, 9}),
        ({"include": {"genres": ["Western"]}}, set()),
    ],
)
@pytest.mark.parametrize("history", [HISTORY, []])
async def test_a_filtered_answer_is_full_and_nothing_else(
    service: Running, rule: dict[str, Any], expected: set[int], history: list[str]
) -> None:
    await films(service)
    answer = await service.recommend(history=history, filter=rule, num_results=100)
    assert set(ids(answer)) == {f"film-{n}" for n in expected}
    assert answer["degraded"] is False


async def test_a_filter_and_exclusions_together_still_fill_the_answer(service: Running) -> None:
    await films(service)
    body = {"history": HISTORY, "filter": {"include": {"genres": ["Crime"]}}, "num_results": 5}
    first = ids(await service.recommend(**body))
    second = ids(await service.recommend(**body, exclude_item_ids=first))
    assert len(first) == len(second) == 5 and not set(first) & set(second)


async def test_a_filter_on_a_field_nobody_has_names_the_nearest(service: Running) -> None:
    await films(service, 2)
    for history in (HISTORY, []):
        body = {"history": history, "filter": {"include": {"genre": ["Crime"]}}}
        refused = await service.client.post("/recommend", json=body)
        assert refused.status_code == 422, refused.text
        (error,) = refused.json()["errors"]
        assert error["pointer"] == "/filter/include/genre" and "did you mean 'genres'?" in error["detail"]


async def test_the_fields_of_filters_are_told(service: Running) -> None:
    await films(service)
    fields = {field["name"]: field for field in (await service.client.get("/model")).json()["filter_fields"]}
    assert fields["released"]["numeric"] is True
    assert fields["genres"]["numeric"] is False and set(fields["genres"]["values"]) == {"Drama", "Crime", "Comedy"}


async def test_a_cold_user_gets_popular_items_with_some_new_ones_newest_first(checkpoint: Checkpoint) -> None:
    async with running(checkpoint, cold_new_share=0.25) as service:
        for number in range(5):
            await service.item(item_id=f"new-{number}", title=f"a film {number}")
        answer = await service.recommend(num_results=12)
        assert ids(answer) == [
            *("item-0", "item-1", "item-2", "new-4", "item-3", "item-4", "item-5"),
            *("new-3", "item-6", "item-7", "item-8", "new-2"),
        ]
        scores = [item["score"] for item in answer["items"]]
        assert scores == sorted(scores, reverse=True)
        assert answer["degraded"] is False and {item["source"] for item in answer["items"]} == {"fallback"}
        everything = await service.recommend(num_results=100)
        assert len(set(ids(everything))) == len(everything["items"]) == 65


async def test_no_share_means_no_new_items_before_the_popular_ones(checkpoint: Checkpoint) -> None:
    async with running(checkpoint, cold_new_share=0) as service:
        await service.item(item_id="new", title="a film")
        assert ids(await service.recommend(num_results=60)) == [f"item-{n}" for n in range(60)]


async def test_a_history_longer_than_the_model_loses_whole_items_from_its_old_end(
    service: Running, checkpoint: Checkpoint
) -> None:
    longest = checkpoint.prompt.max_items
    history = [f"item-{n % 60}" for n in range(longest + 7)]
    await service.recommend(history=history)
    sids = [tuple(codes) for codes in checkpoint.catalog_tensors().codes_NL.tolist()]
    recent = [sids[n % 60] for n in range(7, longest + 7)]
    assert service.engine.requests[-1].prompt_ids == checkpoint.prompt.build(recent)
    assert "rec_history_truncated_total 1.0" in (await service.client.get("/metrics")).text


async def test_prompts_show_titles_of_trained_and_posted_items_if_the_model_was_trained_so(tmp_path: Path) -> None:
    titled = build(tmp_path / "titled", Shape(title_tokens=3))
    async with running(titled) as service:
        posted = await service.item(item_id="new", title="w7 w8 w9 w10")
        await service.recommend(history=["item-4", "new"])
        sids = [tuple(titled.catalog_tensors().codes_NL[4].tolist()), tuple(posted["semantic_id"])]
        prompt = service.engine.requests[-1].prompt_ids
        assert prompt == titled.prompt.build(sids, [titled.title_tokens().of("Title 4"), (7, 8, 9)])
        assert len(prompt) == len(titled.prompt.prefix_ids) + 3 + 2 + 3 + 3


async def test_only_titles_that_a_prompt_shows_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def noted(tokenizer: object, text: str) -> list[int]:
        read.append(text)
        return [7]

    monkeypatch.setattr("service.model.title_tokens.text_token_ids", noted)
    async with running(build(tmp_path / "titled", Shape(title_tokens=3, max_items=4))) as service:
        await service.recommend(history=[f"item-{n}" for n in range(20)])
    assert read == [f" Title {n}" for n in range(16, 20)]


async def test_the_engine_is_told_how_many_are_wanted_and_until_when(service: Running) -> None:
    await service.recommend(history=HISTORY, num_results=60)
    asked = service.engine.requests[-1]
    assert asked.num_results == 60 and asked.beam_width == 60 and asked.deadline is not None
    await service.recommend(history=HISTORY, num_results=3)
    assert service.engine.requests[-1].beam_width == 20, "never narrower than the checkpoint's"


async def test_an_engine_that_keeps_failing_is_left_alone(service: Running) -> None:
    service.engine.failure = EngineError("dead")
    for _ in range(8):
        assert (await service.recommend(history=HISTORY))["degraded_reasons"] == ["engine_unavailable"]
    assert len(service.engine.requests) == 5
    assert 'rec_circuit_open{dependency="engine"} 1.0' in (await service.client.get("/metrics")).text


async def test_an_impatient_client_cannot_open_the_circuit_for_others(service: Running) -> None:
    service.engine.hangs = True
    for _ in range(8):
        await service.recommend(history=HISTORY, timeout_ms=1)
    service.engine.hangs = False
    assert (await service.recommend(history=HISTORY))["degraded"] is False
