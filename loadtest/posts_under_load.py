"""Two real services under load: how soon a posted item can be recommended where it was posted, and on the other.

    python -m loadtest.posts_under_load --checkpoint RUN/checkpoint --histories RUN/histories.jsonl --json FILE

Starts a Redis and two ``groundrec serve`` with the engine that the settings name (vLLM), sends them an open-loop load
of ``POST /recommend``, and meanwhile posts one item after another to the first. "Here" is the answer of
``POST /items``, which waits until the item can be recommended there (embedding included; its share is reported by
stage); "elsewhere" is the time from that answer until the other replica's catalogue has it. Finally both are asked for
the posted items alone.
The last line is one JSON object.
"""

import asyncio
import json
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer

from loadtest.live_catalog import own_redis, quantiles
from loadtest.open_loop import run_load
from loadtest.served_replica import load_histories, served_replica, stage_means

GIVE_UP_SECONDS = 10.0
WARM_UP_SECONDS = 5.0
POLL_SECONDS = 0.002
ASKED = 50
STAGES = ("grounding", "item_log", "item_visible", "catalog_build", "catalog_update")


async def post_and_watch(here: str, there: str, posts: int, pause: float) -> dict[str, Any]:
    """Post items one by one to ``here``; milliseconds until its answer, and from then until ``there`` has the item.

    Raises:
        RuntimeError: a post was not answered as created, or the other replica never showed it.
    """
    answered, followed = [], []
    async with AsyncExitStack() as stack:
        one, two = [
            await stack.enter_async_context(httpx.AsyncClient(base_url=u, timeout=GIVE_UP_SECONDS))
            for u in (here, there)
        ]
        for number in range(posts):
            start = time.perf_counter()
            answer = await one.post("/items", json=film(number))
            answered.append(time.perf_counter() - start)
            if answer.status_code != 200 or answer.json()["items"][0]["result"] != "created":
                raise RuntimeError(f"post {number}: {answer.status_code} {answer.text[:300]}")
            await _shown(two, f"load-{number}")
            followed.append(time.perf_counter() - start - answered[-1])
            await asyncio.sleep(pause)
    return {**quantiles("post_answered", answered), **quantiles("elsewhere_after_answer", followed)}


async def _shown(client: httpx.AsyncClient, item_id: str) -> None:
    end = time.monotonic() + GIVE_UP_SECONDS
    while (await client.get(f"/items/{item_id}")).status_code != 200:
        if time.monotonic() > end:
            raise RuntimeError(f"{item_id} did not come to {client.base_url} within {GIVE_UP_SECONDS:.0f} s")
        await asyncio.sleep(POLL_SECONDS)


def film(number: int) -> dict[str, Any]:
    """An item like no other, which a filter can name."""
    genre = ("Drama", "Comedy", "Action", "Horror")[number % 4]
    return {
        "item_id": f"load-{number}",
        "title": f"The {number} Nights",
        "attributes": {"genres": [genre], "load": number},
    }


async def recommended_alone(url: str, posts: int) -> int:
    """How many of the first `ASKED` posted items come back when a request's filter allows just that one."""
    async with httpx.AsyncClient(base_url=url, timeout=GIVE_UP_SECONDS) as client:
        found = 0
        for number in range(min(posts, ASKED)):
            rule = {"min": {"load": number}, "max": {"load": number}}
            body = {"history": [], "num_results": 1, "filter": rule}
            answer = (await client.post("/recommend", json=body)).json()
            found += [item["item_id"] for item in answer["items"]] == [f"load-{number}"]
    return found


async def hashes(urls: Sequence[str]) -> list[str]:
    """The catalogue's hash on each replica."""
    async with httpx.AsyncClient() as client:
        return [(await client.get(f"{url}/model")).json()["catalog_hash"] for url in urls]


async def measure(
    checkpoint: Path, histories: Path, rate: float, posts: int, pause: float, settings: str
) -> dict[str, Any]:
    """All of it; the load is split evenly and lasts as long as the posts are expected to."""
    async with AsyncExitStack() as stack:
        redis_url = await stack.enter_async_context(own_redis())
        users = await load_histories(redis_url, histories)
        starting = [served_replica(checkpoint, redis_url, settings) for _ in range(2)]
        urls = [(await stack.enter_async_context(each)).url for each in starting]
        idle = await post_and_watch(urls[0], urls[1], 1, 0.0)  # what is lazily loaded is loaded now
        seconds = posts * (pause + 0.1) + 2 * WARM_UP_SECONDS
        loads = [
            asyncio.create_task(run_load(url, users, rate / 2, seconds, seed, 30.0)) for seed, url in enumerate(urls)
        ]
        await asyncio.sleep(WARM_UP_SECONDS)
        times = await _posts(urls, posts, pause)
        return {
            "rate": rate,
            "posts": posts,
            "first_post_ms": idle["post_answered_p50_ms"],
            **times,
            "load_ended_before_posts": all(load.done() for load in loads),
            "stage_mean_ms": await stage_means(urls[0], STAGES),
            "load": [await load for load in loads],
            "same_hash": len(set(await hashes(urls))) == 1,
            "recommended_alone": [await recommended_alone(url, posts) for url in urls],
            "asked_alone": min(posts, ASKED),
        }


async def _posts(urls: Sequence[str], posts: int, pause: float) -> dict[str, Any]:
    async with httpx.AsyncClient() as client:  # the warm-up's item comes again, so that it is new
        await client.delete(f"{urls[0]}/items/load-0")
    await asyncio.sleep(1.0)
    return await post_and_watch(urls[0], urls[1], posts, pause)


def main(
    checkpoint: Annotated[Path, typer.Option(help="folder of a servable checkpoint")],
    histories: Annotated[Path, typer.Option(help="JSONL of user_id and items, as training writes it")],
    rate: Annotated[float, typer.Option(help="recommendations a second, both replicas together")] = 4.0,
    posts: Annotated[int, typer.Option(help="items that are posted one by one")] = 200,
    pause: Annotated[float, typer.Option(help="seconds between them")] = 0.2,
    settings: Annotated[Path | None, typer.Option(help="TOML file of further settings for both")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="write the figures here too")] = None,
) -> None:
    """Measure and print."""
    given = settings.read_text("utf-8") if settings else "kv_cache_gib = 0.5\nomp_threads = 1\n"
    line = json.dumps(asyncio.run(measure(checkpoint, histories, rate, posts, pause, given)))
    if json_file:
        json_file.write_text(line + "\n")
    typer.echo(line)


if __name__ == "__main__":
    typer.run(main)
